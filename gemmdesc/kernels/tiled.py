"""Choosing kernels for a product of several orders: one for each rectangle of it.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.kernels.balanced import BalancedChoice, choose_balanced, is_balanced
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import KernelChoice, choose_kernel
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.finished import FinishedChoice, choose_finished, needs_finish
from gemmdesc.kernels.fma import FmaChoice, choose_fma
from gemmdesc.kernels.fused import FusedChoice, choose_fused, needs_fused
from gemmdesc.kernels.kmajor import KMajorChoice, choose_kmajor, is_kmajor
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import UNTUNED, TunedTable
from gemmdesc.regions import Region

#: What computes one rectangle.
WholeChoice = (
    KernelChoice | NestChoice | LaneChoice | BalancedChoice | FinishedChoice | KMajorChoice | FmaChoice | FusedChoice
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows and columns (begin, end) of the product, end exclusive, and the kernel that computes them."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    meta: KernelMeta
    choice: WholeChoice


@dataclass(frozen=True, kw_only=True)
class TiledChoice:
    """What to launch for a product of several orders, one part after the other."""

    parts: tuple[Part, ...]

    @property
    def structure(self) -> Structure:
        return Structure.REGIONS


Choice = WholeChoice | TiledChoice


def choose_whole(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, *, fused: bool = False, tuned: TunedTable = UNTUNED
) -> WholeChoice | Declined:
    """The kernel that computes ``desc`` for every element, bit for bit; ``fused``: with what follows its product.

    ``tuned``: configs that were measured to be fast, for chains that store a product or end with what follows it.
    """
    if fused or needs_fused(desc):
        return choose_fused(desc, meta, card, partial(choose_whole, tuned=tuned), tuned=tuned)
    if is_kmajor(desc):
        return choose_kmajor(desc, meta, card, tuned=tuned)
    if needs_finish(desc):
        return choose_finished(desc, meta, card)
    tiled = choose_fma(desc, meta, tuned=tuned)
    if tiled is not None:
        return tiled
    return choose_balanced(desc, meta, card) if is_balanced(desc) else choose_kernel(desc, meta, card, tuned=tuned)


def choose_tiled(
    regions: Sequence[Region], meta: KernelMeta, card: CardArithmetic, *, fused: bool = False,
    tuned: TunedTable = UNTUNED,
) -> Choice | Declined:  # fmt: skip
    """The kernels that compute the product of ``meta``, whose rows and columns are those of ``regions``.

    ``fused``: the descriptors end with what a caller does after the product.  ``tuned``: see :func:`choose_whole`.
    """
    if len(regions) == 1:
        return choose_whole(regions[0].descriptor, meta, card, fused=fused, tuned=tuned)
    parts = []
    for r in regions:
        rows, columns = (r.row_begin, r.row_end), (r.column_begin, r.column_end)
        inner = meta.part(rows, columns)
        choice = choose_whole(r.descriptor, inner, card, fused=fused, tuned=tuned)
        if isinstance(choice, Declined):
            return choice
        parts.append(Part(rows=rows, columns=columns, meta=inner, choice=choice))
    return TiledChoice(parts=tuple(parts))
