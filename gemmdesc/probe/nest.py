"""Compressing a recovered tree over contiguous parts into a nest of cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gemmdesc.descriptor import Short
from gemmdesc.errors import GemmdescError
from gemmdesc.probe.tree import Tree, TreeError, chain_items, leaves


class NestError(GemmdescError):
    """The parts are joined in a way that no nest of contiguous cuts describes."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One cut: parts of ``span`` k, the short one ``short``; of up to ``most`` k where a few parts stood for all."""

    span: int
    short: Short
    most: int = 0

    @property
    def longest(self) -> int:
        return max(self.span, self.most)


def compress_parts(tree: Tree, part_ends: Sequence[int]) -> tuple[Level, ...]:
    """Levels outermost first; empty for a single part.

    Raises:
        NestError: the tree is no ascending chain of equal parts, or of equal chains of them.
    """
    if len(part_ends) == 1:
        return ()
    starts = [0, *part_ends[:-1]]
    lengths = [e - s for s, e in zip(starts, part_ends, strict=True)]
    order = leaves(tree)
    if order != sorted(order):
        raise NestError(f"parts must be folded in ascending order (got {order[:8]})")
    try:
        items = chain_items(tree)
    except TreeError as error:
        raise NestError(str(error)) from None
    groups = _group(items)
    if all(len(g) == 1 for g in groups):
        return (_level(lengths),)
    if len(order) < len(lengths):
        return _sampled(groups, lengths)
    outer = _level([sum(lengths[p] for p in g) for g in groups])
    inner = {_level([lengths[p] for p in g]) for g in groups if len(g) > 1}
    if len(inner) != 1:
        raise NestError(f"inner parts must be cut alike (got {len(inner)} ways)")
    return (outer, *inner)


def _sampled(groups: Sequence[Sequence[int]], lengths: Sequence[int]) -> tuple[Level, Level]:
    """Both levels where some of the parts stand for all: every number of parts in a group that deals those as seen."""
    inner = _level(lengths)
    if inner.short is Short.FIRST:
        raise NestError(f"of {len(lengths)} parts only the last may be short to be read from some (got the first)")
    owner = {p: i for i, group in enumerate(groups) for p in group}
    seen = sorted(owner)
    together = [owner[p] == owner[q] for p, q in pairwise(seen)]
    fitting = [
        count
        for count in range(1, len(lengths) + 1)
        if [p // count == q // count for p, q in pairwise(seen)] == together
    ]
    if not fitting:
        raise NestError(f"groups of parts must be equal but for the last (got {[list(g[:3]) for g in groups[:3]]})")
    if fitting[-1] - fitting[0] >= len(fitting):
        raise NestError(f"groups of parts must be of one range of sizes (got {fitting})")
    return Level(span=fitting[0] * inner.span, short=Short.LAST, most=fitting[-1] * inner.span), inner


def _group(items: Sequence[Tree]) -> list[list[int]]:
    """Parts by outer item.  The first outer item's own chain lies flat on the spine, as long as the next one's."""
    nested = [leaves(x) for x in items]
    if all(len(g) == 1 for g in nested):
        return nested
    for item in items:
        if not isinstance(item, int) and any(not isinstance(x, int) for x in chain_items(item)):
            raise NestError("parts must be nested at most twice (got three levels)")
    first = next(i for i, g in enumerate(nested) if len(g) > 1)
    head = [p for g in nested[:first] for p in g]
    return [head, *nested[first:]]


def _level(lengths: Sequence[int]) -> Level:
    if len(lengths) > 1 and lengths[-1] == lengths[0] + 1 and len(set(lengths[:-1])) == 1:
        # The walk cannot see a last part of a single k; it then counts to the part before.
        lengths = [*lengths[:-1], lengths[0], 1]
    span = max(lengths)
    middle, first, last = lengths[1:-1], lengths[0], lengths[-1]
    if any(x != span for x in middle) or (first != span and last != span and len(lengths) > 1):
        raise NestError(f"parts must be equal but for one at an end (got lengths {list(lengths[:6])})")
    return Level(span=span, short=Short.FIRST if first < span else Short.LAST)
