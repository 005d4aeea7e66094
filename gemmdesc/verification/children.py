"""Numbered items worked on in child processes, a batch at a time: a child that dies costs one item, not the run.

The child is a command line of the caller's.  It appends to a file, the journal, before each item and after it, so that
what it had done and what it was doing is known whatever becomes of it; another child goes on behind the item.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from gemmdesc.errors import CampaignError

#: Seconds between looks at a child and its journal.
_LOOK_SECONDS = 0.1
#: Children in a row that may end before their first item.
_MOST_STILLBORN = 3
#: Characters of a dead child's words that are kept: a crash says what it is at first, an exception at last.
_FIRST_WORDS, _LAST_WORDS = 600, 300


class Journal:
    """The child's end: what it does, told so that its death loses nothing."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def begin(self, index: int) -> None:
        """The item is worked on from now on."""
        self._file.write(json.dumps({"begin": index}) + "\n")

    def done(self, index: int, record: Any) -> None:
        """The item came to ``record``, which JSON can hold."""
        self._file.write(json.dumps({"done": index, "record": record}) + "\n")


@dataclass(frozen=True, kw_only=True)
class Done:
    """What an item came to."""

    index: int
    record: Any


@dataclass(frozen=True, kw_only=True)
class Died:
    """A child ended while it worked on an item, or between two (None); ``how``: one line, with its last words."""

    index: int | None
    how: str


def work_in_children(
    command: Callable[[range, Path], Sequence[str]],
    items: range,
    *,
    batch: int,
    silence_seconds: float,
    goes_on: Callable[[], bool],
) -> Iterator[Done | Died]:
    """What each of ``items`` came to, in order, in children that get at most ``batch`` of them.

    Args:
        command: of a child that works on these items and writes to this journal; it may stop early with exit code 0.
        silence_seconds: a child that has written nothing for so long is killed.
        goes_on: asked before each child.

    Raises:
        CampaignError: three children in a row ended before their first item; the message holds the last one's words.
    """
    first, stillborn = items.start, 0
    while first < items.stop and goes_on():
        reached, last = None, None
        for event in _child(command, range(first, min(first + batch, items.stop)), silence_seconds):
            yield event
            last = event
            reached = event.index if event.index is not None else reached
        if reached is not None:
            first, stillborn = reached + 1, 0
        elif isinstance(last, Died):
            stillborn += 1
            if stillborn == _MOST_STILLBORN:
                raise CampaignError(f"children must reach their first item (got {last.how})")
        else:
            return


def _child(
    command: Callable[[range, Path], Sequence[str]], part: range, silence_seconds: float
) -> Iterator[Done | Died]:
    with TemporaryDirectory() as folder:
        journal, words = Path(folder) / "journal.jsonl", Path(folder) / "stderr"
        journal.touch()
        with words.open("wb") as said, journal.open(encoding="utf-8") as told:
            child = subprocess.Popen(command(part, journal), stdout=subprocess.DEVNULL, stderr=said)
            try:
                begun = yield from _followed(child, told, silence_seconds)
            finally:
                if child.poll() is None:
                    child.kill()
                child.wait()
        if child.returncode != 0 or begun is not None:
            yield Died(index=begun, how=_how(child.returncode, words))


def _followed(
    child: subprocess.Popen[bytes], told: IO[str], silence_seconds: float
) -> Generator[Done | Died, None, int | None]:
    """The child's records as they come; returns the item that was begun and not done when it ended."""
    begun, rest, heard = None, "", time.monotonic()
    while True:
        ended = child.poll() is not None
        *lines, rest = (rest + told.read()).split("\n")
        for line in lines:
            heard, entry = time.monotonic(), json.loads(line)
            if "begin" in entry:
                begun = entry["begin"]
            else:
                begun = None
                yield Done(index=entry["done"], record=entry["record"])
        if ended:
            return begun
        if time.monotonic() - heard > silence_seconds:
            child.kill()
        time.sleep(_LOOK_SECONDS)


def _how(code: int, words: Path) -> str:
    lines = words.read_text(encoding="utf-8", errors="replace").splitlines()
    text = "; ".join(line.strip() for line in lines if line.strip())
    if len(text) > _FIRST_WORDS + _LAST_WORDS:
        text = f"{text[:_FIRST_WORDS]} ... {text[-_LAST_WORDS:]}"
    name = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{name}: {text}" if text else name
