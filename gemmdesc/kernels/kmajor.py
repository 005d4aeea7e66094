"""Choosing the kernels of matrix steps that take both operands along k: 8-bit floats and tfloat32.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.descriptor import (
    EpilogueStep,
    FusedDot,
    GEMMDesc,
    OperandCast,
    ResidueFirst,
    Rounding,
    Scale,
    ScaleOutput,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic, multiplied_dtypes
from gemmdesc.kernels.choose import MAX_NARROW_OFFSET
from gemmdesc.kernels.config import THIN_SIDE, KernelConfig
from gemmdesc.kernels.kmajor_blocks import FLOAT8_DTYPES, TILES, Blocks, Tile, lay_out
from gemmdesc.kernels.meta import KernelMeta, Layout, MatrixMeta
from gemmdesc.kernels.slices import NO_LOOP_STEP, Merge, declined
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import UNTUNED, TunedTable, tuned_key

#: Types that such a product may be stored as, by its operands'.
FLOAT8_OUTPUTS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, *FLOAT8_DTYPES)
#: Lanes of the instruction that the kernels write, by the bytes of an operand's element.
STEP_LANES = {1: 32, 4: 8}
_LOAD_COST = 16
#: Rows that one program of the copying takes, and elements that one of the finishing kernel does.
PACK_ROWS = 64
FINISH_BLOCK = 512
#: The epilogues that follow, each the beginning of the next.
_EPILOGUE = (Scale(), ScaleOutput())
#: How the copying rounds, in the kernels' numbers.
CASTS = {None: 0, Rounding.TOWARD_ZERO: 1, Rounding.NEAREST_EVEN: 2, Rounding.NEAREST_AWAY: 3}
_PLAIN = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)


@dataclass(frozen=True, kw_only=True)
class KMajorPacking:
    """One operand is copied: its layout with k along the rows, whether 64-bit offsets are needed, and the rounding."""

    source: Layout
    wide: bool
    cast: int


@dataclass(frozen=True, kw_only=True)
class KMajorChoice:
    """What to launch, on a grid of ``programs``.  ``swapped``: all else speaks of the transposed product.

    ``span``: lanes from one block to the next, in the copies where there are any.  ``packings``: of A and of B, or
    none.  ``scales``: how many steps of the epilogue there are.  ``finishes``: whether sums go through scratch.
    """

    blocks: Blocks
    a_dtype: DType
    b_dtype: DType
    output_dtype: DType
    instruction_k: int
    step_lanes: int
    k_loop_step: int
    span: int
    packings: tuple[KMajorPacking, KMajorPacking] | None
    scales: int
    finishes: bool
    config: KernelConfig
    programs: int
    swapped: bool
    out_layout: Layout
    wide_offsets: bool
    wide_merge: bool

    @property
    def structure(self) -> Structure:
        return Structure.KMAJOR_CHAIN

    @property
    def k_tiles(self) -> int:
        """Loads along k that one block takes."""
        return -(-self.span // self.config.block_k)

    @property
    def folded(self) -> int:
        """0: a slice is a chain; else its chains are folded, each of one load (1) or of more (2)."""
        return 0 if self.blocks.fold is None else 1 if self.k_tiles == 1 else 2

    @property
    def merge(self) -> Merge:
        """What the finishing kernel folds by; -0.0 + x = x stands for no fold."""
        return self.blocks.merge or _PLAIN


def is_kmajor(desc: GEMMDesc) -> bool:
    """Whether :func:`choose_kmajor` is what computes ``desc``: matrix steps of other than 16-bit operands."""
    kinds = {*FLOAT8_DTYPES, DType.FLOAT32}
    return isinstance(desc.accumulator.step, FusedDot) and bool(kinds & {desc.a_dtype, desc.b_dtype})


def choose_kmajor(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, tile: Tile | None = None, *, tuned: TunedTable = UNTUNED
) -> KMajorChoice | Declined:
    """The kernels that compute ``desc``, bit for bit; ``tile`` overrides a choice of speed, ``tuned`` makes it."""
    trouble = _misfit(desc, meta) or _wrong_step(desc, card)
    if trouble is not None:
        return trouble
    swapped = meta.m < meta.n and meta.m <= THIN_SIDE
    turned = meta.swapped if swapped else meta
    blocks = lay_out(desc, turned)
    if isinstance(blocks, Declined):
        return blocks
    chosen = _pick((tile,) if tile else TILES, turned, blocks, tuned)
    if chosen is None:
        return declined(f"a tile must fit {meta.shared_bytes} bytes of shared memory (got {tile or 'none that does'})")
    casts = (desc.b_cast, desc.a_cast) if swapped else (desc.a_cast, desc.b_cast)
    return _assemble(desc, turned, blocks, chosen, casts, swapped)


def _misfit(desc: GEMMDesc, meta: KernelMeta) -> Declined | None:
    for name, got, want in (
        ("a", meta.a.dtype, desc.a_dtype),
        ("b", meta.b.dtype, desc.b_dtype),
        ("out", meta.out.dtype, desc.output_dtype),
    ):
        if got is not want:
            return declined(f"{name} must have the descriptor's type {want.value} (got {got.value})")
    types = {desc.a_dtype, desc.b_dtype}
    if not (types <= set(FLOAT8_DTYPES) or types == {DType.FLOAT32}):
        got_types = f"{desc.a_dtype.value} and {desc.b_dtype.value}"
        return declined(f"operands must be 8-bit floats or float32 alike (got {got_types})")
    outputs = FLOAT8_OUTPUTS if DType.FLOAT32 not in types else (DType.FLOAT32,)
    if desc.output_dtype not in outputs:
        return declined(f"the output must be one of {[d.value for d in outputs]} (got {desc.output_dtype.value})")
    if DType.FLOAT32 in types and None in (desc.a_cast, desc.b_cast):
        return declined("matrix steps of float32 operands must have a cast to tfloat32 for both")
    if not _known(desc.epilogue):
        return declined(f"the epilogue must be a scale and an output's scale at most (got {desc.epilogue})")
    strides = (meta.a.row_stride, meta.a.column_stride, meta.b.row_stride, meta.b.column_stride)
    if min(meta.m, meta.n, meta.k, desc.summed_k) < 1 or min(strides) < 0:
        return declined(f"sizes must be positive and strides not negative (got {meta})")
    if meta.out.layout(meta.m, meta.n) is Layout.ANY:
        return declined(f"out must have a unit stride (got {meta.out.row_stride}, {meta.out.column_stride})")
    return None


def _known(epilogue: tuple[EpilogueStep, ...]) -> bool:
    return epilogue == _EPILOGUE[: len(epilogue)]


def _wrong_step(desc: GEMMDesc, card: CardArithmetic) -> Declined | None:
    """Why the card's matrix steps do not realise the accumulator, if they do not."""
    accumulator, types = desc.accumulator, multiplied_dtypes(desc)
    realised = card.step_for(*types)
    if realised is None:
        return declined(f"the card's matrix steps for {types[0].value} and {types[1].value} are not known")
    if realised.step != accumulator.step or realised.step.accumulator_dtype is not DType.FLOAT32:
        return declined(f"the accumulator must be the card's {realised.step} (got {accumulator.step})")
    lanes = STEP_LANES[desc.a_dtype.itemsize]
    if realised.lanes != lanes:
        return declined(f"matrix steps must have {lanes} lanes (got {realised.lanes})")
    if accumulator.instruction_k not in step_sizes(desc.a_dtype):
        return declined(f"instruction_k must be {lanes // 2} or {lanes} (got {accumulator.instruction_k})")
    turn = _turn(desc)
    if turn % accumulator.instruction_k and turn != NO_LOOP_STEP:
        return declined(f"k_loop_step must be a multiple of instruction_k {accumulator.instruction_k} (got {turn})")
    return None


