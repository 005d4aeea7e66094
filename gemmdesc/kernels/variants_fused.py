"""The compiled kernels of fused epilogues.  Pure.

Each has its program compiled in, and how the operands lie that it reads, so there are as many as a process has kinds of
calls.  :func:`enumerate_fused_variants` gives those of two programs, which stand for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gemmdesc.descriptor import Add, CastTo, Silu
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.config import POINTER_CONFIGS, KernelConfig
from gemmdesc.kernels.fused import FLOAT8, FUSED_CONFIGS, LINE, PAIRED, SPECIALISED_ENDS, FusedChoice
from gemmdesc.kernels.instructions import (
    INSTRUCTION_BITS,
    KEEP,
    MOST_OPERANDS,
    NUMBER,
    OPERAND_KINDS,
    OPERAND_SHIFT,
    ROUNDING_SHIFT,
    SIGMOID,
    SILU,
    Instructions,
    assembled,
)
from gemmdesc.kernels.meta import TMA_ALIGNMENT, Layout, MatrixMeta
from gemmdesc.kernels.slices import OPERAND_DTYPES
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variant import Constant, Variant
from gemmdesc.kernels.variants_specialised import tile_constants

#: Stands for the type behind the output of every 8-bit float, which kernels store as patterns.
BYTES = "int8"
#: Tile of the kernel that runs after a product.
AFTER_M, AFTER_N = 8, 128
_AFTER_WARPS = 4
_AFTER_STAGES = 3
_UNIT = (Layout.ROWS, Layout.COLUMNS)
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
#: Bits of the format of one operand: its type in the lowest two, then how it lies.
FORMAT_BITS, _FORM_SHIFT = 8, 2
#: How an operand lies over the product; the kernels' constants have the same values.
ANY_STRIDES, ONE_ROW, ONE_COLUMN, UNIT_ROW, WHOLE_ROWS, WHOLE_COLUMNS, UNIT_ROWS, UNIT_COLUMNS, WHOLE_ROW = range(9)
#: Outputs of a thread that are finished at once, as each needs some registers.  Of functions that are one long chain of
#: instructions ptxas interleaves those of 16 outputs, and of more only a few at a time.
_CHUNK_OUTPUTS, _CHAINED_OUTPUTS, _MOST_CHUNKS = 32, 16, 8
#: Of the specialised chain: threads of a group, registers of a thread for its sums and what is finished, and those of
#: an output that is.
_GROUP_THREADS, _ROOM, _VALUE = 128, 208, 2
_OPERATION = (1 << OPERAND_SHIFT) - 1
#: The bits of RESULT.
_CANONICAL, _OVERFLOWS, _E4M3FN = 1, 2, 4


@dataclass(frozen=True, kw_only=True)
class Store:
    """How a result is stored: its type, its layout, whether in aligned lines, and whether by a tensor descriptor."""

    dtype: DType
    layout: Layout
    aligned: bool
    by_descriptor: bool = False


def stored_name(dtype: DType) -> str:
    """What the constant STORED says of an output of ``dtype``."""
    return BYTES if dtype in FLOAT8 else dtype.value


def operand_format(meta: MatrixMeta | None, rows: int, columns: int) -> int:
    """How a kernel reads an operand that lies over rows x columns of a product so; None: it is a number."""
    if meta is None:
        return NUMBER
    return OPERAND_KINDS[meta.dtype] | _form(meta, rows, columns) << _FORM_SHIFT


def _form(meta: MatrixMeta, rows: int, columns: int) -> int:
    aligned = meta.alignment % TMA_ALIGNMENT == 0
    if meta.row_stride == 0:
        if meta.column_stride != 1:
            return ONE_ROW
        return WHOLE_ROW if aligned and columns % LINE == 0 else UNIT_ROW
    if meta.column_stride == 0:
        return ONE_COLUMN
    if meta.column_stride == 1:
        whole = (meta.row_stride | columns) % LINE == 0 and aligned
        return WHOLE_ROWS if whole else UNIT_ROWS
    if meta.row_stride == 1:
        whole = (meta.column_stride | rows) % LINE == 0 and aligned
        return WHOLE_COLUMNS if whole else UNIT_COLUMNS
    return ANY_STRIDES


def chunks_of(config: KernelConfig, program: int, count: int) -> int:
    """In how many parts of its columns a tile is finished by the ``count`` instructions of ``program``."""
    outputs = _CHAINED_OUTPUTS if _is_chained(program, count) else _CHUNK_OUTPUTS
    return max(1, min(_MOST_CHUNKS, config.outputs_per_thread // outputs, config.block_n // LINE))


def _is_chained(program: int, count: int) -> bool:
    """Whether one of the functions is a long chain of instructions."""
    return bool({program >> INSTRUCTION_BITS * i & _OPERATION for i in range(count)} & {SILU, SIGMOID})


def fused_variant(choice: FusedChoice, formats: Sequence[int]) -> Variant:
    """The kernel that does what follows the product of ``choice``, with the product or after it.

    ``formats``: :func:`operand_format` of each operand of its program.
    """
    store = Store(
        dtype=choice.output_dtype, layout=choice.out_layout, aligned=choice.aligned,
        by_descriptor=choice.store_by_descriptor,
    )  # fmt: skip
    compiled = _program(choice.program, formats, choice.output_dtype)
    if not choice.in_chain:
        return _after(choice.product_dtype, store, compiled)
    chain = choice.product
    layouts = chain.a_layout, chain.b_layout
    if chain.structure is Structure.CHAIN_SPECIALISED:
        return _specialised(chain.config, chain.operand_dtype, layouts, choice.output_dtype, compiled)
    if chain.structure is Structure.CHAIN_TMA:
        return _tma(chain.config, chain.operand_dtype, layouts, store, compiled)
    return _pointer(chain.config, chain.operand_dtype, layouts, store, compiled)


def _program(program: Instructions, formats: Sequence[int], stored: DType) -> dict[str, Constant]:
    result = _CANONICAL * program.canonical | _OVERFLOWS * program.overflows
    return {
        "PROGRAM": program.program, "COUNT": program.count,
        "FORMATS": sum(f << FORMAT_BITS * i for i, f in enumerate(formats)),
        "RESULT": result | (_E4M3FN if stored is DType.FLOAT8_E4M3FN else 0),
    }  # fmt: skip


def _rounds_first(program: int) -> bool:
    """Whether the first instruction is a rounding, which reads the sums by volatile instructions."""
    first = program & (1 << INSTRUCTION_BITS) - 1
    return bool(first >> ROUNDING_SHIFT) and first & (1 << ROUNDING_SHIFT) - 1 == KEEP


def _tma(
    config: KernelConfig, loaded: DType, layouts: tuple[Layout, Layout], store: Store, compiled: dict[str, Constant]
) -> Variant:
    constants: dict[str, Constant] = {
        "A_ROWS": layouts[0] is Layout.ROWS, "B_ROWS": layouts[1] is Layout.ROWS, "STORED": stored_name(store.dtype),
        "OUT_LAYOUT": store.layout.value, "ALIGNED": store.aligned, "STORE_BY_DESCRIPTOR": store.by_descriptor,
        "CHUNKS": chunks_of(config, int(compiled["PROGRAM"]), int(compiled["COUNT"])),
        "ROUNDS_FIRST": _rounds_first(int(compiled["PROGRAM"])), "DEPENDENT": config.dependent,
        "STAGGERED": config == PAIRED,
    }  # fmt: skip
    return _variant("fused_tma", config, loaded, store.dtype, constants | compiled)


def _specialised(
    config: SpecialisedConfig, loaded: DType, layouts: tuple[Layout, Layout], stored: DType,
    compiled: dict[str, Constant],
) -> Variant:  # fmt: skip
    constants: dict[str, Constant] = {
        "A_ROWS": layouts[0] is Layout.ROWS, "B_ROWS": layouts[1] is Layout.ROWS, "DEPENDENT": config.dependent,
        "ROUNDS_FIRST": _rounds_first(int(compiled["PROGRAM"])), **compiled, **_finishing(config, compiled),
        **tile_constants(config, stored),
    }  # fmt: skip
    return Variant(
        kernel="fused_specialised", loaded=loaded, stored=stored, constants=tuple(constants.items()),
        num_warps=config.num_warps, num_stages=config.num_stages, fp_fusion=False, dependent=config.dependent,
        cluster=config.cluster,
    )  # fmt: skip


def _finishing(config: SpecialisedConfig, compiled: dict[str, Constant]) -> dict[str, Constant]:
    """How a group of the specialised chain finishes its sums: columns at once, and whether it asks for operands ahead.

    As many columns as :func:`chunks_of` has; fewer where registers do not hold them and their operands, and those of
    the next ones, beside the sums of a large tile.  Nor the next ones' where that does not help.
    """
    program, count, formats = (int(compiled[name]) for name in ("PROGRAM", "COUNT", "FORMATS"))
    each = [formats >> FORMAT_BITS * i & (1 << FORMAT_BITS) - 1 for i in range(MOST_OPERANDS)]
    halves = 2 * _VALUE + sum(map(_operand_halves, each))
    room = 2 * (_ROOM - config.outputs_per_thread)
    outputs = _CHAINED_OUTPUTS if _is_chained(program, count) else _CHUNK_OUTPUTS
    columns = max(LINE, outputs * _GROUP_THREADS // config.rows)
    fits = room * _GROUP_THREADS // config.rows // halves
    while columns > max(fits, LINE):
        columns //= 2
    return {"FINISH_N": columns, "AHEAD": columns <= fits}


def _operand_halves(form: int) -> int:
    """About how many half registers an output needs for an operand of that format, the next output's among them."""
    if form & (1 << _FORM_SHIFT) - 1 == NUMBER:
        return 0
    if form >> _FORM_SHIFT in (ONE_ROW, ONE_COLUMN, UNIT_ROW, WHOLE_ROW):
        return 1
    if form >> _FORM_SHIFT != WHOLE_ROWS:
        # Each element has an address of its own.
        return 6
    return 4 if form == OPERAND_KINDS[DType.FLOAT32] | WHOLE_ROWS << _FORM_SHIFT else 2


