"""The compiled kernels of tiled float32 chains that can exist.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdesc.dtypes import DType
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.fma import FMA_CONFIGS, FmaChoice
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.variant import Variant
from gemmdesc.kernels.variants_kmajor import scaled_merge_variant

_UNIT = (Layout.ROWS, Layout.COLUMNS)


def fma_chain_variant(choice: FmaChoice) -> Variant:
    """The kernel that computes the slices of ``choice``."""
    return _chain(choice.config, (choice.a_layout, choice.b_layout), choice.out_layout, choice.wide_offsets)


def _chain(config: KernelConfig, layouts: tuple[Layout, Layout], out_layout: Layout, wide_offsets: bool) -> Variant:
    constants = {
        "A_LAYOUT": layouts[0].value, "B_LAYOUT": layouts[1].value, "OUT_LAYOUT": out_layout.value,
        "WIDE_OFFSETS": wide_offsets, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k, "GROUP_M": config.group_m,
    }  # fmt: skip
    return Variant(
        kernel="fma_chain", loaded=DType.FLOAT32, stored=DType.FLOAT32, constants=tuple(constants.items()),
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


def fma_variants(choice: FmaChoice) -> tuple[Variant, ...]:
    """Every kernel that launching ``choice`` runs."""
    chain = fma_chain_variant(choice)
    if choice.count == 1:
        return (chain,)
    return chain, scaled_merge_variant(choice.merge, DType.FLOAT32, scales=0, wide_offsets=choice.wide_merge)


def enumerate_fma_variants() -> Iterator[Variant]:
    """Every chain that the chooser can pick without a config of the caller's."""
    for config, layouts, out, wide in product(
        FMA_CONFIGS, (*product(_UNIT, _UNIT), (Layout.ANY, Layout.ANY)), _UNIT, (False, True)
    ):
        yield _chain(config, layouts, out, wide)
