"""Choosing the kernels of a nest of CUDA-core chains: leaves in parallel, then one fold after another.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmdesc.descriptor import Cut, GEMMDesc, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.slices import OPERAND_DTYPES, Merge, declined, misfit
from gemmdesc.kernels.structure import Structure

#: Types of operands that CUDA-core chains multiply.
NEST_DTYPES = (*OPERAND_DTYPES, DType.FLOAT32)
#: Elements of float32 that the sums of one launch may take, unless a single block of outputs takes more.
MOST_SUMS = 1 << 28


@dataclass(frozen=True, kw_only=True)
class NestConfig:
    """Outputs and leaves that one program computes, both powers of two; never the bits."""

    block_outputs: int
    block_leaves: int
    num_warps: int = 4

    def __post_init__(self) -> None:
        for name in ("block_outputs", "block_leaves"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                raise InvalidInputError(f"{name} must be a power of two (got {size})")


#: For operands whose outputs lie side by side, for those whose k do, and for few outputs.
NEST_CONFIGS = (
    NestConfig(block_outputs=128, block_leaves=1),
    NestConfig(block_outputs=16, block_leaves=32),
    NestConfig(block_outputs=1, block_leaves=128),
)


@dataclass(frozen=True, kw_only=True)
class NestChoice:
    """What to launch for ``descriptor`` at inner size ``k``: chains over all leaves, then ``folds``, innermost first.

    ``opening``: what every chain opens with.  ``wide_offsets``: 64-bit index arithmetic.
    """

    descriptor: GEMMDesc
    k: int
    operand_dtype: DType
    output_dtype: DType
    fused: bool
    opening: float
    folds: tuple[Merge, ...]
    config: NestConfig
    wide_offsets: bool

    @property
    def structure(self) -> Structure:
        return Structure.SCALAR_NEST


def choose_nest(desc: GEMMDesc, meta: KernelMeta, config: NestConfig | None = None) -> NestChoice | Declined:
    """The kernels that compute ``desc``, a nest of cuts over CUDA-core chains, bit for bit."""
    trouble = misfit(desc, meta, NEST_DTYPES)
    if trouble is not None:
        return trouble
    step = desc.accumulator.step
    if not isinstance(step, ScalarStep):
        return declined("the leaf must be a chain of scalar steps")
    strides = (meta.a.row_stride, meta.a.column_stride, meta.b.row_stride, meta.b.column_stride)
    if min(meta.m, meta.n, meta.k, desc.summed_k) < 1 or min(strides) < 0:
        return declined(f"sizes must be positive and strides not negative (got {meta})")
    # Where there is no cut, a fold of one part stores the leaf.
    plain = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)
    folds = tuple(merge for cut in reversed(desc.cuts) for merge in cut_merges(cut))
    return NestChoice(
        descriptor=desc,
        k=meta.k,
        operand_dtype=desc.a_dtype,
        output_dtype=desc.output_dtype,
        fused=step.fused,
        opening=step.opening,
        folds=folds or (plain,),
        config=config or _config(meta),
        wide_offsets=_largest_offset(meta) > 2**31 - 1,
    )


def cut_merges(cut: Cut) -> tuple[Merge, ...]:
    """The folds of one cut, innermost first: of the parts, then of what each layout of its fold deals them to."""
    parts = Merge(partial_dtype=cut.partial_dtype, merge_dtype=cut.merge_dtype, start=cut.start)
    return (parts, *[replace(parts, partial_dtype=DType.FLOAT32)] * len(cut.fold))


def _config(meta: KernelMeta) -> NestConfig:
    side_by_outputs, side_by_k, few = NEST_CONFIGS
    if meta.m * meta.n < side_by_k.block_outputs:
        return few
    long = meta.a if meta.m >= meta.n else meta.b.transposed
    rows = max(meta.m, meta.n)
    return side_by_outputs if long.layout(rows, meta.k) is Layout.COLUMNS else side_by_k


def _largest_offset(meta: KernelMeta) -> int:
    return max(
        meta.a.last_offset(meta.m, meta.k),
        meta.b.last_offset(meta.k, meta.n),
        meta.out.last_offset(meta.m, meta.n),
        meta.m * meta.n,
    )
