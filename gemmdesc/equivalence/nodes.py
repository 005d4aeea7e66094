"""The table of expressions: every node once, named by a digest of what it computes.

A node is an operation on child nodes, a constant, or bytes of a parameter's memory; its *digest* (128 bits) is made
from the operation's name, its integers and its children's digests, so that equal digests mean equal expressions, in
one table or in two.  Matrix steps that accumulate into one element are one node: on its rows of A, its columns of B,
each a list of *steps* (the list before, the last row or column), and on what the first step adds to; so that elements
share their rows and columns, and a step costs no node of its own.  Node 0 is poison: whatever computes with it is
poison; a value of which only some bytes are poison is *partial*, and poison to everything but moves of its good bytes.
Algebra is applied where a node is made; each identity is stated at its rule and tested.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gemmdesc.equivalence.node_hash import U64, close, mix

Ids = npt.NDArray[np.int64]
Bits64 = npt.NDArray[np.uint64]

POISON, CONSTANT, LEAF, CONCAT, EXTRACT, SCALAR, PARTIAL, STEPS = range(8)
#: Names of the operations above; those made by instructions follow.
BUILT_IN = ("poison", "constant", "load", "concat", "extract", "argument", "partial", "steps")

#: What an operation's flags say: the first two children commute; a set function such as a maximum; an addition to
#: nearest without flushing, whose neutral element is -0.0; a result that is never a NaN with a payload of its own;
#: a fused multiply-add to nearest; an exact widening of at most 11 significant bits to float32; a result that is an
#: operand, or leaves a NaN's payload to ptxas; a float32 sum, difference or product to nearest; a matrix step; a result
#: in which a NaN operand's payload does not show.
COMMUTES, SET, ADDITION, ARITHMETIC, FUSED, WIDENED, MOVES, LOOSE = 1, 2, 4, 8, 16, 32, 64, 128
SUM, DIFFERENCE, PRODUCT, MATRIX, SETTLES = 256, 512, 1024, 2048, 4096


class Store(NamedTuple):
    """The table's arrays.  ``attribute``: two integers (constant: pattern, 0; load: parameter, byte offset)."""

    op: npt.NDArray[np.int32]
    width: npt.NDArray[np.int32]
    child: Ids
    attribute: Ids
    high: Bits64
    low: Bits64
    slots: Ids
    used: Ids
    op_high: Bits64
    op_low: Bits64
    op_flags: npt.NDArray[np.int32]
    twins: npt.NDArray[np.int32]  # of a fused operation: its product and its sum
    varies: npt.NDArray[np.bool_]  # whether memory or an argument enters a node


@njit(nogil=True, cache=True)
def _intern(s: Any, op: Any, width: Any, a: Any, b: Any, c: Any, d: Any, x: Any, y: Any, is_set: Any) -> Any:
    high, low = s.op_high[op] ^ U64(width), s.op_low[op]
    if is_set == 0:
        high, low = mix(high, low, s.high[a], s.low[a])
        high, low = mix(high, low, s.high[b], s.low[b])
        if c or d:
            high, low = mix(high, low, s.high[c], s.low[c])
            high, low = mix(high, low, s.high[d], s.low[d])
    high, low = mix(high, low, U64(x), U64(y))
    high, low = close(high, low)
    mask = len(s.slots) - 1
    at = np.int64(low & U64(mask))
    while s.slots[at]:
        found = s.slots[at]
        if s.high[found] == high and s.low[found] == low:
            return found
        at = (at + 1) & mask
    node = s.used[0]
    s.used[0] = node + 1
    s.slots[at] = node
    s.op[node], s.width[node] = op, width
    s.child[node, 0], s.child[node, 1], s.child[node, 2], s.child[node, 3] = a, b, c, d
    s.attribute[node, 0], s.attribute[node, 1] = x, y
    s.high[node], s.low[node] = high, low
    below = s.varies[a] or s.varies[b] or s.varies[c] or s.varies[d]
    s.varies[node] = below or op in (LEAF, SCALAR)
    return node


@njit(nogil=True, cache=True)
def rehash(s: Any) -> None:
    """Fill fresh slots with the nodes that are there."""
    mask = len(s.slots) - 1
    for node in range(1, s.used[0]):
        at = np.int64(s.low[node] & U64(mask))
        while s.slots[at]:
            at = (at + 1) & mask
        s.slots[at] = node


