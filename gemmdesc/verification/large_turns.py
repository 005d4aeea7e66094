"""Turns for shapes that take much of a device's memory, among processes that share it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gemmdesc.errors import InvalidInputError

#: Seconds between looks for a free turn.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class LargeTurns:
    """At most ``turns`` processes hold a shape of more than ``beyond_bytes`` at once; smaller ones never wait.

    A turn is a lock on a file in ``folder``, so that a process that dies gives its own back.  Picklable.

    Raises:
        InvalidInputError: there is no turn.
    """

    folder: Path
    turns: int
    beyond_bytes: int

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise InvalidInputError(f"turns must be at least 1 (got {self.turns})")

    @contextmanager
    def turn(self, footprint: int) -> Iterator[None]:
        """Held while a shape of ``footprint`` bytes is worked on; waits for as long as it takes."""
        with ExitStack() as held:
            if footprint > self.beyond_bytes:
                self.folder.mkdir(parents=True, exist_ok=True)
                while not self._taken(held):
                    time.sleep(_LOOK_SECONDS)
            yield

    def _taken(self, held: ExitStack) -> bool:
        # Only where processes share a GPU under Linux is there anything to lock.
        import fcntl

        for number in random.sample(range(self.turns), self.turns):
            file = (self.folder / f"large-{number}.lock").open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            # Closing the file gives the lock back.
            held.enter_context(file)
            return True
        return False
