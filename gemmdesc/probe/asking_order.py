"""Which example of a class is asked next: to tell rules apart, to check one, or because it is unlike all before it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice

from gemmdesc.probe.examples import readable, reading_order, widest
from gemmdesc.probe.infer import behaviour
from gemmdesc.probe.met import Met
from gemmdesc.probe.predicted import farthest
from gemmdesc.probe.scalar_rule import is_scalar, shape
from gemmdesc.probe.telling import most_telling
from gemmdesc.rule import Rule, evaluate_rule

#: Examples that a rule is checked on.
CHECKED_EXAMPLES = 6
#: Trees tell more than bytes beyond this k, at less cost.
COMPARED_K = 2**13
#: Examples among which the most disputed one is sought.
DISPUTED_EXAMPLES = 24
#: Larger k tell rules apart no better and cost more.
DISPUTED_K = 2**15


class AskingOrder:
    """Chooses among the examples of ``met``, by index; ``first`` come before all others.

    ``read``: what the readings were taken of, as the solver adds to it.
    """

    def __init__(self, met: Met, first: Sequence[int], read: Mapping[int, None]) -> None:
        self._examples, self._domain, self._read = met.examples, met.domain, read
        self.indices = [*first, *(i for i in reading_order(met.examples) if i not in first)]

    def next_unread(self) -> int | None:
        """The next one in the order of reading."""
        return self.next_beyond(self._read)

    def next_beyond(self, asked: Container[int]) -> int | None:
        """Likewise, of those not in ``asked``."""
        return next((i for i in self.indices if i not in asked), None)

    def unlike_unexplained(self) -> int | None:
        """The example least like those read: what nothing explains may be two kernels, each of which must be seen."""
        left = [i for i in self.indices if i not in self._read and readable(self._examples[i])]
        return farthest(self._examples, sorted(self._read), widest(self._examples, left))

    def most_disputed(self, rules: Sequence[Rule], asked: Container[int]) -> int | None:
        """The example not yet asked on which the rules behave in the most ways; None if in one way everywhere."""
        if len(rules) < 2:
            return None
        best, ways = None, 1
        for i in self.indices[: DISPUTED_EXAMPLES if len(rules) > 4 else None]:
            if i in asked or self._domain[i]["k"] > DISPUTED_K:
                continue
            if len({evaluate_rule(r, self._domain[i]) for r in rules}) == 1:
                continue
            count = self.behaviours(rules, i)
            if count > ways:
                best, ways = i, count
            if ways == len(rules):
                break
        return best

    def behaviours(self, rules: Iterable[Rule], index: int) -> int:
        """In how many ways the rules behave on the example ``index``."""
        return len({_behaviour(r, self._domain[index]) for r in rules})

    def checked(self, rules: Sequence[Rule]) -> list[int]:
        """Examples to check the first rule on: the largest k, then those that would show most of what may be wrong."""
        if not rules:
            return []
        if is_scalar(rules[0]):
            return self._spread()
        largest = max(range(len(self._domain)), key=lambda i: self._domain[i]["k"])
        telling = islice(most_telling(rules[0], (), self._domain), CHECKED_EXAMPLES)
        return list(dict.fromkeys([largest, *telling]))[:CHECKED_EXAMPLES]

    def _spread(self) -> list[int]:
        """Examples that are least like those read and one another: bytes show little of what trees do."""
        chosen: list[int] = []
        while len(chosen) < CHECKED_EXAMPLES:
            left = [i for i, e in enumerate(self._examples) if i not in chosen and e.problem.k <= COMPARED_K]
            following = farthest(self._examples, [*self._read, *chosen], left)
            if following is None:
                break
            chosen.append(following)
        return chosen


def _behaviour(rule: Rule, values: Mapping[str, int]) -> object:
    return shape(rule, values) if is_scalar(rule) else behaviour(rule, [values])
