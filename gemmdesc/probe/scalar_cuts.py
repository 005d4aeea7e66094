"""Which cuts one piece of a summation tree may begin with: bounds on their integers, read off its left spine.

Some prefix of the spine is the first part, every later item a further part.  Where sites lie in those parts bounds
the cut's integers.  Parts that are folded in groups show on no spine; there each subtree that holds the first place
may be the first part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gemmdesc.descriptor import Contiguous, Layout, Short, Strided
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.pieces import Index, Piece

#: Values of one integer that are looked at where sites are too sparse to fix it.
_MOST_VALUES = 64
#: Spans of one contiguous cut that are told one by one.
_MOST_SPANS = 4096


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A cut without its integers: contiguous parts with the short one so, or strided parts (None).

    ``fold``: kinds of the layouts that group its parts.
    """

    short: Short | None
    fold: tuple[Kind, ...] = ()

    def layout(self, values: Sequence[int]) -> Layout:
        """The layout with these integers: a span, or a count and a unit."""
        if self.short is None:
            count, unit = values
            return Strided(count=count, unit=unit)
        (span,) = values
        return Contiguous(span=span, short=self.short)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the integers of its layout."""
        return ("count", "unit") if self.short is None else ("span",)


LAST, FIRST, STRIDED = (Kind(short=s) for s in (Short.LAST, Short.FIRST, None))

#: What is allowed for each integer of a layout, by its place among them; None: the piece says nothing of it.
Bounds = tuple[Allowed | None, ...]


@lru_cache(maxsize=4096)
def bounds_of(kind: Kind, piece: Piece) -> tuple[Bounds, ...]:
    """What the piece allows for the integers of a first cut of this kind, for each way to see its parts, most first."""
    if kind.short is None:
        return tuple(dict.fromkeys(b for parts in _splits(piece)[::-1] if (b := _strided(parts)) is not None))
    found = [_hull(_spans_of(piece, lows, highs, kind.short)) for lows, highs in _ascending(piece, kind.short)[::-1]]
    return tuple(dict.fromkeys((b,) for b in found if b is not None))


def grouped_bounds(piece: Piece) -> list[Bounds]:
    """What a first strided cut allows whose parts are folded in groups: the first part is any subtree of place 0."""
    found: list[Bounds] = []
    node = piece.node
    while piece.flat.left[node] >= 0:
        node = piece.flat.left[node]
        inside = piece.below(node)
        rest = np.concatenate([piece.places[: inside.start], piece.places[inside.stop :]])
        bounds = _dealt(piece.places[inside], rest)
        if bounds is not None:
            found.append(bounds)
    return list(dict.fromkeys(found))


def _hull(values: Index) -> Allowed | None:
    return Allowed(low=int(values[0]), high=int(values[-1])) if len(values) else None


def _splits(piece: Piece) -> list[list[Index]]:
    """Places of a prefix of the left spine and of the items after it, the longest prefix first."""
    items: list[Index] = []
    found = []
    for node in piece.spine():
        items = [piece.places[piece.below(piece.flat.right[node])], *items]
        found.append([piece.places[piece.below(piece.flat.left[node])], *items])
    return found


def _ascending(piece: Piece, short: Short) -> list[tuple[Index, Index]]:
    """First and last places of the parts, in splits whose parts ascend and suit the first part's length."""
    lows: list[int] = []
    highs: list[int] = []
    found, longest = [], 0
    for node in piece.spine():
        item = piece.places[piece.below(piece.flat.right[node])]
        first = piece.places[piece.below(piece.flat.left[node])]
        low, high, before = int(item.min()), int(item.max()), int(first.max())
        if before >= low:
            break
        lows, highs = [low, *lows], [high, *highs]
        longest = max(longest, high - low)
        if longest < low or short is Short.FIRST:
            found.append((np.array([int(first.min()), *lows]), np.array([before, *highs])))
    return found


def _spans_of(piece: Piece, lows: Index, highs: Index, short: Short) -> Index:
    if short is Short.LAST:
        return spans_between(lows, highs)
    spans = spans_between(piece.length - 1 - highs[::-1], piece.length - 1 - lows[::-1])
    return spans[piece.length % spans != 0] if len(spans) else spans


