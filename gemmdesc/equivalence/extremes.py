"""Selections by a comparison with a constant: what ptxas makes a maximum or a minimum of.

ptxas 12.8 to 13.4 turn ``x > c ? x : c`` and its like, of float32, into one ``FMNMX`` where the constant is one that
they know and zeros of both signs come out alike.  The instruction gives the selected number; of a NaN it either drops
it, as the selection does, or keeps it, and then gives the canonical NaN where the selection gives x.  Two values that
are both data are not compared this way, since zeros would come out otherwise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.nodes import CONSTANT, Bits64, Ids
from gemmdesc.equivalence.table import Table

Mask = npt.NDArray[np.bool_]
Truth = npt.NDArray[np.int8]

#: The selection that is looked at, and how a predicate is made of others.
SELECTION = "selp.b32"
_LOGICAL = ("and.pred", "or.pred", "xor.pred", "not.pred")
#: Predicates are looked into so deep; what lies below may be anything.
_DEPTH = 8
_FALSE, _TRUE, _EITHER = 0, 1, 2


def may_be_extreme(table: Table, ids: Ids) -> Mask:
    """Which nodes are selections that ptxas may make a maximum or a minimum with a constant."""
    s = table.store
    found: Mask = s.op[ids] == table.code(SELECTION)
    found &= ~s.varies[s.child[ids, 0]] | ~s.varies[s.child[ids, 1]]
    at = np.flatnonzero(found)
    yes, no, chooser = (s.child[ids[at], k] for k in range(3))
    found[at] = _compares(table, chooser, yes, no, _DEPTH)
    return found


def dropping(table: Table, ids: Ids, side: int) -> Mask:
    """Which nodes are such selections, of the constant ``side`` (0: first, 1: second) where the other side is a NaN."""
    found = may_be_extreme(table, ids)
    at = np.flatnonzero(found)
    s = table.store
    constant, other, chooser = (s.child[ids[at], k] for k in (side, 1 - side, 2))
    truth = _with_nan(table, chooser, other, _DEPTH)
    found[at] = ~s.varies[constant] & ((truth == _EITHER) | (truth == (_TRUE if side == 0 else _FALSE)))
    return found


def canonical(bits: Bits64, where: Mask) -> Bits64:
    """Float32 patterns, shape (nodes, draws), in which a NaN of the nodes of ``where`` is the canonical one."""
    nan = bits & np.uint64(0x7FFFFFFF) > np.uint64(0x7F800000)
    return np.where(nan & where[:, None], np.uint64(0x7FFFFFFF), bits)


def _compares(table: Table, chooser: Ids, one: Ids, other: Ids, depth: int) -> Mask:
    """Where a float32 comparison of the two values is part of a predicate."""
    found = np.zeros(len(chooser), np.bool_)
    s = table.store
    op = s.op[chooser]
    for code in np.unique(op).tolist():
        name, at = table.name(code), np.flatnonzero(op == code)
        first, second = (s.child[chooser[at], k] for k in (0, 1))
        if name.startswith("setp.") and name.endswith(".f32"):
            a, b = one[at], other[at]
            found[at] = ((first == a) & (second == b)) | ((first == b) & (second == a))
        elif name in _LOGICAL and depth:
            below = (_compares(table, part, one[at], other[at], depth - 1) for part in (first, second))
            found[at] = np.logical_or.reduce(list(below))
        elif name in _LOGICAL:
            found[at] = True
    return found


def _with_nan(table: Table, chooser: Ids, data: Ids, depth: int) -> Truth:
    """What a predicate is where ``data`` is a NaN."""
    found = np.full(len(chooser), _EITHER, np.int8)
    s = table.store
    op = s.op[chooser]
    for code in np.unique(op).tolist():
        name, at = table.name(code), np.flatnonzero(op == code)
        first, second = (s.child[chooser[at], k] for k in (0, 1))
        if name.startswith("setp.") and name.endswith(".f32"):
            unordered = _TRUE if name.split(".")[1] in _UNORDERED else _FALSE
            asked = (first == data[at]) | (second == data[at])
            number = _is_number(table, first) & _is_number(table, second)
            known = name.startswith(("setp.nan.", "setp.num."))
            found[at] = np.where(asked, unordered, np.where(number & known, 1 - unordered, _EITHER))
        elif name in _LOGICAL and depth:
            parts = [_with_nan(table, part, data[at], depth - 1) for part in (first, second)]
            found[at] = _logical(name, *parts)
    return found


#: Comparisons that hold where an operand is a NaN.
_UNORDERED = ("nan", "equ", "neu", "ltu", "leu", "gtu", "geu")


def _is_number(table: Table, ids: Ids) -> Mask:
    s = table.store
    found: Mask = (s.op[ids] == CONSTANT) & (s.attribute[ids, 0] & 0x7FFFFFFF <= 0x7F800000)
    return found


def _logical(name: str, a: Truth, b: Truth) -> Truth:
    """Three-valued logic."""
    if name == "not.pred":
        return np.where(a == _EITHER, _EITHER, 1 - a).astype(np.int8)
    if name == "xor.pred":
        return np.where((a == _EITHER) | (b == _EITHER), _EITHER, a ^ b).astype(np.int8)
    wins = _TRUE if name == "or.pred" else _FALSE
    open_ = (a == _EITHER) | (b == _EITHER)
    return np.where((a == wins) | (b == wins), wins, np.where(open_, _EITHER, 1 - wins)).astype(np.int8)