@njit(inline="always")
def _less(s: Any, a: Any, b: Any) -> Any:
    return s.high[a] < s.high[b] or (s.high[a] == s.high[b] and s.low[a] < s.low[b])


@njit(nogil=True, cache=True)
def _member(s: Any, op: Any, node: Any) -> Any:
    """What ``node`` adds to the two sums that stand for a set function's arguments."""
    if s.op[node] == op:
        return U64(s.attribute[node, 0]), U64(s.attribute[node, 1])
    return close(s.high[node] ^ U64(0x9E3779B97F4A7C15), s.low[node])


@njit(nogil=True, cache=True)
def attribute_one(s: Any, op: Any, width: Any, x: Any, y: Any) -> Any:
    """The node that has two integers and no children."""
    return _intern(s, op, width, 0, 0, 0, 0, x, y, 0)


@njit(nogil=True, cache=True)
def constant_one(s: Any, bits: Any, width: Any) -> Any:
    """The constant with this pattern of ``width`` bytes."""
    if width < 8:
        bits &= (np.int64(1) << (8 * width)) - 1
    return _intern(s, CONSTANT, width, 0, 0, 0, 0, bits, 0, 0)


@njit(inline="always")
def _pattern(value: Any) -> Any:
    """A float32 result as a pattern, NaN made canonical."""
    return np.int64(0x7FFFFFFF) if np.isnan(value) else np.int64(np.float32(value).view(np.uint32))


@njit(nogil=True, cache=True)
def _folded(s: Any, flags: Any, a: Any, b: Any) -> Any:
    """The sum, difference or product of two float32 constants."""
    x, y = np.uint32(a).view(np.float32), np.uint32(b).view(np.float32)
    if flags & SUM:
        return constant_one(s, _pattern(x + y), 4)
    if flags & DIFFERENCE:
        return constant_one(s, _pattern(x - y), 4)
    return constant_one(s, _pattern(x * y), 4)


