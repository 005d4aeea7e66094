"""Wrap-around 64-bit integer arithmetic in the operators that NumPy int64 arrays and torch int64 tensors share.

Every function takes and returns *lanes*: int64 arrays or int64 tensors, never floats, so that one program gives both
libraries the same bits.  Shifts to the right are arithmetic on signed lanes and are masked to logical ones.
"""

from __future__ import annotations

from typing import Any

#: An int64 NumPy array or an int64 torch tensor.
Lanes = Any

_MASK = (1 << 64) - 1


def as_signed(value: int) -> int:
    """The int64 with the low 64 bits of ``value``."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


GOLDEN = as_signed(0x9E3779B97F4A7C15)
STRIDE = as_signed(0xD1342543DE82EF95)
_FIRST = as_signed(0xBF58476D1CE4E5B9)
_SECOND = as_signed(0x94D049BB133111EB)


def shift_right(x: Lanes, count: int) -> Lanes:
    """Logical shift of 64-bit lanes, 0 < count < 64."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def finalise(x: Lanes) -> Lanes:
    """The finaliser of splitmix64: a bijection of 64 bits in which every input bit moves every output bit."""
    x = (x ^ shift_right(x, 30)) * _FIRST
    x = (x ^ shift_right(x, 27)) * _SECOND
    return x ^ shift_right(x, 31)


def finalise_word(x: int) -> int:
    """:func:`finalise` of one Python integer, as a signed 64-bit word."""
    x &= _MASK
    x = (x ^ (x >> 30)) * (_FIRST & _MASK) & _MASK
    x = (x ^ (x >> 27)) * (_SECOND & _MASK) & _MASK
    return as_signed(x ^ (x >> 31))


def absorb(*values: int) -> int:
    """One 64-bit word from a sequence of integers; order and count matter."""
    word = len(values)
    for value in values:
        word = finalise_word(word * STRIDE + value + GOLDEN)
    return word


def row_words(base: int, i: Lanes) -> Lanes:
    """One word per outer index."""
    return finalise(i * GOLDEN + base)


def element_words(rows: Lanes, kk: Lanes) -> Lanes:
    """One word per element, from the rows' words (r, 1) and the k indices (1, c)."""
    return finalise(kk * STRIDE + rows)


def field(x: Lanes, low: int, count: int) -> Lanes:
    """Bits ``low`` .. ``low + count - 1`` of each lane, as an integer in [0, 2^count)."""
    return (x >> low) & ((1 << count) - 1)


def select(condition: Lanes, yes: Lanes, no: Lanes) -> Lanes:
    """``yes`` where ``condition`` is 1, ``no`` where it is 0; integers or lanes."""
    return no ^ ((yes ^ no) & -condition)


def flag(condition: Lanes) -> Lanes:
    """A comparison's result as 0 or 1."""
    return condition * 1


def packed(table: tuple[int, ...], index: Lanes) -> Lanes:
    """``table[index]`` for a table of 16 entries in [0, 16), looked up in one 64-bit word."""
    word = sum(entry << (4 * at) for at, entry in enumerate(table))
    return ((index * 0 + as_signed(word)) >> (index * 4)) & 15
