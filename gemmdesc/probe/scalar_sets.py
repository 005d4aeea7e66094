"""Which integers of a cut the pieces of one reading allow, each of them tried.

Bounds (:mod:`gemmdesc.probe.scalar_cuts`) say what may be proposed.  These sets say what all pieces of a reading bear,
so that an expression is learned from every reading at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import Short, Strided
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.pieces import Index, Piece, take_apart

#: The largest integers that are tried, of spans, of units, and of units of parts that are folded in groups; above
#: them what leaves a piece whole is allowed, and anything in a longer piece.
_LARGEST_SPAN, _LARGEST_UNIT, _MOST_GROUPED = 2**18, 2**14, 2**10
#: Units of a deal to more than two parts that are tried in full for one piece; of more, all that suit its root.
_TRIED = 24

_Mask = npt.NDArray[np.bool_]


def spans_allowed(pieces: Sequence[Piece], short: Short) -> Allowed:
    """Spans of contiguous parts that every piece bears."""
    return _of_all(pieces, lambda piece: _spans(piece, short))


def units_allowed(pieces: Sequence[Piece], count: int) -> Allowed:
    """Units of a deal to ``count`` parts that every piece bears."""
    return _of_all(pieces, lambda piece: _units(piece, count))


def groups_allowed(pieces: Sequence[Piece], count: int) -> Allowed:
    """Units of a deal to ``count`` parts of which each is a subtree of every piece, however the parts are folded."""
    return _of_all(pieces, lambda piece: _grouped(piece, count))


def _of_all(pieces: Sequence[Piece], of: Callable[[Piece], _Mask]) -> Allowed:
    """Each mask says it of 1, 2, ...; beyond its end a piece is left whole."""
    masks = [of(piece) for piece in pieces]
    every = np.ones(max((len(m) for m in masks), default=0), dtype=np.bool_)
    for mask in masks:
        every[: len(mask)] &= mask
    return Allowed.among(every)


@lru_cache(maxsize=4096)
def _spans(piece: Piece, short: Short) -> _Mask:
    """Where parts are contiguous only the left spine holds more than one of them, the last one at the root."""
    flat, places = piece.flat, piece.places
    alive = _candidates(piece, _LARGEST_SPAN)
    out = np.zeros(len(alive), dtype=np.bool_)
    lead = piece.length % alive if short is Short.FIRST else np.zeros_like(alive)

    def part(place: int, kept: Index) -> Index:
        first = lead[kept - 1]
        return (place - first) // kept + (first > 0)

    for node in piece.spine():
        left, right = (places[piece.below(child)] for child in (flat.left[node], flat.right[node]))
        low, high = int(min(left.min(), right.min())), int(max(left.max(), right.max()))
        whole = part(low, alive) == part(high, alive)
        out[alive[whole] - 1] = True
        alive = alive[~whole]
        begin = part(int(right.min()), alive)
        alive = alive[(begin == part(int(right.max()), alive)) & (begin > part(int(left.max()), alive))]
        if not len(alive):
            return out
    out[alive - 1] = True
    return out


@lru_cache(maxsize=4096)
def _units(piece: Piece, count: int) -> _Mask:
    candidates = _candidates(piece, _LARGEST_UNIT)
    out = np.zeros(len(candidates), dtype=np.bool_)
    out[_alike(piece.places, candidates, count) - 1] = True
    if len(piece.places) == 1:
        return out
    left, right = (piece.places[piece.below(c)] for c in (piece.flat.left[piece.node], piece.flat.right[piece.node]))
    for last, others in ((right, left), (left, right)):
        dealt = _alike(last, candidates, count)
        for place in others.tolist():
            dealt = dealt[place // dealt % count < int(last[0]) // dealt % count]
        if count == 2:
            dealt = dealt[np.isin(dealt, _alike(others, dealt, count))]
        elif len(dealt) <= _TRIED:
            dealt = np.array([u for u in dealt.tolist() if _borne(piece, count, u)], dtype=np.int64)
        out[dealt - 1] = True
    return out


@lru_cache(maxsize=1024)
def _grouped(piece: Piece, count: int) -> _Mask:
    candidates = _candidates(piece, _MOST_GROUPED)
    first, nodes = piece.flat.begin[piece.node], set(zip(piece.flat.begin, piece.flat.end, strict=True))
    out = np.zeros(len(candidates), dtype=np.bool_)
    for unit in candidates.tolist():
        labels = piece.places // unit % count
        # Where leaves stand in order, what is one subtree is one run.
        ends = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
        if len(ends) - 1 == len(np.unique(labels)):
            out[unit - 1] = all((begin + first, end + first) in nodes for begin, end in pairwise(ends))
    return out


def _borne(piece: Piece, count: int, unit: int) -> bool:
    return take_apart(piece, Strided(count=count, unit=unit)) is not None


def _candidates(piece: Piece, largest: int) -> Index:
    return np.arange(1, min(int(piece.places.max()), largest) + 1)


def _alike(places: Index, units: Index, count: int) -> Index:
    """Those of ``units`` that deal all the places to one part."""
    first = int(places[0])
    for place in places[1:].tolist():
        units = units[place // units % count == first // units % count]
    return units
