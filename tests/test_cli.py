"""The command line: what it prints where, its exit codes, and whole commands on a simulated library."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gemmdesc import __version__
from gemmdesc.cli import app
from gemmdesc.cli.output import Progress
from gemmdesc.dtypes import DType
from gemmdesc.golden import Golden, Provenance, write_golden
from gemmdesc.plain import to_plain
from gemmdesc.profiles import DeclineOutcome, index_profile, profile_path, read_profile, write_profile
from gemmdesc.rule import Rule
from gemmdesc.verification.hidden import hidden_library, hide
from gemmdesc.verification.recording import Options as RecordingOptions
from gemmdesc.verification.recording import natural_examples, record
from tests.hidden_samples import hidden_profile
from tests.profile_samples import DECLINE, sample_answer, sample_profile, sample_row, sample_rule

SEED = 5
HIDDEN = hide(SEED)
COMMANDS = (
    "env", "probe", "show", "explain", "verify", "diff", "record", "lint", "replay", "audit", "stability", "demo",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No profile of this machine's is seen, and nothing is written to its user's folders."""
    folder = tmp_path / "profiles"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("GEMMDESC_PROFILES", str(folder))
    monkeypatch.setattr(import_module("gemmdesc.profiles.lookup"), "packaged_folder", lambda: None)
    return folder


def run(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def coarse(number: int, rule: Rule) -> Rule:
    """A rule whose steps keep few bits."""
    leaf = rule.structure.accumulator
    step = replace(leaf.step, fraction_bits=8)
    return replace(rule, structure=replace(rule.structure, accumulator=replace(leaf, step=step)))


def put(profile: Any, folder: Path) -> Path:
    path = profile_path(folder, profile.device, profile.library.version)
    write_profile(profile, path)
    return path


# --- common -----------------------------------------------------------------------------------------------------------


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)
    for command in COMMANDS:
        assert "--json" in run(command, "--help").stdout


