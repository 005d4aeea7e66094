"""What workers do with one case; each task is a function of a bench, which is a library, and one picklable value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from gemmdesc.errors import InvalidInputError
from gemmdesc.library.interface import Library
from gemmdesc.plain import to_plain
from gemmdesc.problem import Launch
from gemmdesc.verification.bench import Bench, Compared, Comparison, Prepared, Unprepared
from gemmdesc.verification.cases import Case, case_to_plain
from gemmdesc.verification.draws import draws_of
from gemmdesc.verification.records import REFERENCES, Outcome, Record, count
from gemmdesc.verification.scope import family_of, scope_of
from gemmdesc.verification.structure import structure_of

#: One case in this many has its captured launch checked against a profiled run.
_CROSS_CHECKED = 100


@dataclass(frozen=True, kw_only=True)
class Item:
    """One case for a worker."""

    case: Case
    draws: int


def bench_of(library: Library) -> Bench:
    """``library`` as the bench that it has to be here; InvalidInputError where it is none."""
    if not isinstance(library, Bench):
        raise InvalidInputError(f"library must be a Bench (got {type(library).__name__})")
    return library


def variants_task(library: Library, item: Item) -> tuple[str, ...]:
    """The compiled kernels that our side of a case needs."""
    prepared = bench_of(library).prepare(item.case)
    return prepared.variants if isinstance(prepared, Prepared) else ()


def loses_tail_task(library: Library, item: Item) -> bool:
    """Whether the library's answer to a case leaves the end of k out of every sum."""
    prepared = bench_of(library).prepare(item.case)
    return isinstance(prepared, Prepared) and prepared.desc is not None and prepared.desc.summed_k < item.case.k


def verify_task(library: Library, item: Item) -> Record:
    """Prepare and compare one case."""
    bench, case, begin = bench_of(library), item.case, perf_counter()
    prepared = bench.prepare(case)
    if isinstance(prepared, Unprepared):
        return Record(
            key=case.key, regime=case.regime, dtype=case.dtype.value, case=case_to_plain(case), draws=item.draws,
            counts={}, declined=prepared.declined, failure=prepared.failure,
            problem=None if prepared.problem is None else to_plain(prepared.problem), seconds=perf_counter() - begin,
        )  # fmt: skip
    launch = bench.launch(prepared.problem, prepared.answer)
    nothing = Comparison(compared=())
    compared = nothing if prepared.declined else bench.compare(prepared, draws_of(item.draws))
    checked = bench.cross_check(prepared, launch) if case.index % _CROSS_CHECKED == 0 else ""
    return replace(_record(item, prepared, launch, compared, perf_counter() - begin), launch_check=checked)


def _record(
    item: Item, prepared: Prepared, launch: Launch | None, comparison: Comparison, seconds: float
) -> Record:
    case, desc = item.case, prepared.desc
    by_reference = {r: [c.outcome for c in comparison.compared if c.reference == r] for r in REFERENCES}
    worst = _worst(comparison.compared)
    return Record(
        key=case.key, regime=case.regime, dtype=case.dtype.value, case=case_to_plain(case), draws=item.draws,
        counts={r: count(outcomes) for r, outcomes in by_reference.items() if outcomes},
        scope=scope_of(launch), family=family_of(launch), kernels=() if launch is None else launch.names,
        structure="" if desc is None else structure_of(desc), lost_tail=desc is not None and desc.summed_k < case.k,
        kernel=prepared.kernel, torch_is_cublaslt=comparison.torch_is_cublaslt, declined=prepared.declined,
        failure=worst.failure if worst else "", located=worst.located if worst else None,
        problem=to_plain(prepared.problem), answer=to_plain(prepared.answer), seconds=seconds, fatal=comparison.fatal,
    )  # fmt: skip


def _worst(compared: Sequence[Compared]) -> Compared | None:
    """The first of the worst draws; None where all are equal."""
    order = list(Outcome)
    found = max(compared, key=lambda c: order.index(c.outcome), default=None)
    return None if found is None or found.outcome is Outcome.EQUAL else found
