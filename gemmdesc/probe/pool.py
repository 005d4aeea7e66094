"""Pooling what was read on many classes: one expression that explains the spans of a whole family of kernels.

A class met on a few problems allows many expressions; all classes of one ``algo_id`` together allow few.  What explains
them all is offered to each class first, and put in place of a narrower expression wherever the class's own readings
allow it.  Whether a rule holds is decided by bytes, never here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmdesc.expressions import Call, Expr, evaluate
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.learn import Example, learn_integer
from gemmdesc.probe.nest import NestError, compress_parts
from gemmdesc.probe.reading import Reading
from gemmdesc.problem import environment
from gemmdesc.rule import Rule, make_rule

#: Readings of one family that the pooled expression is learned from, at most.
_MOST_POOLED = 64
#: How often learning starts again because what it found fails on other readings, and how many of these are added.
_RELEARNED, _ADDED = 8, 8
#: Functions that further readings are to decide between, at most.
_MOST_CANDIDATES = 1000
_SPAN, _TOTAL = "cuts.0.layout.span", "summed_k"


class SpanPool:
    """Spans read so far, by ``algo_id``."""

    def __init__(self) -> None:
        self._read: dict[int, list[Example]] = {}
        self._summed: dict[int, list[Example]] = {}
        self._learned: dict[int, tuple[int, tuple[Expr, ...]]] = {}
        self._totals: dict[int, tuple[int, Expr | None]] = {}

    def add(self, readings: Sequence[Reading]) -> None:
        """Take in the spans that ``readings`` show exactly."""
        for reading in readings:
            found = span_example(reading)
            if found is not None:
                self._read.setdefault(reading.answer.algo_id, []).append(found)
                total = Example(environment=found.environment, allowed=Allowed.exactly(reading.summed_k))
                self._summed.setdefault(reading.answer.algo_id, []).append(total)

    def expressions(self, algo_id: int) -> tuple[Expr, ...]:
        """What explains all spans of the family, simplest first; empty where nothing was read or nothing does."""
        examples = self._read.get(algo_id, [])
        count, known = self._learned.get(algo_id, (0, ()))
        if len(examples) == count:
            return known
        if known and all(_explains(known[0], e) for e in examples[count:]):
            found = tuple(x for x in known if all(_explains(x, e) for e in examples[count:]))
        else:
            domain = [e.environment for e in examples]
            found = _fitting(examples, lambda chosen: learn_integer(chosen, domain, hints=known, most=4))
        self._learned[algo_id] = (len(examples), found)
        return found

    def candidates(self, algo_id: int, domain: Sequence[Mapping[str, int]]) -> tuple[Expr, ...]:
        """Functions that explain all spans of the family and differ somewhere on ``domain``, simplest first."""
        examples = self._read.get(algo_id, [])
        if not examples:
            return ()
        return _fitting(
            examples,
            lambda chosen: learn_integer(chosen, domain, most=_MOST_CANDIDATES, sample=len(domain), rivals=True),
        )

    def total(self, algo_id: int) -> Expr | None:
        """What explains how much of k the family sums, where that is not all of it everywhere."""
        examples = self._summed.get(algo_id, [])
        count, known = self._totals.get(algo_id, (0, None))
        if len(examples) != count:
            short = [e for e in examples if e.allowed.low < e.environment["k"]]
            if short and (known is None or not all(_explains(known, e) for e in examples)):
                spans, domain = self.expressions(algo_id)[:1], [e.environment for e in examples]
                found = _fitting(examples, lambda chosen: learn_integer(chosen, domain, given=spans, most=4))
                known = next(iter(found), None)
            self._totals[algo_id] = (len(examples), known)
        return known

    def widen(self, rule: Rule, algo_id: int, readings: Sequence[Reading]) -> Rule:
        """``rule`` with the pooled expressions for its span and sum, where it is cut and the readings allow them."""
        if rule.otherwise is not None or len(rule.structure.cuts) != 1:
            return rule
        own = [e for e in map(span_example, readings) if e is not None]
        for expression in self.expressions(algo_id)[:1]:
            if all(_explains(expression, e) for e in own):
                values = dict(rule.integers)
                old = values[_SPAN]
                values = {p: _replaced(e, old, expression) for p, e in values.items()}
                total = self.total(algo_id)
                if total is not None and all(_sums(total, r) for r in readings):
                    values[_TOTAL] = total
                return make_rule(rule.structure, values)
        return rule


def span_example(reading: Reading) -> Example | None:
    """The reading's span with its variables; None where a single accumulator, or no nest, was read."""
    if not reading.fused:
        return None
    try:
        levels = compress_parts(reading.part_tree, reading.part_ends)
    except NestError:
        return None
    if len(levels) != 1:
        return None
    return Example(
        environment=environment(reading.problem, reading.answer, None), allowed=Allowed.exactly(levels[0].span)
    )


def _fitting(examples: Sequence[Example], learn: Callable[[Sequence[Example]], tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """What ``learn`` finds on some of the examples and holds on all; those on which its first find fails are added."""
    chosen = list(examples[:: max(1, len(examples) // _MOST_POOLED)])
    for _ in range(_RELEARNED):
        found = learn(chosen)
        fitting = tuple(x for x in found if all(_explains(x, e) for e in examples))
        if fitting or not found:
            return fitting
        chosen += [e for e in examples if not _explains(found[0], e)][:_ADDED]
    return ()


def _explains(expression: Expr, example: Example) -> bool:
    return evaluate(expression, example.environment) == example.allowed.low


def _sums(expression: Expr, reading: Reading) -> bool:
    return evaluate(expression, environment(reading.problem, reading.answer, None)) == reading.summed_k


def _replaced(expression: Expr, old: Expr, new: Expr) -> Expr:
    """``new`` for every occurrence of ``old``: the summed k may be stated through the span."""
    if expression == old:
        return new
    if isinstance(expression, Call):
        return Call(expression.operation, tuple(_replaced(a, old, new) for a in expression.arguments))
    return expression
