"""What the script that tries the public reports makes of their tests."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.errors import Declined, DeclinedError
from tests.case_log import CASES, CaseLog, case_of
from tests.child_processes import child_environment, last_words

torch = pytest.importorskip("torch")
SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "check_cases.py"


@pytest.fixture(scope="module", name="script")
def _script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_names_say_their_report() -> None:
    assert case_of("test_a07_another_sm_count[x]") == 7
    assert case_of("tests/test_cases.py::test_a21_x") == 21
    assert case_of("test_every_report_has_a_test") is None
    assert len(CASES) == 27


def test_a_log_counts_and_fails_what_is_not_as_demanded() -> None:
    log, declined = CaseLog(), Declined(code="no_rule", reason="no row")

    def declining() -> Any:
        raise DeclinedError(declined)

    one = torch.zeros(3)
    log.same(one, one.clone())
    assert log.same_or_declined(lambda: one, one, "no_rule")
    assert not log.same_or_declined(declining, one, "no_rule")
    log.declines(declining, "flags", "no_rule")
    log.note("seen", 3)
    assert log.properties() == {"equal": 2, "demands": 1, "declined": {"no_rule: no row": 1}, "notes": {"seen": 3}}
    for wrong in (
        lambda: log.same(one, -one), lambda: log.same(one, one.double()), lambda: log.same(one, one[:2]),
        lambda: log.same_or_declined(declining, one, "kernel"), lambda: log.declines(lambda: one, "no_rule"),
        lambda: log.declines(declining, "flags"), lambda: log.demand(False),
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            wrong()
    assert log.equal == 2


def ran(outcome: str = "passed", **more: Any) -> dict[str, Any]:
    return {"test": "t", "outcome": outcome, "seconds": 1.0, "why": "", "equal": 2, "demands": 1, **more}


@pytest.mark.parametrize(
    ("tests", "outcome"),
    [
        ([ran()], "passed"),
        ([ran(), ran("skipped")], "passed"),
        ([ran(), ran(declined={"no_rule: x": 2})], "declined"),
        ([ran(declined={"no_rule: x": 2}), ran("failed", why="bytes")], "failed"),
        ([ran("skipped")], "not run"),
        ([], "not run"),
    ],
)
def test_a_report_is_as_bad_as_its_worst_test(script: dict[str, Any], tests: list[Any], outcome: str) -> None:
    found = script["record"](7, tests)
    assert (found["case"], found["outcome"], found["tests"]) == ("A7", outcome, len(tests))
    assert found["equal"] == 2 * len(tests)
    assert found["failed"] == (["t: bytes"] if outcome == "failed" else [])


def test_the_script_writes_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "cases.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(out), "--cpu", "--only", "16,25"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 0
    (claim,) = json.loads(out.read_text())["claims"]
    counts = claim["counts"]
    assert (counts["cases"], counts["passed"], counts["failed"], counts["not_run"]) == (2, 2, 0, 0)
    assert [(c["case"], c["outcome"]) for c in claim["cases"]] == [("A16", "passed"), ("A25", "passed")]
    assert counts["comparisons_equal"] == 8
    assert claim["card"] == "none (simulated libraries)"
    assert claim["failures"] == []


def test_a_long_failure_keeps_its_beginning_and_its_end(script: dict[str, Any]) -> None:
    class Crash:
        message = "the child ended with 1: " + "a frame\n" * 400 + "ModuleNotFoundError: No module named 'x'\n"

    class Report:
        class longrepr:
            reprcrash = Crash

    told = script["why"](Report)
    assert told.startswith("the child ended with 1: a frame")
    assert told.endswith("ModuleNotFoundError: No module named 'x'")
    assert len(told) < 800
    Crash.message = "short\nwords"
    assert script["why"](Report) == "short words"


def test_children_import_what_their_parent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it has it from: packages may lie in a folder that only the parent's path names."""
    (tmp_path / "only_here.py").write_text("VALUE = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CUBLAS_X", "1")
    text = "import os, only_here, gemmdesc, tests.child_processes\nprint(only_here.VALUE, os.environ.get('CUBLAS_X'))"
    environment = child_environment(without="CUBLAS", PYTHONHASHSEED="1")
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )  # fmt: skip
    assert done.stdout.split() == ["5", "None"], done.stderr


def test_last_words_are_whole_lines_of_the_end() -> None:
    text = "".join(f"line {i}\n" for i in range(1000)) + "Error: it\n"
    words = last_words(text, 100)
    assert words.endswith("line 999\nError: it")
    assert words.splitlines()[0].startswith("line 9")
    assert len(words) <= 120
    assert last_words("x" * 5000) == "x" * 5000
    assert last_words("") == ""
