"""Counting what ran where: our kernel, or the library with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from threading import Lock

from gemmdesc.errors import Declined


@dataclass(frozen=True, kw_only=True, order=True)
class Line:
    """How many products of one operator had one fate.

    ``code`` and ``reason``: of the decline; "" where we computed the product.  ``by_library``: whether torch's own
    library ran instead, as ``on_decline="library"`` asks.
    """

    operator: str
    code: str
    reason: str
    by_library: bool
    count: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """Products counted; ``str`` gives a table."""

    lines: tuple[Line, ...]

    @property
    def ours(self) -> int:
        """Products that we computed, with the library's bytes by plan."""
        return sum(x.count for x in self.lines if not x.code)

    @property
    def declined(self) -> int:
        """Products that we declined, whatever became of them."""
        return sum(x.count for x in self.lines if x.code)

    @property
    def library(self) -> int:
        """Declined products that torch's library ran."""
        return sum(x.count for x in self.lines if x.by_library)

    @property
    def by_operator(self) -> dict[str, tuple[int, int]]:
        """For each operator, how many we computed and how many we declined."""
        found: dict[str, tuple[int, int]] = {}
        for x in self.lines:
            ours, declined = found.get(x.operator, (0, 0))
            found[x.operator] = (ours + x.count * (not x.code), declined + x.count * bool(x.code))
        return found

    def __str__(self) -> str:
        if not self.lines:
            return "no products"
        title = f"{self.ours} products by plan, {self.declined} declined, of which the library ran {self.library}"
        rows = [f"  {name:<20}{ours:>9} by plan{declined:>9} declined"
                for name, (ours, declined) in sorted(self.by_operator.items())]  # fmt: skip
        why = [f"  {x.count:>9} x {x.operator} declined ({x.code}): {x.reason}"
               for x in sorted(self.lines, key=lambda x: -x.count) if x.code]  # fmt: skip
        return "\n".join([title, *rows, *why])


class Ledger:
    """Counts that threads may add to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, str, str, bool]] = Counter()
        self._tallies: dict[str, list[int]] = {}

    def add(self, operator: str, declined: Declined | None = None, *, by_library: bool = False) -> None:
        """Count one product of ``operator``."""
        code, reason = ("", "") if declined is None else (declined.code, declined.reason)
        with self._lock:
            self._counts[operator, code, reason, by_library] += 1

    def tally(self, operator: str) -> list[int]:
        """A count of one number, of products of ``operator`` that we computed beside those of :meth:`add`.

        Only who holds the interpreter's lock from reading it to writing it may add to it.
        """
        with self._lock:
            return self._tallies.setdefault(operator, [0])

    def report(self) -> Report:
        """What was counted so far."""
        with self._lock:
            counts = self._counts + Counter({(name, "", "", False): n for name, (n,) in self._tallies.items()})
            counted = list(counts.items())
        return Report(lines=tuple(sorted(_lines(counted))))

    def clear(self) -> None:
        """Count from nothing again."""
        with self._lock:
            self._counts.clear()
            for tally in self._tallies.values():
                tally[0] = 0


def _lines(counted: Iterable[tuple[tuple[str, str, str, bool], int]]) -> list[Line]:
    return [
        Line(operator=operator, code=code, reason=reason, by_library=by_library, count=count)
        for (operator, code, reason, by_library), count in counted
    ]


@cache
def process_ledger() -> Ledger:
    """The counts of this process's overrides and products."""
    return Ledger()


def report() -> Report:
    """What this process's overrides and functions did with each product so far; see also ``Override.report``."""
    return process_ledger().report()
