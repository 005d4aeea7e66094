"""Findings about each product of a list, and about each layer over its batch sizes.  Pure: book and profile go in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from gemmdesc.books import BookReader, Shape
from gemmdesc.descriptor import FusedDot, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.lint.words import order_text, part_counts
from gemmdesc.normal_form import normal_form
from gemmdesc.problem import AlgoConfig


class FindingKind(Enum):
    """LOST_TAIL: k that enter no sum.  NARROW_PARTIALS: sums held in fewer bits than float32 on the way.  SPLIT_K: k
    shared out over several parts.  ORDER_CHANGES_OVER_M: a row's sum has another order at another m of the list.
    DECLINED: nothing is promised.
    """

    LOST_TAIL = "lost_tail"
    NARROW_PARTIALS = "narrow_partials"
    SPLIT_K = "split_k"
    ORDER_CHANGES_OVER_M = "order_changes_over_m"
    DECLINED = "declined"


#: What costs accuracy, whatever is done with the result.
DEFAULT_GATE = frozenset({FindingKind.LOST_TAIL, FindingKind.NARROW_PARTIALS})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``message``: one clause for a person."""

    kind: FindingKind
    message: str


@dataclass(frozen=True, kw_only=True)
class ShapeReport:
    """One product: the library's answer and the descriptor, each None where it is not known; ``lost_tail`` in k."""

    shape: Shape
    answer: AlgoConfig | None
    descriptor: GEMMDesc | None
    findings: tuple[Finding, ...]

    @property
    def lost_tail(self) -> int:
        """How many k at the end are in no sum."""
        return 0 if self.descriptor is None else max(0, self.shape.k - self.descriptor.summed_k)


@dataclass(frozen=True, kw_only=True)
class OrderRun:
    """Neighbouring m of the list, ``low`` to ``high``, whose rows are summed in one order (``order``: in words).

    ``digest``: the order's normal form, "" where nothing is known.
    """

    low: int
    high: int
    digest: str
    order: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One layer (``shape``, whose m is the smallest) over the m of the list."""

    shape: Shape
    runs: tuple[OrderRun, ...]

    @property
    def orders(self) -> int:
        """How many known orders there are."""
        return len({run.digest for run in self.runs} - {""})

    @property
    def changes(self) -> tuple[int, ...]:
        """The m at which another known order starts."""
        known = [run for run in self.runs if run.digest]
        return tuple(b.low for a, b in pairwise(known) if a.digest != b.digest)


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """All products in the list's order, and the layers that stand in it at several m."""

    shapes: tuple[ShapeReport, ...]
    sweeps: tuple[Sweep, ...]

    def kinds(self) -> frozenset[FindingKind]:
        """Every kind that was found."""
        return frozenset(f.kind for report in self.shapes for f in report.findings)


def lint_shapes(shapes: Iterable[Shape], reader: BookReader) -> LintReport:
    """Everything to know about ``shapes`` under the book's answers and its profile.

    Raises:
        InvalidInputError: a shape's result type is one that ``torch.mm`` does not take.
    """
    reports = [_report(shape, reader) for shape in dict.fromkeys(shapes)]
    sweeps = tuple(_sweeps(reports))
    changing = {_layer(s.shape): s for s in sweeps if s.orders > 1}
    return LintReport(shapes=tuple(_with_change(r, changing.get(_layer(r.shape))) for r in reports), sweeps=sweeps)


def _report(shape: Shape, reader: BookReader) -> ShapeReport:
    problem = shape.problem(reader.book.settings)
    found = problem if isinstance(problem, Declined) else reader.describe(problem)
    entry = None if isinstance(problem, Declined) else reader.book.by_problem.get(problem)
    answer = entry.answer if entry is not None and isinstance(entry.answer, AlgoConfig) else None
    if isinstance(found, Declined):
        declined = Finding(kind=FindingKind.DECLINED, message=f"{found.code}: {found.reason}")
        return ShapeReport(shape=shape, answer=answer, descriptor=None, findings=(declined,))
    # Where elements have several orders, each of them is looked at.
    several = (f for r in found.regions for f in _findings(shape, answer, r.descriptor))
    return ShapeReport(
        shape=shape, answer=answer, descriptor=found.descriptor, findings=tuple(dict.fromkeys(several))
    )  # fmt: skip


def _findings(shape: Shape, answer: AlgoConfig | None, desc: GEMMDesc) -> Iterator[Finding]:
    lost = max(0, shape.k - desc.summed_k)
    if lost:
        yield Finding(kind=FindingKind.LOST_TAIL, message=f"the last {lost} of {shape.k} k are in no sum")
    narrow = _narrow(shape, desc)
    if narrow:
        yield Finding(kind=FindingKind.NARROW_PARTIALS, message=", ".join(narrow))
    parts = part_counts(desc, shape.k)
    if answer is not None and answer.splitk_num > 1 and parts and parts[0] > 1:
        yield Finding(kind=FindingKind.SPLIT_K, message=f"k is split into {parts[0]} parts")


def _narrow(shape: Shape, desc: GEMMDesc) -> list[str]:
    """What is held in fewer bits than float32 before the result is rounded."""
    found = []
    for cut, parts in zip(desc.cuts, part_counts(desc, shape.k), strict=True):
        if parts > 1 and cut.partial_dtype is not DType.FLOAT32:
            found.append(f"{parts} parts are stored as {cut.partial_dtype.value}")
        if parts > 1 and cut.merge_dtype is not DType.FLOAT32:
            found.append(f"the running sum of {parts} parts is held as {cut.merge_dtype.value}")
    step = desc.accumulator.step
    if isinstance(step, FusedDot) and step.accumulator_dtype is not DType.FLOAT32:
        found.append(f"accumulators are {step.accumulator_dtype.value}")
    return found


def _layer(shape: Shape) -> Shape:
    return replace(shape, m=1, label="")


def _sweeps(reports: list[ShapeReport]) -> Iterator[Sweep]:
    layers: dict[Shape, dict[int, ShapeReport]] = {}
    for report in reports:
        layers.setdefault(_layer(report.shape), {}).setdefault(report.shape.m, report)
    for by_m in layers.values():
        ordered = [by_m[m] for m in sorted(by_m)]
        if len(ordered) > 1:
            yield Sweep(shape=ordered[0].shape, runs=tuple(_runs(ordered)))


def _runs(ordered: list[ShapeReport]) -> Iterator[OrderRun]:
    open_run: OrderRun | None = None
    for report in ordered:
        m, k, desc = report.shape.m, report.shape.k, report.descriptor
        digest = "" if desc is None else normal_form(desc, k).digest
        if open_run is not None and open_run.digest == digest:
            open_run = replace(open_run, high=m)
            continue
        if open_run is not None:
            yield open_run
        order = "declined" if desc is None else order_text(desc, k)
        open_run = OrderRun(low=m, high=m, digest=digest, order=order)
    if open_run is not None:
        yield open_run


def _with_change(report: ShapeReport, sweep: Sweep | None) -> ShapeReport:
    if sweep is None or report.descriptor is None:
        return report
    at = ", ".join(map(str, sweep.changes))
    message = f"{sweep.orders} orders over the m listed; it changes at m = {at}"
    finding = Finding(kind=FindingKind.ORDER_CHANGES_OVER_M, message=message)
    return replace(report, findings=(*report.findings, finding))
