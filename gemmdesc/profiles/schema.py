"""The values of a profile: rows, which join a key, an outcome and evidence, and what is known of the measurement."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.problem import ANSWER_ATTRIBUTES, DeviceId, LibraryId
from gemmdesc.profiles.evidence import Evidence
from gemmdesc.profiles.keys import RowKey, sort_key
from gemmdesc.rule import Rule

#: Raised whenever a reader of the former version could misread a file.
SCHEMA_VERSION = 1
#: The kind of one product without an epilogue, alpha one and beta zero.
PLAIN = "plain"


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """The arithmetic is known."""

    rule: Rule


@dataclass(frozen=True, kw_only=True)
class DeclineOutcome:
    """The arithmetic is not promised, and why.

    Raises:
        InvalidInputError: the code or the reason is empty.
    """

    declined: Declined

    def __post_init__(self) -> None:
        if not self.declined.code or not self.declined.reason:
            raise InvalidInputError(f"declined must hold a code and a reason (got {self.declined})")


Outcome = RuleOutcome | DeclineOutcome


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """One answer class of one family."""

    key: RowKey
    outcome: Outcome
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class Scan:
    """How the answers were enumerated.

    ``unseen_mass``: Good-Turing estimate of the probability that the next query brings an answer that no row takes,
    answers counted by what their row's key names and those of declining rows left out; in [0, 1], else
    InvalidInputError.  ``queries_per_second``: of the scan as a whole.
    """

    queries: int
    distinct_answers: int
    unseen_mass: float
    queries_per_second: float

    def __post_init__(self) -> None:
        if not 0 <= self.distinct_answers <= self.queries:
            raise InvalidInputError(
                f"distinct_answers must be in [0, {self.queries}], the queries (got {self.distinct_answers})"
            )
        if not 0 <= self.unseen_mass <= 1:
            raise InvalidInputError(f"unseen_mass must be in [0, 1] (got {self.unseen_mass})")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One campaign that a profile's rows come from.  ``kind``: the name of what it asked about, such as ``tf32``.

    ``first_guesses``: whose rows were tried first, in words; empty where the campaign began from scratch.

    Raises:
        InvalidInputError: the kind is empty.
    """

    kind: str
    command: str
    date: str
    scan: Scan
    first_guesses: str = ""

    def __post_init__(self) -> None:
        if not self.kind:
            raise InvalidInputError(f"kind must have a name (got {self.kind!r})")


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The measurement as a whole, or the plain kind's where a profile holds rows of several.

    ``measured``: every campaign that rows come from, one of each kind; a profile of before there were kinds was
    measured on plain products.  ``date``: ISO, the day it ended.  ``answer_key``: attributes of an answer that matter,
    in the order of ``ANSWER_ATTRIBUTES``.  ``excluded_attributes``: the others, each with how many distinct values were
    seen under one rule (at least 2 is what lets one be left out).

    Raises:
        InvalidInputError: an attribute is unknown, or named in both; a kind was measured twice.
    """

    command: str
    date: str
    answer_key: tuple[str, ...]
    excluded_attributes: tuple[tuple[str, int], ...]
    scan: Scan
    measured: tuple[Measured, ...] = ()

    def __post_init__(self) -> None:
        if not self.measured:
            whole = Measured(kind=PLAIN, command=self.command, date=self.date, scan=self.scan)
            object.__setattr__(self, "measured", (whole,))
        kinds = [m.kind for m in self.measured]
        if len(set(kinds)) != len(kinds):
            raise InvalidInputError(f"measured must hold one campaign of each kind (got {kinds})")
        named = sorted([*self.answer_key, *(name for name, _ in self.excluded_attributes)])
        if len(set(named)) != len(named) or not set(named) <= set(ANSWER_ATTRIBUTES):
            raise InvalidInputError(
                f"answer_key must name attributes of AlgoConfig, apart from the excluded (got {named})"
            )


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was measured on one card with one library; rows are kept sorted by key.

    Raises:
        InvalidInputError: a row's key uses an attribute that is not in ``metadata.answer_key``.
    """

    device: DeviceId
    library: LibraryId
    metadata: Metadata
    rows: tuple[ProfileRow, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            extra = set(row.key.projection) - set(self.metadata.answer_key)
            if extra:
                raise InvalidInputError(f"rows must use attributes of the answer key only (got {sorted(extra)})")
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: sort_key(row.key))))


