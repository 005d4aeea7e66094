"""The families of hashed values: how 64 hash bits become one element of a floating-point format.

A family is a function of :class:`Cells` in integer arithmetic only (see :mod:`gemmdesc.operands.lanes`).  Exponents
are stated as those of 1.f values; the sign, exponent and fraction of an element come from disjoint hash bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gemmdesc.dtypes import DType
from gemmdesc.operands.lanes import (
    Lanes,
    as_signed,
    element_words,
    field,
    finalise,
    flag,
    packed,
    row_words,
    select,
)


class Family(Enum):
    """What an operand's values look like; "a" and "b" are the two roles.

    NORMAL: random signs and fractions, exponents -8 to 1, distributed about as those of a normal variable.
    WIDE: random signs and fractions, exponents uniform over ``WIDE_EXPONENTS``.
    RAMP: a: magnitude rises or falls (by row) along k over the span of ``WIDE_EXPONENTS``, signs alternate with k;
    b: as NORMAL, but positive.
    CANCELLING: a: elements at a distance of 2^d (d by row) hold opposite values that differ in the last two fraction
    bits; b: constant along k up to its last two fraction bits, so that products cancel in the same pairs.
    NEGATIVE_ZERO: a: every element is -0.0; b: as NORMAL, but positive.
    SPECIALS: as NORMAL; in every row one in 32 elements is a signed zero or a subnormal, and in half of the rows one
    in 64 elements is that row's own special: a NaN, an infinity (maximum where the format has none) or a maximum.
    SUBNORMAL: a: subnormals and the two smallest normal binades, equally often; b: as NORMAL.
    """

    NORMAL = "normal"
    WIDE = "wide"
    RAMP = "ramp"
    CANCELLING = "cancelling"
    NEGATIVE_ZERO = "negative_zero"
    SPECIALS = "specials"
    SUBNORMAL = "subnormal"


#: Lowest and highest exponent of WIDE, chosen so that a sum of 10^6 products stays finite in each format's outputs.
WIDE_EXPONENTS = {
    DType.FLOAT16: (-9, 3),
    DType.BFLOAT16: (-12, 12),
    DType.FLOAT32: (-12, 12),
    DType.TFLOAT32: (-12, 12),
    DType.FLOAT64: (-12, 12),
    DType.FLOAT8_E4M3FN: (-6, 3),
    DType.FLOAT8_E5M2: (-9, 3),
}

#: Fraction bits below a TFLOAT32's own in its 32-bit storage.
_PADDING = {DType.TFLOAT32: 13}
#: 2 minus the exponent of a NORMAL element, by four hash bits.
_NORMAL_EXPONENTS = (1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6)
_SALT = as_signed(0xA0761D6478BD642F)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """A tile of elements: ``words`` (r, c) and ``rows`` (r, 1) hash words, ``kk`` (1, c) indices.

    ``length`` and ``levels`` describe the whole k (see :func:`extent`).
    """

    dtype: DType
    role: str
    words: Lanes
    rows: Lanes
    kk: Lanes
    length: Lanes
    levels: Lanes

    @property
    def sign(self) -> Lanes:
        return field(self.words, 63, 1)

    @property
    def fraction(self) -> Lanes:
        bits = self.dtype.format.fraction_bits
        return field(self.words if bits <= 24 else finalise(self.words ^ _SALT), 0, bits)


def extent(k: int) -> tuple[int, int]:
    """``length``: k, at least 1; ``levels``: the number of bits of the largest index below that, at least 1."""
    length = max(k, 1)
    return length, max(1, (length - 1).bit_length())


def hashed_bits(
    family: Family, dtype: DType, role: str, *, base: Lanes, i: Lanes, kk: Lanes, length: Lanes, levels: Lanes
) -> Lanes:
    """:func:`element_bits` of rows ``i`` (r, 1) and k indices ``kk`` (1, c), hashed from the word ``base``."""
    rows = row_words(base, i)
    words = element_words(rows, kk)
    cells = Cells(dtype=dtype, role=role, words=words, rows=rows, kk=kk, length=length, levels=levels)
    return element_bits(family, cells)


def element_bits(family: Family, cells: Cells) -> Lanes:
    """Bit patterns of a tile as non-negative lanes (for 64-bit formats: as the signed integer), shape (r, c)."""
    return _FAMILIES[family](cells)


def compose(dtype: DType, sign: Lanes, exponent: Lanes, fraction: Lanes) -> Lanes:
    """Bit patterns from their fields (lanes or integers); an exponent of min_exponent - 1 spells a subnormal."""
    form = dtype.format
    pad = _PADDING.get(dtype, 0)
    stored = exponent + (1 - form.min_exponent)
    return (sign << (form.storage_bits - 1)) | (stored << (form.fraction_bits + pad)) | (fraction << pad)


def _normal_exponent(cells: Cells) -> Lanes:
    rare = flag(field(cells.words, 30, 4) == 0)
    exponent = 2 - packed(_NORMAL_EXPONENTS, field(cells.words, 26, 4)) - 4 * rare
    lowest = cells.dtype.format.min_exponent
    return exponent if lowest <= -8 else select(flag(exponent < lowest), lowest, exponent)


def _uniform_exponent(cells: Cells, words: Lanes) -> Lanes:
    low, high = WIDE_EXPONENTS[cells.dtype]
    return ((field(words, 40, 16) * (high - low + 1)) >> 16) + low


def _normal(cells: Cells) -> Lanes:
    return compose(cells.dtype, cells.sign, _normal_exponent(cells), cells.fraction)


def _positive(cells: Cells) -> Lanes:
    return compose(cells.dtype, cells.sign * 0, _normal_exponent(cells), cells.fraction)


def _wide(cells: Cells) -> Lanes:
    return compose(cells.dtype, cells.sign, _uniform_exponent(cells, cells.words), cells.fraction)


def _ramp(cells: Cells) -> Lanes:
    if cells.role == "b":
        return _positive(cells)
    low, high = WIDE_EXPONENTS[cells.dtype]
    rise = (cells.kk * (high - low + 1)) // cells.length
    exponent = select(field(cells.rows, 20, 1), low + rise, high - rise)
    return compose(cells.dtype, cells.sign * 0 + (cells.kk & 1), exponent, cells.fraction)


def _cancelling(cells: Cells) -> Lanes:
    low_bits = field(cells.words, 0, 2)
    bits = cells.dtype.format.fraction_bits
    if cells.role == "b":
        row = finalise(cells.rows ^ _SALT)
        fraction = (field(row, 0, bits) & ~3) | low_bits
        return compose(cells.dtype, field(row, 63, 1), _uniform_exponent(cells, row), fraction)
    distance = (cells.rows * 0 + 1) << ((field(cells.rows, 24, 16) * cells.levels) >> 16)
    second = flag((cells.kk & distance) != 0)
    leader = cells.kk & ~distance
    shared = finalise((leader * _SALT) ^ cells.rows)
    fraction = (field(shared, 0, bits) & ~3) | low_bits
    return compose(cells.dtype, field(shared, 63, 1) ^ second, _uniform_exponent(cells, shared), fraction)


def _negative_zero(cells: Cells) -> Lanes:
    if cells.role == "b":
        return _positive(cells)
    return (cells.words * 0 + 1) << (cells.dtype.format.storage_bits - 1)


def _subnormal(cells: Cells) -> Lanes:
    if cells.role == "b":
        return _normal(cells)
    stored = packed((0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2), field(cells.words, 40, 4))
    return compose(cells.dtype, cells.sign, stored + (cells.dtype.format.min_exponent - 1), cells.fraction)


def _specials(cells: Cells) -> Lanes:
    dtype = cells.dtype
    nan, infinity, largest = special_patterns(dtype)
    sign = cells.sign << (dtype.format.storage_bits - 1)
    zero = sign
    tiny = sign | (cells.fraction << _PADDING.get(dtype, 0))
    kind = field(cells.rows, 20, 4)
    own = select(flag(kind < 3), nan, select(flag(kind < 6), infinity, largest))
    lot = field(cells.words, 50, 6)
    value = select(flag(lot == 1), zero, select(flag(lot == 2), tiny, _normal(cells)))
    return select(flag(lot == 3) & flag(kind < 8), own | sign, value)


def special_patterns(dtype: DType) -> tuple[int, int, int]:
    """Positive bit patterns of a quiet NaN, infinity (the maximum where there is none) and the maximum."""
    if dtype is DType.FLOAT8_E4M3FN:
        return 0x7F, 0x7E, 0x7E
    form = dtype.format
    pad = _PADDING.get(dtype, 0)
    infinity = (form.max_exponent - form.min_exponent + 2) << (form.fraction_bits + pad)
    return infinity | (1 << (form.fraction_bits + pad - 1)), infinity, infinity - (1 << pad)


_FAMILIES: dict[Family, Callable[[Cells], Lanes]] = {
    Family.NORMAL: _normal,
    Family.WIDE: _wide,
    Family.RAMP: _ramp,
    Family.CANCELLING: _cancelling,
    Family.NEGATIVE_ZERO: _negative_zero,
    Family.SPECIALS: _specials,
    Family.SUBNORMAL: _subnormal,
}
