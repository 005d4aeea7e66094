"""From summation trees of one class of answers to rules with a scalar chain as their leaf: pure, offline.

The tree that takes most cuts gives the kinds of cuts; the integers of every cut are learned as expressions.  A rule is
kept only if the descriptor that it gives induces every measured tree.  Readings are added to what is learned from
one at a time, each a tree that refutes what was learned before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from gemmdesc.descriptor import Contiguous, Start, Strided
from gemmdesc.expressions import Call, Expr, evaluate
from gemmdesc.probe.infer import Unexplained, distinct_rules
from gemmdesc.probe.learn import Allowed, Example, learn_integer
from gemmdesc.probe.pieces import Piece, ScalarNestError, explains
from gemmdesc.probe.scalar_nest import Fit, Level, Nest, compress_tree, fit_kinds, kind_of
from gemmdesc.probe.scalar_rule import (
    ScalarReading,
    Structure,
    confirms,
    integer_paths,
    layouts_in,
    lend,
    scalar_rule,
)
from gemmdesc.rule import Rule

#: Readings that may be added to what is learned from, one a round.
_ROUNDS = 24
#: Expressions kept for one integer, and combinations of them tried in one round.
_EXPRESSIONS, _COMBINATIONS = 6, 96
#: Readings that are asked for a structure until one gives it, and structures tried.
_SOURCES = 8
_STRUCTURES = 12
#: Rules are told apart by normal forms up to this k.
_TOLD_APART_TO = 20_000

Integers = Mapping[str, Allowed]


def infer_scalar_rules(
    readings: Sequence[ScalarReading],
    domain: Sequence[Mapping[str, int]],
    hints: Sequence[Expr] = (),
    names: Sequence[str] = ("k", "splitk_num"),
    others: Sequence[Rule] = (),
) -> tuple[Rule, ...] | Unexplained:
    """The rules that induce every tree read, simplest first, one for each behaviour on the readings and the domain.

    They are those of the first kinds of cuts that explain all readings, contiguous cuts before strided ones: readings
    too small to tell the two apart leave other rules as well.

    ``domain``, ``hints`` and ``names`` are those of :func:`gemmdesc.probe.learn.learn_integer`.  ``others``: rules that
    explained other classes, tried where these trees are too sparse to find a nest.

    The start is that of the chains: ``first`` where all-(-0.0) products come out as -0.0, else ``zero``, under which no
    fold's start shows.  Trees show neither whether products are fused (exact ones never do) nor types narrower than
    float32; the rules say fused and float32.
    """
    if not readings:
        return Unexplained(reason="there are no readings")
    seen = {r.negative_zero for r in readings} - {None}
    if len(seen) > 1:
        return Unexplained(
            reason="products of -0.0 come out as -0.0 in some readings and as +0.0 in others", scalar=True
        )
    start = Start.FIRST if True in seen else Start.ZERO
    try:
        pieces = [r.piece for r in readings]
    except ScalarNestError as error:
        return Unexplained(reason=str(error))
    found = _Class(readings, pieces, start, domain, (hints, names)).rules()
    if isinstance(found, Unexplained):
        lent = [lend(rule, readings[0].problem, start) for rule in others]
        lent = [rule for rule in lent if all(confirms(rule, r) for r in readings)]
        return _told_apart(lent, [r.environment for r in readings], domain) if lent else found
    return found


def _telling(piece: Piece) -> tuple[int, bool, int, int]:
    """A key by which trees of many cuts come first, then whole ones, then those of many sites and few k."""
    sampled = len(piece.places) < piece.length
    return -piece.least_cuts, sampled, -len(piece.places), piece.length


@dataclass(frozen=True, kw_only=True)
class _Proposal:
    """Kinds of cuts, and the nests of them that the tree of the ``source`` reading has."""

    structure: Structure
    source: int
    nests: tuple[Nest, ...]


class _Class:
    """The readings of one class, and what has been learned from them so far."""

    def __init__(
        self,
        readings: Sequence[ScalarReading],
        pieces: Sequence[Piece],
        start: Start,
        domain: Sequence[Mapping[str, int]],
        offered: tuple[Sequence[Expr], Sequence[str]],
    ) -> None:
        self._readings, self._pieces, self._start, self._domain = readings, pieces, start, domain
        self._hints, self._names = offered
        self._environments = [r.environment for r in readings]
        self._learned: dict[tuple[object, ...], tuple[Expr, ...]] = {}
        self._order = sorted(range(len(pieces)), key=lambda i: _telling(pieces[i]))

    def rules(self) -> tuple[Rule, ...] | Unexplained:
        queue: list[_Proposal] = []
        tried: set[Structure] = set()
        reason = "no expression of the space gives the integers read"
        for reading in self._order[:_SOURCES]:
            trouble = self._propose(reading, queue)
            if not trouble:
                break
        else:
            return Unexplained(reason=trouble, scalar=True)
        while queue and len(tried) < _STRUCTURES:
            proposal = queue.pop(0)
            if proposal.structure in tried:
                continue
            tried.add(proposal.structure)
            found = self._explain(proposal)
            if isinstance(found, int):
                reason = self._propose(found, queue) or f"{reason}; k = {self._pieces[found].length} needs other cuts"
            elif found:
                return found
        return Unexplained(reason=reason, scalar=True)

    def _propose(self, reading: int, queue: list[_Proposal]) -> str:
        """Put the structures of one reading's nests in front; else the reason why there are none."""
        try:
            nests = compress_tree(self._readings[reading].tree, self._pieces[reading].length)
        except ScalarNestError as error:
            return str(error)
        by_structure: dict[Structure, list[Nest]] = {}
        for nest in nests:
            by_structure.setdefault(tuple(kind_of(level.layout) for level in nest), []).append(nest)
        queue[:0] = [_Proposal(structure=s, source=reading, nests=tuple(n)) for s, n in by_structure.items()]
        return ""

    def _explain(self, proposal: _Proposal) -> tuple[Rule, ...] | int:
        """Rules of this structure for all readings; else a reading that it does not fit, or nothing."""
        structure = proposal.structure
        known: dict[int, Integers] = {}
        asked, expected = proposal.source, dict[str, Expr]()
        for _ in range(_ROUNDS):
            integers = self._integers(structure, asked, expected)
            if integers is None:
                return asked
            # Where sites are sparse the fit may not show a cut that the nests found do.
            known[asked] = {**_hulls(proposal.nests), **integers} if asked == proposal.source else integers
            combinations = self._combinations(structure, known)
            against = [self._against(structure, c, known) for c in combinations]
            surviving = [c for c, refuted in zip(combinations, against, strict=True) if refuted is None]
            if surviving:
                return self._made(structure, surviving)
            fresh = [i for i, r in enumerate(against) if r is not None and r not in known]
            if not fresh:
                return next((r for r in against if r is not None), ())
            asked, expected = against[fresh[0]] or 0, combinations[fresh[0]]
        return ()

    def _integers(self, structure: Structure, reading: int, expected: Mapping[str, Expr]) -> Integers | None:
        """What one reading allows for each integer that it shows; None where the structure does not fit.

        Of several sets of cuts that it may show, the one that contradicts least of what is expected.
        """
        groups: dict[tuple[bool, ...], list[Fit]] = {}
        for fit in fit_kinds(structure, self._pieces[reading]):
            groups.setdefault(tuple(x is not None for x in fit), []).append(fit)
        values = {path: evaluate(e, self._environments[reading]) for path, e in expected.items()}

        def contradicted(shown: tuple[bool, ...]) -> tuple[int, int]:
            allowed = _hulls(groups[shown])
            wrong = [p for p, a in allowed.items() if p in values and not a.low <= values[p] <= a.high]
            return len(wrong), -sum(shown)

        return _hulls(groups[min(groups, key=contradicted)]) if groups else None

    def _combinations(self, structure: Structure, known: Mapping[int, Integers]) -> list[dict[str, Expr]]:
        chosen: dict[str, tuple[Expr, ...]] = {}
        for path in integer_paths(structure):
            seen = {r: allowed[path] for r, allowed in known.items() if path in allowed}
            given = [options[0] for options in chosen.values() if isinstance(options[0], Call)]
            found = self._learn(seen, given)
            if not found:
                return []
            chosen[path] = found[:_EXPRESSIONS]
        every = islice(product(*chosen.values()), 4 * _COMBINATIONS)
        return [dict(zip(chosen, c, strict=True)) for c in every][:_COMBINATIONS]

    def _learn(self, seen: Mapping[int, Allowed], given: Sequence[Expr]) -> tuple[Expr, ...]:
        if not seen:
            return ()
        key = (tuple(seen.items()), tuple(given))
        if key not in self._learned:
            examples = [Example(environment=self._environments[r], allowed=a) for r, a in seen.items()]
            self._learned[key] = learn_integer(
                examples, self._domain, names=self._names, given=given, hints=self._hints
            )
        return self._learned[key]

    def _against(
        self, structure: Structure, expressions: Mapping[str, Expr], known: Mapping[int, Integers]
    ) -> int | None:
        """A reading whose tree these expressions do not give, one that nothing was learned from if there is any."""
        found: int | None = None
        for reading in self._order:
            layouts = layouts_in(structure, expressions, self._environments[reading])
            if layouts is None or not explains(layouts, self._pieces[reading]):
                if reading not in known:
                    return reading
                found = reading
        return found

    def _made(self, structure: Structure, combinations: Sequence[Mapping[str, Expr]]) -> tuple[Rule, ...]:
        rules = [scalar_rule(self._readings[0].problem, structure, c, self._start) for c in combinations]
        told = _told_apart(rules, self._environments, self._domain)
        return tuple(r for r in told if all(confirms(r, reading) for reading in self._readings))


