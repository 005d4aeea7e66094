"""Pooling what was read on many classes: one expression that explains the spans of a whole family of kernels.

A class met on a few problems allows many expressions; all classes of one ``algo_id`` together allow few.  What explains
them all is offered to each class first, and put in place of a narrower expression wherever the class's own readings
allow it.  Whether a rule holds is decided by bytes, never here.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmdesc.expressions import Call, Expr, evaluate
from gemmdesc.probe.learn import Allowed, Example, learn_integer
from gemmdesc.probe.nest import NestError, compress_parts
from gemmdesc.probe.reading import Reading
from gemmdesc.problem import environment
from gemmdesc.rule import Rule, make_rule

#: Readings of one family that the pooled expression is learned from, at most.
_MOST_POOLED = 64
_SPAN = "cuts.0.layout.span"


class SpanPool:
    """Spans read so far, by ``algo_id``."""

    def __init__(self) -> None:
        self._read: dict[int, list[Example]] = {}
        self._learned: dict[int, tuple[int, tuple[Expr, ...]]] = {}

    def add(self, readings: Sequence[Reading]) -> None:
        """Take in the spans that ``readings`` show exactly."""
        for reading in readings:
            found = span_example(reading)
            if found is not None:
                self._read.setdefault(reading.answer.algo_id, []).append(found)

    def expressions(self, algo_id: int) -> tuple[Expr, ...]:
        """What explains all spans of the family, simplest first; empty where nothing was read or nothing does."""
        examples = self._read.get(algo_id, [])
        count, known = self._learned.get(algo_id, (0, ()))
        if len(examples) == count:
            return known
        if known and all(_explains(known[0], e) for e in examples[count:]):
            found = tuple(x for x in known if all(_explains(x, e) for e in examples[count:]))
        else:
            chosen = examples[:: max(1, len(examples) // _MOST_POOLED)]
            found = learn_integer(chosen, [e.environment for e in examples], hints=known, most=4)
            found = tuple(x for x in found if all(_explains(x, e) for e in examples))
        self._learned[algo_id] = (len(examples), found)
        return found

    def widen(self, rule: Rule, algo_id: int, readings: Sequence[Reading]) -> Rule:
        """``rule`` with the pooled expression for its span, if it has one and the class's own readings allow it."""
        if len(rule.structure.cuts) != 1:
            return rule
        own = [e for e in map(span_example, readings) if e is not None]
        for expression in self.expressions(algo_id)[:1]:
            if all(_explains(expression, e) for e in own):
                values = dict(rule.integers)
                old = values[_SPAN]
                return make_rule(rule.structure, {p: _replaced(e, old, expression) for p, e in values.items()})
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


def _explains(expression: Expr, example: Example) -> bool:
    return evaluate(expression, example.environment) == example.allowed.low


def _replaced(expression: Expr, old: Expr, new: Expr) -> Expr:
    """``new`` for every occurrence of ``old``: the summed k may be stated through the span."""
    if expression == old:
        return new
    if isinstance(expression, Call):
        return Call(expression.operation, tuple(_replaced(a, old, new) for a in expression.arguments))
    return expression