def test_version() -> None:
    assert run("--version").stdout.strip() == __version__


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("diff", "only-one.parquet"),
        ("explain", "1", "2"),
        ("explain", "0", "2", "3"),
        ("show", "missing.parquet"),
        ("diff", "missing.parquet", "missing.parquet"),
        ("audit", "missing.parquet"),
        ("replay", "missing.parquet"),
        ("explain", "1", "2", "3", "--layout", "xx"),
        ("explain", "1", "2", "3", "--dtype", "float17"),
        ("verify", "--draws", "0"),
        ("probe", "--library", "simulated:x"),
        ("probe", "--library", "/no/such/libcublasLt.so"),
        ("probe", "--library", "simulated:1", "--arch", "sm_100"),
        ("probe", "--library", "simulated:1", "--kind", "tf32"),
        ("probe", "--library", "simulated:1", "--kind", "tf31"),
        ("verify", "--library", "simulated:1", "--kind", "plain"),
        ("verify", "--library", "simulated:1", "--kind", "plain", "--replay", "--aligned", "3"),
    ],
)
def test_bad_use_is_two_and_writes_no_data(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert not result.stdout
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_progress_lines_go_to_stderr_only_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        for done in range(1, 101):
            progress.report("work", done, 100)
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == ["work: 1/100 (0 s)", "work: 100/100 (0 s)"]


# --- env --------------------------------------------------------------------------------------------------------------


def test_env_works_without_a_gpu_and_in_json() -> None:
    result = run("env")
    assert result.exit_code == 0
    assert __version__ in result.stdout
    for arguments in (("--json", "env"), ("env", "--json")):
        data = json.loads(run(*arguments).stdout)
        assert data["versions"]["gemmdesc"] == __version__
        assert data["profiles"]["folders"]


# --- profiles ---------------------------------------------------------------------------------------------------------


def test_show_prints_rows_as_table_text_and_json(own_folders: Path) -> None:
    path = put(sample_profile(), own_folders)
    table = run("show", path)
    assert table.exit_code == 0
    assert "plain chain of 16" in table.stdout
    assert "declined: nondeterministic" in table.stdout
    assert run("show", path, "--text").stdout.startswith("card: A card")
    data = json.loads(run("--json", "show", "--arch", "sm_90").stdout)
    assert len(data["rows"]) == 4
    assert data["rows"][0]["rule"]
    assert run("show", "--arch", "sm_90-132", "--release", "13.1.0").exit_code == 0
    other = run("show", "--arch", "sm_80")
    assert other.exit_code == 2
    assert "sm_90-132/cublaslt-13.1.0" in other.stderr


def changed(path: Path, **changes: Any) -> Path:
    rows = (sample_row(**changes), *sample_profile().rows[1:])
    write_profile(sample_profile(*rows), path)
    return path


def test_diff_exit_codes(tmp_path: Path) -> None:
    old, same = tmp_path / "old.parquet", tmp_path / "same.parquet"
    rows = (sample_row(), sample_row(answer=sample_answer(algo_id=21), outcome=DECLINE))
    write_profile(sample_profile(*rows), old)
    write_profile(sample_profile(*rows), same)
    equal = run("diff", old, same)
    assert (equal.exit_code, equal.stdout) == (0, "no change\n")

    merged = tmp_path / "merged.parquet"
    row = replace(rows[0], outcome=replace(rows[0].outcome, rule=sample_rule(merge=DType.FLOAT16)))
    write_profile(sample_profile(row, rows[1]), merged)
    numeric = run("diff", old, merged)
    assert numeric.exit_code == 1
    assert numeric.stdout.startswith("merge_type_changed: 1")
    assert run("diff", old, merged, "--gate", "order_changed,split_changed").exit_code == 0
    assert run("diff", old, merged, "--gate", "any").exit_code == 1

    renamed = tmp_path / "renamed.parquet"
    write_profile(sample_profile(sample_row(names=("other", "splitKreduce")), rows[1]), renamed)
    assert run("diff", old, renamed).exit_code == 0
    assert run("diff", old, renamed, "--gate", "renamed_same_order").exit_code == 1
    assert json.loads(run("diff", old, renamed, "--json").stdout)[0]["kind"] == "renamed_same_order"
    assert run("diff", old, renamed, "--gate", "sideways").exit_code == 2


def test_audit(tmp_path: Path) -> None:
    sound = put(sample_profile(), tmp_path)
    assert run("audit", sound).exit_code == 0
    assert json.loads(run("audit", sound, "--json").stdout) == []
    bad = tmp_path / "bad.parquet"
    write_profile(sample_profile(sample_row(mismatches=2)), bad)
    result = run("audit", bad)
    assert result.exit_code == 1
    assert "mismatches" in result.stdout


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_from_a_recorded_answer(own_folders: Path, tmp_path: Path) -> None:
    put(sample_profile(), own_folders)
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"answer": to_plain(sample_answer())}))
    result = run("explain", 300, 500, 4111, "--answer", answer)
    assert result.exit_code == 0, result.output
    assert "verified" in result.stdout
    data = json.loads(run("explain", 300, 500, 4111, "--layout", "nt", "--answer", answer, "--json").stdout)
    assert data["answer"]["algo_id"] == 66
    assert data["problem"]["transa"] == "t"
    other = run("explain", 300, 500, 4111, "--dtype", "bfloat16", "--out-dtype", "float32", "--answer", answer)
    assert other.exit_code == 0
    assert "declined (no_rule)" in other.stdout


def test_explain_finds_a_profiles_own_example_and_else_asks_for_an_answer(own_folders: Path) -> None:
    put(sample_profile(), own_folders)
    # The sample's problem is 256 x 512 in column-major terms: torch's (512, k) x (k, 256).
    assert run("explain", 512, 256, 6832).exit_code == 0
    result = run("explain", 511, 256, 6832)
    assert result.exit_code == 2
    assert "--answer" in result.stderr


def test_explain_with_an_answer_that_is_none(own_folders: Path, tmp_path: Path) -> None:
    put(sample_profile(), own_folders)
    for text in ("{", "[]", '{"answer": {"tile": 3}}'):
        (tmp_path / "answer.json").write_text(text)
        assert run("explain", 3, 4, 5, "--answer", tmp_path / "answer.json").exit_code == 2


# --- replay -----------------------------------------------------------------------------------------------------------


def golden_file(folder: Path) -> Path:
    library, index = hidden_library(HIDDEN), index_profile(hidden_profile(HIDDEN))
    options = RecordingOptions(queries=200, side=4)
    examples = natural_examples(library, index, options, lambda *_: None)
    records = tuple(record(library, index, examples.items(), options, lambda *_: None))
    where = Provenance(device=library.device, library=library.identity, torch="none", command="test", date="today")
    path = folder / "simulated.parquet"
    write_golden(Golden(provenance=where, records=records), path)
    return path


