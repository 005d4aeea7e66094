"""The names of the accumulation kernels."""

from __future__ import annotations

from enum import Enum


class Structure(Enum):
    """The accumulation kernels.

    A merge follows the first four where there are slices to fold.  A folded chain sums all slices of a tile in one
    program; the merged ones are the first three whose last program of a tile folds the slices from scratch.  A scalar
    nest is chains and their folds, a lane nest both in one launch.  A wide chain is the first with tiles of two widths
    side by side.
    Balanced chains are runs of slices that chain kernels store, and their folds.  K-major chains multiply 8-bit floats
    and tfloat32, fma chains float32 on CUDA cores.  Regions are rectangles of the product with kernels of their own.
    Finished ones are sums in scratch, and one kernel that folds them and does what opens or follows the sum.  Fused
    ones do what eager torch would do after the product.  A specialised chain is the first one of whole chains by warps
    that each do one thing.
    """

    CHAIN_TMA = "chain_tma"
    CHAIN_POINTER = "chain_pointer"
    GROUPED_CHAIN = "grouped_chain"
    CHAIN_WIDE = "chain_wide"
    FOLDED_CHAIN = "folded_chain"
    MERGED_TMA = "merged_tma"
    MERGED_POINTER = "merged_pointer"
    MERGED_GROUPED = "merged_grouped"
    SCALAR_NEST = "scalar_nest"
    LANE_NEST = "lane_nest"
    BALANCED_CHAINS = "balanced_chains"
    KMAJOR_CHAIN = "kmajor_chain"
    FMA_CHAIN = "fma_chain"
    REGIONS = "regions"
    FINISHED = "finished"
    FUSED = "fused"
    CHAIN_SPECIALISED = "chain_specialised"

    @property
    def by_descriptor(self) -> bool:
        """Whether operands are read through tensor descriptors."""
        chains = (Structure.CHAIN_TMA, Structure.CHAIN_WIDE, Structure.CHAIN_SPECIALISED)
        return self in (*chains, Structure.FOLDED_CHAIN, Structure.MERGED_TMA)

    @property
    def merged(self) -> bool:
        """Whether the slices of a tile meet in scratch and the last program to come folds them."""
        return self in (Structure.MERGED_TMA, Structure.MERGED_POINTER, Structure.MERGED_GROUPED)

    @property
    def folds(self) -> bool:
        """Whether the kernel of the chains folds the slices, too."""
        return self.merged or self is Structure.FOLDED_CHAIN
