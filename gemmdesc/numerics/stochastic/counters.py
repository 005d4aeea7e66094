"""Counters of numerical instabilities, after CADNA: what went wrong, in which operation, and where in the program.

The seven kinds and their tests follow CADNA (F. Jezequel, J.-M. Chesneaux, *Comput. Phys. Commun.* 178, 2008).  An
element counts once for an operation, under the first kind that applies.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

_HERE = str(Path(__file__).resolve().parent)


class Level(Enum):
    """Nothing is tested; kinds are counted; every event is kept with its place as well."""

    OFF = "off"
    SUMMARY = "summary"
    DETAILED = "detailed"


class Kind(Enum):
    """What was unstable; in the order in which the tests are made."""

    MATHEMATICAL = "mathematical"
    CANCELLATION = "cancellation"
    DIVISION = "division"
    MULTIPLICATION = "multiplication"
    POWER = "power"
    INTRINSIC = "intrinsic"
    BRANCHING = "branching"


@dataclass(frozen=True, kw_only=True)
class Event:
    """``elements`` of one operation met one instability; ``place`` is ``file:line`` of the caller."""

    kind: Kind
    operation: str
    elements: int
    place: str


class Counters:
    """What one run met so far."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self._counts: Counter[Kind] = Counter()
        self._events: list[Event] = []

    @property
    def counts(self) -> dict[Kind, int]:
        """Elements per kind, all kinds present."""
        return {kind: self._counts[kind] for kind in Kind}

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    @property
    def events(self) -> tuple[Event, ...]:
        """All events in order; empty unless the level is detailed."""
        return tuple(self._events)

    def clear(self) -> None:
        self._counts.clear()
        self._events.clear()

    def record(self, operation: str, found: list[tuple[Kind, Any]]) -> None:
        """Count the elements of ``found``, bool lanes per kind in the order of the tests."""
        taken: Any = None
        for kind, lanes in found:
            fresh = lanes if taken is None else lanes & ~taken
            taken = lanes if taken is None else taken | lanes
            elements = int(fresh.sum())
            if elements:
                self._counts[kind] += elements
                if self.level is Level.DETAILED:
                    self._events.append(Event(kind=kind, operation=operation, elements=elements, place=_place()))


def _place() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
