"""From the summation tree of a scalar chain to the nests of cuts that explain it, without a list of known recipes.

A cut is read off the left spine of a tree: some prefix of it is the first part, every later item a further part.
Where sites lie in those parts bounds the cut's integers, and each choice left is tried on all parts at once.  What
comes out induces exactly the measured tree: taking a tree apart succeeds only where it is the fold it should be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import Contiguous, Layout, Short, Strided
from gemmdesc.probe.pieces import Index, Piece, ScalarNestError, deal, flatten, take_apart, whole
from gemmdesc.probe.tree import Tree

#: How many more cuts are tried than a tree needs at least.
_SPARE_CUTS = 9
#: Nests of one depth that are told; small k leave many.
MOST_NESTS = 48
#: Values of one integer that are tried where sites are too sparse to fix it.
_MOST_VALUES = 512
#: Cuts tried before a search is given up: for nests of one depth, and for one structure.
_TRIED_PER_DEPTH, _TRIED_PER_FIT = 400, 3000
#: So many pieces cost as much as one more cut.
_PIECES_AT_ONCE = 8
#: More values than these are sieved before any is tried.
_FEW_VALUES = 2


@dataclass(frozen=True, kw_only=True)
class Level:
    """One cut of a nest.  ``open_count``: any larger ``count`` explains the tree as well."""

    layout: Layout
    open_count: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A cut without its integers: contiguous parts with the short one so, or strided parts (None)."""

    short: Short | None


Nest = tuple[Level, ...]
#: One cut after another, outermost first; None for one that a tree does not show.
Fit = tuple[Level | None, ...]


def kind_of(layout: Layout) -> Kind:
    return Kind(short=layout.short if isinstance(layout, Contiguous) else None)


def compress_tree(tree: Tree, k: int) -> tuple[Nest, ...]:
    """The nests with the fewest cuts that induce ``tree`` at inner size ``k``; outermost cuts first.

    ``tree`` may leave k out: it is then the tree of the sites that took part.  Several nests come back where the
    tree leaves integers or layouts open, at most ``MOST_NESTS``; the empty nest is one ascending chain.

    Raises:
        ScalarNestError: no nest explains the tree, or its sites are too sparse to find one.
    """
    root = whole(flatten(tree), k)
    least, sparse = root.least_cuts, False
    for depth in range(least, least + _SPARE_CUTS + 1):
        found: list[Nest] = []
        try:
            for nest in islice(_Search(_TRIED_PER_DEPTH).nests([root], depth), MOST_NESTS):
                found.append(nest)
        except _GivenUpError:
            sparse = True
        if found:
            return tuple(found)
    if sparse:
        raise ScalarNestError(f"sites must fix the cuts (got {len(root.places)} of k = {k}, too sparse to find a nest)")
    raise ScalarNestError(
        f"tree must be a nest of contiguous or strided cuts over ascending chains (got {len(root.places)} sites of "
        f"k = {k} that {least} to {least + _SPARE_CUTS} cuts do not explain)"
    )


def fit_kinds(kinds: Sequence[Kind], piece: Piece) -> tuple[Fit, ...]:
    """The ways in which cuts of these kinds explain the piece; none if they do not.

    Where its sites are too sparse to go through all ways, what comes back only bounds them: the first cut's integers
    by where its parts lie, the others' by the first part alone, or nothing.
    """
    try:
        found = tuple(islice(_Search(_TRIED_PER_FIT).fits(kinds, [piece]), MOST_NESTS + 1))
        if (found and len(found) <= MOST_NESTS) or len(piece.places) == piece.length:
            return found[:MOST_NESTS]
    except _GivenUpError:
        pass
    return _bounds(kinds, piece)


def _bounds(kinds: Sequence[Kind], piece: Piece) -> tuple[Fit, ...]:
    if kinds and kinds[0] == Kind(short=Short.LAST):
        for split, parts in reversed(list(_ascending_splits(piece))):
            spans = _spans(np.array([p.min() for p in parts]), np.array([p.max() for p in parts]))
            if len(spans):
                ends = [Level(layout=Contiguous(span=int(x))) for x in (spans[0], spans[-1])]
                first = Piece(flat=piece.flat, node=split[0], places=parts[0], length=int(spans[-1]))
                return tuple((level, *inner) for inner in fit_kinds(kinds[1:], first) for level in ends)
    return ((None,) * len(kinds),)


