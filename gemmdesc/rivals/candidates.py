"""Small patterns that may tell two trees apart, drawn by an integer hash around the places where the trees differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gemmdesc.dtypes import DType
from gemmdesc.operands.families import compose
from gemmdesc.operands.lanes import absorb, field, flag, row_words
from gemmdesc.rivals.sparse import Index, Places, Reals, SparseRows
from gemmdesc.schedule import Schedule

#: Words that the dice make at once.
_WORDS = 1 << 14
#: Leaves up to which every leaf can get its own element.
MOST_LEAVES = 2048
_HIGHEST_EXPONENT = 12
_MOST_BINADES = 30
#: Binades from 1 to half a unit in the last place of 1, in bfloat16, float16 and float32.
_HALF_UNITS = (8, 11, 24)
#: The product of two such powers of two is the first beyond float32.
_HALF_OVERFLOW = 64
#: Exponents of a and of b whose product is far below the narrow types' smallest value.
_TINY_EXPONENTS = {DType.FLOAT16: (-14, -24), DType.FLOAT8_E5M2: (-14, -16), DType.FLOAT8_E4M3FN: (-6, -9)}


class Dice:
    """A reproducible stream of integers; the same on every version of NumPy."""

    def __init__(self, *seed: int) -> None:
        self._base = absorb(*seed)
        self._drawn = np.empty(0, dtype=np.int64)
        self._used = 0
        self._next = 0

    def below(self, bound: int | Index, shape: tuple[int, ...]) -> Index:
        """int64 integers in [0, bound), ``bound`` up to 2^31, broadcast against ``shape``."""
        count = math.prod(shape)
        scaled: Index = (self._take(count).reshape(shape) * bound) >> 31
        return scaled

    def _take(self, count: int) -> Index:
        """The next ``count`` words of 31 bits; they are made many at once, which costs far less."""
        if self._used + count > len(self._drawn):
            more = np.arange(self._next, self._next + max(count, _WORDS), dtype=np.int64)
            words = field(row_words(self._base, more), 20, 31)
            self._drawn = np.concatenate([self._drawn[self._used :], words])
            self._used, self._next = 0, self._next + len(more)
        self._used += count
        return self._drawn[self._used - count : self._used]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Rows of a as sparse elements (bit patterns, (T, E)), the constant element of b, and their exact products."""

    a_bits: Index
    b_bits: int
    rows: SparseRows


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """One rival's tree at the inner size ``k``."""

    k: int
    schedule: Schedule
    places: Places

    @cached_property
    def leaf_codes(self) -> Index:
        """x k + y for neighbours x, y in the order that are in two leaves; ascending."""
        return self._codes(self.schedule.leaf_offsets)

    @cached_property
    def step_codes(self) -> Index:
        """The same for neighbours in two steps."""
        return self._codes(self.schedule.step_ends)

    def _codes(self, cuts: Index) -> Index:
        order = self.schedule.order
        cuts = cuts[(cuts > 0) & (cuts < len(order))]
        # Where leaves are empty, one cut is there several times.
        cuts = cuts[np.diff(cuts, prepend=0) > 0]
        return np.sort(order[cuts - 1] * self.k + order[cuts], kind="stable")


