"""What each rule gave on each class that it was tried on, and the problems on which rules failed; kept in a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmdesc.probe import records
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.examples import Variant
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.prior import Prior
from gemmdesc.probe.projection import Node, Row, Solved
from gemmdesc.rule import Rule


def rule_name(rule: Rule | None) -> str:
    """What the book calls a rule, or that no fused step shows."""
    return "scalar" if rule is None else rule.text


class TrialBook:
    """Begins with what ``journal`` has of trials, and adds to it.

    Some of what a class gives is foretold, by rules of another kind of problem, and not tried.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._given: dict[tuple[str, AnswerKey], bool] = {}
        self._foretold: set[tuple[str, AnswerKey]] = set()
        self._failed: set[str] = set()
        self._witnesses: dict[AnswerKey, list[Variant]] = {}
        for data in journal.read("trials"):
            place = (data["rule"], records.key_of(data))
            self._given[place] = data["given"]
            (self._foretold.add if data.get("foretold") else self._foretold.discard)(place)

    def tried(self, rule: Rule | None, key: AnswerKey) -> bool:
        """Whether it is known, or foretold, what the rule gives on the class."""
        return (rule_name(rule), key) in self._given

    def gave(self, rule: Rule | None, key: AnswerKey) -> bool:
        """Whether the rule gave the class's bytes, as far as it was tried."""
        return self._given.get((rule_name(rule), key), False)

    def allows(self, rule: Rule | None, key: AnswerKey) -> bool:
        """Whether the rule has not failed on the class."""
        return self._given.get((rule_name(rule), key), True)

    def unrefuted(self, key: AnswerKey, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """A rule that failed on the class has been tried."""
        return tuple(r for r in rules if self.allows(r, key))

    def given(self, node: Node, found: Solved) -> set[AnswerKey]:
        """The node's classes whose bytes ``found`` gave; it was tried on all of them."""
        return {c for c in node.classes if self._given[rule_name(found.rule), c]}

    def witnesses(self, key: AnswerKey) -> Sequence[Variant]:
        """Problems of the class on which rules failed, the newest first."""
        return self._witnesses.get(key, ())

    def note(self, rule: Rule | None, key: AnswerKey, given: bool) -> None:
        """Take in a trial."""
        self._given[rule_name(rule), key] = given
        self._journal.append("trials", records.trial_to_plain(rule_name(rule), key, given))

    def take_foretold(self, prior: Prior, node: Node, found: Solved | None) -> None:
        """Classes for which the prior foretells what the node's lead showed go untried: verifying compares them all."""
        if found is None or found.rule is None or found.rule.text in self._failed:
            return
        for key in node.classes:
            place = (found.rule.text, key)
            if place not in self._given and prior.foretells(key, found.rule):
                self._given[place] = True
                self._foretold.add(place)
                record = records.trial_to_plain(found.rule.text, key, given=True, foretold=True)
                self._journal.append("trials", record)

    def fail(self, row: Row, classes: Mapping[AnswerKey, Variant]) -> None:
        """The row's rule failed on ``classes``, each on a problem.  What was foretold of it is forgotten."""
        # Where some of what was foretold is wrong, the rest is tried.
        name = rule_name(row.solved.rule)
        self._failed.add(name)
        for place in {(name, key) for key in row.classes} & self._foretold:
            self._foretold.discard(place)
            del self._given[place]
        for key, variant in classes.items():
            self._given[name, key] = False
            witnesses = self._witnesses.setdefault(key, [])
            if variant not in witnesses:
                witnesses.insert(0, variant)
