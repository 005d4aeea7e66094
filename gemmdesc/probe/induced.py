"""The summation tree that a descriptor induces on some of its k, as lowest common ancestors would show it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import InvalidInputError
from gemmdesc.probe.tree import Tree
from gemmdesc.schedule import Op, make_schedule

#: A subtree and its smallest site; None where no site takes part.
_Ordered = tuple[Tree, int] | None


def induced_tree(desc: GEMMDesc, k: int, sites: Sequence[int]) -> Tree:
    """The tree over ``sites`` at inner size ``k``; children stand in order of their first site.

    What :func:`gemmdesc.probe.tree.recover_tree` gives for a library that computes ``desc``.  Roundings and additions
    of +0.0 leave no trace in it.

    Raises:
        InvalidInputError: ``sites`` is empty, repeats a k, or holds one that is not summed.
    """
    chosen = np.unique(np.asarray(sites, dtype=np.int64))
    if not len(chosen) or len(chosen) != len(sites) or chosen[0] < 0 or chosen[-1] >= min(k, desc.summed_k):
        raise InvalidInputError(
            f"sites must be distinct k below {min(k, desc.summed_k)}, at least one (got {list(sites)[:6]})"
        )
    schedule = make_schedule(desc, k)
    asked = np.flatnonzero(np.isin(schedule.order, chosen))
    step = np.searchsorted(schedule.step_ends, asked, side="right")
    bounds = np.searchsorted(asked, schedule.leaf_offsets)
    ks = schedule.order[asked]
    stack: list[_Ordered] = []
    for op, argument in schedule.program.tolist():
        if op == Op.LEAF:
            begin, end = bounds[argument], bounds[argument + 1]
            stack.append(_chain(ks[begin:end].tolist(), step[begin:end].tolist()))
        elif op == Op.ADD:
            right = stack.pop()
            stack.append(_join([stack.pop(), right]))
    (root,) = stack
    assert root is not None
    return root[0]


def _chain(ks: Sequence[int], steps: Sequence[int]) -> _Ordered:
    """One accumulator: the running value and the products of one step meet in one node."""
    running: _Ordered = None
    begin = 0
    for i in range(1, len(ks) + 1):
        if i == len(ks) or steps[i] != steps[begin]:
            running = _join([running, *((t, t) for t in ks[begin:i])])
            begin = i
    return running


def _join(terms: Sequence[_Ordered]) -> _Ordered:
    present = sorted((t for t in terms if t is not None), key=lambda t: t[1])
    if len(present) < 2:
        return present[0] if present else None
    return tuple(t for t, _ in present), present[0][1]
