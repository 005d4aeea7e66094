"""``gemmdesc equiv``: exit codes, JSON, launches beside the files, trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gemmdesc.cli import app
from tests.equivalence_texts import EXCHANGE, butterfly, kernel

DOWN, UP = kernel(butterfly(16, 8, 4, 2, 1)), kernel(butterfly(1, 2, 4, 8, 16))
RACE = kernel(EXCHANGE.replace("bar.sync 0;", ""), shared=1024)
ATOMIC = kernel("ld.global.b32 %r2, [%rd4];\nred.global.add.f32 [%rd2], %r2;")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["equiv", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"a": DOWN, "b": DOWN.replace("%r90", "%r91"), "c": UP, "race": RACE, "atomic": ATOMIC}
    for name, text in texts.items():
        (tmp_path / f"{name}.ptx").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("one", "other", "code", "word", "answer"),
    [
        ("a", "b", 0, "equal, assuming", "Equal"),
        ("a", "c", 1, "different at byte 0 behind parameter 1", "Different"),
        ("a", "race", 3, "no barrier", "Unknown"),
        ("race", "race", 3, "no barrier", "Unknown"),
        ("atomic", "atomic", 3, "nondeterministic", "Nondeterministic"),
    ],
)
def test_a_pair(folder: Path, one: str, other: str, code: int, word: str, answer: str) -> None:
    files = folder / f"{one}.ptx", folder / f"{other}.ptx"
    result = run(*files)
    assert result.exit_code == code
    assert word in result.stdout
    plain = run(*files, "--json")
    assert plain.exit_code == code
    assert json.loads(plain.stdout)["answer"] == answer


def test_a_partition(folder: Path) -> None:
    result = run("--partition", folder, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found) == {"classes", "refused"}
    assert found["classes"] == [["a.ptx", "b.ptx"], ["c.ptx"]]
    assert [set(r) for r in found["refused"]] == [{"file", "reason"}] * 2
    assert {r["file"] for r in found["refused"]} == {"race.ptx", "atomic.ptx"}
    text = run("--partition", folder).stdout
    assert "class 1: a.ptx, b.ptx" in text
    assert "refused: race.ptx" in text


def test_a_launch_comes_from_options_or_from_a_file_beside_the_text(tmp_path: Path) -> None:
    body = "ld.param.b32 %r2, [kernel_param_2];\nsetp.lt.s32 %p1, %r1, %r2;\n@%p1 st.global.b32 [%rd5], %r1;"
    files = tmp_path / "a.ptx", tmp_path / "b.ptx"
    for path in files:
        path.write_text(kernel(body, integers=1))
    assert run(*files).exit_code == 3
    assert "must give argument 2" in run(*files).stdout
    assert "arguments {2=7}" in run(*files, "--arg", "2=7").stdout
    files[1].with_suffix(".json").write_text(json.dumps({"arguments": {"2": 6}, "grid": [1, 1, 1]}))
    assert run(*files, "--arg", "2=7").exit_code == 1
    assert run(*files, "--arg", "2=6").exit_code == 0
    assert run(*files, "--arg", "2=6", "--block", "64").exit_code == 3
    assert run(*files, "--arg", "2=6", "--grid", "2,1,1").exit_code == 3


def test_fusible_sums_need_a_flag_or_the_assembled_text(tmp_path: Path) -> None:
    body = "ld.global.b32 %r2, [%rd4];\nmul.f32 %r3, %r2, %r2;\nadd.f32 %r4, %r3, %r2;\nst.global.b32 [%rd5], %r4;"
    files = tmp_path / "a.ptx", tmp_path / "b.ptx"
    files[0].write_text(kernel(body))
    files[1].write_text(kernel(body.replace("%r3", "%r9")))
    assert run(*files).exit_code == 3
    assert run(*files, "--no-fmad").exit_code == 0
    for path in files:
        path.with_suffix(".sass").write_text("FMUL R0, R1, R1 ;\nFADD R0, R0, R1 ;\n")
    assert run(*files).exit_code == 0


def test_a_tree_is_printed(folder: Path) -> None:
    result = run(folder / "a.ptx", "--tree", "1:0")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "add.f32"
    assert "p0[0:4]" in result.stdout
    assert run(folder / "race.ptx", "--tree", "1:0").exit_code == 3
    assert run(folder / "a.ptx", "--tree", "1:4").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("a.ptx",),
        ("a.ptx", "missing.ptx"),
        ("a.ptx", "b.ptx", "--grid", "x"),
        ("a.ptx", "b.ptx", "--grid", "0,1,1"),
        ("a.ptx", "b.ptx", "--arg", "n=3"),
        ("--partition", "missing"),
        ("a.ptx", "--tree", "nonsense"),
    ],
)
def test_misuse_is_one_line_and_code_two(folder: Path, arguments: tuple[str, ...]) -> None:
    result = run(*(folder / a if a.endswith(".ptx") or a == "missing" else a for a in arguments))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_launch_file_that_is_not_understood_is_misuse(folder: Path) -> None:
    for text in ("{", "[]", '{"frobnicate": 1}', '{"grid": [1, 1]}', '{"arguments": [1]}'):
        (folder / "a.json").write_text(text)
        result = run(folder / "a.ptx", folder / "b.ptx")
        assert result.exit_code == 2, text
        assert result.stderr.startswith("error: "), text


def test_a_merge_is_asked_for_by_name(folder: Path) -> None:
    one, other = folder / "a.ptx", folder / "c.ptx"
    assert run(one, other, "--merge", "zero padding").exit_code == 1
    unknown = run(one, other, "--merge", "anything")
    assert unknown.exit_code not in (0, 1, 3)
    assert "swapped operands" in unknown.output
