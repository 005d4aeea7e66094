"""Choosing the kernels of slices as even as can be, folded in groups: chains into scratch, then one fold after another.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmdesc.descriptor import Balanced, Contiguous, Cut, GEMMDesc, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import MAX_NARROW_OFFSET, KernelChoice, choose_kernel
from gemmdesc.kernels.config import THIN_SIDE
from gemmdesc.kernels.meta import TMA_ALIGNMENT, KernelMeta, MatrixMeta
from gemmdesc.kernels.nest import MOST_SUMS, cut_merges
from gemmdesc.kernels.slices import Merge, declined, misfit
from gemmdesc.kernels.structure import Structure


@dataclass(frozen=True, kw_only=True)
class Run:
    """The chains of ``count`` slices from ``first`` on, all of one length but the last, over k ``begin`` .. ``end``."""

    begin: int
    end: int
    first: int
    count: int
    chain: KernelChoice


@dataclass(frozen=True, kw_only=True)
class BalancedChoice:
    """What to launch for ``descriptor`` at inner size ``k``: every run's chains, then ``folds``, innermost first.

    ``swapped``: all else speaks of the transposed product.
    """

    descriptor: GEMMDesc
    k: int
    runs: tuple[Run, ...]
    folds: tuple[Merge, ...]
    output_dtype: DType
    swapped: bool

    @property
    def structure(self) -> Structure:
        return Structure.BALANCED_CHAINS


def is_balanced(desc: GEMMDesc) -> bool:
    """Whether :func:`choose_balanced` is what computes ``desc``."""
    return len(desc.cuts) == 1 and isinstance(desc.cuts[0].layout, Balanced)


def choose_balanced(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> BalancedChoice | Declined:
    """The kernels that compute ``desc``, balanced slices of matrix steps folded in any groups, bit for bit."""
    trouble = misfit(desc, meta)
    if trouble is not None:
        return trouble
    if not is_balanced(desc):
        return declined(f"one balanced cut must be all there is (got {len(desc.cuts)} cuts)")
    cut, summed = desc.cuts[0], min(meta.k, desc.summed_k)
    assert isinstance(cut.layout, Balanced)
    ends = cut.layout.ends(summed)
    if len(ends) * meta.m * meta.n > min(MOST_SUMS, MAX_NARROW_OFFSET):
        return declined(f"partial sums must be at most {MOST_SUMS} (got {len(ends)} of {meta.m} x {meta.n})")
    if any(end == begin for begin, end in zip((0, *ends), ends, strict=False)):
        return declined(f"every slice must hold a k (got {len(ends)} slices of {summed} k)")
    swapped = meta.m < meta.n and meta.m <= THIN_SIDE
    turned = meta.swapped if swapped else meta
    runs: list[Run] = []
    for run in _runs(ends):
        chain = _chain(desc, turned, card, run)
        if isinstance(chain, Declined):
            return chain
        runs.append(Run(begin=run.begin, end=run.end, first=run.first, count=run.count, chain=chain))
    return BalancedChoice(
        descriptor=desc, k=meta.k, runs=tuple(runs), folds=cut_merges(cut), output_dtype=desc.output_dtype,
        swapped=swapped,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Slices:
    """As in :class:`Run`; ``span``: the length of each."""

    begin: int
    end: int
    first: int
    count: int
    span: int


def _runs(ends: tuple[int, ...]) -> list[_Slices]:
    """Neighbouring slices of one length; only the very last one of all may be shorter than the others of its run."""
    found: list[_Slices] = []
    for i, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
        open_run, length = found[-1] if found else None, end - begin
        if open_run is not None and (length == open_run.span or (i == len(ends) - 1 and length < open_run.span)):
            found[-1] = replace(open_run, end=end, count=open_run.count + 1)
        else:
            found.append(_Slices(begin=begin, end=end, first=i, count=1, span=length))
    return found


def _chain(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, run: _Slices) -> KernelChoice | Declined:
    """The chain kernel over the slices of ``run``, each slice's sum stored in float32."""
    cut = Cut(
        layout=Contiguous(span=run.span), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST
    )
    k = run.end - run.begin
    chained = replace(desc, cuts=(cut,) if run.count > 1 else (), output_dtype=DType.FLOAT32, summed_k=k)
    alignment = TMA_ALIGNMENT if meta.n * DType.FLOAT32.itemsize % TMA_ALIGNMENT == 0 else DType.FLOAT32.itemsize
    out = MatrixMeta(dtype=DType.FLOAT32, row_stride=meta.n, column_stride=1, alignment=alignment)
    inner = replace(meta, k=k, a=meta.a.at(0, run.begin), b=meta.b.at(run.begin, 0), out=out)
    reason = declined("no chain kernel stores its slices")
    for structure in (Structure.CHAIN_TMA, Structure.CHAIN_POINTER, Structure.GROUPED_CHAIN):
        chosen = choose_kernel(chained, inner, card, structure=structure, unasked=frozenset())
        if isinstance(chosen, KernelChoice) and not chosen.swapped:
            return chosen
        if isinstance(chosen, Declined):
            reason = chosen
    return reason
