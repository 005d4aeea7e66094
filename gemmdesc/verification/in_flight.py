"""What was being worked on when a campaign was cut off: it comes last in the next session.

A shape that kills a worker, or never ends, would else meet every session first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemmdesc.library.interface import Library
from gemmdesc.verification.kind_campaign import Verify
from gemmdesc.verification.kind_draws import KindItem
from gemmdesc.verification.kind_records import KindRecord


@dataclass(frozen=True, kw_only=True)
class Marking:
    """``verify``, with the item's key in a file of the worker's own while it is worked on.  Picklable."""

    verify: Verify
    folder: Path

    def __call__(self, library: Library, item: KindItem) -> KindRecord | None:
        mark = self.folder / f"{os.getpid()}.key"
        mark.write_text(item.key)
        record = self.verify(library, item)
        mark.unlink(missing_ok=True)
        return record


def take_marks(folder: Path) -> Iterator[str]:
    """The keys that a session left in ``folder``, which is made and emptied."""
    folder.mkdir(parents=True, exist_ok=True)
    for mark in sorted(folder.glob("*.key")):
        try:
            key = mark.read_text()
            mark.unlink()
        except FileNotFoundError:  # its worker, whose turn was over, has ended in between
            continue
        # A kill may come between making a file and writing it.
        if key:
            yield key
