"""Operands that pull apart what differs: ten draws, made field by field from an integer hash.

An element depends on (position, type, draw, index) alone, so that two kernels which load one byte behind one parameter
see the same one, however much memory each of them has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemmdesc.errors import InvalidInputError

Words = npt.NDArray[np.uint64]


class Fields(NamedTuple):
    """Bits of the exponent and of the fraction; ``infinity``: whether the highest exponent has one."""

    exponent: int
    fraction: int
    infinity: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return (1 + self.exponent + self.fraction) // 8


#: Element types as Triton spells them.
FORMATS = {
    "fp32": Fields(8, 23),
    "fp16": Fields(5, 10),
    "bf16": Fields(8, 7),
    "fp8e4nv": Fields(4, 3, infinity=False),
    "fp8e5": Fields(5, 2),
}
#: Binades on either side of 1 that make twelve decades.
_DECADES = 20
#: The bit of a hash word that is a number's sign, and all others.
_TOP, _UNSIGNED = np.uint64(63), np.uint64(2**63 - 1)
#: Elements that are special together or not at all, so that some outputs stay free of NaN and infinities.
_RUN = 256


def _hash(index: Words, salt: int) -> Words:
    """SplitMix64 of an index."""
    x = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt * 0xD1342543DE82EF95 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class _Cells:
    """What a draw makes its patterns from: the format, indices, and a hash word for each."""

    layout: Fields
    index: Words
    word: Words
    salt: int

    def pattern(self, sign: Words, exponent: Words, fraction: Words) -> Words:
        f = self.layout
        kept = fraction & np.uint64((1 << f.fraction) - 1)
        made: Words = (sign << np.uint64(f.exponent + f.fraction)) | (exponent << np.uint64(f.fraction)) | kept
        return made

    @property
    def sign(self) -> Words:
        return self.word >> np.uint64(63)

    @property
    def fraction(self) -> Words:
        return self.word >> np.uint64(8)

    def exponent(self, low: int, high: int) -> Words:
        """Fields from ``low`` to ``high``, clipped to those of normal numbers."""
        top = (1 << self.layout.exponent) - (2 if self.layout.infinity else 1)
        low = max(low, 1)
        high = max(low, min(high, top))
        chosen = (self.word >> np.uint64(40)) % np.uint64(high - low + 1) + np.uint64(low)
        return chosen

    @property
    def bias(self) -> int:
        return (1 << (self.layout.exponent - 1)) - 1

    def in_run(self) -> npt.NDArray[np.bool_]:
        """Whether an element stands in a run that has specials."""
        special: npt.NDArray[np.bool_] = _hash(self.index // np.uint64(_RUN), self.salt + 77) % np.uint64(2) == 0
        return special


def _wide(c: _Cells) -> Words:
    return c.pattern(c.sign, c.exponent(c.bias - _DECADES, c.bias + _DECADES - 1), _finite_fraction(c))


def _finite_fraction(c: _Cells) -> Words:
    """A fraction; where the highest exponent has numbers and one NaN, never that NaN's."""
    return c.fraction if c.layout.infinity else c.fraction & ~np.uint64(1)


def _alternating(c: _Cells) -> Words:
    exponent = c.exponent(c.bias - _DECADES, c.bias + _DECADES - 1)
    return c.pattern(c.index & np.uint64(1), exponent, _finite_fraction(c))


def _negative_zeros(c: _Cells) -> Words:
    return c.pattern(np.ones_like(c.word), np.zeros_like(c.word), np.zeros_like(c.word))