class _GivenUpError(ScalarNestError):
    """A search went through all the cuts that it was allowed."""


class _Search:
    """Peels cuts off all pieces at once, outermost first; gives up after ``most`` cuts."""

    def __init__(self, most: int) -> None:
        self._left = most

    def nests(self, pieces: Sequence[Piece], depth: int) -> Iterator[Nest]:
        """Nests of exactly ``depth`` cuts that turn every piece into chains."""
        if depth == 0:
            if all(p.chain for p in pieces):
                yield ()
            return
        for level, parts in self._peeled(pieces, None):
            if max(p.least_cuts for p in parts) < depth:
                for nest in self.nests(parts, depth - 1):
                    yield (level, *nest)

    def fits(self, kinds: Sequence[Kind], pieces: Sequence[Piece]) -> Iterator[Fit]:
        if all(p.chain for p in pieces):
            yield (None,) * len(kinds)
            return
        if max(p.least_cuts for p in pieces) > len(kinds):
            return
        for level, parts in self._peeled(pieces, kinds[0]):
            for fit in self.fits(kinds[1:], parts):
                yield (level, *fit)
        for fit in self.fits(kinds[1:], pieces):
            yield (None, *fit)

    def _peeled(self, pieces: Sequence[Piece], kind: Kind | None) -> Iterator[tuple[Level, list[Piece]]]:
        """Every cut that one piece of the most cuts suggests and all pieces bear, with the parts it leaves."""
        unexplained = [p for p in pieces if not p.chain]
        if not unexplained:
            return
        guide = max(unexplained, key=lambda p: (p.least_cuts, bool(p.places[0] == 0), len(p.places)))
        for level in _cuts(guide, kind):
            if self._left <= 0:
                raise _GivenUpError("search must end (got no end)")
            self._left -= 1 + len(pieces) // _PIECES_AT_ONCE
            taken = _take_all(pieces, level.layout)
            if taken is not None:
                yield level, taken


def _take_all(pieces: Sequence[Piece], layout: Layout) -> list[Piece] | None:
    parts: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: -len(p.places)):
        taken = take_apart(piece, layout)
        if taken is None:
            return None
        parts += taken
    return parts


def _cuts(piece: Piece, kind: Kind | None, sieve: bool = True) -> Iterator[Level]:
    """Cuts whose parts may be a prefix of the left spine and the items after it: contiguous first, most parts first."""
    for split, parts in reversed(list(_ascending_splits(piece))):
        yield from _contiguous(piece, split, parts, kind, sieve)
    if kind in (None, Kind(short=None)):
        for _, parts in reversed(list(_splits(piece))):
            yield from _strided(parts)


def _splits(piece: Piece) -> Iterator[tuple[list[int], list[Index]]]:
    """Nodes and places of a prefix of the left spine and of the items after it, the longest prefix first."""
    nodes: list[int] = []
    for node in piece.spine():
        nodes = [piece.flat.right[node], *nodes]
        split = [piece.flat.left[node], *nodes]
        yield split, [piece.places[piece.below(n)] for n in split]


def _ascending_splits(piece: Piece) -> Iterator[tuple[list[int], list[Index]]]:
    return takewhile(lambda s: bool(s[1][1].min() > s[1][0].max()), _splits(piece))


def _contiguous(
    piece: Piece, split: Sequence[int], parts: Sequence[Index], kind: Kind | None, sieve: bool
) -> Iterator[Level]:
    lows = np.array([p.min() for p in parts])
    highs = np.array([p.max() for p in parts])
    if kind in (None, Kind(short=Short.LAST)):
        spans = _spans(lows, highs)
        if sieve and len(spans) > _FEW_VALUES:
            spans = _borne(piece, split, parts, spans)
        for span in _some(spans):
            yield Level(layout=Contiguous(span=span, short=Short.LAST))
    if kind in (None, Kind(short=Short.FIRST)):
        spans = _spans(piece.length - 1 - highs[::-1], piece.length - 1 - lows[::-1])
        for span in _some(spans[piece.length % spans != 0]):
            yield Level(layout=Contiguous(span=span, short=Short.FIRST))


