"""Walks: reading how much of k is summed, where accumulators end, where steps end, and how parts are joined.

Each walk plans experiments, runs them on a :class:`~gemmdesc.probe.experiments.Reader`, and reads the answers.  None
uses a rounding: with +L, -L, r further apart than any accumulator keeps, r is either there or gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gemmdesc.probe.experiments import Magnitudes, Pattern, Reader, pair_then_unit
from gemmdesc.probe.reading import StepWindow
from gemmdesc.probe.sites import sampled_sites
from gemmdesc.probe.tree import Query, Tree, TreeError, chain_pairs, leaves, recover_tree

#: How many experiments one round of a search lays out at least, so that narrow problems need few rounds.
_ROUND = 192
#: At most this many sites take part in one recovered tree.
MOST_SITES = 96
#: Sites of a sampled tree, by how many experiments one launch holds at least.
_SAMPLED = ((64, 420), (8, 160), (1, 70))
#: Experiments that one launch must hold for edges to be worth their launches.
_WORTH_EDGES = 8
#: Products that one experiment writes at most.
_MOST_WRITTEN = 4096
#: Neighbouring triples tried for a fused step; more than any instruction_k, so that one lies inside a step.
_TRIPLES = 24


def read_summed(reader: Reader) -> tuple[int, tuple[int, ...]]:
    """How many leading k are summed, and any k before that whose product does not reach the output.

    A lone 1 walks over a grid of k; where the last ones vanish, the end is found by repeated subdivision.
    """
    k = reader.k
    grid = np.unique(np.linspace(0, k - 1, min(k, _ROUND)).astype(np.int64))
    present = reader.values([((int(t), 1.0),) for t in grid]) == 1.0
    if present[-1]:
        return k, tuple(int(t) for t in grid[~present])
    if not present.any():
        return 0, ()
    last = int(np.flatnonzero(present)[-1])
    low, high = int(grid[last]), int(grid[last + 1])
    while high - low > 1:
        inner = np.unique(np.linspace(low, high, min(high - low + 1, _ROUND)).astype(np.int64))
        seen = reader.values([((int(t), 1.0),) for t in inner]) == 1.0
        edge = int(np.flatnonzero(seen)[-1])
        low, high = int(inner[edge]), int(inner[min(edge + 1, len(inner) - 1)])
    return low + 1, tuple(int(t) for t in grid[: last + 1][~present[: last + 1]])


def read_part_ends(reader: Reader, summed_k: int, size: Magnitudes) -> tuple[int, ...]:
    """Exclusive ends of the accumulators along k, each a contiguous run.

    r at x and the pair at (y, y + 1): r survives exactly when no accumulator holds both.  A pair that straddles a
    boundary says nothing, so each interval is asked with two placements of the pair.  An accumulator that holds only
    the last k has no room for a pair and is not seen: the last run may hide one of length 1.
    """
    ends: list[int] = []
    intervals = [(0, summed_k - 1)] if summed_k > 1 else []
    while intervals:
        points = _subdivide(intervals)
        split = _separated(reader, points, summed_k, size)
        intervals = []
        for (x, y), apart in zip(points, split, strict=True):
            if apart and y - x == 1:
                ends.append(y)
            elif apart:
                intervals.append((x, y))
    return (*sorted(ends), summed_k)


def _subdivide(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    each = max(2, _ROUND // len(intervals))
    out: list[tuple[int, int]] = []
    for x, y in intervals:
        grid = np.unique(np.linspace(x, y, min(each, y - x) + 1).astype(np.int64))
        out.extend((int(p), int(q)) for p, q in pairwise(grid))
    return out


def _separated(
    reader: Reader, intervals: Sequence[tuple[int, int]], summed_k: int, size: Magnitudes
) -> list[bool]:
    patterns: list[Pattern] = []
    owners: list[int] = []
    for i, (x, y) in enumerate(intervals):
        for low in (y, y - 1):
            if low > x and low + 1 < summed_k:
                patterns.append(pair_then_unit(low, x, size))
                owners.append(i)
    survived = reader.values(patterns) == size.tiny
    apart = [False] * len(intervals)
    for owner, alive in zip(owners, survived, strict=True):
        apart[owner] |= bool(alive)
    return apart


def read_steps(reader: Reader, begin: int, end: int, size: Magnitudes) -> StepWindow:
    """Step boundaries b with ``begin`` + 2 <= b < ``end``.

    The pair at (b - 2, b - 1) and r at b: r survives exactly when b's step comes after the one that closed the pair.
    """
    at = list(range(begin + 2, end))
    survived = reader.values([pair_then_unit(b - 2, b, size) for b in at]) == size.tiny
    return StepWindow(begin=begin, end=end, ends=tuple(b for b, alive in zip(at, survived, strict=True) if alive))


def read_fused(reader: Reader, summed_k: int, size: Magnitudes) -> bool | None:
    """Whether some three neighbouring products meet in one fused step; None where three products are not summed.

    L = 1.5 x 2^e, -L and r = 2^(e - 24) on three neighbouring k, r at each of the three in turn.  Where sums are made
    two at a time in float32, two of the three orders add r to L and lose it to a tie; a step that aligns them all to 24
    or more fraction bits keeps r in every one, and one that aligns them to fewer loses it in every one.  No tree of
    single additions does that: whichever two of the three meet first, L and -L are these in one of the orders.
    """
    if summed_k < 3:
        return None
    exponent = int(np.log2(size.tiny)) + 24
    large, small = 1.5 * 2.0**exponent, size.tiny
    first = range(min(_TRIPLES, summed_k - 2))
    patterns = [
        tuple((t + (place + shift) % 3, v) for place, v in enumerate((small, large, -large)))
        for t in first
        for shift in range(3)
    ]
    got = reader.values(patterns).reshape(-1, 3)
    lost = (got == 0.0).all(axis=1)
    if lost.any():
        # Of these only where r comes out by itself.
        alone = reader.values([((t + place, small),) for t in first for place in range(3)]).reshape(-1, 3)
        lost &= (alone == small).all(axis=1)
    return bool(((got == small).all(axis=1) | lost).any())


def read_part_tree(reader: Reader, part_ends: Sequence[int], size: Magnitudes) -> tuple[Tree, tuple[str, ...]]:
    """How the parts are joined, by lowest common ancestors over one representative k a part.

    Of more parts than ``MOST_SITES``, some from both ends and some between stand for all; the tree is then that of
    these parts alone.
    """
    starts = [0, *part_ends[:-1]]
    sites = _sites(len(starts), MOST_SITES)
    if len(sites) == 1:
        return 0, ()
    try:
        return recover_tree(sites, _Oracle(reader, sites, starts, size)), ()
    except TreeError as error:
        return tuple(sites), (f"parts: {error}",)


class _Oracle:
    """Sizes of the smallest subtrees that hold two sites: L at one, -L at the other, units at the rest are counted.

    ``at`` holds each site's k.  Where an output counts fewer units than there are sites, a few are asked at a time.
    """

    def __init__(self, reader: Reader, sites: Sequence[int], at: Sequence[int], size: Magnitudes) -> None:
        self._reader, self._sites, self._at, self._size = reader, sites, at, size
        step = size.countable
        self._chunks = [sites[i : i + step] for i in range(0, len(sites), step)]

    def __call__(self, queries: Sequence[Query]) -> list[Sequence[int]]:
        size, count = self._size, len(self._sites)
        pairs = [(one, other) for one, others in queries for other in others]
        patterns = [self._pattern(one, other, chunk) for one, other in pairs for chunk in self._chunks]
        left = self._reader.values(patterns).reshape(len(pairs), len(self._chunks)).sum(axis=1) / size.tiny
        sizes = iter([count - int(x) if x == int(x) and 0 <= x < count else -1 for x in left])
        return [[next(sizes) for _ in others] for _, others in queries]

    def _pattern(self, one: int, other: int, units: Sequence[int]) -> Pattern:
        size, at = self._size, self._at
        rest = ((at[p], size.tiny) for p in units if p not in (one, other))
        return ((at[one], size.big), (at[other], -size.big), *rest)


def _sites(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    end = most // 3
    middle = np.linspace(end, count - end - 1, most - 2 * end).astype(int)
    return sorted({*range(end), *(int(x) for x in middle), *range(count - end, count)})


def read_element_tree(reader: Reader, summed_k: int, size: Magnitudes) -> Tree | None:
    """The whole tree over k, without any hypothesis; None where k is beyond ``MOST_SITES`` or the sizes fit no tree."""
    if not 2 <= summed_k <= min(MOST_SITES, size.countable):
        return None
    return _tree_over(reader, range(summed_k), size)


def read_sampled_tree(reader: Reader, summed_k: int, size: Magnitudes) -> Tree | None:
    """The tree over all k, or over as many as are worth their launches; None where the sizes fit no tree.

    Of many k the first third of the sites are the first, some are the last, and most others lie anywhere between.  A
    tree over half of them is read first; where neighbours among its sites meet highest up, the two k between which
    that changes are found and take part, too, and so do the neighbours of some that joined a sum by themselves.
    """
    if summed_k < 1:
        return None
    most = min(next(sites for width, sites in _SAMPLED if reader.width >= width), size.countable)
    if summed_k <= most or reader.width < _WORTH_EDGES:
        return _tree_over(reader, sampled_sites(summed_k, most), size)
    coarse = _tree_over(reader, sampled_sites(summed_k, most // 2), size)
    if coarse is None:
        return None
    edges = _read_edges(reader, coarse, most // 8, size)
    lonely = _lonely(coarse, summed_k, most // 24)
    rest = sampled_sites(summed_k, most - 2 * (most // 8) - 3 * (most // 24))
    return _tree_over(reader, sorted({*rest, *edges, *lonely}), size)


def _lonely(tree: Tree, k: int, most: int) -> set[int]:
    """Sites that joined a sum by themselves, the site after each and one in that sum, for at most ``most`` of them.

    What is far from that sum's last site may go on its chain, or open a lane of its own: its neighbour tells.
    """
    pairs = sorted((j - i, i, j) for i, j in chain_pairs(tree) if abs(j - i) > 1 and j + 1 < k)
    chosen = pairs[:: max(1, -(-len(pairs) // most))] if most else []
    return {site for _, i, j in chosen for site in (i, j, j + 1)}


def _read_edges(reader: Reader, tree: Tree, most: int, size: Magnitudes) -> set[int]:
    """Pairs of neighbouring k that meet as high up as two sites around them, for at most ``most`` pairs of sites.

    +L at the lower site x and -L at some z leave the sites outside the smallest subtree of both: fewer than that, and z
    is beyond the edge.
    """
    sites, meeting = sorted(leaves(tree)), _meetings(tree)
    gaps = sorted(((meeting[x, y], x, y) for x, y in pairwise(sites) if y > x + 1), reverse=True)[:most]
    outside = {x: len(sites) - joined for joined, x, _ in gaps}
    between = {x: (x, y) for _, x, y in gaps}
    while any(high - low > 1 for low, high in between.values()):
        points = {x: _inner(low, high, _ROUND // len(between)) for x, (low, high) in between.items()}
        patterns = [
            (*((s, size.tiny) for s in sites if s not in (x, z)), (x, size.big), (z, -size.big))
            for x, zs in points.items()
            for z in zs
        ]
        left = iter((reader.values(patterns) / size.tiny).tolist())
        for x, zs in points.items():
            low, high = between[x]
            below = [next(left) > outside[x] for _ in zs]
            beyond = below.index(False) if False in below else len(zs)
            between[x] = ([low, *zs][beyond], [*zs, high][beyond])
    return {k for pair in between.values() for k in pair}


def _inner(low: int, high: int, most: int) -> list[int]:
    """At most ``most`` k, at least one, evenly spread between ``low`` and ``high``; none where there are none."""
    grid = np.linspace(low, high, max(1, min(most, high - low - 1)) + 2).astype(np.int64)[1:-1]
    return sorted({int(z) for z in grid} - {low, high})


def _meetings(tree: Tree) -> dict[tuple[int, int], int]:
    """For neighbours among the sites, how many sites the smallest subtree of both holds."""
    found: dict[tuple[int, int], int] = {}

    def visit(node: Tree) -> list[int]:
        if isinstance(node, int):
            return [node]
        own = [visit(child) for child in node]
        owner = {site: i for i, below in enumerate(own) for site in below}
        merged = sorted(owner)
        for pair in pairwise(merged):
            if owner[pair[0]] != owner[pair[1]]:
                # A later visit, of a higher node, may see another site between the two.
                found[pair] = len(merged)
        return merged

    visit(tree)
    return found


def _tree_over(reader: Reader, sites: Sequence[int], size: Magnitudes) -> Tree | None:
    try:
        return recover_tree(sites, _Oracle(reader, sites, range(sites[-1] + 1), size))
    except TreeError:
        return None


def read_negative_zero(reader: Reader, summed_k: int) -> bool | None:
    """Whether the output is -0.0 where every product is; None where k is too long to write them all."""
    if not 1 <= summed_k <= _MOST_WRITTEN:
        return None
    (value,) = reader.values([tuple((k, -0.0) for k in range(summed_k))])
    return bool(np.signbit(value))