def scattered_candidates(
    views: tuple[View, View], k: int, dtype: DType, dice: Dice, odd_b: bool, count: int
) -> Candidates:
    """+L and -L of one magnitude and a few values 1 to 30 binades smaller, at and around a differing place.

    In one row of four, one value is half a unit in the last place of L in some storage type, and the others are near
    the end of an accumulator, so that they decide how the type rounds.
    With ``odd_b``, b is no power of two, so that products need more bits than the operands.
    """
    at = _positions(views, k, dice, count)
    roles = np.argsort(dice.below(1 << 30, at.shape), axis=1, kind="stable")
    form = dtype.format
    top = min(form.max_exponent - 3, _HIGHEST_EXPONENT)
    widest = min(_MOST_BINADES, top - form.min_exponent)
    ties = dice.below(4, (count, 1)) == 0
    binades = np.where(ties, np.minimum(20 + dice.below(8, (count, 1)), widest), 1 + dice.below(widest, (count, 1)))
    large = top - dice.below(np.minimum(7, 1 + top - form.min_exponent - binades), (count, 1))
    small = np.maximum(large - binades - dice.below(3, at.shape), form.min_exponent)
    exponent = np.where(roles < 2, large, small)
    half_units = np.array(_HALF_UNITS)[dice.below(len(_HALF_UNITS), (count, 1))]
    exponent = np.where(ties & (roles == 2), np.maximum(large - half_units, form.min_exponent), exponent)
    fraction = dice.below(1 << form.fraction_bits, at.shape) * dice.below(2, (count, 1))
    fraction = np.where(ties & (roles < 3), np.where(roles < 2, dice.below(2, (count, 1)), 0), fraction)
    fraction = np.where(roles < 2, np.take_along_axis(fraction, np.argmin(roles, axis=1)[:, None], axis=1), fraction)
    sign = np.where(roles < 2, roles, dice.below(2, at.shape)) ^ dice.below(2, (count, 1))
    present = (roles < 3) | (dice.below(3, at.shape) == 0)
    b_fraction = 1 + 2 * int(dice.below(1 << (form.fraction_bits - 1), (1,))[0]) if odd_b else 0
    return _assemble(dtype, at, present, sign, exponent, fraction, (0, b_fraction))


def tiny_candidates(
    views: tuple[View, View], k: int, dtype: DType, dice: Dice, odd_b: bool, count: int
) -> Candidates | None:
    """A negative element in every leaf of both trees, so small that a narrow partial sum becomes -0.0.

    None where there are more than ``MOST_LEAVES`` leaves, or no k in any.
    """
    firsts, lengths = [], []
    for view in views:
        offsets = view.schedule.leaf_offsets
        firsts.append(offsets[:-1])
        lengths.append(np.diff(offsets))
    if sum(len(x) for x in firsts) > MOST_LEAVES or not any(x.any() for x in lengths):
        return None
    columns = []
    for view, first, length in zip(views, firsts, lengths, strict=True):
        kept = length > 0
        draws = dice.below(length[kept], (8, int(kept.sum())))
        columns.append(view.schedule.order[first[kept] + draws])
    at = np.concatenate(columns, axis=1)
    a_exponent, b_exponent = _TINY_EXPONENTS.get(dtype, (-75, -70))
    ones = np.ones(at.shape, dtype=np.int64)
    return _assemble(dtype, at, ones > 0, ones, a_exponent * ones, 0 * ones, (b_exponent, 0))


def overflowing_candidates(
    views: tuple[View, View], k: int, dtype: DType, dice: Dice, odd_b: bool, count: int
) -> Candidates | None:
    """Two products, -2^127 and 2^128: a fused multiply-add holds their sum, a product of its own overflows.

    None for formats without such factors.
    """
    if dtype.format.max_exponent <= _HALF_OVERFLOW:
        return None
    at = _positions(views, k, dice, count)
    roles = np.argsort(dice.below(1 << 30, at.shape), axis=1, kind="stable")
    exponent = np.where(roles == 0, _HALF_OVERFLOW - 1, _HALF_OVERFLOW)
    return _assemble(dtype, at, roles < 2, flag(roles == 0), exponent, 0 * roles, (_HALF_OVERFLOW, 0))