def _pointer(
    config: KernelConfig, loaded: DType, layouts: tuple[Layout, Layout], store: Store, compiled: dict[str, Constant]
) -> Variant:
    constants: dict[str, Constant] = {
        "A_LAYOUT": layouts[0].value, "B_LAYOUT": layouts[1].value, "STORED": stored_name(store.dtype),
        "OUT_LAYOUT": store.layout.value,
    }  # fmt: skip
    return _variant("fused_pointer", config, loaded, store.dtype, constants | compiled)


def _variant(
    kernel: str, config: KernelConfig, loaded: DType, stored: DType, constants: dict[str, Constant]
) -> Variant:
    tile: dict[str, Constant] = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "GROUP_M": config.group_m,
    }  # fmt: skip
    return Variant(
        kernel=kernel, loaded=loaded, stored=_represented(stored), constants=tuple((constants | tile).items()),
        num_warps=config.num_warps, num_stages=config.num_stages, fp_fusion=False,
        dependent=bool(constants.get("DEPENDENT", False)),
    )  # fmt: skip


def _after(product_dtype: DType, store: Store, compiled: dict[str, Constant]) -> Variant:
    constants: dict[str, Constant] = {
        "KIND": OPERAND_KINDS[product_dtype], "STORED": stored_name(store.dtype), "OUT_LAYOUT": store.layout.value,
        "ALIGNED": store.aligned, **compiled, "BLOCK_M": AFTER_M, "BLOCK_N": AFTER_N,
    }  # fmt: skip
    return Variant(
        kernel="fused_after", loaded=DType.FLOAT32, stored=_represented(store.dtype),
        constants=tuple(constants.items()), num_warps=_AFTER_WARPS, num_stages=_AFTER_STAGES, fp_fusion=False,
    )  # fmt: skip


