"""What was compared with the library so far, under which rule, and what that says of the rules of today."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.normal_form import same_bits
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.examples import Draws, Variant
from gemmdesc.probe.projection import CLASS_ATTRIBUTES
from gemmdesc.probe.trials import Verified
from gemmdesc.problem import environment
from gemmdesc.rule import Rule, evaluate_rule, parse_rule

#: Problems, natural or made, on which a rule gave the library's bytes, without which it is not served.
FEWEST_COMPARED = 8
_NONE_GIVEN: MappingProxyType[AnswerKey, tuple[int, ...]] = MappingProxyType({})
#: Rules of a campaign whose texts are kept parsed.
_PARSED = 4096


def chosen_answers(
    answers: Sequence[AnswerKey], counts: Mapping[AnswerKey, int], most: int | None, always: Container[AnswerKey] = ()
) -> tuple[AnswerKey, ...]:
    """Those of a row's answers that are compared: of every class the ``most`` that were met most often; all if None.

    Those in ``always`` are, however often they were met.
    """
    if most is None:
        return tuple(answers)
    of_class: Counter[AnswerKey] = Counter()
    chosen = []
    for key in sorted(answers, key=lambda k: -counts[k]):
        owner = key.only(CLASS_ATTRIBUTES)
        of_class[owner] += 1
        if of_class[owner] <= most or key in always:
            chosen.append(key)
    return tuple(chosen)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What comparisons say of a row: how many came out ``equal``, how many are ``against`` it, which answers lack one.

    A campaign that was cut short, or whose reference failed, has answers that nothing was compared on.
    """

    equal: int
    against: int
    missing: frozenset[AnswerKey]

    @property
    def verified(self) -> bool:
        """Whether the row's rule may be served."""
        return self.equal >= FEWEST_COMPARED and not self.against and not self.missing


def standing(
    compared: Iterable[Verified], due: Iterable[AnswerKey], given: Mapping[AnswerKey, Sequence[int]] = _NONE_GIVEN
) -> Standing:
    """How a row stands of which the answers ``due`` are to be compared, each on a problem of its own.

    ``given``: problems, by answer, all of which have to be among them.
    """
    found = list(compared)
    equal = [v for v in found if v.verdict is Verdict.EQUAL]
    against = sum(not holds(v) for v in found)
    shown: dict[AnswerKey, set[int]] = {}
    for v in equal:
        if v.variant.natural:
            shown.setdefault(v.key, set()).add(v.variant.number)
    missing = frozenset(k for k in due if k not in shown or not shown[k].issuperset(given.get(k, ())))
    return Standing(equal=len(equal), against=against, missing=missing)


class Comparisons:
    """Verdicts by what was compared; one given under another rule counts where both owe each other the same bits."""

    def __init__(self, source: Draws, found: Iterable[Verified] = ()) -> None:
        self._source = source
        self._found = {(v.key, v.variant): v for v in found}
        self._made: dict[AnswerKey, list[Verified]] = {}
        for verified in self._found.values():
            self._note(verified)

    def add(self, verified: Verified) -> None:
        """Take in a comparison in place of an earlier one of the same problem."""
        self._found[verified.key, verified.variant] = verified
        self._note(verified)

    def _note(self, verified: Verified) -> None:
        if not verified.variant.natural:
            kept = [v for v in self._made.get(verified.key, []) if v.variant != verified.variant]
            self._made[verified.key] = [*kept, verified]

    def all(self) -> tuple[Verified, ...]:
        return tuple(self._found.values())

    def under(self, key: AnswerKey, number: int, rule: Rule) -> Verified | None:
        """The comparison of an answer on one of its problems, if it speaks of ``rule``."""
        found = self._found.get((key, Variant(number=number)))
        return found if found is not None and self._speaks_of(found, rule) else None

    def made(self, key: AnswerKey, rule: Rule) -> tuple[Verified, ...]:
        """Comparisons under ``rule`` on problems that were made for an answer."""
        return tuple(v for v in self._made.get(key, ()) if v.rule == rule.text)

    def of(self, keys: Iterable[AnswerKey], numbers: dict[AnswerKey, list[int]], rule: Rule) -> Iterator[Verified]:
        """Everything that speaks of ``rule`` on those answers."""
        for key in keys:
            for number in numbers[key]:
                found = self.under(key, number, rule)
                if found is not None:
                    yield found
            yield from self.made(key, rule)

    def _speaks_of(self, found: Verified, rule: Rule) -> bool:
        """A verdict on one rule is one on another where their normal forms agree; of a failure that is all it says."""
        if found.rule == rule.text:
            return True
        problem = self._source.problem(found.variant.number)
        values = environment(problem, found.key.answer, None)
        one, other = evaluate_rule(rule, values), evaluate_rule(_parsed(found.rule), values)
        return isinstance(one, GEMMDesc) and isinstance(other, GEMMDesc) and same_bits(one, other, problem.k)


@lru_cache(_PARSED)
def _parsed(text: str) -> Rule:
    return parse_rule(text)


def holds(verified: Verified) -> bool:
    """Whether the comparison speaks for its rule, or at least not against it."""
    return verified.verdict in (Verdict.EQUAL, Verdict.REFERENCE_FAILED)
