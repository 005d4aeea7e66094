"""Draws: which operand values a comparison uses."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.operands import Family, HashOperand
from gemmdesc.verification.cases import Case

#: Every second draw is WIDE; the others take these in turn.
_OTHERS = (Family.NORMAL, Family.RAMP, Family.CANCELLING, Family.SPECIALS)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One pair of operands of a case."""

    number: int
    family: Family


def draws_of(count: int) -> tuple[Draw, ...]:
    """``count`` draws, half of them (rounded up) with wide exponents."""
    families = (Family.WIDE if i % 2 == 0 else _OTHERS[i // 2 % len(_OTHERS)] for i in range(count))
    return tuple(Draw(number=i, family=family) for i, family in enumerate(families))


def operands(case: Case, draw: Draw) -> tuple[HashOperand, HashOperand]:
    """a as m rows of k, and b as n rows of k (its columns), in torch's terms."""
    seed = case.operand_draw_seed
    return (
        HashOperand(dtype=case.dtype, family=draw.family, seed=seed, draw=draw.number, role="a"),
        HashOperand(dtype=case.dtype, family=draw.family, seed=seed, draw=draw.number, role="b"),
    )
