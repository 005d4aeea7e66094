"""Names for what sets two classes apart: two kernels agree once one property of their expressions is left out.

The names explain answers to a reader.  They weaken nothing: two classes with a name between them stay two classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gemmdesc.equivalence import nodes
from gemmdesc.equivalence.exact_values import exact_values
from gemmdesc.equivalence.node_hash import U64, close, mix
from gemmdesc.equivalence.walk import Walked

Hashes = npt.NDArray[np.uint64]
#: By name, what is left out of the expressions: the order of sums, and whether a product is rounded before it is added.
_LEFT_OUT: Mapping[str, tuple[bool, bool]] = {
    "one sum in two orders": (True, False),
    "a product fused into its sum in one of them": (False, True),
    "one sum in two orders, and a product fused into it": (True, True),
}
EXACT = "one exact value, worked out another way"
#: The names, that which says most first.
RELATIONS = (*_LEFT_OUT, EXACT)


def relaxed_digests(walked: Walked) -> dict[str, str]:
    """By relation, a digest of everything stored with that property left out of its expressions (16 hex digits).

    Zero terms count for nothing where the order of sums is left out.
    """
    found = {}
    table = walked.table
    for name, (order, fusion) in _LEFT_OUT.items():
        hashes = np.zeros(len(table), np.uint64)
        terms = np.zeros(len(table), np.uint64)
        _relaxed(table.store, order, fusion, hashes, terms)
        found[name] = _digest(walked, hashes)
    return {**found, EXACT: _digest(walked, exact_values(table))}


def _digest(walked: Walked, hashes: Hashes) -> str:
    """Of everything stored, each byte by its place and its node's hash."""
    stored = walked.stored
    rows = np.stack([stored.parameter.view(np.uint64), stored.offset.view(np.uint64), hashes[stored.ids]])
    return hashlib.sha256(walked.chip.encode() + rows.tobytes()).hexdigest()[:16]


def relation_between(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """The first relation in which two kernels of different classes agree, given their :func:`relaxed_digests`."""
    return next((name for name in RELATIONS if name in one and one[name] == other.get(name)), None)


@njit(inline="always")
def _two(tag: Any, a: Any, b: Any) -> Any:
    """A hash of two hashes in any order."""
    high, low = mix(tag, U64(2), a + b, a ^ b)
    return close(high, low)[0]


@njit(inline="always")
def _one(tag: Any, a: Any) -> Any:
    high, low = mix(tag, U64(1), a, U64(0))
    return close(high, low)[0]


@njit(nogil=True, cache=True)
def _term(s: Any, hashes: Any, terms: Any, node: Any) -> Any:
    """What a node adds to a sum: its own terms where it is one, nothing where it is zero."""
    if terms[node]:
        return terms[node]
    if s.op[node] == nodes.CONSTANT and s.attribute[node, 0] & 0x7FFFFFFF == 0:
        return U64(0)
    return _one(U64(3), hashes[node])


@njit(nogil=True, cache=True)
def _member(s: Any, hashes: Any, members: Any, node: Any, child: Any) -> Any:
    """What a child adds to the arguments of a maximum or minimum, which is a function of their set."""
    return members[child] if s.op[child] == s.op[node] else _one(U64(13), hashes[child])


@njit(nogil=True, cache=True)
def _steps(s: Any, hashes: Any, node: Any) -> Any:
    """The terms of a chain of matrix steps."""
    total = U64(0)
    rows, columns = s.child[node, 0], s.child[node, 1]
    while rows:
        total += _two(s.op_high[s.op[node]], hashes[s.child[rows, 1]], hashes[s.child[columns, 1]])
        rows, columns = s.child[rows, 0], s.child[columns, 0]
    return total


@njit(nogil=True, cache=True)
def _plain(s: Any, hashes: Any, node: Any) -> Any:
    op = s.op[node]
    high, low = s.op_high[op] ^ U64(s.width[node]), s.op_low[op]
    x, y = U64(s.attribute[node, 0]), U64(s.attribute[node, 1])
    first, second = hashes[s.child[node, 0]], hashes[s.child[node, 1]]
    if s.op_flags[op] & nodes.COMMUTES:
        first, second = first + second, first ^ second
    high, low = mix(high, low, first, second)
    high, low = mix(high, low, hashes[s.child[node, 2]], hashes[s.child[node, 3]])
    high, low = mix(high, low, x, y)
    return close(high, low)[0]


@njit(nogil=True, cache=True)
def _relaxed(s: Any, order: Any, fusion: Any, hashes: Any, terms: Any) -> None:
    product, addition = U64(5), U64(7)
    members = np.zeros(len(hashes), np.uint64)
    for node in range(1, len(hashes)):
        flags = s.op_flags[s.op[node]]
        a, b, c = s.child[node, 0], s.child[node, 1], s.child[node, 2]
        if flags & nodes.PRODUCT:
            hashes[node] = _two(product, hashes[a], hashes[b])
        elif flags & nodes.SUM or (fusion and flags & nodes.FUSED):
            fused = flags & nodes.FUSED
            first = _two(product, hashes[a], hashes[b]) if fused else hashes[a]
            last = c if fused else b
            if order:
                taken = _one(U64(3), first) if fused else _term(s, hashes, terms, a)
                terms[node] = taken + _term(s, hashes, terms, last)
                hashes[node] = _one(addition, terms[node])
            else:
                hashes[node] = _two(addition, first, hashes[last])
        elif order and flags & nodes.FUSED:
            terms[node] = _two(U64(11), hashes[a], hashes[b]) + _term(s, hashes, terms, c)
            hashes[node] = _one(addition, terms[node])
        elif order and flags & nodes.MATRIX:
            terms[node] = _steps(s, hashes, node) + _term(s, hashes, terms, c)
            hashes[node] = _one(addition, terms[node])
        elif flags & nodes.SET:
            members[node] = _member(s, hashes, members, node, a) + _member(s, hashes, members, node, b)
            hashes[node] = _one(s.op_high[s.op[node]], members[node])
        else:
            hashes[node] = _plain(s, hashes, node)


