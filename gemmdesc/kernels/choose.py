"""From a descriptor and plain facts about the operands to a kernel, or a decline.  Pure; no torch, no triton."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gemmdesc.descriptor import Contiguous, Cut, FusedDot, GEMMDesc, ResidueFirst, Short, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.config import GROUPED_CONFIGS, POINTER_CONFIGS, TMA_CONFIGS, KernelConfig

#: Types of operands that the kernels multiply.
OPERAND_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
#: Lanes of k that the kernels write for one matrix step of 16-bit operands.
LANES = 16
#: Real products that a step may hold, the rest of its lanes being zero.
STEP_SIZES = (8, LANES)
#: The largest offset, in elements, that 32-bit index arithmetic reaches.
MAX_NARROW_OFFSET = 2**31 - 1
#: Tensor descriptors need base and rows aligned to this many bytes.
TMA_ALIGNMENT = 16
#: Stands for a main loop longer than any slice: the short step comes last.
NO_LOOP_STEP = 2**30
#: Products with a side of at most this many rows are computed transposed where that puts the long side on M.
THIN_SIDE = 64


class Structure(Enum):
    """The accumulation kernels; a merge may follow each."""

    CHAIN_TMA = "chain_tma"
    CHAIN_POINTER = "chain_pointer"
    GROUPED_CHAIN = "grouped_chain"


class Layout(Enum):
    """Which stride of a matrix is 1: neither, that along a row, that along a column.  The value is the kernels' code."""

    ANY = 0
    ROWS = 1
    COLUMNS = 2


@dataclass(frozen=True, kw_only=True)
class MatrixMeta:
    """A strided matrix: strides in elements, ``alignment`` the largest power of two in bytes that divides its address."""

    dtype: DType
    row_stride: int
    column_stride: int
    alignment: int

    @property
    def transposed(self) -> MatrixMeta:
        return replace(self, row_stride=self.column_stride, column_stride=self.row_stride)

    def layout(self, rows: int, columns: int) -> Layout:
        """The layout; a stride along an axis of one element binds nothing."""
        if self.column_stride == 1 or columns == 1:
            return Layout.ROWS
        if self.row_stride == 1 or rows == 1:
            return Layout.COLUMNS
        return Layout.ANY

    def last_offset(self, rows: int, columns: int) -> int:
        """Offset of the last element, in elements."""
        return (rows - 1) * self.row_stride + (columns - 1) * self.column_stride

    def by_descriptor(self, rows: int, columns: int) -> bool:
        """Whether a tensor descriptor can address it."""
        match self.layout(rows, columns):
            case Layout.ROWS:
                unit, stride = self.column_stride, self.row_stride
            case Layout.COLUMNS:
                unit, stride = self.row_stride, self.column_stride
            case Layout.ANY:
                return False
        row_bytes = stride * self.dtype.itemsize
        return unit == 1 and row_bytes % TMA_ALIGNMENT == 0 and row_bytes > 0 and self.alignment % TMA_ALIGNMENT == 0


@dataclass(frozen=True, kw_only=True)
class KernelMeta:
    """One product as the chooser sees it: sizes, the three matrices, and the card's multiprocessors and their memory.

    ``shared_bytes``: the most shared memory that one program may ask for.
    """

    m: int
    n: int
    k: int
    a: MatrixMeta
    b: MatrixMeta
    out: MatrixMeta
    sm_count: int
    shared_bytes: int

    @property
    def swapped(self) -> KernelMeta:
        """The transposed product: out^T = b^T a^T has the same bits, as products commute."""
        return replace(
            self, m=self.n, n=self.m, a=self.b.transposed, b=self.a.transposed, out=self.out.transposed
        )


@dataclass(frozen=True, kw_only=True)
class Merge:
    """The fold that follows the slices."""

    partial_dtype: DType
    merge_dtype: DType
    start: Start


@dataclass(frozen=True, kw_only=True)
class Slices:
    """``count`` slices of ``span`` k, the last one short; inside each, steps of ``instruction_k``, partial turn first."""

    summed_k: int
    span: int
    count: int
    instruction_k: int
    k_loop_step: int
    merge: Merge | None


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """What to launch, on a grid of ``programs``.

    ``swapped``: all else speaks of the transposed product.  ``wide_offsets``: 64-bit index arithmetic.
    """

    structure: Structure
    slices: Slices
    operand_dtype: DType
    output_dtype: DType
    config: KernelConfig
    programs: int
    swapped: bool
    a_layout: Layout
    b_layout: Layout
    out_layout: Layout
    store_by_descriptor: bool
    wide_offsets: bool


