"""Epilogue steps as the numbers that a kernel reads at run time, so that one compiled kernel does them all.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmdesc.descriptor import (
    AddBias,
    AddC,
    CastTo,
    EpilogueStep,
    GeluResult,
    GeluTanhApprox,
    Relu,
    Scale,
    ScaleOutput,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.slices import declined

#: Codes of the steps; the kernels' constants have the same values.
SCALE, ADD_C, ADD_C_FUSED, ADD_BIAS, RELU, RELU_WITHOUT_NAN, ROUND_FLOAT16, ROUND_BFLOAT16 = range(1, 9)
#: That of the first form of gelu by tanh.approx; the others follow: flags of how the argument is formed, and of how the
#: result is.
GELU, GELU_EXPANDED, GELU_SQUARE, GELU_FUSED = 16, 1, 2, 4
#: Bits of one code, and codes in one program, a positive 64-bit integer.
CODE_BITS = 5
MOST_STEPS = 12
_ROUNDINGS = {DType.FLOAT32: 0, DType.FLOAT16: ROUND_FLOAT16, DType.BFLOAT16: ROUND_BFLOAT16}


@dataclass(frozen=True, kw_only=True)
class StepProgram:
    """``count`` codes, the first in the lowest bits of ``codes``."""

    codes: int = 0
    count: int = 0

    @property
    def used(self) -> frozenset[int]:
        """The codes that occur."""
        return frozenset(self.codes >> CODE_BITS * i & (1 << CODE_BITS) - 1 for i in range(self.count))

    @property
    def takes_c(self) -> bool:
        return bool(self.used & {ADD_C, ADD_C_FUSED})

    @property
    def takes_bias(self) -> bool:
        return ADD_BIAS in self.used


def rounding_code(dtype: DType) -> int:
    """What rounds a float32 value to ``dtype``, one of float32 (0: nothing to do), float16 and bfloat16."""
    return _ROUNDINGS[dtype]


def step_program(steps: Sequence[EpilogueStep]) -> StepProgram | Declined:
    """``steps`` as a program; a rounding to float32 is left out.

    Declines steps that no kernel does (``kernel``): the scale of an 8-bit output, roundings to types other than
    float16, bfloat16 and float32, pointwise steps of eager PyTorch, and more than 12 of them.
    """
    codes: list[int] = []
    for step in steps:
        match step:
            case Scale():
                codes.append(SCALE)
            case AddC(fused=fused):
                codes.append(ADD_C_FUSED if fused else ADD_C)
            case AddBias():
                codes.append(ADD_BIAS)
            case Relu(keeps_nan=keeps_nan):
                codes.append(RELU if keeps_nan else RELU_WITHOUT_NAN)
            case CastTo(dtype=dtype) if dtype in _ROUNDINGS:
                codes.append(_ROUNDINGS[dtype])
            case CastTo(dtype=dtype):
                return declined(f"cast_to must name float16, bfloat16 or float32 (got {dtype.value})")
            case GeluTanhApprox():
                codes.append(gelu_code(step))
            case ScaleOutput():
                return declined("no kernel scales an 8-bit output (got scale_output)")
            case _:
                return declined(f"no finishing kernel does {step}")
    codes = [code for code in codes if code]
    if len(codes) > MOST_STEPS:
        return declined(f"the epilogue must have at most {MOST_STEPS} steps (got {len(codes)})")
    return StepProgram(codes=sum(code << CODE_BITS * i for i, code in enumerate(codes)), count=len(codes))


def gelu_code(step: GeluTanhApprox) -> int:
    """The code of a form of gelu."""
    expanded, square = not step.argument.factored, step.argument.squares
    return GELU + GELU_EXPANDED * expanded + GELU_SQUARE * square + GELU_FUSED * (step.result is GeluResult.FUSED)
