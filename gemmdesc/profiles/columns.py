"""Rows as flat records of plain values: the columns of the Parquet table, and the digest over them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gemmdesc.dtypes import DType, parse_dtype
from gemmdesc.errors import Declined, GemmdescError, ProfileError
from gemmdesc.plain import answer_from_plain, launch_from_plain, problem_from_plain, to_plain
from gemmdesc.problem import ANSWER_ATTRIBUTES, ComputeType, Epilogue, ScalarClass
from gemmdesc.profiles.evidence import Evidence, Example, Level, Range
from gemmdesc.profiles.keys import Family, RowKey
from gemmdesc.profiles.schema import DeclineOutcome, Outcome, ProfileRow, RuleOutcome
from gemmdesc.rule import parse_rule

if TYPE_CHECKING:
    import pyarrow as pa

Record = dict[str, Any]

_FAMILY_STRINGS = (
    "a_dtype", "b_dtype", "d_dtype", "compute_type", "scale_dtype", "epilogue", "alpha_class", "c_class",
)  # fmt: skip
_FAMILY_FLAGS = ("fast_accumulation", "batched")
_COUNTS = ("shapes", "draws", "mismatches", "excluded_rivals", "nondeterministic")
_RANGES = ("m", "n", "k", "splitk")


def arrow_schema() -> pa.Schema:
    """The table's columns; ``docs/profile_format.md`` explains each."""
    import pyarrow as pa

    def column(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
        return pa.field(name, kind, nullable=nullable)

    return pa.schema(
        [column(name, pa.string()) for name in _FAMILY_STRINGS]
        + [column(name, pa.bool_()) for name in _FAMILY_FLAGS]
        + [column(name, pa.int64(), nullable=True) for name in ANSWER_ATTRIBUTES]
        + [column(name, pa.string(), nullable=True) for name in ("rule", "decline_code", "decline_reason")]
        + [column("level", pa.string())]
        + [column(name, pa.int64()) for name in _COUNTS]
        + [column(f"{name}_{end}", pa.int64()) for name in _RANGES for end in ("min", "max")]
        + [column("launch_names", pa.list_(pa.string()))]
        + [column("example_problem", pa.string()), column("example_answer", pa.string())]
        + [column("example_launch", pa.string(), nullable=True)]
    )


def to_record(row: ProfileRow) -> Record:
    """The row as plain values by column."""
    family, evidence = row.key.family, row.evidence
    record: Record = {name: to_plain(getattr(family, name)) for name in (*_FAMILY_STRINGS, *_FAMILY_FLAGS)}
    values = dict(row.key.answer)
    record |= {name: values.get(name) for name in ANSWER_ATTRIBUTES}
    record |= _outcome_record(row.outcome)
    record |= {"level": evidence.level.value} | {name: getattr(evidence, name) for name in _COUNTS}
    for name in _RANGES:
        record |= {f"{name}_min": getattr(evidence, name).low, f"{name}_max": getattr(evidence, name).high}
    record["launch_names"] = list(evidence.launch_names)
    example = evidence.example
    record["example_problem"], record["example_answer"] = _json(example.problem), _json(example.answer)
    record["example_launch"] = None if example.launch is None else _json(example.launch)
    return record


def from_record(record: Record) -> ProfileRow:
    """The row that :func:`to_record` wrote.

    Raises:
        ProfileError: a value is missing, malformed or contradicts another.
    """
    try:
        family = Family(
            a_dtype=parse_dtype(record["a_dtype"]),
            b_dtype=parse_dtype(record["b_dtype"]),
            d_dtype=parse_dtype(record["d_dtype"]),
            scale_dtype=DType(record["scale_dtype"]),
            compute_type=ComputeType(record["compute_type"]),
            epilogue=Epilogue(record["epilogue"]),
            alpha_class=ScalarClass(record["alpha_class"]),
            c_class=ScalarClass(record["c_class"]),
            fast_accumulation=record["fast_accumulation"],
            batched=record["batched"],
        )
        answer = tuple((name, record[name]) for name in ANSWER_ATTRIBUTES if record[name] is not None)
        key = RowKey(family=family, answer=answer)
        return ProfileRow(key=key, outcome=_outcome(record), evidence=_evidence(record))
    except ProfileError:
        raise
    except (GemmdescError, KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"row must hold the columns of a profile ({error}) (got {record})") from error


def rows_digest(rows: Iterable[ProfileRow]) -> str:
    """sha256 (hex) over the rows' canonical JSON, one line each, in the order given."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(to_record(row), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _outcome_record(outcome: Outcome) -> Record:
    match outcome:
        case RuleOutcome(rule=rule):
            return {"rule": rule.text, "decline_code": None, "decline_reason": None}
        case DeclineOutcome(declined=declined):
            return {"rule": None, "decline_code": declined.code, "decline_reason": declined.reason}


def _outcome(record: Record) -> Outcome:
    rule, code, reason = record["rule"], record["decline_code"], record["decline_reason"]
    if rule is not None and code is None and reason is None:
        return RuleOutcome(rule=parse_rule(rule))
    if rule is None and code is not None and reason is not None:
        return DeclineOutcome(declined=Declined(code=code, reason=reason))
    raise ProfileError(
        f"row must hold either a rule or a decline with code and reason (got {rule!r}, {code!r}, {reason!r})"
    )


def _evidence(record: Record) -> Evidence:
    launch = record["example_launch"]
    counts: dict[str, int] = {name: record[name] for name in _COUNTS}
    m, n, k, splitk = (Range(low=record[f"{name}_min"], high=record[f"{name}_max"]) for name in _RANGES)
    return Evidence(
        level=Level(record["level"]),
        m=m,
        n=n,
        k=k,
        splitk=splitk,
        **counts,
        launch_names=tuple(record["launch_names"]),
        example=Example(
            problem=problem_from_plain(json.loads(record["example_problem"])),
            answer=answer_from_plain(json.loads(record["example_answer"])),
            launch=None if launch is None else launch_from_plain(json.loads(launch)),
        ),
    )


def _json(value: object) -> str:
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"))