def _assemble(
    dtype: DType,
    at: Index,
    present: npt.NDArray[np.bool_],
    sign: Index,
    exponent: Index,
    fraction: Index,
    b: tuple[int, int],
) -> Candidates:
    """Element arrays (T, E); of elements at one index the first counts, and the others repeat it with no product."""
    order = np.argsort(at, axis=1, kind="stable")
    bits = np.where(present, compose(dtype, sign, exponent, fraction), 0)
    values = np.where(present, _value(dtype, sign, exponent, fraction), 0.0)
    at, bits = np.take_along_axis(at, order, axis=1), np.take_along_axis(bits, order, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    again = np.zeros(at.shape, dtype=bool)
    again[:, 1:] = at[:, 1:] == at[:, :-1]
    earliest = np.maximum.accumulate(np.where(again, 0, np.arange(at.shape[1])), axis=1)
    bits = np.take_along_axis(bits, earliest, axis=1)
    values[again] = 0.0
    b_exponent, b_fraction = b
    form = dtype.format
    if b_exponent >= form.min_exponent:
        b_bits = int(compose(dtype, 0, b_exponent, b_fraction))
    else:
        lift = b_exponent - form.min_exponent + form.fraction_bits
        b_bits = int(compose(dtype, 0, form.min_exponent - 1, 1 << lift))
    b_value = float(_value(dtype, np.int64(0), np.int64(b_exponent), np.int64(b_fraction)))
    return Candidates(a_bits=bits, b_bits=b_bits, rows=SparseRows(k=at, products=values * b_value))


def _value(dtype: DType, sign: Index | np.int64, exponent: Index | np.int64, fraction: Index | np.int64) -> Reals:
    bits = dtype.format.fraction_bits
    magnitude = np.ldexp(
        np.asarray(fraction + (1 << bits), dtype=np.float64), np.asarray(exponent - bits, dtype=np.int32)
    )
    return np.asarray(np.where(sign == 1, -magnitude, magnitude))


def _positions(views: tuple[View, View], k: int, dice: Dice, count: int) -> Index:
    """k indices, (count, E), ``count`` even: a differing pair of neighbours, what surrounds it, some from elsewhere."""
    half = (count // 2,)
    both = [_differing_codes(views, k, of_leaves) for of_leaves in (True, False)]
    x, y = np.divmod(np.concatenate([codes[dice.below(len(codes), half)] for codes in both]), k)
    # A tree sums the first k, as many as are in its order; those between the two numbers are lost by one tree alone.
    fewer, more = sorted(len(view.schedule.order) for view in views)
    tail = fewer + dice.below(more - fewer, x.shape) if fewer < more else k - 1 - dice.below(min(k, 32), x.shape)
    mates = []
    for view, anchor in zip(views, (x, y), strict=True):
        leaf = np.maximum(view.places.leaf[view.places.step[anchor]], 0)
        first, last = view.schedule.leaf_offsets[leaf], view.schedule.leaf_offsets[leaf + 1]
        # A tree that sums nothing has no order to draw from.
        order = view.schedule.order if len(view.schedule.order) else np.zeros(1, dtype=np.int64)
        mates.append(order[np.minimum(first + dice.below(np.maximum(last - first, 1), x.shape), len(order) - 1)])
    slots = [
        x, y, *(x - 1 - dice.below(b, x.shape) for b in (4, 16)), *(y + 1 + dice.below(b, x.shape) for b in (4, 16)),
        *mates, tail,
        dice.below(k, x.shape), np.minimum(k - 1, y + dice.below(np.maximum(k - y, 1), x.shape)),
    ]  # fmt: skip
    positions: Index = np.clip(np.stack(slots, axis=1), 0, k - 1)
    return positions


def _differing_codes(views: tuple[View, View], k: int, of_leaves: bool) -> Index:
    """Codes x k + y of neighbours x, y that only one tree parts, into two leaves or into two steps; ascending.

    Where there are none, those that both part; where there are none of those, that of the first and the last k.
    """
    first, second = (view.leaf_codes if of_leaves else view.step_codes for view in views)
    # Two ascending runs, which a stable sort merges.
    merged = np.sort(np.concatenate([first, second]), kind="stable")
    change = np.concatenate([[True], merged[1:] != merged[:-1], [True]])[: len(merged) + 1]
    differing: Index = merged[change[1:] & change[:-1]]
    if len(differing):
        return differing
    return first if len(first) else np.array([k - 1], dtype=np.int64)
