"""What solving one class of answers is given, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.expressions import Expr
from gemmdesc.probe.chains import NO_KIN, Kin
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scan import Example
from gemmdesc.probe.shared import SharedReading
from gemmdesc.rule import Rule


@dataclass(frozen=True, kw_only=True)
class ClassTask:
    """Work on one class: its examples, and rules that answered others; ``first`` are read and tried before the rest.

    ``cuda_cores``: whether an order is sought for an answer that adds its products one by one.  ``kin``: rules that may
    be that order; the first trees decide between them, and one of the same answer about other types needs few more.
    """

    label: str
    examples: tuple[Example, ...]
    known: tuple[Rule, ...]
    hints: tuple[Rule, ...]
    seed: int
    zero_exponent: int | None = None
    first: tuple[int, ...] = ()
    preferred: tuple[Expr, ...] = ()
    cuda_cores: bool = True
    kin: Kin = NO_KIN


@dataclass(frozen=True, kw_only=True)
class ClassOutcome:
    """``rule``, or why there is none.  ``rivals``: how many other candidate rules the draws excluded.

    ``shared``: what was read of launches that share out k.
    """

    label: str
    rule: Rule | None
    reason: str
    scalar: bool
    readings: tuple[Reading, ...]
    checked: int
    draws: int
    rivals: int
    shared: tuple[SharedReading, ...] = ()


def no_rule(label: str, reason: str) -> ClassOutcome:
    """The outcome of a class that was not read."""
    return ClassOutcome(
        label=label, rule=None, reason=reason, scalar=False, readings=(), checked=0, draws=0, rivals=0
    )
