"""From summation trees of one class of answers to rules with a scalar chain as their leaf: pure, offline.

All trees are taken apart together, cut by cut (:mod:`gemmdesc.probe.scalar_search`); the integers of every cut are
learned as expressions.  Where no nest explains all readings, they are divided by a condition on how the operands lie,
and each side is explained by itself.  A rule is kept only if the descriptor that it gives induces every measured tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gemmdesc.descriptor import Start
from gemmdesc.expressions import Expr, Var, call, evaluate, evaluate_all, size
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.learn import Example, learn_integer
from gemmdesc.probe.pieces import ScalarNestError
from gemmdesc.probe.scalar_rule import ScalarReading, confirms, lent_rules, scalar_rule, told_apart
from gemmdesc.probe.scalar_search import Chosen, GivenUp, Option, Pieces, Search, Work
from gemmdesc.rule import Rule, choose_rule

#: Runs of one cut again and again that a nest may have.
_MOST_RUNS = 5
#: Work of a search for nests of so many runs, in cuts taken off one piece, and of what follows the first nest found.
_MOST_WORK, _FURTHER_WORK = 1000, 200
#: The same of a search for nests whose outermost cut has parts folded in groups.
_MOST_GROUPED_WORK = 1500
#: Work of all searches for one structure, without groups and with them; and for two.
_WORK = (3000, 1500)
_WORK_FOR_TWO = (6000, 6000)
#: What a condition costs beside its expression where rules are put in order.
_CONDITION_COSTS = 3
#: A rule of simple expressions and this size beside which none of wider ones is sought.
_SIMPLE = 14
#: Rules beyond these sizes leave room for others: of one structure for those of two, and for parts that are folded in
#: groups; of two structures for conditions of two variables.
_INVOLVED, _INVOLVED_ALONE, _INVOLVED_TWO = 15, 22, 26
#: Readings on either side of a condition while expressions are simple: of fewer, almost any division explains them.
_FEWEST_A_SIDE = 2
#: Nests that are told apart, and spellings of their integers.
_NESTS, _SPELLINGS = 4, 12
#: Expressions kept for one integer, and different values of it that are tried.
_EXPRESSIONS, _OPTIONS = 24, 6
#: Variables of arithmetic: of the problem and the answer, and of the launch, where the answer does not fix the order.
NAMES = ("k", "splitk_num")
LAUNCH_NAMES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
#: Variables that may choose between structures.
CONDITIONS = ("transa", "transb", "a_unit_k", "b_unit_k")
#: Readings, and the environments of a domain, with what the library launches.
Launched = tuple[Sequence[ScalarReading], Sequence[Mapping[str, int]]]


def infer_scalar_rules(
    readings: Sequence[ScalarReading],
    domain: Sequence[Mapping[str, int]],
    hints: Sequence[Expr] = (),
    names: Sequence[str] = NAMES,
    others: Sequence[Rule] = (),
    launched: Callable[[], Launched | None] = lambda: None,
) -> tuple[Rule, ...] | Unexplained:
    """The rules that induce every tree read, simplest first, one for each behaviour on the readings and the domain.

    They are those of the simplest expressions, then of the fewest runs of one cut, that explain all readings: readings
    too small to tell deeper nests apart leave other rules as well.  Where one structure does not suffice, rules of two
    stand, chosen by the simplest conditions that do.

    ``domain``, ``hints`` and ``names`` are those of :func:`gemmdesc.probe.learn.learn_integer`.  ``others``: rules that
    explained other classes, tried where these trees are too sparse to find a nest.  ``launched`` gives the readings and
    the domain with their launches, and is called where the problem and the answer do not fix one structure.

    The start is that of the chains: ``first`` where all-(-0.0) products come out as -0.0, else ``zero``, under which no
    fold's start shows.  Trees show neither whether products are fused (exact ones never do) nor types narrower than
    float32; the rules say fused and float32.
    """
    if not readings:
        return Unexplained(reason="there are no readings")
    simple, wide = (_Offered(hints=hints, names=names, operations=n) for n in (1, 2))
    found = _one_structure(readings, domain, simple)
    if isinstance(found, Unexplained):
        lent = lent_rules(readings, domain, others) if found.scalar else ()
        if lent or not found.scalar:
            return lent or found
    elif _complexity(found[0]) <= _SIMPLE:
        return found
    rules = list(_explained(found, _one_structure(readings, domain, wide)))
    if not rules and (seen := launched()) is not None:
        rules += _explained(_one_structure(*seen, replace(simple, names=(*names, *LAUNCH_NAMES))))
        readings, domain = seen
    if rules and min(map(_complexity, rules)) > _INVOLVED:
        # Two plain structures may be what one with more to choose from imitates where few trees were read.
        rules += _two_structures(readings, domain, simple, _FEWEST_A_SIDE)
    for offered, fewest in ((simple, _FEWEST_A_SIDE), (simple, 1), (wide, 1)):
        rules = rules or _two_structures(readings, domain, offered, fewest)
    if rules:
        return told_apart(sorted(rules, key=_complexity), [r.environment for r in readings], domain)
    return found


def _explained(*found: tuple[Rule, ...] | Unexplained) -> Iterator[Rule]:
    return (rule for rules in found if not isinstance(rules, Unexplained) for rule in rules)


def _complexity(rule: Rule) -> int:
    """The size of a rule: of its different expressions, of its cuts, and of what chooses between structures."""
    conditions = [_CONDITION_COSTS + size(when) for when, _ in rule.branches if when is not None]
    cuts = [len(branch.structure.cuts) for _, branch in rule.branches]
    return sum(size(e) for e in set(rule.expressions)) + sum(cuts) + sum(conditions)


@dataclass(frozen=True, kw_only=True)
class _Offered:
    """What integers may be made of: see :func:`infer_scalar_rules`; ``operations``: of an expression, at most."""

    hints: Sequence[Expr]
    names: Sequence[str]
    operations: int


def _one_structure(
    readings: Sequence[ScalarReading],
    domain: Sequence[Mapping[str, int]],
    offered: _Offered,
    work: tuple[Work, Work] | None = None,
) -> tuple[Rule, ...] | Unexplained:
    """``work``: without groups and with them, which several searches may share."""
    seen = {r.negative_zero for r in readings} - {None}
    if len(seen) > 1:
        return Unexplained(
            reason="products of -0.0 come out as -0.0 in some readings and as +0.0 in others", scalar=True
        )
    start = Start.FIRST if True in seen else Start.ZERO
    plain, grouped = work or (Work(_WORK[0]), Work(_WORK[1]))
    try:
        return _Class(readings, start, domain, offered).rules(plain, grouped)
    except ScalarNestError as error:
        return Unexplained(reason=str(error))


def _two_structures(
    readings: Sequence[ScalarReading],
    domain: Sequence[Mapping[str, int]],
    offered: _Offered,
    fewest: int,
) -> list[Rule]:
    """Rules of one structure where a condition holds and another elsewhere, of the simplest conditions that work.

    ``fewest``: readings on either side.
    """
    made: dict[frozenset[int], tuple[Rule, ...]] = {}

    def explained(numbers: frozenset[int], work: tuple[Work, Work]) -> tuple[Rule, ...]:
        # What some readings refute, more of them refute, too.
        if any(numbers >= other for other, found in made.items() if not found):
            return ()
        if numbers not in made:
            own = [readings[i] for i in sorted(numbers)]
            found = _one_structure(own, domain, offered, work)
            made[numbers] = () if isinstance(found, Unexplained) else found
        return made[numbers]

    environments = [r.environment for r in readings]
    everything = frozenset(range(len(readings)))
    chosen: list[Rule] = []
    for conditions in _conditions():
        work = (Work(_WORK_FOR_TWO[0]), Work(_WORK_FOR_TWO[1]))
        for condition in conditions:
            holds = frozenset(i for i, e in enumerate(environments) if evaluate(condition, e))
            if fewest <= len(holds) <= len(everything) - fewest and explained(holds, work):
                pairs = product(explained(holds, work)[:2], explained(everything - holds, work)[:2])
                chosen += [choose_rule(condition, then, otherwise) for then, otherwise in pairs]
        if chosen and min(map(_complexity, chosen)) <= _INVOLVED_TWO:
            return chosen
    return chosen


def _conditions() -> Iterator[list[Expr]]:
    """Conditions by size: one variable, then both or either of two."""
    yield [Var(name) for name in CONDITIONS]
    pairs = [(x, y) for i, x in enumerate(CONDITIONS) for y in CONDITIONS[i + 1 :]]
    yield [call(operation, x, y) for x, y in pairs for operation in ("min", "max")]


class _Class:
    """The readings of one class, and what has been learned from them so far."""

    def __init__(
        self,
        readings: Sequence[ScalarReading],
        start: Start,
        domain: Sequence[Mapping[str, int]],
        offered: _Offered,
    ) -> None:
        self._readings, self._start, self._domain = readings, start, domain
        self._offered = offered
        self._environments = [r.environment for r in readings]
        shared = set.intersection(*(set(e) for e in self._environments))
        self._columns = {n: np.array([e[n] for e in self._environments], dtype=np.int64) for n in shared}
        self._learned: dict[tuple[object, ...], tuple[Option, ...]] = {}

    def rules(self, plain: Work, grouped: Work) -> tuple[Rule, ...] | Unexplained:
        """One rule for each behaviour, of the fewest cuts, without groups if possible; with the work left for both."""
        pieces = tuple((r.piece,) for r in self._readings)
        reason = f"no nest of up to {_MOST_RUNS} kinds of cuts with integers of the space has the trees read"
        for runs in range(_MOST_RUNS + 1):
            search = Search(self, plain, _MOST_WORK)
            try:
                rules = self._made(search.some(search.nests(pieces, runs), _NESTS, _FURTHER_WORK))
            except GivenUp:
                reason = "sites are too sparse to find a nest of cuts"
                continue
            if rules and _complexity(rules[0]) <= _INVOLVED_ALONE:
                return rules
            if rules:
                both = sorted([*rules, *self._grouped(pieces, grouped)], key=_complexity)
                return told_apart(both, self._environments, self._domain)
        rules = self._grouped(pieces, grouped)
        if rules:
            return rules
        if not grouped.left:
            reason = "sites are too sparse to find a nest of cuts"
        return Unexplained(reason=reason, scalar=True)

    def _grouped(self, pieces: Pieces, work: Work) -> tuple[Rule, ...]:
        """Rules of nests whose outermost cut has parts folded in groups; none where the work does not suffice."""
        search = Search(self, work, _MOST_GROUPED_WORK)
        try:
            return self._made(search.some(search.grouped(pieces, _MOST_RUNS - 1), _NESTS, _FURTHER_WORK))
        except GivenUp:
            return ()

    def options(self, seen: Mapping[int, Allowed], given: Sequence[Expr]) -> Sequence[Option]:
        """See :class:`gemmdesc.probe.scalar_search.Integers`."""
        key = (tuple(seen.items()), tuple(given))
        if key not in self._learned:
            # A cut sees the part that it divides: what follows from the cuts above comes first.
            inner = self._options(self._found(seen, given, ())) if given else ()
            every = (*inner, *self._options(self._found(seen, given, self._offered.names)))
            self._learned[key] = tuple({option.values: option for option in every[::-1]}.values())[::-1]
        return self._learned[key]

    def variables(self) -> Sequence[Option]:
        """See :class:`gemmdesc.probe.scalar_search.Integers`."""
        names = [n for n in self._offered.names if n != "k" and n in self._columns]
        return [o for o in self._options([Var(n) for n in names]) if max(o.values) > 1]

    def _found(self, seen: Mapping[int, Allowed], given: Sequence[Expr], names: Sequence[str]) -> Sequence[Expr]:
        examples = [Example(environment=self._environments[r], allowed=a) for r, a in seen.items()]
        return learn_integer(
            examples, self._domain, names=names, given=given, hints=self._offered.hints if names else (),
            most=_EXPRESSIONS, lone=False, operations=self._offered.operations,
        )  # fmt: skip

    def _options(self, found: Sequence[Expr]) -> tuple[Option, ...]:
        by_values: dict[tuple[int, ...], list[Expr]] = {}
        for expression in found:
            values = np.broadcast_to(evaluate_all(expression, self._columns), (len(self._readings),))
            if (values >= 1).all():
                by_values.setdefault(tuple(values.tolist()), []).append(expression)
        return tuple(Option(values=v, expressions=tuple(e)) for v, e in by_values.items())[:_OPTIONS]

    def _made(self, nests: Sequence[tuple[Chosen, ...]]) -> tuple[Rule, ...]:
        rules: list[Rule] = []
        for nest in sorted(nests, key=_cost):
            spelled = list(self._spelled(nest))
            # All spellings of one nest give the same integers where trees were read.
            if spelled and all(confirms(spelled[0], r) for r in self._readings):
                rules += spelled
        return told_apart(rules, self._environments, self._domain)

    def _spelled(self, nest: tuple[Chosen, ...]) -> Iterator[Rule]:
        """The nest with one expression for each integer, the same one for integers that allow the same."""
        paths = dict(_paths("cuts", nest))
        choices = list(dict.fromkeys(option.expressions for option in paths.values()))
        spellings = sorted(product(*(range(len(c)) for c in choices)), key=sum) if _few(choices) else [
            tuple(min(i, len(c) - 1) for c in choices) for i in range(max(map(len, choices)))
        ]
        for numbers in spellings[:_SPELLINGS]:
            chosen = {c: c[i] for c, i in zip(choices, numbers, strict=True)}
            expressions = {path: chosen[option.expressions] for path, option in paths.items()}
            yield scalar_rule(self._readings[0].problem, [c.kinds for c in nest], expressions, self._start)


def _cost(nest: Sequence[Chosen]) -> int:
    """The size of the simplest expressions, those that stand in several places counted once."""
    return sum(size(e) for e in {option.expressions[0] for _, option in _paths("cuts", nest)})


def _few(choices: Sequence[Sequence[Expr]]) -> bool:
    count = 1
    for choice in choices:
        count *= len(choice)
    return count <= 4096


def _paths(prefix: str, nest: Sequence[Chosen]) -> Iterator[tuple[str, Option]]:
    """The integers of the cuts, or of the layouts of a fold, by path."""
    for i, chosen in enumerate(nest):
        where = f"{prefix}.{i}.layout" if prefix == "cuts" else f"{prefix}.{i}"
        for name, option in zip(chosen.kind.names, chosen.integers, strict=True):
            yield f"{where}.{name}", option
        yield from _paths(f"{prefix}.{i}.fold", chosen.fold)
