"""What expressions compute where nothing is rounded: two kernels of one exact function differ in their rounding alone.

Every node gets its value modulo a prime, twice, with the memory's values drawn: sums, differences, products, quotients
and fused operations are exact there, widening changes nothing, and a maximum, also one that is made of a comparison and
a selection, is a function of the set of its arguments.  Everything else (conversions to fewer bits, exponentials,
integer operations) is an unknown function of its operands' values.  By the Schwartz-Zippel lemma, two sums of products
that are not one polynomial have the same value with a chance of about their degree in 2^62.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gemmdesc.equivalence import nodes
from gemmdesc.equivalence.node_hash import U64, close, mix
from gemmdesc.equivalence.table import Table

#: A Mersenne prime: products of two residues fit 64 bits.
_PRIME = U64(2**31 - 1)
_BITS = U64(31)

OTHER, ADD, SUBTRACT, MULTIPLY, FUSE, DIVIDE, NEGATE, SAME = range(8)
COMPARE, SELECT, LARGEST, SMALLEST, EITHER, MATRIX = range(8, 14)
_STEMS = {"add": ADD, "sub": SUBTRACT, "mul": MULTIPLY, "fma": FUSE, "div": DIVIDE, "neg": NEGATE}
_WIDENING = ("cvt.f32.f16", "cvt.f32.bf16", "cvt.f32.f32", "cvt.f64.f32")
_FLOAT = ("f16", "bf16", "f32", "f64")
_NEVER, _UNORDERED = 0, 8
#: Of a comparison: 1 where less, 2 where equal, 4 where greater, 8 where a NaN is compared.
_COMPARED = {"lt": 1, "eq": 2, "gt": 4, "le": 3, "ge": 6, "ne": 5, "num": 7, "nan": _UNORDERED}


def exact_values(table: Table) -> npt.NDArray[np.uint64]:
    """By node, its two residues in 62 bits."""
    store = table.store
    names = [table.name(code) for code in range(int(store.op[: len(table)].max()) + 1)]
    what = np.array([_what(name) for name in names], np.int64)
    values = np.zeros(len(table), np.uint64)
    _evaluate(store, what[:, 0].copy(), what[:, 1].copy(), values)
    return values


def _what(name: str) -> tuple[int, int]:
    """What an operation is here, and what makes a comparison true."""
    parts = name.split(" ")[0].split(".")
    kind = parts[-1]
    if kind in _FLOAT and parts[0] in _STEMS and "sat" not in parts and "relu" not in parts:
        return _STEMS[parts[0]], _NEVER
    if name in _WIDENING:
        return SAME, _NEVER
    if parts[0] == "setp" and kind in _FLOAT and len(parts) == 3:
        unordered = parts[1].endswith("u") and parts[1] not in _COMPARED
        return COMPARE, _COMPARED.get(parts[1].removesuffix("u") if unordered else parts[1], _NEVER) | 8 * unordered
    if name in ("selp.b32", "selp.b16"):
        return SELECT, _NEVER
    if name == "or.pred":
        return EITHER, _NEVER
    if parts[0] == "mma":
        return MATRIX, _NEVER
    if kind in _FLOAT and (parts[0] in ("max", "min") or parts[:2] == ["redux", "sync"]):
        return (LARGEST if "max" in parts else SMALLEST), _NEVER
    return OTHER, _NEVER


@njit(inline="always")
def _pair(high: Any, low: Any) -> Any:
    return (high << _BITS) | low


@njit(inline="always")
def _split(value: Any) -> Any:
    return value >> _BITS, value & _PRIME


@njit(inline="always")
def _sum(a: Any, b: Any) -> Any:
    (a1, a2), (b1, b2) = _split(a), _split(b)
    return _pair((a1 + b1) % _PRIME, (a2 + b2) % _PRIME)


@njit(inline="always")
def _difference(a: Any, b: Any) -> Any:
    (a1, a2), (b1, b2) = _split(a), _split(b)
    return _pair((a1 + _PRIME - b1) % _PRIME, (a2 + _PRIME - b2) % _PRIME)


@njit(inline="always")
def _product(a: Any, b: Any) -> Any:
    (a1, a2), (b1, b2) = _split(a), _split(b)
    return _pair((a1 * b1) % _PRIME, (a2 * b2) % _PRIME)


@njit(nogil=True, cache=True)
def _power(a: Any, exponent: Any) -> Any:
    result = _pair(U64(1), U64(1))
    while exponent:
        if exponent & U64(1):
            result = _product(result, a)
        a = _product(a, a)
        exponent >>= U64(1)
    return result


@njit(inline="always")
def _drawn(high: Any, low: Any) -> Any:
    """Two residues from a hash."""
    high, low = close(high, low)
    return _pair(high % _PRIME, low % _PRIME)


@njit(nogil=True, cache=True)
def _number(bits: Any) -> Any:
    """A finite float32 pattern modulo the prime."""
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    scale = max(exponent, 1) - 150
    whole = U64(fraction + (0x800000 if exponent else 0))
    value = _pair(whole, whole)
    # 2 to the power of 31 is 1 modulo the prime.
    value = _product(value, _power(_pair(U64(2), U64(2)), U64(scale % 31)))
    return _difference(U64(0), value) if bits >> 31 & 1 else value


@njit(nogil=True, cache=True)
def _unknown(s: Any, values: Any, node: Any) -> Any:
    """A function of the operands' values that nothing is known of."""
    op = s.op[node]
    high, low = s.op_high[op] ^ U64(s.width[node]), s.op_low[op]
    first, second = values[s.child[node, 0]], values[s.child[node, 1]]
    if s.op_flags[op] & nodes.COMMUTES:
        first, second = first + second, first ^ second
    high, low = mix(high, low, first, second)
    high, low = mix(high, low, values[s.child[node, 2]], values[s.child[node, 3]])
    high, low = mix(high, low, U64(s.attribute[node, 0]), U64(s.attribute[node, 1]))
    return _drawn(high, low)