def test_replay_compares_bytes(own_folders: Path, tmp_path: Path) -> None:
    path = golden_file(tmp_path / "golden")
    lacking = run("replay", path)
    assert lacking.exit_code == 2
    assert "no profile" in lacking.stderr
    put(hidden_profile(HIDDEN), own_folders)
    result = run("replay", path)
    assert result.exit_code == 0, result.output
    assert "simulated_tensorop_split" in result.stdout
    (data,) = json.loads(run("replay", "--golden", path.parent, "--json").stdout)
    assert sum(g["equal"] for g in data["groups"]) == sum(g["records"] for g in data["groups"]) > 0


def test_replay_fails_where_a_row_is_missing_or_wrong(own_folders: Path, tmp_path: Path) -> None:
    path = golden_file(tmp_path / "golden")
    put(hidden_profile(HIDDEN, lambda i, r: None if i == 1 else r), own_folders)
    assert run("replay", path).exit_code == 1
    put(hidden_profile(HIDDEN, coarse), own_folders)
    result = run("replay", path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["failures"]


# --- verify -----------------------------------------------------------------------------------------------------------


def verify(folder: Path, *more: str | int) -> Result:
    return run(
        *("verify", "--replay", "--library", f"simulated:{SEED}", "--draws", 1, "--workers", 1, "--folder", folder),
        *("--unrounded", 12, "--aligned", 0, "--deep", 0, "--named", 0, "--lost-tail", 0, *more),
    )


def test_verify_replays_a_simulated_library_and_resumes(own_folders: Path, tmp_path: Path) -> None:
    put(hidden_profile(HIDDEN), own_folders)
    result = verify(tmp_path / "v", "--json")
    assert result.exit_code == 0, result.output
    total = json.loads(result.stdout)["total"]["cublaslt"]
    assert total["shapes"] == 12
    assert total["equal"] > 0
    assert total["different"] == 0
    assert "verify: " not in verify(tmp_path / "v").stderr
    assert "against cublaslt" in verify(tmp_path / "v").stdout


def test_verify_is_one_where_bytes_differ(own_folders: Path, tmp_path: Path) -> None:
    put(hidden_profile(HIDDEN, coarse), own_folders)
    result = verify(tmp_path / "v", "--deep", 10)
    assert result.exit_code == 1, result.output
    assert "mismatches" in result.stdout


def test_verify_needs_a_profile_and_torchs_library_for_kernels(tmp_path: Path) -> None:
    assert "no profile" in verify(tmp_path / "v").stderr
    assert run("verify", "--library", "simulated:1").exit_code == 2


def test_verify_replays_kinds_and_resumes(own_folders: Path, tmp_path: Path) -> None:
    put(hidden_profile(HIDDEN), own_folders)
    arguments = (
        *("verify", "--replay", "--library", f"simulated:{SEED}", "--draws", 2, "--workers", 1, "--shapes", 9),
        *("--folder", tmp_path / "v", "--kind"),
    )
    result = run(*arguments, "plain", "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)["by_kind"]["plain"]
    assert counts["shapes"] == counts["equal"] == 9
    again = run(*arguments, "plain")
    assert "verify: " not in again.stderr
    assert "cublasLtMatmul against the replay" in again.stdout
    for kinds in (("tf32",), ("all",), ("tf31",)):
        assert run(*arguments, *kinds).exit_code == 2
    put(hidden_profile(HIDDEN, coarse), own_folders)
    differing = run(*arguments, "plain", "--folder", tmp_path / "w")
    assert differing.exit_code == 1, differing.output
    assert "mismatches" in differing.stdout


def test_verify_covers_a_family_and_resumes(own_folders: Path, tmp_path: Path) -> None:
    put(hidden_profile(HIDDEN), own_folders)
    arguments = ("verify", "--replay", "--library", f"simulated:{SEED}", "--draws", 2, "--workers", 1, "--coverage")
    part = ("float16=12", "--folder", tmp_path / "v", "--shard")
    result = run(*arguments, *part, "0/2", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["total"]["shapes"] == data["total"]["equal"] == data["total"]["replayed"] == 6
    assert data["sessions"][0]["shard"] == "0/2"
    again = run(*arguments, *part, "0/2")
    assert "coverage: " not in again.stderr
    assert "cublasLtMatmul against ours, by family" in again.stdout
    assert json.loads(run(*arguments, *part, "1/2", "--json").stdout)["total"]["shapes"] == 12
    late = run(*arguments, "float16=99", "--folder", tmp_path / "late", "--seconds", 0, "--json")
    assert json.loads(late.stdout)["total"]["shapes"] == 0
    for wrong in (("tf32",), ("float17",), ("float16", "--regime", "x"), ("float16", "--shapes", "3"),
                  ("float16", "--kind", "plain"), ("float16", "--shard", "2/2")):  # fmt: skip
        assert run(*arguments, *wrong, "--folder", tmp_path / "w").exit_code == 2
    assert not (tmp_path / "w").exists()
    put(hidden_profile(HIDDEN, coarse), own_folders)
    differing = run(*arguments, "float16=12", "--folder", tmp_path / "d")
    assert differing.exit_code == 1, differing.output
    assert "mismatches" in differing.stdout


def test_coverage_writes_the_profile_without_the_rows_that_it_refutes(own_folders: Path, tmp_path: Path) -> None:
    def one_wrong(number: int, rule: Rule) -> Rule:
        return coarse(number, rule) if number == 1 else rule

    served = put(hidden_profile(HIDDEN, one_wrong), own_folders)
    before = served.read_bytes()
    arguments = ("verify", "--replay", "--library", f"simulated:{SEED}", "--draws", 2, "--workers", 1, "--folder",
                 tmp_path / "v", "--coverage", "float16=40", "--json")  # fmt: skip
    applied = tmp_path / "applied" / served.name
    result = run(*arguments, "--apply", applied)
    assert result.exit_code == 1, result.output
    data = json.loads(result.stdout)
    (row,) = data["refuted"]
    assert 0 < row["different"] == data["total"]["different"] < 40
    assert f"{applied}: 1 rows refuted, " in result.stderr
    assert [p.read_bytes() for p in own_folders.rglob("*.parquet")] == [before]
    outcomes = [r.outcome for r in read_profile(applied).rows]
    assert sum(isinstance(o, DeclineOutcome) for o in outcomes) == 1
    # The same folder goes on with what was applied: the row's shapes decline, the others stay.
    put(read_profile(applied), own_folders)
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    after = json.loads(again.stdout)
    assert after["total"]["declined"] == row["different"] + row["equal"]
    assert (after["total"]["different"], after["stale"], after["refuted"]) == (0, {}, [])
    assert after["sessions"][1]["shapes"] == after["total"]["declined"]
    lines = [json.loads(x) for x in (tmp_path / "v" / "refuted.jsonl").read_text().splitlines()]
    assert 0 < len(lines) <= row["different"]
    assert {x["row"] for x in lines} == {row["row"]}
    # As it was: its records hold again, and nothing is refuted twice.
    put(hidden_profile(HIDDEN), own_folders)
    right = run(*arguments)
    assert (right.exit_code, json.loads(right.stdout)["total"]["equal"]) == (0, 40)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run(*arguments, "--apply", blocked / "x").exit_code == 2
    for wrong in (("--apply", applied), ("--former", applied)):
        assert run("verify", "--replay", "--library", f"simulated:{SEED}", "--shapes", 9, *wrong).exit_code == 2
    assert run(*arguments, "--former", blocked).exit_code == 2


def test_probe_refuses_refutations_of_another_library(own_folders: Path, tmp_path: Path) -> None:
    path = tmp_path / "refuted.jsonl"
    path.write_text('{"library":["13.1.0","x"],"device":"sm_90-132"}\n')
    result = run(
        "probe", "--library", "simulated:1", "--out", own_folders, "--workers", 1, "--campaign", tmp_path / "c",
        "--refuted", path,
    )  # fmt: skip
    assert result.exit_code == 2
    assert "refuted must be of" in result.stderr
    assert not (tmp_path / "c").exists()
    assert not own_folders.exists()


def test_power(own_folders: Path, tmp_path: Path) -> None:
    put(hidden_profile(HIDDEN), own_folders)
    result = verify(tmp_path / "p", "--power", 1, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert any(kinds["all"]["caught"] for kinds in data.values())


# --- probe and demo ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_probe_writes_the_profile_of_a_simulated_library(own_folders: Path, tmp_path: Path) -> None:
    result = run(
        *("probe", "--library", "simulated:1", "--out", own_folders, "--workers", 2, "--arch", "sm_90"),
        *("--campaign", tmp_path / "c", "--json"),
    )
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["rows_verified"] >= 4
    assert Path(data["path"]).is_file()
    assert run("show", data["path"]).exit_code == 0


def test_demo_replays_recorded_bytes_and_recovers_hidden_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    # The profile that came with this copy, which the other tests are kept from.
    monkeypatch.undo()
    result = run("demo", "--cpu", "--seed", 1)
    assert result.exit_code == 0, result.output
    assert "hidden" in result.stdout
    assert "cublaslt-13.1.0" in result.stdout
