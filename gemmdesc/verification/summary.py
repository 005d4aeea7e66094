"""Records counted: by regime, kernel family and type; declines apart by scope; the names that scope was read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gemmdesc.plain import answer_from_plain, problem_from_plain
from gemmdesc.profiles import Compared
from gemmdesc.verification.records import REFERENCES, Outcome, Record
from gemmdesc.verification.scope import Scope, names_tensor_cores, short_name

Key = TypeVar("Key", bound=Hashable)


def in_scope(record: Record) -> bool:
    """Whether the library's own launch runs on the tensor cores; what could not be captured counts as in scope."""
    return record.scope is not Scope.CUDA_CORES


def counts_of(records: Iterable[Record], reference: str) -> dict[str, int]:
    """shapes and their outcomes against one reference, and the draws that were compared.

    ``declined`` counts declines in scope; ``declined_out_of_scope`` the others.
    """
    chosen = [r for r in records if not r.counts or reference in r.counts]
    outcomes = [r.outcome(reference) for r in chosen]
    outside = sum(1 for r, o in zip(chosen, outcomes, strict=True) if o is Outcome.DECLINED and not in_scope(r))
    return {
        "shapes": len(chosen),
        "draws": sum(sum(r.counts.get(reference, {}).values()) for r in chosen),
        "equal": outcomes.count(Outcome.EQUAL),
        "different": outcomes.count(Outcome.DIFFERENT),
        "declined": outcomes.count(Outcome.DECLINED) - outside,
        "declined_out_of_scope": outside,
        "nondeterministic": outcomes.count(Outcome.NONDETERMINISTIC),
        "reference_failed": outcomes.count(Outcome.REFERENCE_FAILED),
    }


def compared_problems(records: Iterable[Record]) -> Iterator[Compared]:
    """The comparisons with cuBLASLt that came out, by problem."""
    for record in records:
        counts = record.counts.get("cublaslt", {})
        equal, different = (counts.get(o.value, 0) for o in (Outcome.EQUAL, Outcome.DIFFERENT))
        if record.declined is None and record.problem and record.answer and equal + different:
            yield Compared(
                problem=problem_from_plain(record.problem),
                answer=answer_from_plain(record.answer),
                launch_names=record.kernels,
                equal=equal,
                different=different,
            )


def grouped(records: Sequence[Record], by: Callable[[Record], Key], reference: str) -> dict[Key, dict[str, int]]:
    """:func:`counts_of` for each group, in the order of first appearance."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(by(record), []).append(record)
    return {key: counts_of(members, reference) for key, members in groups.items()}


def kernel_names(records: Iterable[Record]) -> dict[str, tuple[int, bool]]:
    """Each kernel name without sizes: how many shapes launch it, and whether it was read as a tensor-core kernel."""
    shapes: Counter[str] = Counter()
    tensor: dict[str, bool] = {}
    for record in records:
        for name in set(record.kernels):
            short = short_name(name)
            shapes[short] += 1
            tensor[short] = tensor.get(short, False) or names_tensor_cores(name)
    return {name: (count, tensor[name]) for name, count in shapes.most_common()}


def lost_tail_counts(records: Iterable[Record]) -> dict[str, int]:
    """Of the shapes whose descriptor leaves k out: how many were compared, equal, and reached by ``torch.mm``.

    ``torch.mm`` reaches a lost tail where its bytes are cuBLASLt's on every draw.
    """
    lost = [r for r in records if r.lost_tail and r.counts]
    return {
        "shapes": len(lost),
        "equal": sum(r.outcome("cublaslt") is Outcome.EQUAL for r in lost),
        "reached_by_torch": sum("torch" in r.counts and r.torch_is_cublaslt == r.draws for r in lost),
    }


def reasons(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Declines and failures by what they say, most frequent first; an example each."""
    found: Counter[tuple[str, bool, str]] = Counter()
    example: dict[tuple[str, bool, str], str] = {}
    for record in records:
        text = f"{record.declined.code}: {record.declined.reason}" if record.declined else record.failure
        if text:
            outcome = record.outcome("cublaslt")
            if outcome is Outcome.EQUAL:
                outcome = record.outcome("torch")
            key = (outcome.value, in_scope(record), text)
            found[key] += 1
            example.setdefault(key, record.key)
    return [
        {"outcome": key[0], "in_scope": key[1], "reason": key[2], "shapes": number, "example": example[key]}
        for key, number in found.most_common()
    ]


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Everything above as one JSON-ready object."""
    return {
        "total": {reference: counts_of(records, reference) for reference in REFERENCES},
        "by_regime": {r: grouped(records, lambda x: x.regime.value, r) for r in REFERENCES},
        "by_structure": grouped(records, lambda x: x.structure or "none", "cublaslt"),
        "by_regime_family_dtype": [
            {"regime": regime, "family": family, "dtype": dtype, **counts}
            for (regime, family, dtype), counts in grouped(
                records, lambda x: (x.regime.value, x.family, x.dtype), "cublaslt"
            ).items()
        ],
        "lost_tail": lost_tail_counts(records),
        "launches_cross_checked": dict(Counter(r.launch_check for r in records if r.launch_check)),
        "kernel_names": [
            {"name": name, "shapes": number, "tensor_cores": tensor}
            for name, (number, tensor) in kernel_names(records).items()
        ],
        "reasons": reasons(records),
        "mismatches": [_mismatch(r) for r in records if differs(r)],
    }


def differs(record: Record) -> bool:
    """Whether any draw differed from either reference."""
    return any(record.outcome(reference) is Outcome.DIFFERENT for reference in record.counts)


def _mismatch(record: Record) -> dict[str, Any]:
    located = record.located
    where: dict[str, Any] = {} if located is None else {
        "reference": located.reference, "draw": located.draw, "family": located.family, "row": located.row,
        "column": located.column, "expected_bits": hex(located.expected_bits), "got_bits": hex(located.got_bits),
        "elements": f"{located.count} of {located.size}",
    }  # fmt: skip
    return {"key": record.key, "kernel": record.kernel, "launch": record.family, **where, "failure": record.failure}