def _told_apart(
    rules: Sequence[Rule], environments: Sequence[Mapping[str, int]], domain: Sequence[Mapping[str, int]]
) -> tuple[Rule, ...]:
    if len(rules) < 2:
        return tuple(rules)
    return distinct_rules(rules, [e for e in (*environments, *domain) if e["k"] <= _TOLD_APART_TO])


def _hulls(fits: Sequence[Fit]) -> Integers:
    out: dict[str, Allowed] = {}
    for i, column in enumerate(zip(*fits, strict=True)):
        levels = [x for x in column if x is not None]
        if levels:
            out |= _hull(i, levels)
    return out


def _hull(index: int, levels: Sequence[Level]) -> Integers:
    path = f"cuts.{index}.layout."
    out: dict[str, Allowed] = {}
    spans = [x.layout.span for x in levels if isinstance(x.layout, Contiguous)]
    if spans:
        return {f"{path}span": Allowed(low=min(spans), high=max(spans))}
    strided = [(x.layout, x.open_count) for x in levels if isinstance(x.layout, Strided)]
    units, counts = [s.unit for s, _ in strided], [s.count for s, _ in strided]
    out[f"{path}unit"] = Allowed(low=min(units), high=max(units))
    bounded = Allowed(low=min(counts), high=max(counts))
    out[f"{path}count"] = Allowed.at_least(min(counts)) if any(o for _, o in strided) else bounded
    return out