def _zero_runs(c: _Cells) -> Words:
    """Runs of -0.0, of zeros of both signs, and of numbers."""
    kind = _hash(c.index // np.uint64(_RUN // 2), c.salt + 5) % np.uint64(4)
    zeros = c.pattern(c.sign, np.zeros_like(c.word), np.zeros_like(c.word))
    return np.select([kind <= 1, kind == 2], [_negative_zeros(c), zeros], _wide(c))


def _nan(c: _Cells) -> Words:
    """Numbers with NaN among them, quiet and signalling, with payloads."""
    top = np.full_like(c.word, (1 << c.layout.exponent) - 1)
    fraction = c.fraction | np.uint64(1) if c.layout.infinity else np.full_like(c.word, 2**64 - 1)
    return np.where(c.in_run() & (c.word % np.uint64(97) == 0), c.pattern(c.sign, top, fraction), _wide(c))


def _infinities(c: _Cells) -> Words:
    """Numbers with infinities among them, or the largest numbers where the type has none; of one sign in some runs."""
    top = np.full_like(c.word, (1 << c.layout.exponent) - 1)
    fraction = np.zeros_like(c.word) if c.layout.infinity else np.full_like(c.word, 6)
    alike = _hash(c.index // np.uint64(4 * _RUN), c.salt + 9) % np.uint64(3) != 0
    sign = np.where(alike, np.uint64(0), c.sign)
    return np.where(c.in_run() & (c.word % np.uint64(61) == 0), c.pattern(sign, top, fraction), _wide(c))


def _subnormals(c: _Cells) -> Words:
    return c.pattern(c.sign, np.zeros_like(c.word), c.fraction)


def _large(c: _Cells) -> Words:
    top = (1 << c.layout.exponent) - 2
    return c.pattern(c.sign, c.exponent(top - 2, top), _finite_fraction(c))


def _cancelling(c: _Cells) -> Words:
    """Neighbours cancel, but one in sixteen pairs does not."""
    pair = replace(c, word=_hash(c.index // np.uint64(2), c.salt + 3))
    same = pair.pattern(c.index & np.uint64(1), pair.exponent(c.bias - 8, c.bias + 8), _finite_fraction(pair))
    return np.where(pair.word % np.uint64(16) == 0, _plain(c), same)


def _plain(c: _Cells) -> Words:
    return c.pattern(c.sign, c.exponent(c.bias - 3, c.bias + 1), _finite_fraction(c))


def _underflowing(c: _Cells) -> Words:
    """Products of two lie around the smallest subnormal of float32, where they are no longer exact."""
    return c.pattern(c.sign, c.exponent(c.bias - 78, c.bias - 66), _finite_fraction(c))


def _specks(c: _Cells) -> Words:
    """A few numbers around 1, and many that a sum of squares or of exponentials loses beside them."""
    large = c.pattern(c.sign, c.exponent(c.bias, c.bias), _finite_fraction(c))
    small = c.pattern(c.sign, c.exponent(c.bias - 13, c.bias - 11), _finite_fraction(c))
    return np.where(_hash(c.index, c.salt + 11) % np.uint64(16) == 0, large, small)


def _large_and_specks(c: _Cells) -> Words:
    """Large numbers that cancel over half a run of 64, and positive ones that get lost beside them."""
    pair = _hash(c.index & ~np.uint64(32), c.salt + 13)
    large = replace(c, word=pair).pattern((c.index >> np.uint64(5)) & np.uint64(1), _like(c, 12), _like(c, 0))
    specks = c.pattern(np.zeros_like(c.word), c.exponent(c.bias - 12, c.bias - 11), _finite_fraction(c))
    return np.where(pair % np.uint64(8) == 0, large, specks)


def _like(c: _Cells, binades: int) -> Words:
    return np.full_like(c.word, c.bias + binades if binades else 0)


def _to_infinity(c: _Cells) -> Words:
    """Numbers whose squares sum to the largest float32, give or take what the order of the sum decides.

    For rows of 256 times a power of two, which the seed chooses; of float16, whose squares are too small, large ones.
    """
    if c.layout.exponent < 8:
        return _large(c)
    word = _hash(np.arange(_RUN, dtype=np.uint64), c.salt + 17)
    halvings, jitter = int(word[0] % np.uint64(5)), int(word[1] % np.uint64(17)) - 8
    left = ((1 << 128) - (1 << 103) + jitter * (1 << 102)) >> halvings
    digits = c.layout.fraction + 1
    # Up to one and a half times what 400 equal numbers would have to be; what is missing is filled up.
    equal = math.isqrt(left // 400)
    values = [_cut(equal + equal * (int(w) % 128) // 256, digits) for w in word[: _RUN - 56]]
    left -= sum(v * v for v in values)
    while len(values) < _RUN and left > 0:
        values.append(_cut(math.isqrt(left), digits))
        left -= values[-1] ** 2
    values += [0] * (_RUN - len(values))
    sizes = np.array([_field(v, c) for v in values], np.uint64)
    place = np.concatenate(
        [np.argsort(_hash(np.arange(_RUN, dtype=np.uint64), c.salt + 19 + n)) for n in range(-(-len(c.index) // _RUN))]
    )
    made: Words = sizes[place[: len(c.index)]] | (c.sign << np.uint64(c.layout.exponent + c.layout.fraction))
    return made


def _cut(value: int, digits: int) -> int:
    """The largest number of so many binary digits that is not above ``value``."""
    more = max(value.bit_length() - digits, 0)
    return value >> more << more


def _field(value: int, c: _Cells) -> int:
    """The pattern of a positive integer."""
    if value == 0:
        return 0
    top = value.bit_length() - 1
    fraction = (value << c.layout.fraction >> top) & ((1 << c.layout.fraction) - 1)
    return (top + c.bias) << c.layout.fraction | fraction


def _many_nan(c: _Cells) -> Words:
    """One in four is a NaN."""
    top = np.full_like(c.word, (1 << c.layout.exponent) - 1)
    fraction = c.fraction | np.uint64(1) if c.layout.infinity else np.full_like(c.word, 2**64 - 1)
    return np.where(c.word % np.uint64(4) == 0, c.pattern(c.sign, top, fraction), _plain(c))


def _few_values(c: _Cells) -> Words:
    """Small odd integers of both signs, so that different products and sums meet."""
    odd = (c.word % np.uint64(4)) * np.uint64(2) + np.uint64(1)
    exponent = np.select([odd == 1, odd == 3], [0, 1], 2).astype(np.uint64)
    fraction = (odd << (np.uint64(c.layout.fraction) - exponent)) & np.uint64((1 << c.layout.fraction) - 1)
    return c.pattern(c.sign, exponent + np.uint64(c.bias), fraction)


def _upward(c: _Cells) -> Words:
    """Positive numbers, so that exponentials and sums of either spread over many binades."""
    return c.pattern(np.zeros_like(c.word), c.exponent(c.bias - 3, c.bias + 3), _finite_fraction(c))


def _zeros_and_one_sign(c: _Cells) -> Words:
    """Zeros of both signs, and numbers of one, which the seed chooses: a maximum or minimum that is some zero."""
    zeros = c.pattern(c.sign, np.zeros_like(c.word), np.zeros_like(c.word))
    sign = np.full_like(c.word, _hash(np.zeros(1, np.uint64), c.salt + 23)[0] % np.uint64(2))
    return np.where(c.word % np.uint64(4) == 0, _plain(replace(c, word=c.word & _UNSIGNED | sign << _TOP)), zeros)


#: The draws, by name, in their order.
DRAWS: dict[str, Callable[[_Cells], Words]] = {
    "twelve decades": _wide,
    "twelve decades, alternating sign": _alternating,
    "all -0.0": _negative_zeros,
    "runs of -0.0": _zero_runs,
    "NaN with payloads": _nan,
    "infinities": _infinities,
    "subnormals": _subnormals,
    "close to overflow": _large,
    "cancelling pairs": _cancelling,
    "plain": _plain,
}

#: Keep the hashes of aimed draws, and of further ones, apart from those of the others.
_AIMED_SALT, _FURTHER_SALT = 1 << 44, 1 << 45
#: Draws that are aimed at classes which those above have not told apart.
AIMED: dict[str, Callable[[_Cells], Words]] = {
    "products that underflow": _underflowing,
    "specks": _specks,
    "large, cancelling, and specks": _large_and_specks,
    "squares that sum to infinity, or almost": _to_infinity,
    "many NaN": _many_nan,
    "small odd integers": _few_values,
    "positive": _upward,
}

#: Draws that no gate launches: where operands that tell two classes apart are looked for, these are tried as well.
FURTHER: dict[str, Callable[[_Cells], Words]] = {"zeros of both signs": _zeros_and_one_sign}


def draw(name: str, kind: str, position: int, count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """The bytes of ``count`` elements of the Triton type ``kind`` behind the parameter at ``position``.

    Raises:
        InvalidInputError: the draw or the type is not known.
    """
    every = {**DRAWS, **AIMED, **FURTHER}
    if name not in every or kind not in FORMATS:
        raise InvalidInputError(f"name and kind must be of {list(every)} and {list(FORMATS)} (got {name}, {kind})")
    layout = FORMATS[kind]
    groups = ((0, DRAWS), (_AIMED_SALT, AIMED), (_FURTHER_SALT, FURTHER))
    (number,) = (first + list(group).index(name) for first, group in groups if name in group)
    salt = ((seed * 64 + position) * 16 + number) * 8 + list(FORMATS).index(kind)
    index = np.arange(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        words = every[name](_Cells(layout, index, _hash(index, salt), salt))
    return words.astype(f"<u{layout.bytes}").view(np.uint8)