def _represented(stored: DType) -> DType:
    """One type for all that are stored as patterns of 8 bits."""
    return FLOAT8[0] if stored in FLOAT8 else stored


def sample_programs(loaded: DType, stored: DType) -> Iterator[dict[str, Constant]]:
    """Programs that stand for all: a function of the rounded product, and a matrix added to it."""
    whole = MatrixMeta(dtype=loaded, row_stride=LINE, column_stride=1, alignment=TMA_ALIGNMENT)
    for step, formats in ((Silu(), ()), (Add(operand="other"), (operand_format(whole, LINE, LINE),))):
        program = assembled((CastTo(dtype=loaded), step))
        assert not isinstance(program, Declined)
        yield _program(program, formats, stored)


def enumerate_fused_variants(shared_bytes: int) -> Iterator[Variant]:
    """Every kernel of fused epilogues of the sample programs, on a card with that much shared memory."""
    for loaded in OPERAND_DTYPES:
        for stored in (loaded, DType.FLOAT32, FLOAT8[0]):
            for compiled in sample_programs(loaded, stored):
                yield from _chains(loaded, stored, compiled, shared_bytes)
    plain = ((Layout.ROWS, True), (Layout.ROWS, False), (Layout.ANY, False))
    for kind, stored, (layout, aligned) in product(_FLOATS, (*_FLOATS, FLOAT8[0]), plain):
        for compiled in sample_programs(kind, stored):
            yield _after(kind, Store(dtype=stored, layout=layout, aligned=aligned), compiled)


def _chains(
    loaded: DType, stored: DType, compiled: dict[str, Constant], shared_bytes: int
) -> Iterator[Variant]:
    stores = [
        Store(dtype=stored, layout=layout, aligned=aligned) for layout, aligned in product(_UNIT, (False, True))
    ]  # fmt: skip
    if stored not in FLOAT8:
        stores += [
            Store(dtype=stored, layout=Layout.ROWS, aligned=aligned, by_descriptor=True) for aligned in (False, True)
        ]
    for config, a, b, store in product(FUSED_CONFIGS, _UNIT, _UNIT, stores):
        if config.shared_bytes(loaded.itemsize, loaded.itemsize) <= shared_bytes:
            yield _tma(config, loaded, (a, b), store, compiled)
    if stored is loaded:
        for end, a, b in product(SPECIALISED_ENDS, _UNIT, _UNIT):
            if end.shared_bytes(loaded.itemsize, stored.itemsize) <= shared_bytes:
                yield _specialised(end, loaded, (a, b), stored, compiled)
    pairs = [*product(_UNIT, _UNIT), (Layout.ANY, Layout.ANY)]
    for config, layouts, layout in product(POINTER_CONFIGS, pairs, _UNIT):
        yield _pointer(config, loaded, layouts, Store(dtype=stored, layout=layout, aligned=False), compiled)
