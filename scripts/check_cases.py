"""Do the 27 public reports pass, or decline as their text allows?  Runs their tests and writes a record of each.

    PYTHONPATH=. python scripts/check_cases.py OUT.json [--cpu] [--only 7,21] [--seconds 900]

The tests are those of ``tests/test_cases.py`` and, on a GPU, of ``tests/test_cases_gpu.py``, whose names begin with
their report's number.  OUT.json has one claim: whether each report passed, declined (all is as demanded, but some
comparisons declined where its text leaves room for it), failed, or was not run; how many comparisons were equal and how
many declined, by reason; what tests were asked to note; and what failed.  ``--cpu`` leaves out what needs a card.

Reports run in a child process, one after the other, which goes on in another where one ends it or leaves the card
unusable: that one has failed, and the rest is tested.  ``--here --only 7`` runs a report in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from run_stamp import run_stamp

from gemmdesc.verification.children import Died, Done, Journal, work_in_children
from tests.case_log import CASES, case_of

ROOT = Path(__file__).resolve().parent.parent
FILES = ("tests/test_cases.py", "tests/test_cases_gpu.py")
#: A report that has told nothing for so long is ended.
SILENCE_SECONDS = 420.0
#: Characters of a failure that are kept: an assertion says what it is at first, a child's traceback at last.
FIRST_WORDS, LAST_WORDS = 200, 500
#: With this code a child ends that leaves an unusable card behind.
UNUSABLE = 3


class Recorder:
    """A pytest plugin that runs some reports' tests in their order, and tells what each report came to."""

    def __init__(self, chosen: list[int], sink: Any) -> None:
        self.chosen, self.sink = chosen, sink
        self.open: int | None = None
        self.tests: list[dict[str, Any]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of the chosen reports, report by report."""
        kept = [item for item in items if case_of(item.name) in self.chosen]
        items[:] = sorted(kept, key=lambda item: case_of(item.name) or 0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a report, and those before it that have no test here."""
        number = case_of(nodeid)
        assert number is not None
        if number != self.open:
            self.close()
            self.open = number
            self.sink.begin(number)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's outcome from its call, or from what kept it from being made, and its counts."""
        if report.when == "setup":
            self.tests.append({"test": report.nodeid.partition("::")[2], "outcome": "passed", "seconds": 0.0})
        test = self.tests[-1]
        test["seconds"] = round(test["seconds"] + report.duration, 2)
        if report.outcome != "passed":
            test |= {"outcome": report.outcome, "why": why(report)}
        if report.when == "teardown":
            test |= dict(report.user_properties)

    def close(self) -> None:
        """Tell of the report that is open."""
        if self.open is None:
            return
        self.sink.done(self.open, self.tests)
        self.open, self.tests = None, []
        if not is_usable():
            os._exit(UNUSABLE)


def why(report: pytest.TestReport) -> str:
    """What a failure says, its beginning and its end where it is long, or a skip's reason."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[-1])
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    told = " ".join(text.split())
    short = len(told) <= FIRST_WORDS + LAST_WORDS
    return told if short else f"{told[:FIRST_WORDS]} [...] {told[-LAST_WORDS:]}"


def is_usable() -> bool:
    """Whether the CUDA context, if there is one, still works."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    torch.cuda.empty_cache()
    return True


class Printed:
    """Shows what each report came to."""

    def begin(self, number: int) -> None:
        """Nothing is known yet."""

    def done(self, number: int, tests: list[dict[str, Any]]) -> None:
        print(json.dumps(record(number, tests), indent=1), flush=True)


def run_tests(args: argparse.Namespace, numbers: list[int], sink: Any) -> int:
    """The reports' tests in this process."""
    recorder = Recorder(numbers, sink)
    files = [str(ROOT / name) for name in (FILES[:1] if args.cpu else FILES)]
    # Slow ones too.  What pytest prints is a child's last words, should it end.
    with redirect_stdout(sys.stderr):
        code = pytest.main([*files, "-q", "--no-header", "-p", "no:cacheprovider", "-m", "gpu or not gpu"], [recorder])
    recorder.close()
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else 2


def record(number: int, tests: list[dict[str, Any]]) -> dict[str, Any]:
    """What a report came to: failed where a test did, declined where a comparison did, passed else."""
    declined: Counter[str] = Counter()
    notes: dict[str, Any] = {}
    for test in tests:
        declined.update(test.get("declined", {}))
        notes |= test.get("notes", {})
    outcomes = Counter(test["outcome"] for test in tests)
    if outcomes["failed"]:
        outcome = "failed"
    elif not outcomes["passed"]:
        outcome = "not run"
    else:
        outcome = "declined" if declined else "passed"
    return {
        "case": f"A{number}", "what": CASES[number], "outcome": outcome, "tests": len(tests),
        "skipped": outcomes["skipped"], "equal": sum(t.get("equal", 0) for t in tests),
        "declined": sum(declined.values()), "other_demands": sum(t.get("demands", 0) for t in tests),
        "seconds": round(sum(t["seconds"] for t in tests), 1), "reasons": dict(declined.most_common()), "notes": notes,
        "failed": [f"{t['test']}: {t['why']}" for t in tests if t["outcome"] == "failed"],
    }  # fmt: skip


def claim_of(records: list[dict[str, Any]], stamp: dict[str, Any]) -> dict[str, Any]:
    """The claim that results are made from."""
    outcomes = Counter(r["outcome"] for r in records)
    counts = {
        "cases": len(records), "passed": outcomes["passed"], "declined_as_allowed": outcomes["declined"],
        "failed": outcomes["failed"], "not_run": outcomes["not run"], "tests": sum(r["tests"] for r in records),
        "comparisons_equal": sum(r["equal"] for r in records),
        "comparisons_declined": sum(r["declined"] for r in records),
    }  # fmt: skip
    shown = ("case", "what", "outcome", "tests", "skipped", "equal", "declined", "other_demands", "seconds")
    reasons: Counter[str] = Counter()
    for r in records:
        reasons.update({f"{r['case']} {reason}": n for reason, n in r["reasons"].items()})
    return {
        "claim": "public reports, each tried as it tells and demanded as it should be", **stamp, "counts": counts,
        "cases": [{name: r[name] for name in shown} for r in records],
        "notes": [{"case": r["case"], "note": n, "value": value} for r in records for n, value in r["notes"].items()],
        "reasons": dict(reasons), "failures": [text for r in records for text in r["failed"]],
    }  # fmt: skip


def supervise(args: argparse.Namespace, numbers: list[int], stamp: dict[str, Any]) -> list[dict[str, Any]]:
    """Every report's record, from children; OUT.json is rewritten after each."""
    end, found = time.monotonic() + args.seconds, {n: record(n, []) for n in numbers}

    def command(items: range, journal: Path) -> list[str]:
        chosen = [n for n in numbers if n in items]
        own = [sys.executable, "-X", "faulthandler", __file__, str(journal), "--journal"]
        return [*own, "--only", ",".join(map(str, chosen)), *["--cpu"] * args.cpu]

    items = range(min(numbers), max(numbers) + 1)
    goes_on = lambda: time.monotonic() < end  # noqa: E731
    for event in work_in_children(
        command, items, batch=len(items), silence_seconds=SILENCE_SECONDS, goes_on=goes_on
    ):  # fmt: skip
        if isinstance(event, Done):
            found[event.index] = record(event.index, event.record)
            told = found[event.index]
            print(f"{told['case']:<4}{told['outcome']:<10}{told['equal']:>6} equal{told['declined']:>6} declined "
                  f"{told['seconds']:>7} s  {told['what']}", *told["failed"], sep="\n    ", flush=True)  # fmt: skip
        elif isinstance(event, Died) and event.index in found:
            dead = {"test": "the process", "outcome": "failed", "seconds": 0.0, "why": event.how}
            found[event.index] = record(event.index, [dead])
            print(f"A{event.index} ended its process: {event.how}", flush=True)
        aside = args.out.with_suffix(".tmp")
        aside.write_text(json.dumps({"claims": [claim_of(list(found.values()), stamp)]}, indent=1))
        os.replace(aside, args.out)
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cpu", action="store_true", help="only what needs no card")
    parser.add_argument("--only", help="reports by number, joined by commas")
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--here", action="store_true", help="no child process, and no file")
    parser.add_argument("--journal", action="store_true", help="be a child: OUT.json is its journal")
    args = parser.parse_args()
    numbers = sorted(CASES) if args.only is None else sorted({int(n) for n in args.only.split(",")})
    if not set(numbers) <= set(CASES):
        parser.error(f"--only must hold numbers of 1 to {max(CASES)}")
    if args.here or args.journal:
        return run_tests(args, numbers, Journal(args.out) if args.journal else Printed())
    records = supervise(args, numbers, run_stamp("none (simulated libraries)" if args.cpu else None))
    print(claim_of(records, {})["counts"])
    return 0 if all(r["outcome"] in ("passed", "declined") for r in records) else 1


if __name__ == "__main__":
    sys.exit(main())