def step_sizes(operand_dtype: DType) -> tuple[int, int]:
    """Real products that a step may hold, the rest of its lanes being zero."""
    lanes = STEP_LANES[operand_dtype.itemsize]
    return lanes // 2, lanes


def _turn(desc: GEMMDesc) -> int:
    residue = desc.accumulator.residue
    return min(residue.k_loop_step, NO_LOOP_STEP) if isinstance(residue, ResidueFirst) else NO_LOOP_STEP


def _pick(tiles: tuple[Tile, ...], meta: KernelMeta, blocks: Blocks, tuned: TunedTable) -> KernelConfig | None:
    """Among those that fit the tuned config, or the one of least estimated time; a thin side gets one tile."""
    size = meta.a.dtype.itemsize
    able = [t.config(size) for t in tiles if blocks.fold is None or t is not TILES[0]]
    usable = [
        c for c in able
        if c.shared_bytes(size, 0) <= meta.shared_bytes and c.tiles(meta.m, meta.n) * blocks.slices <= MAX_NARROW_OFFSET
    ]  # fmt: skip
    for pick in tuned.find(tuned_key("kmajor", blocks.count > 1, meta), meta):
        if pick.structure is Structure.KMAJOR_CHAIN and pick.config in usable:
            return pick.config
    covering = [c for c in usable if meta.n > THIN_SIDE or c.block_n >= meta.n] or usable

    def cost(config: KernelConfig) -> int:
        rounds = -(-config.tiles(meta.m, meta.n) * blocks.slices // meta.sm_count)
        return rounds * (config.block_m * config.block_n + _LOAD_COST * (config.block_m + config.block_n))

    return min(covering, key=cost, default=None)


def _assemble(
    desc: GEMMDesc, meta: KernelMeta, blocks: Blocks, config: KernelConfig,
    casts: tuple[OperandCast | None, OperandCast | None], swapped: bool,
) -> KMajorChoice | Declined:  # fmt: skip
    step_k, turn, lanes = desc.accumulator.instruction_k, _turn(desc), STEP_LANES[meta.a.dtype.itemsize]
    # The most steps that a block takes: a partial turn that leads ends in a short step of its own.
    most = max(-(-(length % turn) // step_k) + length // turn * (turn // step_k) for length in _lengths(blocks))
    span = blocks.span if _direct(meta, blocks, casts, (step_k, turn), config.block_k) else 0
    packings = None
    if not span:
        span = -(-most * lanes // config.block_k) * config.block_k
        lanes_k = span * blocks.count
        packings = (
            _packing(meta.a, meta.m, meta.k, casts[0], lanes_k),
            _packing(meta.b.transposed, meta.n, meta.k, casts[1], lanes_k),
        )
    if span * blocks.count > MAX_NARROW_OFFSET:
        return declined(f"lanes along k must be at most {MAX_NARROW_OFFSET} (got {span} x {blocks.count})")
    finishes = blocks.merge is not None or bool(desc.epilogue) or desc.output_dtype is not DType.FLOAT32
    last = max(meta.m * meta.n, meta.out.last_offset(meta.m, meta.n))
    return KMajorChoice(
        blocks=blocks, a_dtype=meta.a.dtype, b_dtype=meta.b.dtype, output_dtype=desc.output_dtype,
        instruction_k=step_k, step_lanes=lanes, k_loop_step=turn, span=span, packings=packings,
        scales=len(desc.epilogue), finishes=finishes, config=config, swapped=swapped,
        programs=min(config.tiles(meta.m, meta.n) * blocks.slices, meta.sm_count * config.programs_per_sm),
        out_layout=Layout.ROWS if finishes else meta.out.layout(meta.m, meta.n),
        wide_offsets=(meta.m * meta.n if finishes else last) > MAX_NARROW_OFFSET,
        wide_merge=last + FINISH_BLOCK > MAX_NARROW_OFFSET,
    )  # fmt: skip


def _packing(matrix: MatrixMeta, rows: int, k: int, cast: OperandCast | None, lanes: int) -> KMajorPacking:
    largest = max(matrix.last_offset(rows, k), (rows + PACK_ROWS) * lanes)
    return KMajorPacking(
        source=matrix.layout(rows, k), wide=largest > MAX_NARROW_OFFSET,
        cast=CASTS[None if cast is None else cast.rounding],
    )  # fmt: skip


def _lengths(blocks: Blocks) -> tuple[int, int]:
    """k of a full block and of the last one."""
    return blocks.span, blocks.summed_k - (blocks.count - 1) * blocks.span


def _direct(
    meta: KernelMeta, blocks: Blocks, casts: tuple[OperandCast | None, ...], steps: tuple[int, int], block_k: int
) -> bool:
    """Whether the operands can be read where they lie, along k, each block in full steps from its first k on."""
    step_k, turn = steps
    lanes = STEP_LANES[meta.a.dtype.itemsize]
    leads = [(length, length % turn) for length in _lengths(blocks)]
    lines = ((meta.a, meta.m), (meta.b.transposed, meta.n))
    return (
        casts == (None, None)
        and step_k == lanes
        and all(lead % lanes == 0 or lead == length for length, lead in leads)
        and (blocks.count == 1 or blocks.span % block_k == 0)
        and all(x.layout(rows, meta.k) is Layout.ROWS and x.by_descriptor(rows, blocks.summed_k) for x, rows in lines)
    )
