"""Which accumulator models a card's matrix instructions realise, as data that the caller brings."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.descriptor import FusedDot
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class MatrixStep:
    """One rounding of a matrix instruction: ``lanes`` products of two ``operand_dtype`` join by ``step``.

    A zero lane changes nothing, so fewer real products than lanes realise a smaller ``instruction_k``.
    """

    operand_dtype: DType
    lanes: int
    step: FusedDot

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise InvalidInputError(f"lanes must be at least 1 (got {self.lanes})")


@dataclass(frozen=True, kw_only=True)
class CardArithmetic:
    """Every matrix step that a compiled ``tl.dot`` may use on one card.

    An operand type has one entry, and the entry holds for each instruction that the compiler may pick for that type; a
    card on which they differ has no entry there.
    """

    steps: tuple[MatrixStep, ...]

    def __post_init__(self) -> None:
        named = [s.operand_dtype for s in self.steps]
        if len(set(named)) != len(named):
            raise InvalidInputError(f"steps must name an operand type once (got {[d.value for d in named]})")

    def step_for(self, operand_dtype: DType) -> MatrixStep | None:
        """The step of ``operand_dtype``, or None where the card realises none."""
        return next((s for s in self.steps if s.operand_dtype is operand_dtype), None)
