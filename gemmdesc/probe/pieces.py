"""Taking a summation tree apart along cuts: which of its subtrees are the parts of one cut.

A :class:`Piece` is a subtree that sums one list of k; its sites are known by their place in that list.  The parts of a
cut of the list are subtrees again, so that a whole nest is taken apart without building any tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import Balanced, Contiguous, Layout, Short, Strided
from gemmdesc.errors import GemmdescError
from gemmdesc.probe.tree import Tree

Index = npt.NDArray[np.int64]


class ScalarNestError(GemmdescError):
    """No nest of cuts over an ascending scalar chain explains the tree."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatTree:
    """A binary tree as arrays over its nodes, children before their parents; the last node is the root.

    ``left`` and ``right``: children, or -1 for a site.  ``begin`` and ``end``: the node's range in ``sites``, which
    stand in order of the leaves.  ``spined``: every right child on the node's left spine is a site.  ``rank``: 0 for a
    site; that of the higher child, or one more where both are equal.  A fold's rank exceeds its parts' by one at most.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    spined: tuple[bool, ...]
    rank: tuple[int, ...]
    sites: Index

    @property
    def root(self) -> int:
        return len(self.left) - 1


def flatten(tree: Tree) -> FlatTree:
    """The arrays of ``tree``.

    Raises:
        ScalarNestError: some node joins more than two.
    """
    left: list[int] = []
    right: list[int] = []
    begin: list[int] = []
    spined: list[bool] = []
    rank: list[int] = []
    ends: list[int] = []
    sites: list[int] = []
    done: list[int] = []
    pending: list[Tree | None] = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, tuple):
            if len(item) != 2:
                raise ScalarNestError(f"tree must join two at a time (got a node of {len(item)})")
            pending += [None, item[1], item[0]]
            continue
        if item is None:
            r, x = done.pop(), done.pop()
            left.append(x)
            right.append(r)
            begin.append(begin[x])
            spined.append(spined[x] and left[r] < 0)
            rank.append(max(rank[x], rank[r], min(rank[x], rank[r]) + 1))
        else:
            left.append(-1)
            right.append(-1)
            begin.append(len(sites))
            spined.append(True)
            rank.append(0)
            sites.append(item)
        ends.append(len(sites))
        done.append(len(left) - 1)
    return FlatTree(
        left=tuple(left), right=tuple(right), begin=tuple(begin), end=tuple(ends), spined=tuple(spined),
        rank=tuple(rank), sites=np.array(sites, dtype=np.int64),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """The subtree at ``node`` sums a list of ``length`` k; ``places`` are its sites' places there, as leaves stand."""

    flat: FlatTree
    node: int
    places: Index
    length: int

    @property
    def chain(self) -> bool:
        """Whether its sites are added one by one, ascending."""
        return self.flat.spined[self.node] and bool((np.diff(self.places) > 0).all())

    @property
    def least_cuts(self) -> int:
        """A lower bound on the cuts that explain it: none for a chain, and each raises the rank by one at most."""
        return 0 if self.chain else max(1, self.flat.rank[self.node] - 1)

    def below(self, node: int) -> slice:
        """The range of ``places`` that a node of this subtree covers."""
        offset = self.flat.begin[self.node]
        return slice(self.flat.begin[node] - offset, self.flat.end[node] - offset)

    def spine(self) -> list[int]:
        """Nodes from the root down the left side, without the leaf."""
        nodes, node = [], self.node
        while self.flat.left[node] >= 0:
            nodes.append(node)
            node = self.flat.left[node]
        return nodes


def whole(tree: FlatTree, k: int) -> Piece:
    """The tree as the sum of all k.

    Raises:
        ScalarNestError: a site lies outside 0 .. k - 1.
    """
    if tree.sites.min() < 0 or tree.sites.max() >= k:
        raise ScalarNestError(f"sites must lie below k = {k} (got {tree.sites.min()} .. {tree.sites.max()})")
    return Piece(flat=tree, node=tree.root, places=tree.sites, length=k)


