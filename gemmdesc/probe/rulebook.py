"""What a campaign knows of rules: every class's own outcome, the rules met, and the spans read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gemmdesc.probe import records
from gemmdesc.probe.answers import AnswerKey, Types
from gemmdesc.probe.outcomes import ClassOutcome
from gemmdesc.probe.pool import SpanPool
from gemmdesc.probe.reading import Reading
from gemmdesc.rule import Rule


class RuleBook:
    """``outcomes`` by class; ``rules``: how often each text was found; ``pool``: the spans read, by whomever."""

    def __init__(self) -> None:
        self.outcomes: dict[AnswerKey, ClassOutcome] = {}
        self.rules: Counter[str] = Counter()
        self.pool = SpanPool()
        self._by_text: dict[str, Rule] = {}
        self._zero_exponent: int | None = None

    def observe(self, readings: Sequence[Reading]) -> None:
        """Take in what readings, of whatever class, show of spans and of the step."""
        self.pool.add(readings)
        seen = (r.arithmetic.zero_exponent for r in readings if r.arithmetic.zero_exponent is not None)
        if self._zero_exponent is None:
            self._zero_exponent = next(seen, None)

    def recall(self, key: AnswerKey, outcome: ClassOutcome) -> None:
        """Take in an outcome, new or from a journal."""
        self.observe(outcome.readings)
        self.outcomes[key] = outcome
        self.meet(outcome.rule)

    def meet(self, rule: Rule | None) -> None:
        """Count a rule that some class's bytes allow."""
        if rule is not None:
            self.rules[rule.text] += 1
            self._by_text[rule.text] = rule

    def is_scalar(self, key: AnswerKey) -> bool:
        """Whether the class was read, and fuses no products."""
        outcome = self.outcomes.get(key)
        return outcome is not None and outcome.scalar

    def solved(self) -> dict[AnswerKey, Rule]:
        """The rule of every class that has one of its own."""
        return {key: outcome.rule for key, outcome in self.outcomes.items() if outcome.rule is not None}

    def known(self, types: Types) -> tuple[Rule, ...]:
        """Rules found so far, rewritten for ``types``: those met most often first."""
        moved = (self.calibrated(records.retyped(self._by_text[t], types)) for t, _ in self.rules.most_common())
        return tuple({r.text: r for r in moved}.values())

    def calibrated(self, rule: Rule) -> Rule:
        """The rule with what an exact zero counts as, where that was measured only after the rule was found."""
        zero = self.zero_exponent()
        return rule if zero is None else records.with_zero_exponent(rule, zero)

    def zero_exponent(self) -> int | None:
        """As measured on any class."""
        return self._zero_exponent
