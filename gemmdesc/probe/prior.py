"""First guesses: how classes divide, and what is tried first.

A library runs the same main loops whether or not a bias follows, and mostly those of its neighbouring release.  A guess
is tried on bytes like any rule, and what it leads to is verified like any row; where it fails, the class is read as if
there had been none.  Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gemmdesc.descriptor import EpilogueStep, GEMMDesc
from gemmdesc.normal_form import same_bits
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, FAMILY_ATTRIBUTES, Node, Row, RowIndex, parts
from gemmdesc.regions import depends_on_place
from gemmdesc.rule import Rule, evaluate_rule

Steps = tuple[EpilogueStep, ...]


@dataclass(frozen=True)
class Form:
    """What a kind of problem adds to an order: what opens the outermost fold, how that ends, and the epilogue."""

    opening: Steps
    open_end: bool
    epilogue: Steps


@dataclass(frozen=True, kw_only=True)
class FirstGuesses:
    """Verified rows about the same kind of problem, of another build of the library on the same card.

    ``source`` says whose they are, in words; ``queries``: what its scan of that kind came to.
    """

    rows: tuple[Row, ...] = ()
    source: str = ""
    queries: int = 0


#: Of campaigns from scratch.
NO_GUESSES = FirstGuesses()


class Prior:
    """What may be the rules of classes that were not read.

    ``rows``: those of plain products of the same library, which lack what the kind adds.  ``exact``: those of the same
    kind, of another build of the library.  Empty ones guess nothing.
    """

    def __init__(self, rows: Sequence[Row] = (), exact: Sequence[Row] = ()) -> None:
        self._index, self._exact = RowIndex(rows), RowIndex(exact)
        self._families, self._exact_families = _by_family(rows), _by_family(exact)
        self._foretold: dict[tuple[str, str], bool] = {}

    def knows(self, key: AnswerKey) -> bool:
        """Whether any row of plain products is of the class's family."""
        return key.only(FAMILY_ATTRIBUTES) in self._families

    def has_rule(self, key: AnswerKey) -> bool:
        """Whether the class would fall into a row that has a rule."""
        row = self._index.find(key)
        return (row is not None and row.solved.rule is not None) or self.exact(key) is not None

    def exact(self, key: AnswerKey) -> Rule | None:
        """The rule of the same kind's row that the class would fall into.

        None where launches share out k: such a rule is read from launches, and takes no trial of few problems.
        """
        row = self._exact.find(key)
        rule = None if row is None else row.solved.rule
        return None if rule is None or depends_on_place(rule) else rule

    def divided(self, node: Node) -> list[Node]:
        """The node's classes by those attributes that divide the rows of its family; of the same kind if it has any."""
        family = node.classes[0].only(FAMILY_ATTRIBUTES)
        rows = self._exact_families.get(family) or self._families.get(family, [])
        nodes = [node]
        for name in _dividing(rows):
            if name not in node.named:
                nodes = [part for one in nodes for part in parts(one, name)]
        return nodes

    def foretells(self, key: AnswerKey, rule: Rule) -> bool:
        """Whether ``rule``, found for another class, is that of the row that this one would fall into, so formed."""
        row = self._index.find(key)
        if row is None or row.solved.rule is None:
            return False
        place = (row.solved.rule.text, rule.text)
        if place not in self._foretold:
            form = _form(rule.structure)
            self._foretold[place] = _formed(row.solved.rule, form).text == rule.text
        return self._foretold[place]

    def restated(
        self, key: AnswerKey, rule: Rule, where: Sequence[Mapping[str, int]], exact: Rule | None = None
    ) -> Rule:
        """``exact``, or the rule of the row that the class would fall into, so formed, if it owes the same bits there.

        What was read without slices says nothing of them, and the row's rule does.  ``where``: variables of problems.
        """
        row = self._index.find(key)
        found = [] if exact is None else [exact]
        if row is not None and row.solved.rule is not None:
            found.append(_formed(row.solved.rule, _form(rule.structure)))
        agreeing = (r for r in found if where and all(_agree(rule, r, values) for values in where))
        return next(agreeing, rule)

    def bare(self, key: AnswerKey) -> tuple[Rule, ...]:
        """The rule of the row that the class would fall into, as it is; empty where there is none."""
        row = self._index.find(key)
        return () if row is None or row.solved.rule is None else (row.solved.rule,)

    def guesses(self, key: AnswerKey, solved: Mapping[AnswerKey, Rule]) -> tuple[Rule, ...]:
        """The rule of the row that the class would fall into, with what the classes ``solved`` so far add to theirs."""
        row = self._index.find(key)
        if row is None or row.solved.rule is None:
            return ()
        rule = row.solved.rule
        return first_rules([_formed(rule, form) for form in _forms(solved, key)])


def _by_family(rows: Sequence[Row]) -> dict[AnswerKey, list[Row]]:
    found: dict[AnswerKey, list[Row]] = {}
    for row in rows:
        found.setdefault(row.key.only(FAMILY_ATTRIBUTES), []).append(row)
    return found


def _agree(one: Rule, other: Rule, values: Mapping[str, int]) -> bool:
    own, its = evaluate_rule(one, values), evaluate_rule(other, values)
    return isinstance(own, GEMMDesc) and isinstance(its, GEMMDesc) and same_bits(own, its, values["k"])


def first_rules(rules: Sequence[Rule], count: int | None = None) -> tuple[Rule, ...]:
    """The first ``count`` of the rules, each text once."""
    return tuple({r.text: r for r in rules}.values())[:count]


def _forms(rules: Mapping[AnswerKey, Rule], key: AnswerKey) -> tuple[Form, ...]:
    """The forms of the rules, those of the family of ``key`` first, and the more frequent ones."""
    own, others = Counter[Form](), Counter[Form]()
    for at, rule in rules.items():
        same = at.attribute("algo_id") == key.attribute("algo_id")
        (own if same else others).update([_form(rule.structure)])
    return tuple(dict.fromkeys(form for counts in (own, others) for form, _ in counts.most_common()))


def _form(desc: GEMMDesc) -> Form:
    first = desc.cuts[0] if desc.cuts else None
    return Form(first.opening if first else (), bool(first and first.opening and first.open_end), desc.epilogue)


def _formed(rule: Rule, form: Form) -> Rule:
    """``rule`` with the form; where nothing opens a fold, how the fold ends stays the rule's own."""

    def formed(desc: GEMMDesc) -> GEMMDesc:
        cuts = desc.cuts
        if cuts and form.opening:
            cuts = (replace(cuts[0], opening=form.opening, open_end=form.open_end), *cuts[1:])
        return replace(desc, cuts=cuts, epilogue=form.epilogue)

    return rule.restructured(formed)


def _dividing(rows: Sequence[Row]) -> list[str]:
    """Attributes that all of the rows name, and of which they have several values."""
    if not rows:
        return []
    named = set(CLASS_ATTRIBUTES).intersection(*(row.key.named for row in rows))
    return [n for n in CLASS_ATTRIBUTES if n in named and len({row.key.attribute(n) for row in rows}) > 1]