def take_apart(piece: Piece, layout: Layout) -> list[Piece] | None:
    """The parts that hold sites, if the subtree is the ascending fold of the layout's parts; else None."""
    flat = piece.flat
    labels, places = deal(piece.places, layout, piece.length)
    parts: list[Piece] = []
    node = piece.node

    def part(at: int) -> Piece:
        inside = piece.below(at)
        length = part_length(piece.length, layout, int(labels[inside][0]))
        return Piece(flat=flat, node=at, places=places[inside], length=length)

    while True:
        inside = labels[piece.below(node)]
        if (inside == inside[0]).all():
            parts.append(part(node))
            return parts
        a, b = flat.left[node], flat.right[node]
        one, other = labels[piece.below(a)], labels[piece.below(b)]
        if other[0] > one.max() and (other == other[0]).all():
            parts.append(part(b))
            node = a
        elif one[0] > other.max() and (one == one[0]).all():
            parts.append(part(a))
            node = b
        else:
            return None


def deal(places: Index, layout: Layout, length: int = 0) -> tuple[Index, Index]:
    """The part of each place, and its place in that part; ``length`` matters unless parts are counted from 0."""
    match layout:
        case Contiguous(span=span, short=short):
            lead = length % span if short is Short.FIRST else 0
            part = (places - lead) // span + (1 if lead else 0)
            return part, np.where(part > 0, (places - lead) % span, places) if lead else places % span
        case Strided(count=count, unit=unit):
            at = places // unit
            return at % count, at // count * unit + places % unit
        case Balanced():
            bounds = np.array([0, *layout.ends(length)], dtype=np.int64)
            part = np.searchsorted(bounds[1:], places, side="right")
            return part, places - bounds[part]


def part_length(length: int, layout: Layout, part: int) -> int:
    """How many of ``length`` places one part holds."""
    match layout:
        case Contiguous(span=span, short=short):
            lead = length % span if short is Short.FIRST else 0
            if lead:
                return span if part else lead
            return min(span, length - part * span)
        case Strided(count=count, unit=unit):
            turns, rest = divmod(length, count * unit)
            return turns * unit + min(max(rest - part * unit, 0), unit)
        case Balanced():
            bounds = (0, *layout.ends(length))
            return bounds[part + 1] - bounds[part]


def explains(layouts: tuple[Layout, ...], piece: Piece) -> bool:
    """Whether the nest of layouts, outermost first, over an ascending chain has this tree."""
    pieces = [piece]
    for layout in layouts:
        taken = [take_apart(p, layout) for p in pieces]
        if any(t is None for t in taken):
            return False
        pieces = [p for t in taken if t is not None for p in t]
    return all(p.chain for p in pieces)


def take_groups(piece: Piece, layout: Layout) -> tuple[list[Piece], Piece] | None:
    """The parts that hold sites, and the tree that folds them, in which a part's number stands for its sites.

    None where some part is no subtree.
    """
    labels, places = deal(piece.places, layout, piece.length)
    parts: list[Piece] = []

    def fold(node: int) -> tuple[int, Tree]:
        """The tree below, with its smallest part: a part's first site says nothing of its number."""
        inside = piece.below(node)
        own = labels[inside]
        if (own == own[0]).all():
            length = part_length(piece.length, layout, int(own[0]))
            parts.append(Piece(flat=piece.flat, node=node, places=places[inside], length=length))
            return int(own[0]), int(own[0])
        (low, first), (high, second) = sorted((fold(piece.flat.left[node]), fold(piece.flat.right[node])), key=_number)
        return min(low, high), (first, second)

    if int((np.diff(labels) != 0).sum()) + 1 != len(np.unique(labels)):
        return None
    flat = flatten(fold(piece.node)[1])
    if len(np.unique(flat.sites)) != len(flat.sites):
        return None
    return parts, Piece(flat=flat, node=flat.root, places=flat.sites, length=part_count(piece.length, layout))


def _number(item: tuple[int, Tree]) -> int:
    return item[0]


def part_count(length: int, layout: Layout) -> int:
    """How many parts ``length`` places have."""
    return max(1, -(-length // layout.span)) if isinstance(layout, Contiguous) else layout.count
