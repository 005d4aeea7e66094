"""The compiled kernels of fused epilogues.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdesc.dtypes import DType
from gemmdesc.kernels.config import POINTER_CONFIGS, KernelConfig
from gemmdesc.kernels.fused import FLOAT8, FUSED_CONFIGS, FusedChoice
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.slices import OPERAND_DTYPES
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variant import Constant, Variant

#: Stands for the type behind the output of every 8-bit float, which kernels store as patterns.
BYTES = "int8"
#: Tile of the kernel that runs after a product.
AFTER_M, AFTER_N = 8, 128
_AFTER_WARPS = 4
_AFTER_STAGES = 3
_UNIT = (Layout.ROWS, Layout.COLUMNS)
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def stored_name(dtype: DType) -> str:
    """What the constant STORED says of an output of ``dtype``."""
    return BYTES if dtype in FLOAT8 else dtype.value


def fused_variant(choice: FusedChoice) -> Variant:
    """The kernel that does what follows the product of ``choice``, with the product or after it."""
    stored, layout, aligned = choice.output_dtype, choice.out_layout, choice.aligned
    if not choice.in_chain:
        return _after(stored, layout, aligned)
    chain = choice.product
    layouts = chain.a_layout, chain.b_layout
    if chain.structure is Structure.CHAIN_TMA:
        return _tma(chain.config, chain.operand_dtype, stored, layouts, layout, aligned)
    return _pointer(chain.config, chain.operand_dtype, stored, layouts, layout)


def _tma(
    config: KernelConfig, loaded: DType, stored: DType, layouts: tuple[Layout, Layout], layout: Layout, aligned: bool
) -> Variant:
    constants: dict[str, Constant] = {
        "A_ROWS": layouts[0] is Layout.ROWS, "B_ROWS": layouts[1] is Layout.ROWS, "STORED": stored_name(stored),
        "OUT_LAYOUT": layout.value, "ALIGNED": aligned,
    }  # fmt: skip
    return _variant("fused_tma", config, loaded, stored, constants)


def _pointer(
    config: KernelConfig, loaded: DType, stored: DType, layouts: tuple[Layout, Layout], layout: Layout
) -> Variant:
    constants: dict[str, Constant] = {
        "A_LAYOUT": layouts[0].value, "B_LAYOUT": layouts[1].value, "STORED": stored_name(stored),
        "OUT_LAYOUT": layout.value,
    }  # fmt: skip
    return _variant("fused_pointer", config, loaded, stored, constants)


def _variant(
    kernel: str, config: KernelConfig, loaded: DType, stored: DType, constants: dict[str, Constant]
) -> Variant:
    tile: dict[str, Constant] = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "GROUP_M": config.group_m,
    }  # fmt: skip
    return Variant(
        kernel=kernel, loaded=loaded, stored=_represented(stored), constants=tuple((constants | tile).items()),
        num_warps=config.num_warps, num_stages=config.num_stages, fp_fusion=False,
    )  # fmt: skip


def _after(stored: DType, layout: Layout, aligned: bool) -> Variant:
    constants: dict[str, Constant] = {
        "STORED": stored_name(stored), "OUT_LAYOUT": layout.value, "ALIGNED": aligned, "BLOCK_M": AFTER_M,
        "BLOCK_N": AFTER_N,
    }  # fmt: skip
    return Variant(
        kernel="fused_after", loaded=DType.FLOAT32, stored=_represented(stored), constants=tuple(constants.items()),
        num_warps=_AFTER_WARPS, num_stages=_AFTER_STAGES, fp_fusion=False,
    )  # fmt: skip


def _represented(stored: DType) -> DType:
    """One type for all that are stored as patterns of 8 bits."""
    return FLOAT8[0] if stored in FLOAT8 else stored


def enumerate_fused_variants(shared_bytes: int) -> Iterator[Variant]:
    """Every variant that a fused epilogue can need on a card with that much shared memory."""
    for loaded in OPERAND_DTYPES:
        stored_types = (loaded, DType.FLOAT32, FLOAT8[0])
        for config, stored, a, b, layout in product(FUSED_CONFIGS, stored_types, _UNIT, _UNIT, _UNIT):
            if config.shared_bytes(loaded.itemsize, loaded.itemsize) <= shared_bytes:
                for aligned in (False, True):
                    yield _tma(config, loaded, stored, (a, b), layout, aligned)
        pairs = [*product(_UNIT, _UNIT), (Layout.ANY, Layout.ANY)]
        for config, stored, layouts, layout in product(POINTER_CONFIGS, stored_types, pairs, _UNIT):
            yield _pointer(config, loaded, stored, layouts, layout)
    stores = ((Layout.ROWS, True), (Layout.ROWS, False), (Layout.ANY, False))
    for stored, (layout, aligned) in product((*_FLOATS, FLOAT8[0]), stores):
        yield _after(stored, layout, aligned)
