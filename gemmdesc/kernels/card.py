"""Which accumulator models a card's matrix instructions realise, as data that the caller brings."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.descriptor import FusedDot, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class MatrixStep:
    """One rounding of a matrix instruction: ``lanes`` products of two ``operand_dtype`` join by ``step``.

    ``b_dtype``: the type of B's elements where it is another one than ``operand_dtype``, which A's then have.  A zero
    lane changes nothing, so fewer real products than lanes realise a smaller ``instruction_k``.
    """

    operand_dtype: DType
    lanes: int
    step: FusedDot
    b_dtype: DType | None = None

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise InvalidInputError(f"lanes must be at least 1 (got {self.lanes})")
        if self.b_dtype is self.operand_dtype:
            raise InvalidInputError(f"b_dtype must be left out where it is operand_dtype (got {self.b_dtype})")


@dataclass(frozen=True, kw_only=True)
class CardArithmetic:
    """Every matrix step that a compiled ``tl.dot`` may use on one card.

    A pair of operand types has one entry, and the entry holds for each instruction that the compiler may pick for that
    pair; a card on which they differ has no entry there.  ``wgmma``: whether a warp group can multiply what lies in
    shared memory, by instructions of these steps.
    """

    steps: tuple[MatrixStep, ...]
    wgmma: bool = False

    def __post_init__(self) -> None:
        named = [(s.operand_dtype, s.b_dtype) for s in self.steps]
        if len(set(named)) != len(named):
            raise InvalidInputError(f"steps must name operand types once (got {[a.value for a, _ in named]})")

    def step_for(self, operand_dtype: DType, b_dtype: DType | None = None) -> MatrixStep | None:
        """The step of these operand types, B's being A's where it is left out; None where the card realises none."""
        pair = operand_dtype, None if b_dtype is operand_dtype else b_dtype
        return next((s for s in self.steps if (s.operand_dtype, s.b_dtype) == pair), None)


def multiplied_dtypes(desc: GEMMDesc) -> tuple[DType, DType]:
    """The types that a step multiplies: the operands', or what they are cast to."""
    a_dtype = desc.a_dtype if desc.a_cast is None else desc.a_cast.dtype
    return a_dtype, desc.b_dtype if desc.b_cast is None else desc.b_cast.dtype