def choose_kernel(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, *, config: KernelConfig | None = None
) -> KernelChoice | Declined:
    """The kernel that computes ``desc`` bit for bit; ``config`` overrides the tile choice and never the bits."""
    slices = _slices(desc, meta, card)
    if isinstance(slices, Declined):
        return slices
    if min(meta.m, meta.n) < 1 or min(meta.a.row_stride, meta.a.column_stride, meta.b.row_stride, meta.b.column_stride) < 0:
        return _declined(f"sizes must be positive and strides not negative (got {meta})")
    if meta.out.layout(meta.m, meta.n) is Layout.ANY:
        return _declined(f"out must have a unit stride (got {meta.out.row_stride}, {meta.out.column_stride})")
    swapped = _swap(meta)
    turned = meta.swapped if swapped else meta
    structure = _structure(slices, turned)
    usable = [c for c in configs_of(structure) if _fits(c, structure, turned, slices)]
    if config is not None:
        usable = [config] if _fits(config, structure, turned, slices) else []
    if not usable:
        return _declined(f"config must divide the span {slices.span} and fit {meta.shared_bytes} shared bytes (got {config})")
    chosen = _pick(usable, turned, slices)
    if chosen.tiles(turned.m, turned.n) * slices.count > MAX_NARROW_OFFSET:
        return _declined(f"tiles x slices must fit 32 bits (got {chosen.tiles(turned.m, turned.n)} x {slices.count})")
    return _assemble(structure, slices, chosen, turned, swapped)


def _declined(reason: str) -> Declined:
    return Declined(code="kernel", reason=reason)


