"""Configs that were measured to be fast, as a value that the chooser is given: never more than a choice of speed.

A pick counts only where it is one of the configs that the chooser allows for the descriptor at hand, so no table can
change a bit, nor make a kernel be launched that would not fit.  What a table lacks is chosen by the model.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.structure import Structure

#: m, n and k of a product as the kernel computes it.
Sizes = tuple[int, int, int]


def size_class(size: int) -> int:
    """The half octave of a size of at least 1: sizes of one class differ by less than a factor of the root of 2."""
    octave = size.bit_length() - 1
    return 2 * octave + (size * size >= 1 << (2 * octave + 1))


@dataclass(frozen=True, kw_only=True)
class TunedKey:
    """What a pick is found by, of the product as the kernel computes it, transposed where that is what is launched.

    ``steps``: ``plain``, ``grouped``, ``kmajor`` or ``fma``: the kind of chain.  ``sliced``: whether parts are folded.
    ``sizes``: classes of m, n and k.
    """

    steps: str
    sliced: bool
    a_dtype: DType
    b_dtype: DType
    output_dtype: DType
    a_layout: Layout
    b_layout: Layout
    sizes: Sizes

    def holds(self, sizes: Sizes) -> bool:
        """Whether a product of these sizes is of this class."""
        return tuple(map(size_class, sizes)) == self.sizes


def tuned_key(steps: str, sliced: bool, meta: KernelMeta) -> TunedKey:
    """The key of a product of ``meta``; sizes are at least 1."""
    return TunedKey(
        steps=steps, sliced=sliced, a_dtype=meta.a.dtype, b_dtype=meta.b.dtype, output_dtype=meta.out.dtype,
        a_layout=meta.a.layout(meta.m, meta.k), b_layout=meta.b.layout(meta.k, meta.n),
        sizes=(size_class(meta.m), size_class(meta.n), size_class(meta.k)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TunedPick:
    """A structure and its config."""

    structure: Structure
    config: KernelConfig


@dataclass(frozen=True, kw_only=True)
class TunedTable:
    """Picks of one card: ``picks`` for classes of products, ``exact`` for products of the very sizes beside the key.

    Neighbours in a class may want different tiles, as the last round of tiles is full of one size and not of the next.
    """

    picks: Mapping[TunedKey, TunedPick] = field(default_factory=lambda: MappingProxyType({}))
    exact: Mapping[tuple[TunedKey, Sizes], TunedPick] = field(default_factory=lambda: MappingProxyType({}))

    def find(self, key: TunedKey, meta: KernelMeta) -> tuple[TunedPick, ...]:
        """The picks for the product of ``meta`` that ``key`` was made from: first its own, then its class's.

        The chooser takes the first that it may choose; where there is none, the model chooses.
        """
        own = self.exact.get((key, (meta.m, meta.n, meta.k))) if self.exact else None
        shared = self.picks.get(key)
        if own is None:
            return () if shared is None else (shared,)
        return (own,) if shared is None else (own, shared)


def tuned_table(
    picks: Iterable[tuple[TunedKey, TunedPick]], exact: Iterable[tuple[tuple[TunedKey, Sizes], TunedPick]] = ()
) -> TunedTable:
    """A table that nobody can change.

    Raises:
        InvalidInputError: a key has two picks, or exact sizes are not of their key's class.
    """
    listed, own = list(picks), list(exact)
    found, one_by_one = dict(listed), dict(own)
    if len(found) != len(listed) or len(one_by_one) != len(own):
        raise InvalidInputError(
            f"picks must have a key of their own each (got {len(listed)} for {len(found)} classes, {len(own)} for "
            f"{len(one_by_one)} products)"
        )
    strange = [sizes for key, sizes in one_by_one if not key.holds(sizes)]
    if strange:
        raise InvalidInputError(f"exact sizes must be of their key's class (got {strange[0]})")
    return TunedTable(picks=MappingProxyType(found), exact=MappingProxyType(one_by_one))


#: Nothing was measured.
UNTUNED = TunedTable()
