"""Which compiled kernels a choice launches, so that a graph capture can tell whether one has still to be compiled."""

from __future__ import annotations

from dataclasses import replace

from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.choose import MAX_NARROW_OFFSET
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.kernels.fma import FmaChoice
from gemmdesc.kernels.fused import FusedChoice
from gemmdesc.kernels.kmajor import KMajorChoice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.tiled import Choice, TiledChoice
from gemmdesc.kernels.variants import (
    MERGE_BLOCK,
    Variant,
    balanced_variants,
    chain_variant,
    finish_is_wide,
    finished_variants,
    merge_variant,
    variants_of,
)
from gemmdesc.kernels.variants_fma import fma_variants
from gemmdesc.kernels.variants_fused import fused_variant
from gemmdesc.kernels.variants_kmajor import kmajor_variants


def needed_variants(choice: Choice, meta: KernelMeta) -> frozenset[Variant]:
    """Every variant that launching ``choice`` on the tensors of ``meta`` needs, the merge in its width."""
    match choice:
        case TiledChoice(parts=parts):
            return frozenset().union(*(needed_variants(part.choice, part.meta) for part in parts))
        case BalancedChoice():
            return frozenset(balanced_variants(choice))
        case FinishedChoice():
            # C lies as the output does, and a bias does not reach as far.
            far = finish_is_wide(meta.m * meta.n, meta.out.last_offset(meta.m, meta.n))
            return frozenset(finished_variants(choice, wide_offsets=far))
        case KMajorChoice():
            return frozenset(kmajor_variants(choice))
        case FusedChoice():
            # How operands lie that a caller names is known when there are some.
            own = frozenset() if choice.program.operands else frozenset({fused_variant(choice, ())})
            return _product_variants(choice, meta) | own
        case FmaChoice():
            return frozenset(fma_variants(choice))
    needed = frozenset(variants_of(choice))
    if isinstance(choice, NestChoice | LaneChoice):
        return needed
    merge = choice.slices.merge
    if not choice.merges or merge is None:
        return needed
    turned = meta.swapped if choice.swapped else meta
    last = max(turned.m * turned.n, turned.out.last_offset(turned.m, turned.n)) + MERGE_BLOCK
    if last <= MAX_NARROW_OFFSET:
        return needed
    narrow, wide = (merge_variant(merge, choice.output_dtype, wide_offsets=w) for w in (False, True))
    return needed - {narrow} | {wide}


def _product_variants(choice: FusedChoice, meta: KernelMeta) -> frozenset[Variant]:
    """What the product of a fused choice needs beside the kernel that ends with the rest."""
    if choice.in_chain:
        chain = chain_variant(choice.product)
        return frozenset(v for v in variants_of(choice.product) if v != chain)
    scratch = replace(meta.out, dtype=choice.product_dtype, row_stride=meta.n, column_stride=1)
    return needed_variants(choice.product, replace(meta, out=scratch))
