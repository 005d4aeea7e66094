"""The search for nests of cuts that explain the trees of several readings at once, outermost cut first.

A cut is proposed by the reading that takes most cuts.  Its integers are learned from what that reading allows; every
proposal is tried on all readings by taking their trees apart, and a reading that refutes it says in turn what it
allows.  Taking apart succeeds only where a tree is the fold that it should be, so that what is left when all pieces
are chains induces exactly the trees that were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from gemmdesc.expressions import Expr, size
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.pieces import Piece, take_apart, take_groups
from gemmdesc.probe.scalar_cuts import FIRST, LAST, STRIDED, Kind, bounds_of, grouped_bounds
from gemmdesc.probe.scalar_sets import groups_allowed, spans_allowed, units_allowed

#: Cuts that may be tried on a single piece, as work units of ``_PIECES_AT_ONCE`` pieces.
_PIECES_AT_ONCE = 8
#: Proposals for the integers of one cut that are tried, and readings that may be added to what they are learned from.
_PROPOSALS, _ADDED = 12, 6
#: Ways in which one reading may show a cut that are followed.
_WAYS = 6
#: Runs of one layout that may group the parts of one cut.
_MOST_GROUPINGS = 4


@dataclass(frozen=True, kw_only=True)
class Option:
    """``values`` of one integer, one a reading, and the expressions that give them, simplest first."""

    values: tuple[int, ...]
    expressions: tuple[Expr, ...]

    @property
    def size(self) -> int:
        """That of the simplest expression."""
        return size(self.expressions[0])


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One cut: an option for each integer of its layout, and the layouts that group its parts."""

    kind: Kind
    integers: tuple[Option, ...]
    fold: tuple[Chosen, ...] = ()

    @property
    def kinds(self) -> Kind:
        """The kind with those of its fold."""
        return Kind(short=self.kind.short, fold=tuple(c.kinds for c in self.fold))


class Integers(Protocol):
    """What learns integers."""

    def options(self, seen: Mapping[int, Allowed], given: Sequence[Expr]) -> Sequence[Option]:
        """Options that every reading in ``seen`` allows, simplest first; ``given`` expressions count as variables."""
        ...

    def variables(self) -> Sequence[Option]:
        """The variables that may be a number of parts."""
        ...


#: A cut that was tried: its kind, and the values of each of its integers, one a reading.
Tried = tuple[Kind, tuple[tuple[int, ...], ...]]
#: The pieces of each reading that are not explained yet.
Pieces = tuple[tuple[Piece, ...], ...]


class GivenUp(Exception):
    """A search went through all the cuts that it was allowed."""


class Work:
    """What searches may still spend together."""

    def __init__(self, left: int) -> None:
        self.left = left


