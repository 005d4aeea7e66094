"""What a register holds: concrete integers, or expressions, one per lane of the walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.nodes import Bits64, Ids
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.table import Table

Mask = npt.NDArray[np.bool_]


#: Not made by a product; by a product that ptxas was not seen to fuse; by one that it may fuse.
NO_PRODUCT, GUARDED_PRODUCT, FUSIBLE_PRODUCT = range(3)


@dataclass(frozen=True, slots=True)
class Value:
    """Exactly one of ``bits`` and ``ids`` is set; an array of one element is shared by all lanes.

    ``bits``: patterns of concrete integers.  ``ids``: nodes; 0 is poison.  ``written``: which lanes hold a value at
    all, for ``bits``; None for every lane.  ``pointer``: derived from an address, so that only addresses may be made
    of it.  ``product``: whether ptxas may fuse an addition into what made this (``NO_PRODUCT`` and so on).
    """

    bits: Bits64 | None = None
    ids: Ids | None = None
    written: Mask | None = None
    pointer: bool = False
    product: int = NO_PRODUCT


class Deferred(Protocol):
    """Expressions that a register holds and nobody has asked for yet; not made by a product that ptxas may fuse."""

    def value(self) -> Value:
        """The expressions, one a lane."""


def concrete(bits: Bits64, width: int, written: Mask | None = None, pointer: bool = False) -> Value:
    """Integers of ``width`` bytes, cut to that width."""
    if width < 8:
        bits = bits & np.uint64((1 << (8 * width)) - 1)
    return Value(bits=bits, written=written, pointer=pointer)


def signed(bits: Bits64, width: int) -> Ids:
    """Patterns of ``width`` bytes as signed integers."""
    shift = np.int64(64 - 8 * width)
    return (bits.view(np.int64) << shift) >> shift


def both_written(one: Value, other: Value) -> Mask | None:
    """The lanes in which both hold a value."""
    if one.written is None:
        return other.written
    return one.written if other.written is None else one.written & other.written


def as_nodes(value: Value, width: int, table: Table) -> Ids:
    """The value as expressions; a pointer is no data.

    Raises:
        RefusalError: the value is derived from a pointer.
    """
    if value.ids is not None:
        return value.ids
    if value.pointer:
        raise RefusalError("pointer", "a number derived from a pointer is used as data")
    assert value.bits is not None
    ids = table.constants(value.bits, width)
    return ids if value.written is None else np.where(value.written, ids, 0)


def as_integers(value: Value, what: str, table: Table) -> Value:
    """The value as concrete integers.

    Raises:
        RefusalError: it depends on data.
    """
    if value.ids is None:
        return value
    bits, kind = table.patterns(value.ids)
    if (kind == 2).any():
        raise RefusalError("data_dependent", f"{what} depends on loaded data")
    return Value(bits=bits, written=None if kind.all() else kind == 1)


def merged(old: Value | None, new: Value, act: Mask, width: int, table: Table) -> Value:
    """``new`` in the lanes of ``act``, ``old`` elsewhere."""
    if old is None:
        if new.ids is not None:
            return Value(ids=np.where(act, new.ids, 0), product=new.product)
        old = Value(bits=np.zeros(1, np.uint64), written=np.zeros(1, np.bool_))
        if new.pointer:
            old = Value(bits=old.bits, written=old.written, pointer=True)
    pointer, product = old.pointer or new.pointer, max(old.product, new.product)
    if old.bits is not None and new.bits is not None:
        written = None
        if old.written is not None or new.written is not None:
            before = True if old.written is None else old.written
            written = np.where(act, True if new.written is None else new.written, before)
        return Value(bits=np.where(act, new.bits, old.bits), written=written, pointer=pointer, product=product)
    ids = np.where(act, as_nodes(new, width, table), as_nodes(old, width, table))
    return Value(ids=ids, product=product)
