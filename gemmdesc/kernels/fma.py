"""Choosing tiled kernels of float32 chains on CUDA cores, in slices of k at most.  Pure.

Where these do not fit (few rows or columns, other cuts, products rounded by themselves), a nest's kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.descriptor import Contiguous, GEMMDesc, ScalarStep, Short, Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import MAX_NARROW_OFFSET
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.nest import MOST_SUMS
from gemmdesc.kernels.slices import NO_LOOP_STEP, Merge, misfit
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import UNTUNED, TunedTable, tuned_key

#: Products with a side shorter than this leave too many outputs of a tile unused.
THINNEST = 16
#: What the last program of a merge reaches beyond the outputs, at most.
MERGE_MARGIN = 512
FMA_CONFIGS = (
    KernelConfig(block_m=128, block_n=128, block_k=16, num_warps=8, num_stages=3),
    KernelConfig(block_m=64, block_n=64, block_k=16, num_warps=4, num_stages=3),
    KernelConfig(block_m=32, block_n=32, block_k=16, num_warps=4, num_stages=3),
)
_EXACT = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)


@dataclass(frozen=True, kw_only=True)
class FmaChoice:
    """What to launch: chains from ``opening`` over ``count`` slices of ``span`` k, and a fold where there are more."""

    summed_k: int
    span: int
    count: int
    opening: float
    merge: Merge
    config: KernelConfig
    a_layout: Layout
    b_layout: Layout
    out_layout: Layout
    wide_offsets: bool
    wide_merge: bool

    @property
    def structure(self) -> Structure:
        return Structure.FMA_CHAIN


def choose_fma(
    desc: GEMMDesc, meta: KernelMeta, config: KernelConfig | None = None, *, tuned: TunedTable = UNTUNED
) -> FmaChoice | None:
    """The tiled kernels of ``desc``, bit for bit, or None where a nest's kernels have to do."""
    step, summed_k = desc.accumulator.step, min(meta.k, desc.summed_k)
    if not isinstance(step, ScalarStep) or not step.fused or misfit(desc, meta, (DType.FLOAT32,)) is not None:
        return None
    strides = (meta.a.row_stride, meta.a.column_stride, meta.b.row_stride, meta.b.column_stride)
    out_layout = meta.out.layout(meta.m, meta.n)
    if min(strides) < 0 or out_layout is Layout.ANY or not 1 <= summed_k <= NO_LOOP_STEP:
        return None
    slices = _slices(desc, summed_k)
    if slices is None or min(meta.m, meta.n) < THINNEST:
        return None
    if slices[1] > 1 and slices[1] * meta.m * meta.n > MOST_SUMS:
        return None
    (span, count, merge), layouts = slices, (meta.a.layout(meta.m, meta.k), meta.b.layout(meta.k, meta.n))
    if Layout.ANY in layouts:
        layouts = Layout.ANY, Layout.ANY
    last = max(meta.m * meta.n, meta.out.last_offset(meta.m, meta.n)) + MERGE_MARGIN
    reach = max(meta.a.last_offset(meta.m, meta.k), meta.b.last_offset(meta.k, meta.n), last)
    return FmaChoice(
        summed_k=summed_k, span=span, count=count, opening=step.opening, merge=merge,
        config=config or _config(meta, count, tuned), a_layout=layouts[0], b_layout=layouts[1],
        out_layout=Layout.ROWS if count > 1 else out_layout, wide_offsets=reach > MAX_NARROW_OFFSET,
        wide_merge=last > MAX_NARROW_OFFSET,
    )  # fmt: skip


def _slices(desc: GEMMDesc, summed_k: int) -> tuple[int, int, Merge] | None:
    """(span, count, merge) of a descriptor without a cut or with one into slices that float32 additions fold."""
    if not desc.cuts:
        return summed_k, 1, _EXACT
    cut = desc.cuts[0]
    if len(desc.cuts) > 1 or cut.fold or not isinstance(cut.layout, Contiguous):
        return None
    if {cut.partial_dtype, cut.merge_dtype} != {DType.FLOAT32}:
        return None
    span = min(cut.layout.span, summed_k)
    if cut.layout.short is Short.FIRST and summed_k % span:
        return None
    count = -(-summed_k // span)
    # A fold of one part from +0.0 makes a chain's -0.0 +0.0, which a nest's kernels do.
    if count == 1 and cut.start is Start.ZERO:
        return None
    return span, count, Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=cut.start)


def _config(meta: KernelMeta, count: int, tuned: TunedTable) -> KernelConfig:
    """The tuned one, else the largest tile that fills the card, or the smallest one."""
    for pick in tuned.find(tuned_key("fma", count > 1, meta), meta):
        if pick.structure is Structure.FMA_CHAIN and pick.config in FMA_CONFIGS:
            return pick.config
    filling = [c for c in FMA_CONFIGS if c.tiles(meta.m, meta.n) * count >= meta.sm_count]
    return (*filling, FMA_CONFIGS[-1])[0]
