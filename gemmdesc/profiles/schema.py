"""The values of a profile: rows, their keys and evidence, and what is known of the measurement as a whole."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.problem import (
    ANSWER_ATTRIBUTES,
    AlgoConfig,
    ComputeType,
    DeviceId,
    Epilogue,
    GemmProblem,
    Launch,
    LibraryId,
    ScalarClass,
    attributes,
)
from gemmdesc.rule import Rule

#: Raised whenever a reader of the former version could misread a file.
SCHEMA_VERSION = 1
#: The kind of one product without an epilogue, alpha one and beta zero.
PLAIN = "plain"


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
class Family:
    """The part of a row's key that the problem alone decides."""

    a_dtype: DType
    b_dtype: DType
    d_dtype: DType
    compute_type: ComputeType
    scale_dtype: DType
    fast_accumulation: bool
    epilogue: Epilogue
    alpha_class: ScalarClass
    c_class: ScalarClass
    batched: bool

    def __str__(self) -> str:
        parts = [f"{f.name}={_word(getattr(self, f.name))}" for f in fields(self)]
        return " ".join(parts)


def family_of(problem: GemmProblem) -> Family:
    """The family that ``problem`` belongs to; ``c_class`` is the class of its beta."""
    return Family(
        a_dtype=problem.a_dtype,
        b_dtype=problem.b_dtype,
        d_dtype=problem.d_dtype,
        compute_type=problem.compute_type,
        scale_dtype=problem.scale_dtype,
        fast_accumulation=problem.fast_accumulation,
        epilogue=problem.epilogue,
        alpha_class=problem.alpha,
        c_class=problem.beta,
        batched=problem.batch_count > 1,
    )


@dataclass(frozen=True, kw_only=True)
class RowKey:
    """A family, and the answer's attributes that matter with their values, in the order of ``ANSWER_ATTRIBUTES``.

    Raises:
        InvalidInputError: an attribute is unknown, out of order or named twice.
    """

    family: Family
    answer: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.answer]
        if names != [name for name in ANSWER_ATTRIBUTES if name in names]:
            raise InvalidInputError(f"answer must name attributes of AlgoConfig once each, in its order (got {names})")

    @property
    def projection(self) -> tuple[str, ...]:
        """The attributes that take part."""
        return tuple(name for name, _ in self.answer)

    def __str__(self) -> str:
        return f"{self.family} | " + " ".join(f"{name}={value}" for name, value in self.answer)


def project(answer: AlgoConfig, projection: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """The named attributes of ``answer``, as a row's key holds them."""
    values = attributes(answer)
    return tuple((name, values[name]) for name in ANSWER_ATTRIBUTES if name in projection)


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

    Raises:
        InvalidInputError: the kind is empty.
    """

    kind: str
    command: str
    date: str
    scan: Scan

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


def sort_key(key: RowKey) -> tuple[str, tuple[int, ...]]:
    """Orders rows: by family as printed, then by attribute values, those that take no part first."""
    values = dict(key.answer)
    return str(key.family), tuple(values.get(name, -(2**62)) for name in ANSWER_ATTRIBUTES)


def _word(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower()
