"""The tiles of K-major kernels, and a descriptor's cuts as they see them.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmdesc.descriptor import Contiguous, Cut, GEMMDesc, Short, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.slices import NO_LOOP_STEP, Merge, declined

FLOAT8_DTYPES = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
#: Bytes of a line that one load takes, which the widest swizzle holds.
LINE_BYTES = 128
#: Blocks of fewer k are folded in registers however few tiles there are.
SHORT_BLOCK = 1024
#: Products with a scratch of more sums than this are folded in registers, if they can be.
MOST_SCRATCH = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A config but for ``block_k``, which LINE_BYTES give."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    programs_per_sm: int = 1

    def config(self, itemsize: int) -> KernelConfig:
        return KernelConfig(
            block_m=self.block_m, block_n=self.block_n, block_k=LINE_BYTES // itemsize, num_warps=self.num_warps,
            num_stages=self.num_stages, programs_per_sm=self.programs_per_sm,
        )  # fmt: skip


#: Largest first.  Rows are at least 64 for each four warps: with fewer the compiler leaves wgmma, and for 8-bit
#: operands its arithmetic.  The first has no registers left for a fold.
TILES = (
    Tile(block_m=128, block_n=256, num_warps=8, num_stages=3),
    Tile(block_m=128, block_n=128, num_warps=8, num_stages=4),
    Tile(block_m=64, block_n=128, num_warps=4, num_stages=4),
    Tile(block_m=64, block_n=64, num_warps=4, num_stages=4, programs_per_sm=2),
    Tile(block_m=64, block_n=32, num_warps=4, num_stages=6, programs_per_sm=2),
    Tile(block_m=64, block_n=16, num_warps=4, num_stages=6, programs_per_sm=2),
)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """k as ``count`` chains of ``span``, the last one short, of which a slice takes ``per_slice``.

    ``fold``: what becomes of a slice's chains in registers, nothing where it has but one; ``merge``: what becomes of
    the slices' sums, if there is anything to round or to add.
    """

    summed_k: int
    span: int
    count: int
    per_slice: int
    fold: Start | None
    merge: Merge | None

    @property
    def slices(self) -> int:
        return -(-self.count // self.per_slice)


def lay_out(desc: GEMMDesc, meta: KernelMeta) -> Blocks | Declined:
    """The cuts of ``desc`` as slices through scratch and blocks that are folded in registers."""
    summed_k = min(meta.k, desc.summed_k)
    if summed_k > NO_LOOP_STEP:
        return declined(f"summed_k must be at most {NO_LOOP_STEP} (got {summed_k})")
    cuts: list[tuple[int, Merge]] = []
    length = summed_k
    for cut in desc.cuts:
        trouble = _odd_cut(cut, length)
        if trouble is not None:
            return trouble
        assert isinstance(cut.layout, Contiguous)
        span = min(cut.layout.span, length)
        merge = Merge(partial_dtype=cut.partial_dtype, merge_dtype=cut.merge_dtype, start=cut.start)
        # One part, and no rounding that could show: matrix steps never give -0.0.
        if span < length or not _exact(merge):
            cuts.append((span, merge))
        length = span
    return _laid_out(summed_k, cuts, desc.output_dtype, meta)


def _odd_cut(cut: Cut, length: int) -> Declined | None:
    if not isinstance(cut.layout, Contiguous):
        return declined("no kernel has strided or balanced cuts over matrix steps of these types")
    if cut.fold or cut.opening:
        return declined("no kernel folds such slices in groups or takes anything in with the first one")
    if cut.open_end and cut.merge_dtype is not DType.FLOAT32:
        return declined("the last running sum must be rounded as the others are (got an open end)")
    if cut.layout.short is Short.FIRST and length % min(cut.layout.span, length):
        return declined("no kernel has the short slice first")
    return None


def _exact(merge: Merge) -> bool:
    return merge.partial_dtype is merge.merge_dtype is DType.FLOAT32


def _laid_out(
    summed_k: int, cuts: list[tuple[int, Merge]], output_dtype: DType, meta: KernelMeta
) -> Blocks | Declined:
    """At most two cuts as slices through scratch and blocks folded in registers."""
    whole = Blocks(summed_k=summed_k, span=summed_k, count=1, per_slice=1, fold=None, merge=None)
    if not cuts:
        return whole
    if len(cuts) > 2:
        return declined(f"no kernel has more than two cuts of matrix steps (got {len(cuts)})")
    (span, merge), inner = cuts[0], cuts[-1][1]
    if len(cuts) == 1 and _exact(merge) and _in_registers(span, summed_k, meta):
        count = -(-summed_k // span)
        return replace(whole, span=span, count=count, per_slice=count, fold=merge.start)
    if not _mergeable(merge, output_dtype):
        return declined(f"slices must be rounded to float32 or a 16-bit output's type (got {merge})")
    if len(cuts) == 1:
        return replace(whole, span=span, count=-(-summed_k // span), merge=merge)
    block = cuts[1][0]
    if not _exact(inner):
        return declined(f"the blocks inside a slice must be folded in float32 (got {inner})")
    if span % block and span < summed_k:
        return declined(f"a slice must hold whole blocks of {block} (got {span})")
    return replace(
        whole, span=block, count=-(-summed_k // block), per_slice=-(-span // block), fold=inner.start, merge=merge
    )


def _in_registers(span: int, summed_k: int, meta: KernelMeta) -> bool:
    """Whether slices that nothing rounds are folded in registers; never the bits."""
    filled = any(4 * t.config(1).tiles(meta.m, meta.n) >= 3 * meta.sm_count for t in TILES[1:4])
    return filled or span < SHORT_BLOCK or -(-summed_k // span) * meta.m * meta.n > MOST_SCRATCH


def _mergeable(merge: Merge, output_dtype: DType) -> bool:
    held = {DType.FLOAT32} if output_dtype in FLOAT8_DTYPES else {DType.FLOAT32, output_dtype}
    return {merge.partial_dtype, merge.merge_dtype} <= held
