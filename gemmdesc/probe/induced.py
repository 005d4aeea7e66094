"""The summation tree that a descriptor induces on some of its k, as lowest common ancestors would show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gemmdesc.descriptor import Cut, GEMMDesc, Layout
from gemmdesc.errors import InvalidInputError
from gemmdesc.probe.pieces import deal, part_count, part_length
from gemmdesc.probe.tree import Tree
from gemmdesc.schedule import Index, step_ends

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
    root = _value(desc, desc.cuts, chosen, chosen, min(k, desc.summed_k))
    assert root is not None
    return root[0]


def _value(desc: GEMMDesc, cuts: tuple[Cut, ...], sites: Index, places: Index, length: int) -> _Ordered:
    """The subtree over ``sites``, which stand at ``places`` of the ``length`` k that these cuts deal."""
    if not len(sites):
        return None
    if not cuts:
        leaf = desc.accumulator
        ends = step_ends(length, leaf.instruction_k, leaf.residue)
        return _chain(sites.tolist(), np.searchsorted(ends, places, side="right").tolist())
    layout = cuts[0].layout
    labels, inner = deal(places, layout, length)
    found = {
        int(label): _value(
            desc, cuts[1:], sites[labels == label], inner[labels == label], part_length(length, layout, int(label))
        )
        for label in np.unique(labels)
    }
    return _folded(cuts[0].fold, np.unique(labels), np.unique(labels), part_count(length, layout), found)


def _folded(
    fold: tuple[Layout, ...], parts: Index, places: Index, length: int, found: Mapping[int, _Ordered]
) -> _Ordered:
    """``parts`` stand at ``places`` of the ``length`` ones that what is left of a fold deals to groups."""
    running: _Ordered = None
    if not fold:
        for part in parts.tolist():
            running = _join([running, found[part]])
        return running
    labels, inner = deal(places, fold[0], length)
    for label in np.unique(labels):
        own = labels == label
        group = _folded(fold[1:], parts[own], inner[own], part_length(length, fold[0], int(label)), found)
        running = _join([running, group])
    return running


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