def _spans(lows: Index, highs: Index) -> Index:
    """Spans that part the ranges ``lows`` .. ``highs`` (ascending) from each other and none in itself."""
    least = max(int(highs[0]), int((highs - lows).max())) + 1
    spans = np.arange(least, int(lows[1]) + 1)
    for low, high in zip(lows, highs, strict=True):
        spans = spans[low // spans == high // spans]
    for high, low in zip(highs[:-1], lows[1:], strict=True):
        spans = spans[low // spans > high // spans]
    return spans


def _borne(piece: Piece, split: Sequence[int], parts: Sequence[Index], spans: Index) -> Index:
    """Those spans that leave every part a tree which some cut of the first part could have made.

    Places in the first part do not depend on the span, so that its cuts are known before the span is.
    """
    first = Piece(flat=piece.flat, node=split[0], places=parts[0], length=int(parts[0].max()) + 1)
    rank = piece.flat.rank
    if first.chain or any(rank[node] > rank[split[0]] for node in split):
        return spans  # The first part may not show the cut that comes first.
    borne = np.zeros(len(spans), dtype=np.bool_)
    for level in _cuts(first, None, sieve=False):
        ok = np.ones(len(spans), dtype=np.bool_)
        for node, places in zip(split[1:], parts[1:], strict=True):
            if len(places) > 1:
                labels = deal(places % spans[ok][:, None], level.layout)[0]
                middle = piece.flat.end[piece.flat.left[node]] - piece.flat.begin[node]
                ok[ok] = _parted(labels, middle)
        borne |= ok
    return spans[borne]


def _parted(labels: Index, middle: int) -> npt.NDArray[np.bool_]:
    """For each row, whether the columns before ``middle`` and after it can be a fold's running sum and last part."""
    low, high = labels.min(axis=1), labels.max(axis=1)
    one, other = labels[:, :middle], labels[:, middle:]
    after = (other.min(axis=1) == high) & (one.max(axis=1) < high)
    before = (one.min(axis=1) == high) & (other.max(axis=1) < high)
    return np.asarray((low == high) | after | before, dtype=np.bool_)


def _some(values: Index) -> list[int]:
    kept: list[int] = values[:: -(-len(values) // _MOST_VALUES) or 1].tolist()
    return kept


def _strided(parts: Sequence[Index]) -> Iterator[Level]:
    """Units of places are dealt to the parts in turn; parts that hold no site may stand between them."""
    places = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    order = np.argsort(places)
    places, owner = places[order], owner[order]
    # All places up to the first one missing lie in the first part, unless a unit ends among them.
    first = places[owner == owner[0]]
    dense = int(np.flatnonzero(np.append(first, -1) != np.arange(len(first) + 1))[0])
    units = np.arange(max(1, dense), int(places[owner != owner[0]][0]) + 1)
    for change in np.flatnonzero(np.diff(owner)):
        units = units[places[change + 1] // units > places[change] // units]
        if not len(units):
            return
    for unit in _some(units):
        yield from _counts(places // unit, owner, unit, len(parts))


def _counts(at: Index, owner: Index, unit: int, parts: int) -> Iterator[Level]:
    """Counts that give each part its own label, where ``at`` are unit numbers and ``owner`` the parts."""
    first = np.full(parts, -1)
    first[owner[::-1]] = at[::-1]
    turn = int(np.gcd.reduce(at - first[owner]))
    if turn == 0 and (np.diff(first) > 0).all():
        yield Level(layout=Strided(count=int(at.max()) + 1, unit=unit), open_count=True)
    counts = np.arange(parts, (turn or int(at.max())) + 1)
    if turn:
        counts = counts[turn % counts == 0]
    labels = first % counts[:, None]
    # Where the first part has no site, which one of two comes first is not known.
    apart = labels[:, 0] != labels[:, 1] if parts == 2 else (np.diff(labels, axis=1) > 0).all(axis=1)
    for count in _some(counts[apart]):
        yield Level(layout=Strided(count=count, unit=unit))
