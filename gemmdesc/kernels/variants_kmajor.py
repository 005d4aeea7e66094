"""The compiled kernels of K-major chains that can exist.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.kmajor import CASTS, FINISH_BLOCK, FLOAT8_OUTPUTS, PACK_ROWS, KMajorChoice, step_sizes
from gemmdesc.kernels.kmajor_blocks import FLOAT8_DTYPES, LINE_BYTES, TILES
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.slices import Merge
from gemmdesc.kernels.variant import Constant, Variant

_WARPS = 4
_STAGES = 3
_PAIRS = (*product(FLOAT8_DTYPES, FLOAT8_DTYPES), (DType.FLOAT32, DType.FLOAT32))


def kmajor_chain_variant(choice: KMajorChoice) -> Variant:
    """The kernel that computes the slices of ``choice``."""
    return _chain(
        choice.config, (choice.a_dtype, choice.b_dtype), choice.folded, choice.out_layout, choice.wide_offsets
    )


def _chain(
    config: KernelConfig, pair: tuple[DType, DType], folded: int, out_layout: Layout, wide_offsets: bool
) -> Variant:
    constants: dict[str, Constant] = {
        "FOLDED": folded, "OUT_LAYOUT": out_layout.value, "WIDE_OFFSETS": wide_offsets, "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "GROUP_M": config.group_m,
    }  # fmt: skip
    return Variant(
        kernel="kmajor_chain", loaded=pair[0], loaded_b=None if pair[1] is pair[0] else pair[1], stored=DType.FLOAT32,
        constants=tuple(constants.items()), num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


def kmajor_pack_variant(
    layout: Layout, *, dtype: DType, cast: int, instruction_k: int, step_lanes: int, wide_offsets: bool
) -> Variant:
    """The kernel that copies an operand (rows, k) of ``layout``."""
    constants: dict[str, Constant] = {
        "SOURCE_LAYOUT": layout.value, "WIDE_OFFSETS": wide_offsets, "CAST": cast, "INSTRUCTION_K": instruction_k,
        "STEP_LANES": step_lanes, "BLOCK_ROWS": PACK_ROWS, "BLOCK_K": LINE_BYTES // dtype.itemsize,
    }  # fmt: skip
    return Variant(
        kernel="kmajor_pack", loaded=dtype, stored=dtype, constants=tuple(constants.items()), num_warps=_WARPS,
        num_stages=_STAGES,
    )  # fmt: skip


def scaled_merge_variant(merge: Merge, stored: DType, *, scales: int, wide_offsets: bool) -> Variant:
    """The kernel that folds slices, multiplies by ``scales`` scales and stores."""
    constants: dict[str, Constant] = {
        "PARTIAL_DTYPE": merge.partial_dtype.value, "MERGE_DTYPE": merge.merge_dtype.value, "SCALED": scales > 0,
        "OUTPUT_SCALED": scales > 1, "WIDE_OFFSETS": wide_offsets, "BLOCK": FINISH_BLOCK,
    }  # fmt: skip
    return Variant(
        kernel="scaled_merge", loaded=DType.FLOAT32, stored=stored, constants=tuple(constants.items()),
        num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip


def kmajor_variants(choice: KMajorChoice) -> tuple[Variant, ...]:
    """Every kernel that launching ``choice`` runs."""
    found = [kmajor_chain_variant(choice)]
    for packing, dtype in zip(choice.packings or (), (choice.a_dtype, choice.b_dtype), strict=False):
        found.append(
            kmajor_pack_variant(
                packing.source, dtype=dtype, cast=packing.cast, instruction_k=choice.instruction_k,
                step_lanes=choice.step_lanes, wide_offsets=packing.wide,
            )
        )  # fmt: skip
    if choice.finishes:
        found.append(
            scaled_merge_variant(
                choice.merge, choice.output_dtype, scales=choice.scales, wide_offsets=choice.wide_merge
            )
        )
    return tuple(dict.fromkeys(found))


def enumerate_kmajor_variants(shared_bytes: int) -> Iterator[Variant]:
    """Every variant that the chooser can pick without a tile of the caller's, on a card with that much memory."""
    for tile, pair, folded, wide in product(TILES, _PAIRS, (0, 1, 2), (False, True)):
        config = tile.config(pair[0].itemsize)
        if config.shared_bytes(pair[0].itemsize, 0) <= shared_bytes and not (folded and tile is TILES[0]):
            for layout in (Layout.ROWS, Layout.COLUMNS):
                yield _chain(config, pair, folded, layout, wide)
    for dtype, layout, wide in product((*FLOAT8_DTYPES, DType.FLOAT32), Layout, (False, True)):
        for step, cast in product(step_sizes(dtype), CASTS.values()):
            if (cast > 0) == (dtype is DType.FLOAT32):
                yield kmajor_pack_variant(
                    layout, dtype=dtype, cast=cast, instruction_k=step, step_lanes=step_sizes(dtype)[1],
                    wide_offsets=wide,
                )  # fmt: skip
    for stored, scales, wide in product(FLOAT8_OUTPUTS, (0, 1, 2), (False, True)):
        held = (DType.FLOAT32,) if stored in FLOAT8_DTYPES else tuple(dict.fromkeys((DType.FLOAT32, stored)))
        for partial, running in product(held, held):
            merge = Merge(partial_dtype=partial, merge_dtype=running, start=Start.FIRST)
            yield scaled_merge_variant(merge, stored, scales=scales, wide_offsets=wide)
