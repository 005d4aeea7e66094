"""Children that die, hang, or never begin: what they had done is kept, and the items behind go on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gemmdesc.errors import CampaignError
from gemmdesc.verification.children import Died, Done, work_in_children

#: A child that stands by its command line: dies at one item, hangs at another, stops of itself before a third.
CHILD = """
import json, os, signal, sys, time
first, last, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(path, "a", buffering=1) as journal:
    for i in range(first, last):
        if i == 11:
            sys.exit(0)
        journal.write(json.dumps({"begin": i}) + "\\n")
        if i == 3:
            print("last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if i == 5:
            time.sleep(60)
        if i == 6:
            raise ValueError("no")
        journal.write(json.dumps({"done": i, "record": {"pid": os.getpid()}}) + "\\n")
"""


def command(part: range, journal: Path) -> list[str]:
    return [sys.executable, "-c", CHILD, str(part.start), str(part.stop), str(journal)]


def test_a_child_that_dies_costs_one_item() -> None:
    events = list(work_in_children(command, range(10), batch=8, silence_seconds=2.0, goes_on=lambda: True))
    assert [e.index for e in events] == list(range(10))
    died = {e.index: e.how for e in events if isinstance(e, Died)}
    assert died[3] == "killed by SIGSEGV: last words"
    assert died[5] == "killed by SIGKILL"
    assert died[6].startswith("exit code 1: Traceback")
    assert died[6].endswith("ValueError: no")
    assert set(died) == {3, 5, 6}
    pids = {e.index: e.record["pid"] for e in events if isinstance(e, Done)}
    assert pids[0] == pids[2] != pids[4]
    assert pids[4] not in (pids[7], pids[9])


def test_it_stops_where_the_child_or_the_caller_does() -> None:
    events = list(work_in_children(command, range(9, 20), batch=8, silence_seconds=9.0, goes_on=lambda: True))
    assert [e.index for e in events] == [9, 10]
    assert list(work_in_children(command, range(9, 20), batch=8, silence_seconds=9.0, goes_on=lambda: False)) == []


def test_children_that_never_begin_end_the_run() -> None:
    def broken(part: range, journal: Path) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no card')"]

    events = []
    with pytest.raises(CampaignError, match=r"reach their first item \(got exit code 1: no card\)"):
        events += list(work_in_children(broken, range(4), batch=2, silence_seconds=9.0, goes_on=lambda: True))


def test_a_run_that_is_left_ends_its_child() -> None:
    running = work_in_children(command, range(4, 7), batch=8, silence_seconds=60.0, goes_on=lambda: True)
    first = next(running)
    assert isinstance(first, Done)
    running.close()
    with pytest.raises(ProcessLookupError):
        __import__("os").kill(first.record["pid"], 0)