def spans_between(lows: Index, highs: Index) -> Index:
    """Spans that part the ranges ``lows`` .. ``highs`` (ascending) from each other and none in itself."""
    least, most = max(int(highs[0]), int((highs - lows).max())) + 1, int(lows[1])
    spans = np.arange(least, most + 1)
    # Evenly spread where there are too many to look at.
    spans = spans[:: max(1, len(spans) // _MOST_SPANS)]
    if not len(spans):
        return spans
    parts = lows[:, None] // spans
    apart = (parts == highs[:, None] // spans).all(axis=0) & (np.diff(parts, axis=0) > 0).all(axis=0)
    return np.asarray(spans[apart], dtype=np.int64)


def _strided(parts: Sequence[Index]) -> Bounds | None:
    """Units of places are dealt to the parts in turn; parts that hold no site may stand between them."""
    places = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    order = np.argsort(places)
    found = [b for u in _units(places[order], owner[order]) if (b := _counts(places // u, owner, u, len(parts)))]
    return _union(found)


def _dealt(first: Index, rest: Index) -> Bounds | None:
    """What allows one strided part to hold all of ``first`` and none of ``rest``."""
    places = np.concatenate([first, rest])
    owner = np.repeat([0, 1], [len(first), len(rest)])
    order = np.argsort(places)
    found = []
    for unit in _units(places[order], owner[order]):
        own, others = first // unit, rest // unit
        turn = int(np.gcd.reduce(own - own[0]))
        if turn == 0:
            continue
        counts = np.arange(2, turn + 1)
        counts = counts[turn % counts == 0]
        counts = counts[(others[:, None] % counts != own[0] % counts).all(axis=0)]
        if len(counts):
            found.append((Allowed(low=int(counts[0]), high=int(counts[-1])), Allowed.exactly(unit)))
    return _union(found)


def _union(found: Sequence[Bounds]) -> Bounds | None:
    """The smallest bounds that hold all of ``found``."""
    if not found:
        return None
    columns = [[a for a in column if a is not None] for column in zip(*found, strict=True)]
    return tuple(Allowed(low=min(a.low for a in c), high=max(a.high for a in c)) if c else None for c in columns)


def _units(places: Index, owner: Index) -> list[int]:
    """Units that let neighbouring ``places`` (ascending) of different owners stand in different units."""
    own = places[owner == owner[0]]
    # All places up to the first one missing lie in the first part, unless a unit ends among them.
    dense = int(np.flatnonzero(np.append(own, -1) != np.arange(len(own) + 1))[0])
    units = np.arange(max(1, dense), int(places[owner != owner[0]][0]) + 1)
    for change in np.flatnonzero(np.diff(owner)):
        units = units[places[change + 1] // units > places[change] // units]
        if not len(units):
            break
    kept: list[int] = units[:: -(-len(units) // _MOST_VALUES) or 1].tolist()
    return kept


def _counts(at: Index, owner: Index, unit: int, parts: int) -> Bounds | None:
    """Counts that give each part its own label, where ``at`` are unit numbers and ``owner`` the parts."""
    first = np.full(parts, -1)
    first[owner[::-1]] = at[::-1]
    turn = int(np.gcd.reduce(at - first[owner]))
    if turn == 0 and (np.diff(first) > 0).all():
        return Allowed.at_least(int(at.max()) + 1), Allowed.exactly(unit)
    counts = np.arange(parts, (turn or int(at.max())) + 1)
    if turn:
        counts = counts[turn % counts == 0]
    labels = first % counts[:, None]
    # Where the first part has no site, which one of two comes first is not known.
    apart = labels[:, 0] != labels[:, 1] if parts == 2 else (np.diff(labels, axis=1) > 0).all(axis=1)
    counts = counts[apart]
    if not len(counts):
        return None
    return Allowed(low=int(counts[0]), high=int(counts[-1])), Allowed.exactly(unit)
