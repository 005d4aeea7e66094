"""Whether a rule found on one class of answers gives what another class's own rule gives, on that class's problems."""

from __future__ import annotations

from collections.abc import Mapping

from gemmdesc.library.interface import Library
from gemmdesc.probe.infer import behaviour
from gemmdesc.probe.projection import CLASS_ATTRIBUTES
from gemmdesc.probe.sampling import Scope
from gemmdesc.probe.scan import AnswerKey, Tally, resolve
from gemmdesc.probe.solve import ClassOutcome
from gemmdesc.problem import environment
from gemmdesc.rule import Rule

#: Environments of one class on which two rules are compared.
_ENVIRONMENTS = 6

Environments = dict[AnswerKey, list[dict[str, int]]]


class Coverage:
    """Remembers environments of classes and comparisons of rules; both are asked for again and again."""

    def __init__(self, scope: Scope, seed: int) -> None:
        self._scope, self._seed = scope, seed
        self._environments: Environments = {}
        self._witnesses: Environments = {}
        self._answers: dict[tuple[str, str, AnswerKey], bool] = {}

    def environments(self, library: Library, tally: Tally) -> Environments:
        """A few environments of every class met in the scan."""
        for key, numbers in tally.numbers.items():
            known = self._environments.setdefault(key.only(CLASS_ATTRIBUTES), [])
            for number in numbers[: max(0, min(2, _ENVIRONMENTS - len(known)))]:
                example = resolve(library, self._scope, self._seed, number)
                if example is not None:
                    known.append(environment(example.problem, example.answer, None))
        return self._environments

    def witness(self, library: Library, key: AnswerKey, number: int) -> None:
        """Remember a problem on which a rule failed, so that rules of this class are compared on it from now on."""
        example = resolve(library, self._scope, self._seed, number)
        if example is None:
            return
        values = environment(example.problem, example.answer, None)
        known = self._witnesses.setdefault(key.only(CLASS_ATTRIBUTES), [])
        if values not in known:
            known.append(values)
            self._answers.clear()

    def covers(
        self, rule: Rule, key: AnswerKey, outcomes: Mapping[AnswerKey, ClassOutcome], domain: Environments
    ) -> bool:
        """Whether ``rule`` behaves as the class's own rule on the class's environments."""
        own = outcomes[key].rule
        if own is None:
            return False
        question = (rule.text, own.text, key)
        if question not in self._answers:
            where = [*self._witnesses.get(key, []), *domain.get(key, [])]
            self._answers[question] = behaviour(rule, where) == behaviour(own, where)
        return self._answers[question]
