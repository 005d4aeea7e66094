"""What happens to a finished sum, as the number that is compiled into a fused kernel.  Pure.

One instruction has 16 bits: an operation, the operand that it reads, and the type that its result is rounded to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmdesc.descriptor import (
    Add,
    AddBias,
    Approximate,
    AtLeast,
    AtMost,
    CastTo,
    Divide,
    EpilogueStep,
    Gelu,
    Multiply,
    Relu,
    Scale,
    Sigmoid,
    Silu,
    Tanh,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.slices import declined

#: Codes of the operations; the kernels' constants have the same values.
(
    KEEP, ADD, MULTIPLY, DIVIDE, AT_LEAST, AT_MOST, RELU, RELU_WITHOUT_NAN, GELU, GELU_TANH, SILU, TANH, SIGMOID,
) = range(13)  # fmt: skip
#: Where an instruction holds its operand and its rounding.
OPERAND_SHIFT, ROUNDING_SHIFT = 5, 8
INSTRUCTION_BITS = 16
#: As many as eager calls have; a kernel grows with each.
MOST_INSTRUCTIONS = 16
#: Operands that a kernel takes beside A and B.
MOST_OPERANDS = 6
#: What an operand is: one float32 number, or a matrix of one of these types.
NUMBER = 0
OPERAND_KINDS = {DType.FLOAT32: 1, DType.FLOAT16: 2, DType.BFLOAT16: 3}
#: Names that steps of a product's own give their operands; no identifier is like them.
ALPHA, BIAS = "<alpha>", "<bias>"
_ROUNDINGS = {DType.FLOAT32: 0, DType.FLOAT16: 1, DType.BFLOAT16: 2}


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """``program``: the ``count`` instructions, the first in the lowest bits.  ``operands``: what they read, by name.

    ``overflows``: how the result is stored as an 8-bit float.  ``canonical``: whether a NaN of a float32 result becomes
    the canonical one.
    """

    program: int = 0
    count: int = 0
    operands: tuple[str, ...] = ()
    overflows: bool = False
    canonical: bool = True

    @property
    def takes_bias(self) -> bool:
        return BIAS in self.operands

    @property
    def takes_alpha(self) -> bool:
        return ALPHA in self.operands

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operands that a caller gives by name."""
        return tuple(name for name in self.operands if name not in (ALPHA, BIAS))


def assembled(
    steps: Sequence[EpilogueStep], *, overflows: bool = False, canonical: bool = True
) -> Instructions | Declined:
    """``steps`` as instructions.

    Declines (``kernel``): the C of a product, a scale of its output, a cast to an 8-bit float, more than 16
    instructions and more than six operands.
    """
    instructions: list[int] = []
    operands: list[str] = []
    for step in steps:
        if isinstance(step, CastTo) and step.dtype in _ROUNDINGS:
            rounding = _ROUNDINGS[step.dtype] << ROUNDING_SHIFT
            if instructions and not instructions[-1] >> ROUNDING_SHIFT:
                instructions[-1] |= rounding
            elif rounding:
                instructions.append(KEEP | rounding)
            continue
        found = _operation(step)
        if found is None:
            return declined(f"no fused kernel does {step}")
        code, name = found
        if name and name not in operands:
            operands.append(name)
        instructions.append(code | (operands.index(name) << OPERAND_SHIFT if name else 0))
    if len(instructions) > MOST_INSTRUCTIONS:
        return declined(f"a fused epilogue must have at most {MOST_INSTRUCTIONS} steps (got {len(instructions)})")
    if len(operands) > MOST_OPERANDS:
        return declined(f"a fused epilogue must have at most {MOST_OPERANDS} operands (got {', '.join(operands)})")
    program = sum(code << INSTRUCTION_BITS * i for i, code in enumerate(instructions))
    return Instructions(
        program=program, count=len(instructions), operands=tuple(operands), overflows=overflows, canonical=canonical
    )  # fmt: skip


def _operation(step: EpilogueStep) -> tuple[int, str] | None:
    """The code of ``step`` and the name of what it reads, or None where no fused kernel has it."""
    match step:
        case Add(operand=name):
            return ADD, name
        case Multiply(operand=name):
            return MULTIPLY, name
        case Divide(operand=name):
            return DIVIDE, name
        case AtLeast(operand=name):
            return AT_LEAST, name
        case AtMost(operand=name):
            return AT_MOST, name
        case AddBias():
            return ADD, BIAS
        case Scale():
            return MULTIPLY, ALPHA
        case Relu(keeps_nan=keeps_nan):
            return (RELU if keeps_nan else RELU_WITHOUT_NAN), ""
        case Gelu(approximate=approximate):
            return (GELU if approximate is Approximate.NONE else GELU_TANH), ""
        case Silu():
            return SILU, ""
        case Tanh():
            return TANH, ""
        case Sigmoid():
            return SIGMOID, ""
        case _:
            return None
