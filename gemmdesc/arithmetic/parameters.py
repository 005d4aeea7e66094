"""A step as the compiled kernels take it: plain numbers."""

from __future__ import annotations

import numpy as np

from gemmdesc.arithmetic.kernels import FusedParameters, Target
from gemmdesc.descriptor import FusedDot, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.schedule import ROUNDINGS, Schedule

#: Beyond these a zero's exponent hides every product, or none, of the formats that a descriptor may name.
_LOWEST_ZERO, _HIGHEST_ZERO = -400, 400


def target_of(dtype: DType, fraction_bits: int) -> Target:
    """The range of ``dtype`` with ``fraction_bits``."""
    layout = dtype.format
    return Target(fraction_bits, layout.min_exponent, 2.0 ** (layout.max_exponent + 1))


def step_parameters(step: FusedDot | ScalarStep, schedule: Schedule) -> FusedParameters:
    """A step as the kernel takes it; raises as :func:`replay`."""
    if isinstance(step, ScalarStep):
        return FusedParameters(1, 0, False, False, target_of(DType.FLOAT32, 23))
    longest = int(np.diff(schedule.step_ends, prepend=0).max(initial=0))
    # A term stays below 2^(fraction_bits + 2), and float64 holds integers up to 2^53.
    if step.fraction_bits + 2 + longest.bit_length() > 53:
        raise InvalidInputError(
            f"fused_dot.fraction_bits must let a step of {longest} products fit 53 bits (got {step.fraction_bits})"
        )
    layout = step.accumulator_dtype.format
    if step.output_bits > layout.fraction_bits:
        raise InvalidInputError(
            f"fused_dot.output_bits must be at most {layout.fraction_bits}, those of "
            f"{step.accumulator_dtype.value} (got {step.output_bits})"
        )
    return FusedParameters(
        step.fraction_bits,
        min(max(step.zero_exponent, _LOWEST_ZERO), _HIGHEST_ZERO),
        step.zero_exponent > layout.min_exponent,
        step.rounding is Rounding.NEAREST_EVEN,
        target_of(step.accumulator_dtype, step.output_bits),
    )


def storage_targets() -> tuple[Target, ...]:
    """What partial sums are rounded to: one target for each entry of ``gemmdesc.schedule.ROUNDINGS``."""
    return tuple(target_of(dtype, dtype.format.fraction_bits) for dtype in ROUNDINGS)