@njit(nogil=True, cache=True)
def _steps(s: Any, values: Any, node: Any) -> Any:
    """The sum of the steps of a matrix chain, each an unknown function of its row and column."""
    total = U64(0)
    rows, columns = s.child[node, 0], s.child[node, 1]
    while rows:
        high, low = s.op_high[s.op[node]], s.op_low[s.op[node]]
        a, b = values[s.child[rows, 1]], values[s.child[columns, 1]]
        high, low = mix(high, low, a + b, a ^ b)
        total = _sum(total, _drawn(high, low))
        rows, columns = s.child[rows, 0], s.child[columns, 0]
    return total


@njit(nogil=True, cache=True)
def _extreme(s: Any, ops: Any, mask: Any, node: Any) -> Any:
    """LARGEST or SMALLEST where a selection takes its first operand for being that, else OTHER; twice with NaN kept."""
    yes, no, chooser = s.child[node, 0], s.child[node, 1], s.child[node, 2]
    keeps = 0
    if ops[s.op[chooser]] == EITHER:
        one, other = s.child[chooser, 0], s.child[chooser, 1]
        for asks, compares in ((one, other), (other, one)):
            same = s.child[asks, 0] == s.child[asks, 1] and s.child[asks, 0] == yes
            if ops[s.op[asks]] == COMPARE and same and mask[s.op[asks]] in (8, 13):
                chooser, keeps = compares, 1
                break
    if ops[s.op[chooser]] != COMPARE:
        return OTHER, 0
    a, b, true = s.child[chooser, 0], s.child[chooser, 1], mask[s.op[chooser]]
    if a == no and b == yes:
        true = (true & 10) | (true & 1) << 2 | (true & 4) >> 2
    elif a != yes or b != no:
        return OTHER, 0
    if true & 13 == 4:
        return LARGEST, keeps
    return (SMALLEST, keeps) if true & 13 == 1 else (OTHER, 0)


@njit(nogil=True, cache=True)
def _truth(s: Any, mask: Any, chooser: Any) -> Any:
    """Whether a comparison of two finite constants holds; -1: it is no such comparison."""
    a, b = s.child[chooser, 0], s.child[chooser, 1]
    if s.op[a] != nodes.CONSTANT or s.op[b] != nodes.CONSTANT or s.width[a] != 4 or s.width[b] != 4:
        return -1
    x, y = np.uint32(s.attribute[a, 0]).view(np.float32), np.uint32(s.attribute[b, 0]).view(np.float32)
    if np.isnan(x) or np.isnan(y):
        return -1
    return int(mask[s.op[chooser]] & (1 if x < y else 2 if x == y else 4) != 0)


@njit(nogil=True, cache=True)
def _arguments(s: Any, values: Any, sets: Any, made: Any, tag: Any, child: Any) -> Any:
    """What a child adds to the arguments of a maximum: its own where it is one, nothing where it is an infinity."""
    if made[child] == tag:
        return sets[child]
    # The neutral element: the infinity that no argument falls behind.
    neutral = 0xFF800000 if tag >> 1 == LARGEST else 0x7F800000
    if s.op[child] == nodes.CONSTANT and s.width[child] == 4 and s.attribute[child, 0] & 0xFFFFFFFF == neutral:
        return U64(0)
    return close(values[child] ^ U64(0x9E3779B97F4A7C15), U64(tag))[0]


@njit(nogil=True, cache=True)
def _evaluate(s: Any, ops: Any, mask: Any, values: Any) -> None:
    sets, made = np.zeros(len(values), np.uint64), np.zeros(len(values), np.int64)
    for node in range(1, len(values)):
        what = ops[s.op[node]]
        a, b, c = s.child[node, 0], s.child[node, 1], s.child[node, 2]
        keeps = 0
        if what == SELECT:
            true = _truth(s, mask, c) if ops[s.op[c]] == COMPARE else -1
            if true >= 0:
                values[node] = values[a if true else b]
                made[node], sets[node] = made[a if true else b], sets[a if true else b]
                continue
            what, keeps = _extreme(s, ops, mask, node)
        if s.op[node] == nodes.CONSTANT and s.width[node] == 4 and s.attribute[node, 0] & 0x7F800000 != 0x7F800000:
            values[node] = _number(s.attribute[node, 0] & 0xFFFFFFFF)
        elif what == ADD:
            values[node] = _sum(values[a], values[b])
        elif what == SUBTRACT:
            values[node] = _difference(values[a], values[b])
        elif what == MULTIPLY:
            values[node] = _product(values[a], values[b])
        elif what == FUSE:
            values[node] = _sum(_product(values[a], values[b]), values[c])
        elif what == DIVIDE:
            values[node] = _product(values[a], _power(values[b], _PRIME - U64(2)))
        elif what == NEGATE:
            values[node] = _difference(U64(0), values[a])
        elif what == SAME:
            values[node], made[node], sets[node] = values[a], made[a], sets[a]
        elif what == MATRIX:
            values[node] = _sum(_steps(s, values, node), values[c])
        elif what in (LARGEST, SMALLEST) and b:
            made[node] = tag = 2 * what + keeps
            sets[node] = _arguments(s, values, sets, made, tag, a) + _arguments(s, values, sets, made, tag, b)
            values[node] = _drawn(sets[node], U64(tag))
        else:
            values[node] = _unknown(s, values, node)