@njit(nogil=True, cache=True)
def _plain_one(s: Any, op: Any, width: Any, count: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The node of an operation on ``count`` children, simplified, none of them fused."""
    if (count > 0 and a == 0) or (count > 1 and b == 0) or (count > 2 and c == 0) or (count > 3 and d == 0):
        return 0
    if s.op[a] == PARTIAL or s.op[b] == PARTIAL or s.op[c] == PARTIAL or s.op[d] == PARTIAL:
        return 0
    flags = s.op_flags[op]
    if flags & SET:
        # A NaN-dropping or NaN-keeping maximum depends on the set of its arguments alone.
        first, second = _member(s, op, a), _member(s, op, b)
        if a == b and s.op[a] == op:
            return a
        high, low = first[0] + second[0], first[1] + second[1]
        if _less(s, b, a):
            a, b = b, a
        return _intern(s, op, width, a, b, 0, 0, np.int64(high), np.int64(low), 1)
    if flags & (SUM | DIFFERENCE | PRODUCT) and s.op[a] == CONSTANT and s.op[b] == CONSTANT:
        return _folded(s, flags, s.attribute[a, 0], s.attribute[b, 0])
    if flags & COMMUTES and _less(s, b, a):
        a, b = b, a
    if flags & ADDITION:
        # x + (-0.0) = x; the addition would only rewrite a NaN's payload, and an arithmetic result has none.
        for _ in range(2):
            if (
                s.op[a] == CONSTANT
                and s.attribute[a, 0] == np.int64(1) << (8 * width - 1)
                and s.op_flags[s.op[b]] & ARITHMETIC
            ):
                return b
            a, b = b, a
    return _intern(s, op, width, a, b, c, d, 0, 0, 0)


@njit(nogil=True, cache=True)
def longer_one(s: Any, steps: Any, stream: Any) -> Any:
    """A list of rows or columns (0: none yet) and one more."""
    return _intern(s, STEPS, 0, steps, stream, 0, 0, 0, 0, 0)


@njit(nogil=True, cache=True)
def chain_one(s: Any, op: Any, width: Any, rows: Any, columns: Any, start: Any) -> Any:
    """Matrix steps over whole lists; ``start`` is no chain of ``op``, so that equal chains are one node."""
    return _intern(s, op, width, rows, columns, start, 0, 0, 0, 0)


@njit(nogil=True, cache=True)
def _step_one(s: Any, op: Any, width: Any, row: Any, column: Any, before: Any) -> Any:
    """One matrix step more; a chain of the same instruction becomes longer."""
    if row == 0 or column == 0 or before == 0:
        return 0
    if s.op[row] == PARTIAL or s.op[column] == PARTIAL or s.op[before] == PARTIAL:
        return 0
    if s.op_flags[op] & COMMUTES and _less(s, column, row):
        row, column = column, row
    rows, columns = np.int64(0), np.int64(0)
    if s.op[before] == op:
        rows, columns, before = s.child[before, 0], s.child[before, 1], s.child[before, 2]
    return chain_one(s, op, width, longer_one(s, rows, row), longer_one(s, columns, column), before)


@njit(nogil=True, cache=True)
def make_one(s: Any, op: Any, width: Any, count: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The node of an operation on ``count`` children, simplified."""
    if s.op_flags[op] & MATRIX:
        return _step_one(s, op, width, a, b, c)
    if s.op_flags[op] & FUSED and s.op_flags[s.op[a]] & WIDENED and s.op_flags[s.op[b]] & WIDENED:
        # The product of two values of at most 11 significant bits is a float32 value: it is rounded once either way.
        product = _plain_one(s, s.twins[op, 0], width, 2, a, b, 0, 0)
        return _plain_one(s, s.twins[op, 1], width, 2, product, c, 0, 0)
    return _plain_one(s, op, width, count, a, b, c, d)


@njit(nogil=True, cache=True)
def extract_one(s: Any, node: Any, offset: Any, width: Any) -> Any:
    """Bytes ``offset`` to ``offset + width`` of a node."""
    while node != 0 and not (offset == 0 and width == s.width[node]):
        op, half = s.op[node], s.width[node] // 2
        if op == CONSTANT:
            return constant_one(s, np.int64(U64(s.attribute[node, 0]) >> U64(8 * offset)), width)
        if op == LEAF:
            return _intern(s, LEAF, width, 0, 0, 0, 0, s.attribute[node, 0], s.attribute[node, 1] + offset, 0)
        if (op in (CONCAT, PARTIAL)) and offset + width <= half:
            node = s.child[node, 0]
        elif (op in (CONCAT, PARTIAL)) and offset >= half:
            node, offset = s.child[node, 1], offset - half
        elif op == EXTRACT:
            node, offset = s.child[node, 0], s.attribute[node, 0] + offset
        elif op == PARTIAL:
            return 0
        else:
            return _intern(s, EXTRACT, width, node, 0, 0, 0, offset, 0, 0)
    return node


@njit(nogil=True, cache=True)
def concat_one(s: Any, low: Any, high: Any) -> Any:
    """Two nodes of one width as one value, ``low`` in the lower bytes."""
    if low == 0 and high == 0:
        return 0
    width = max(s.width[low], s.width[high])
    if low == 0 or high == 0 or s.op[low] == PARTIAL or s.op[high] == PARTIAL:
        return _intern(s, PARTIAL, 2 * width, low, high, 0, 0, 0, 0, 0)
    ops = s.op[low], s.op[high]
    if ops[0] == CONSTANT and ops[1] == CONSTANT:
        return constant_one(s, s.attribute[low, 0] | (s.attribute[high, 0] << (8 * width)), 2 * width)
    follows = s.attribute[low, 1] + width == s.attribute[high, 1]
    if ops[0] == LEAF and ops[1] == LEAF and s.attribute[low, 0] == s.attribute[high, 0] and follows:
        return _intern(s, LEAF, 2 * width, 0, 0, 0, 0, s.attribute[low, 0], s.attribute[low, 1], 0)
    follows = s.attribute[low, 0] + width == s.attribute[high, 0]
    if ops[0] == EXTRACT and ops[1] == EXTRACT and s.child[low, 0] == s.child[high, 0] and follows:
        return extract_one(s, s.child[low, 0], s.attribute[low, 0], 2 * width)
    return _intern(s, CONCAT, 2 * width, low, high, 0, 0, 0, 0, 0)
