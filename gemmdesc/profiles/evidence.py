"""What a row of a profile rests on, and how far that supports it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gemmdesc.errors import InvalidInputError
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch


class Level(Enum):
    """How well a row is supported, weakest first.

    PUBLISHED: taken from prior work.  OBSERVED: read on one shape.  INFERRED: the only rule left after elimination.
    VERIFIED: bytes equal on shapes and draws that inference never saw.
    """

    PUBLISHED = "published"
    OBSERVED = "observed"
    INFERRED = "inferred"
    VERIFIED = "verified"

    def reaches(self, needed: Level) -> bool:
        """Whether this level is ``needed`` or better."""
        levels = list(Level)
        return levels.index(self) >= levels.index(needed)


def parse_level(level: Level | str) -> Level:
    """``level`` itself, or the level so spelled.

    Raises:
        InvalidInputError: there is none.
    """
    try:
        return Level(level)
    except ValueError:
        known = ", ".join(known.value for known in Level)
        raise InvalidInputError(f"accept must be one of {known} (got {level!r})") from None


@dataclass(frozen=True, kw_only=True)
class Range:
    """Smallest and largest value seen, both at least 1 and in order, else InvalidInputError."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise InvalidInputError(f"low must be at least 1 and at most high (got {self.low}, {self.high})")

    def holds(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One call that the row answers; ``launch`` where it was captured."""

    problem: GemmProblem
    answer: AlgoConfig
    launch: Launch | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a row rests on.

    ``shapes``: distinct problems compared in verification, with ``draws`` comparisons on them and ``mismatches`` among
    those.  ``excluded_rivals``: rules that fitted for a while and were refuted.  ``nondeterministic``: calls whose
    bytes varied from run to run.  ``m``, ``n``, ``k``, ``splitk``: what was seen of each (a ``splitk_num`` of 0 counts
    as 1).  ``launch_names``: names of the kernels launched, sorted and distinct.

    Raises:
        InvalidInputError: a count is negative, or a verified row lacks shapes or draws.
    """

    level: Level
    shapes: int
    draws: int
    mismatches: int
    excluded_rivals: int
    nondeterministic: int
    m: Range
    n: Range
    k: Range
    splitk: Range
    launch_names: tuple[str, ...]
    example: Example

    def __post_init__(self) -> None:
        for name in ("shapes", "draws", "mismatches", "excluded_rivals", "nondeterministic"):
            if getattr(self, name) < 0:
                raise InvalidInputError(f"{name} must be at least 0 (got {getattr(self, name)})")
        if self.mismatches > self.draws:
            raise InvalidInputError(f"mismatches must be at most draws, {self.draws} (got {self.mismatches})")
        if self.level is Level.VERIFIED and (not self.shapes or self.draws < self.shapes):
            raise InvalidInputError(
                f"shapes must be at least 1, and draws no fewer, on a verified row (got {self.shapes}, {self.draws})"
            )
        if list(self.launch_names) != sorted(set(self.launch_names)):
            raise InvalidInputError(f"launch_names must be sorted and distinct (got {self.launch_names})")