class Search:
    """``most``: work, of what ``work`` has left, after which the search raises :class:`GivenUp`."""

    def __init__(self, integers: Integers, work: Work, most: int) -> None:
        self._integers, self._work, self._left = integers, work, most

    def some(self, nests: Iterator[tuple[Chosen, ...]], most: int, further: int) -> list[tuple[Chosen, ...]]:
        """At most ``most`` of the ``nests`` of this search, those found by ``further`` work after the first one.

        Raises:
            GivenUp: there was no work left before one was found.
        """
        found: list[tuple[Chosen, ...]] = []
        try:
            for nest in nests:
                found.append(nest)
                if len(found) == most:
                    break
                if len(found) == 1:
                    self._left = min(self._left, further)
        except GivenUp:
            if not found:
                raise
        return found

    def grouped(self, pieces: Pieces, most: int) -> Iterator[tuple[Chosen, ...]]:
        """Nests of which the outermost cut, and it alone, has parts that are folded in groups; ``most`` runs inside."""
        for chosen, parts in self._grouped(pieces):
            for runs in range(most + 1):
                for rest in self.nests(parts, runs, (chosen,)):
                    yield (chosen, *rest)

    def nests(self, pieces: Pieces, runs: int, above: tuple[Chosen, ...] = ()) -> Iterator[tuple[Chosen, ...]]:
        """Nests that turn every piece into a chain, of exactly ``runs`` runs of one cut again and again.

        ``above``: the cuts that made the pieces; the last one again is no further run, and comes first.
        """
        pieces = tuple(tuple(p for p in own if not p.chain or len(p.places) > 1) for own in pieces)
        if all(p.chain for own in pieces for p in own):
            if runs == 0:
                yield ()
            return
        tried: set[Tried] = set()
        if above and not above[-1].fold:
            for chosen, parts in self._borne(above[-1].kind, pieces, [above[-1].integers], tried):
                for rest in self.nests(parts, runs, (*above, chosen)):
                    yield (chosen, *rest)
        for chosen, parts in self._cuts(pieces, above, tried) if runs else ():
            for rest in self.nests(parts, runs - 1, (*above, chosen)):
                yield (chosen, *rest)

    def _cuts(self, pieces: Pieces, above: tuple[Chosen, ...], tried: set[Tried]) -> Iterator[tuple[Chosen, Pieces]]:
        """Cuts that all readings bear: those that divide each open reading, then those that divide one."""
        told = _by_telling(pieces)
        for divided in dict.fromkeys([tuple(told), *((r,) for r in told)]):
            for kind in (LAST, STRIDED, FIRST):
                for proposals in self._dividing(kind, pieces, divided, _given(above)):
                    yield from self._borne(kind, pieces, proposals, tried)

    def _dividing(
        self, kind: Kind, pieces: Pieces, divided: Sequence[int], given: tuple[Expr, ...]
    ) -> Iterator[Iterable[tuple[Option, ...]]]:
        """Integers of cuts that every reading may bear and that would divide all of ``divided``."""
        if kind.short is not None:
            spans = {r: spans_allowed(own, kind.short) for r, own in enumerate(pieces) if own}
            yield ((span,) for span in self._learned(spans, divided, given))
            return
        for count in self._counts(kind, pieces, given):
            units = {r: units_allowed(own, count.values[r]) for r, own in enumerate(pieces) if own}
            yield ((count, unit) for unit in self._learned(units, divided, given))

    def _learned(
        self, seen: Mapping[int, Allowed], divided: Sequence[int], given: tuple[Expr, ...]
    ) -> Sequence[Option]:
        if not all(seen[r].room for r in divided):
            return ()
        self._spend(len(seen))
        return self._integers.options({**seen, **{r: seen[r].closed for r in divided}}, given)

    def _counts(self, kind: Kind, pieces: Pieces, given: tuple[Expr, ...]) -> Iterator[Option]:
        """Numbers of strided parts that some reading may show."""
        told: set[tuple[int, ...]] = set()
        for guide in _by_telling(pieces):
            for bounds in bounds_of(kind, _worst(pieces[guide]))[:_WAYS]:
                if bounds[0] is None or any(b is not None and b.open for b in bounds):
                    # A deal that does not come round once is a contiguous cut.
                    continue
                for option in self._integers.options({guide: bounds[0]}, given):
                    if option.values not in told:
                        told.add(option.values)
                        yield option

    def _borne(
        self, kind: Kind, pieces: Pieces, proposals: Iterable[tuple[Option, ...]],
        tried: set[Tried],
    ) -> Iterator[tuple[Chosen, Pieces]]:  # fmt: skip
        """The proposals that all readings bear and that divide some piece."""
        for integers in proposals:
            values = tuple(option.values for option in integers)
            if (kind, values) in tried:
                continue
            tried.add((kind, values))
            taken = self._take_all(kind, pieces, values)
            if not isinstance(taken, int) and _divided(pieces, taken):
                yield Chosen(kind=kind, integers=integers), taken

    def _take_all(self, kind: Kind, pieces: Pieces, values: tuple[tuple[int, ...], ...]) -> Pieces | int:
        """Every reading's parts; else the first reading that does not bear the cut."""
        out: list[tuple[Piece, ...]] = []
        for reading, own in enumerate(pieces):
            layout = kind.layout([v[reading] for v in values])
            self._spend(len(own))
            parts: list[Piece] = []
            for piece in own:
                taken = take_apart(piece, layout)
                if taken is None:
                    return reading
                parts += taken
            out.append(tuple(parts))
        return tuple(out)

    def _spend(self, pieces: int) -> None:
        if min(self._left, self._work.left) <= 0:
            raise GivenUp
        cost = 1 + pieces // _PIECES_AT_ONCE
        self._left -= cost
        self._work.left -= cost

    def _grouped(self, pieces: Pieces) -> Iterator[tuple[Chosen, Pieces]]:
        """Strided cuts whose parts are folded by a nest of their own, the simplest."""
        for integers in self._deals(pieces):
            taken = self._take_groups(pieces, integers)
            if taken is None:
                continue
            parts, folds = taken
            every = (fold for runs in range(1, _MOST_GROUPINGS + 1) for fold in self.nests(folds, runs))
            for fold in islice(every, 1):
                yield Chosen(kind=STRIDED, integers=integers, fold=fold), parts

    def _deals(self, pieces: Pieces) -> Iterator[tuple[Option, ...]]:
        """Integers of strided cuts of all readings' k whose parts are subtrees, in whatever order they are folded."""
        told: set[tuple[int, ...]] = set()
        guides = _by_telling(pieces)
        shown = ((r, bounds[0]) for r in guides for bounds in grouped_bounds(_worst(pieces[r])))
        counts = (option for r, a in shown if a is not None for option in self._integers.options({r: a}, ()))
        # How many parts there are is mostly a variable, which few sites among many parts do not show.
        for count in chain(self._integers.variables(), counts):
            if count.values in told:
                continue
            told.add(count.values)
            seen = {r: groups_allowed(own, count.values[r]) for r, own in enumerate(pieces) if own}
            yield from ((count, unit) for unit in self._learned(seen, guides, ()))

    def _take_groups(self, pieces: Pieces, integers: tuple[Option, ...]) -> tuple[Pieces, Pieces] | None:
        parts: list[tuple[Piece, ...]] = []
        folds: list[tuple[Piece, ...]] = []
        for reading, own in enumerate(pieces):
            layout = STRIDED.layout([option.values[reading] for option in integers])
            self._spend(len(own))
            taken = [take_groups(piece, layout) for piece in own]
            if any(t is None for t in taken):
                return None
            parts.append(tuple(p for t in taken if t is not None for p in t[0]))
            folds.append(tuple(t[1] for t in taken if t is not None and len(t[0]) > 1))
        return tuple(parts), tuple(folds)