def _slices(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> Slices | Declined:
    """The descriptor as the kernels see it, at the sizes of ``meta``."""
    for name, got, want in (
        ("a", meta.a.dtype, desc.a_dtype),
        ("b", meta.b.dtype, desc.b_dtype),
        ("out", meta.out.dtype, desc.output_dtype),
    ):
        if got is not want:
            return _declined(f"{name} must have the descriptor's type {want.value} (got {got.value})")
    if desc.a_dtype is not desc.b_dtype or desc.a_dtype not in OPERAND_DTYPES:
        return _declined(f"operands must be float16 or bfloat16 alike (got {desc.a_dtype.value} and {desc.b_dtype.value})")
    if desc.output_dtype not in output_dtypes(desc.a_dtype):
        return _declined(f"the output must be of the operands' type or float32 (got {desc.output_dtype.value})")
    if desc.epilogue:
        return _declined(f"the epilogue must be empty (got {len(desc.epilogue)} steps)")
    steps = _steps(desc, card)
    if isinstance(steps, Declined):
        return steps
    summed_k = min(meta.k, desc.summed_k)
    if not 1 <= summed_k <= NO_LOOP_STEP:
        return _declined(f"summed_k must be from 1 to {NO_LOOP_STEP} (got {summed_k})")
    if len(desc.cuts) > 1:
        return _declined(f"no kernel has nested cuts (got {len(desc.cuts)})")
    one = Slices(
        summed_k=summed_k, span=summed_k, count=1, instruction_k=steps[0], k_loop_step=steps[1], merge=None
    )
    if not desc.cuts:
        return one
    return _cut(one, desc.cuts[0], desc.output_dtype)


def _steps(desc: GEMMDesc, card: CardArithmetic) -> tuple[int, int] | Declined:
    """(instruction_k, k_loop_step) where the card's matrix steps realise the accumulator."""
    accumulator = desc.accumulator
    step = accumulator.step
    if not isinstance(step, FusedDot):
        return _declined("no kernel has CUDA-core chains")
    realised = card.step_for(desc.a_dtype)
    if realised is None:
        return _declined(f"the card's matrix steps for {desc.a_dtype.value} are not known")
    if realised.step != step or step.accumulator_dtype is not DType.FLOAT32:
        return _declined(f"the accumulator must be the card's {realised.step} (got {step})")
    if realised.lanes != LANES:
        return _declined(f"matrix steps must have {LANES} lanes (got {realised.lanes})")
    k = accumulator.instruction_k
    if k not in STEP_SIZES:
        return _declined(f"instruction_k must be 8 or {LANES} (got {k})")
    if not isinstance(accumulator.residue, ResidueFirst):
        return k, NO_LOOP_STEP
    turn = accumulator.residue.k_loop_step
    if turn % k:
        return _declined(f"k_loop_step must be a multiple of instruction_k {k} (got {turn})")
    return k, min(turn, NO_LOOP_STEP)


def _cut(one: Slices, cut: Cut, output_dtype: DType) -> Slices | Declined:
    if not isinstance(cut.layout, Contiguous):
        return _declined("no kernel has strided cuts over matrix steps")
    span = min(cut.layout.span, one.summed_k)
    if cut.layout.short is Short.FIRST and one.summed_k % span:
        return _declined("no kernel has the short slice first")
    merge = Merge(partial_dtype=cut.partial_dtype, merge_dtype=cut.merge_dtype, start=cut.start)
    count = -(-one.summed_k // span)
    if count == 1 and _invisible(merge, output_dtype):
        return one
    return replace(one, span=span, count=count, merge=merge)


def _invisible(merge: Merge, output_dtype: DType) -> bool:
    """Whether folding a single partial shows in no output: matrix steps never give -0.0, and rounding twice is once."""
    return merge.partial_dtype is DType.FLOAT32 and merge.merge_dtype in (DType.FLOAT32, output_dtype)


def _plain(slices: Slices) -> bool:
    """Whether every slice is a chain of full steps from its first k on, a short one at most at its end."""
    lengths = {slices.span, slices.summed_k - (slices.count - 1) * slices.span}
    leads = {(length, length % slices.k_loop_step) for length in lengths}
    return slices.instruction_k == LANES and all(lead % LANES == 0 or lead == length for length, lead in leads)


def _structure(slices: Slices, meta: KernelMeta) -> Structure:
    if not _plain(slices):
        return Structure.GROUPED_CHAIN
    k = slices.summed_k
    aligned = meta.a.by_descriptor(meta.m, k) and meta.b.by_descriptor(k, meta.n)
    if aligned and (slices.count == 1 or slices.span % 64 == 0):
        return Structure.CHAIN_TMA
    return Structure.CHAIN_POINTER


def _swap(meta: KernelMeta) -> bool:
    """Whether the transposed product suits the tiles better: the thin side on N."""
    return meta.m < meta.n and meta.m <= THIN_SIDE


def output_dtypes(operand_dtype: DType) -> tuple[DType, ...]:
    """The types that a product of ``operand_dtype`` may be stored as."""
    return operand_dtype, DType.FLOAT32


def configs_of(structure: Structure) -> tuple[KernelConfig, ...]:
    """Every config that the chooser may pick for ``structure``, largest tile first."""
    match structure:
        case Structure.CHAIN_TMA:
            return TMA_CONFIGS
        case Structure.CHAIN_POINTER:
            return POINTER_CONFIGS
        case Structure.GROUPED_CHAIN:
            return GROUPED_CONFIGS


def _fits(config: KernelConfig, structure: Structure, meta: KernelMeta, slices: Slices) -> bool:
    """Whether no step of ``config`` crosses from one slice into the next, and its tiles fit the shared memory."""
    if structure is Structure.CHAIN_TMA and slices.count > 1 and slices.span % config.block_k:
        return False
    stored = DType.FLOAT32 if slices.merge else meta.out.dtype
    return config.shared_bytes(meta.a.dtype.itemsize, stored.itemsize) <= meta.shared_bytes


def _pick(usable: list[KernelConfig], meta: KernelMeta, slices: Slices) -> KernelConfig:
    """The largest tile that wastes little of itself and gives every multiprocessor work, else the one with most tiles."""
    smallest_m, smallest_n = min(c.block_m for c in usable), min(c.block_n for c in usable)
    fitting = [
        c
        for c in usable
        if (c.block_m < 2 * meta.m or c.block_m == smallest_m) and (c.block_n < 2 * meta.n or c.block_n == smallest_n)
    ] or usable
    for config in fitting:
        if config.tiles(meta.m, meta.n) * slices.count >= meta.sm_count:
            return config
    return max(fitting, key=lambda c: c.tiles(meta.m, meta.n))


def _assemble(
    structure: Structure, slices: Slices, config: KernelConfig, meta: KernelMeta, swapped: bool
) -> KernelChoice:
    m, n, k = meta.m, meta.n, meta.k
    by_tma = structure is Structure.CHAIN_TMA
    offsets = [] if by_tma else [meta.a.last_offset(m, k), meta.b.last_offset(k, n)]
    offsets.append(meta.out.last_offset(m, n) if slices.merge is None else m * n - 1)
    out_layout = meta.out.layout(m, n) if slices.merge is None else Layout.ROWS
    store_by_descriptor = (
        by_tma and slices.merge is None and out_layout is Layout.ROWS and meta.out.by_descriptor(m, n)
    )
    layouts = meta.a.layout(m, k), meta.b.layout(k, n)
    if Layout.ANY in layouts:
        layouts = Layout.ANY, Layout.ANY
    programs = config.tiles(m, n) * slices.count
    if by_tma:
        programs = min(programs, meta.sm_count * config.programs_per_sm)
    return KernelChoice(
        structure=structure,
        slices=slices,
        operand_dtype=meta.a.dtype,
        output_dtype=meta.out.dtype,
        config=config,
        programs=programs,
        swapped=swapped,
        a_layout=layouts[0],
        b_layout=layouts[1],
        out_layout=out_layout,
        store_by_descriptor=store_by_descriptor,
        wide_offsets=not store_by_descriptor and max(offsets) > MAX_NARROW_OFFSET,
    )
