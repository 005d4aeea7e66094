"""Matrix steps of expressions, worked out with the accumulator models of ``gemmdesc.arithmetic``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gemmdesc.arithmetic.decode import decode
from gemmdesc.arithmetic.models import AccumulatorModel, find_model
from gemmdesc.bits import bits_dtype, from_float32, to_float32
from gemmdesc.descriptor import Rounding
from gemmdesc.dtypes import DType
from gemmdesc.equivalence.evaluate import MatrixStep
from gemmdesc.equivalence.functions import Bits
from gemmdesc.errors import InvalidInputError

_TYPES = {
    "f16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "tf32": DType.TFLOAT32,
    "f32": DType.FLOAT32,
    "e4m3": DType.FLOAT8_E4M3FN,
    "e5m2": DType.FLOAT8_E5M2,
}


def step_model(name: str, architecture: str) -> AccumulatorModel | None:
    """The model of a node such as ``mma.m16n8k16.f32.f16.f16.f32``; None where the table has none."""
    try:
        d, a, b, _ = (_TYPES[part] for part in name.split(".")[-4:])
        return find_model(architecture=architecture, instruction="mma", a_dtype=a, b_dtype=b, accumulator_dtype=d)
    except (InvalidInputError, KeyError):
        return None


def modelled_steps(architecture: str, otherwise: MatrixStep | None = None) -> MatrixStep:
    """A ``matrix_step`` for :func:`gemmdesc.equivalence.evaluate.evaluate`.

    ``otherwise``: what works out a step that no model covers.

    Raises:
        InvalidInputError: by the step that is returned, where no model covers a step and ``otherwise`` is None.
    """

    def run(name: str, rows: npt.NDArray[np.uint32], columns: npt.NDArray[np.uint32], before: Bits) -> Bits:
        model = step_model(name, architecture)
        if model is not None:
            return multiply_pairs(model, rows, columns, before)
        if otherwise is None:
            raise InvalidInputError(f"architecture must have a model of {name} (got {architecture})")
        return otherwise(name, rows, columns, before)

    return run


def multiply_pairs(
    model: AccumulatorModel, rows: npt.NDArray[np.uint32], columns: npt.NDArray[np.uint32], before: Bits
) -> Bits:
    """One instruction for each pair: ``rows`` and ``columns`` (n, words) packed ascending in k, ``before`` (n,).

    Returns (n,) patterns of the accumulator's type.
    """
    sides = []
    for words, dtype in ((rows, model.a_dtype), (columns, model.b_dtype)):
        patterns = np.ascontiguousarray(words).view(bits_dtype(dtype))
        values, exponents = decode(patterns, dtype)
        sides += [values.astype(np.float64), exponents.astype(np.int64)]
    start = to_float32(before.astype(bits_dtype(model.accumulator_dtype)), model.accumulator_dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN may start the sum
        total = start.astype(np.float64)
    layout = model.accumulator_dtype.format
    _steps(
        *sides,
        total,
        model.instruction_k,
        model.fraction_bits,
        model.output_bits,
        model.zero_exponent,
        model.rounding is Rounding.NEAREST_EVEN,
        layout.min_exponent,
        2.0 ** (layout.max_exponent + 1),
    )
    return from_float32(total.astype(np.float32), model.accumulator_dtype).astype(np.uint64)


@njit(inline="always")
def _exponent(value: Any) -> Any:
    return ((np.float64(value).view(np.int64) >> 52) & 0x7FF) - 1023


@njit(inline="always")
def _power(exponent: Any) -> Any:
    return np.int64((exponent + 1023) << 52).view(np.float64)


@njit(nogil=True, cache=True)
def _steps(
    a: Any, a_exponent: Any, b: Any, b_exponent: Any, total: Any, each: Any, kept: Any, out_bits: Any, zero: Any,
    nearest: Any, least: Any, infinity: Any,
) -> None:  # fmt: skip
    for i in range(len(total)):
        for begin in range(0, a.shape[1], each):
            end = min(begin + each, a.shape[1])
            c = total[i]
            special = not np.isfinite(c)
            # A zero's exponent lies below that of every accumulator that is none, so it may always enter.
            top = np.int64(zero)
            if c != 0.0 and not special:
                top = max(top, max(_exponent(c), least))
            for k in range(begin, end):
                if a[i, k] * b[i, k] != 0.0:
                    top = max(top, a_exponent[i, k] + b_exponent[i, k])
                special = special or not np.isfinite(a[i, k]) or not np.isfinite(b[i, k])
            if special:
                exact = c
                for k in range(begin, end):
                    exact += a[i, k] * b[i, k]
                total[i] = exact
                continue
            scale = _power(kept - top)
            sum_ = np.trunc(c * scale)
            for k in range(begin, end):
                sum_ += np.trunc(a[i, k] * b[i, k] * scale)
            value = sum_ / scale
            unit = max(_exponent(value), least) - out_bits
            scaled = value * _power(-unit)
            rounded = (np.rint(scaled) if nearest else np.trunc(scaled)) * _power(unit)
            if abs(rounded) >= infinity:
                rounded = np.copysign(np.inf, rounded)
            total[i] = rounded + 0.0