def _divided(pieces: Pieces, parts: Pieces) -> bool:
    """Whether a cut left more parts than there were pieces."""
    return any(len(new) > len(own) for new, own in zip(parts, pieces, strict=True))


def _given(above: tuple[Chosen, ...]) -> tuple[Expr, ...]:
    """The simplest expressions of the cuts above, to be used like variables; the last ones count."""
    options = [option for chosen in above for option in chosen.integers if len(set(option.values)) > 1]
    return tuple(dict.fromkeys(option.expressions[0] for option in options))[-2:]


def _worst(pieces: Sequence[Piece]) -> Piece:
    return max(pieces, key=lambda p: (p.least_cuts, bool(p.places[0] == 0), len(p.places)))


def _by_telling(pieces: Pieces) -> list[int]:
    """Readings with something left to explain, those that tell most first."""
    open_ = [i for i, own in enumerate(pieces) if any(not p.chain for p in own)]
    return sorted(open_, key=lambda i: _telling(pieces[i]), reverse=True)


def _telling(pieces: Sequence[Piece]) -> tuple[int, bool, int]:
    """A key that is largest for pieces of many cuts, then for whole ones, then for many sites."""
    worst = _worst(pieces)
    return worst.least_cuts, len(worst.places) == worst.length, len(worst.places)
