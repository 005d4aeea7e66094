"""The epilogue: what it takes beside the product, and its execution in float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.kernels import fma_float32
from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import AddBias, AddC, CastTo, EpilogueStep, Relu, Scale, ScaleOutput
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class EpilogueInputs:
    """What the epilogue steps read.

    ``alpha``, ``beta``, ``output_scale``: float32 values.  ``c``: bit patterns of ``c_dtype``, shape (m, n).  ``bias``:
    bit patterns of ``bias_dtype`` that broadcast to (m, n), so (n,) for one value per column and (m, 1) for one per
    row.  The types are float16, bfloat16 or float32.

    Raises:
        InvalidInputError: ``alpha``, ``beta`` or ``output_scale`` is no float32 value.
    """

    alpha: float = 1.0
    beta: float = 0.0
    output_scale: float = 1.0
    c: Bits | None = None
    c_dtype: DType = DType.FLOAT32
    bias: Bits | None = None
    bias_dtype: DType = DType.FLOAT32

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "output_scale"):
            value = getattr(self, name)
            with np.errstate(over="ignore"):
                rounded = float(np.float32(value))
            if rounded != value and value == value:
                raise InvalidInputError(f"{name} must be a float32 value (got {value!r})")


def apply_epilogue(
    values: Float32Array,
    steps: tuple[EpilogueStep, ...],
    inputs: EpilogueInputs,
    *,
    shape: tuple[int, int],
    rows: npt.NDArray[np.int64],
    cols: npt.NDArray[np.int64],
) -> Float32Array:
    """``values`` (len(rows), len(cols)) of a product of ``shape`` after ``steps``; each rounding is to nearest even.

    Raises:
        InvalidInputError: a step needs ``c`` or ``bias``, and it is missing or of another shape.
    """
    at = np.ix_(rows, cols)
    with np.errstate(all="ignore"):
        for step in steps:
            match step:
                case Scale():
                    values = values * np.float32(inputs.alpha)
                case AddC(fused=fused):
                    c = _full("c", inputs.c, inputs.c_dtype, shape, broadcast=False)[at]
                    values = _add_c(values, np.float32(inputs.beta), c, fused)
                case AddBias():
                    values = values + _full("bias", inputs.bias, inputs.bias_dtype, shape, broadcast=True)[at]
                case Relu(keeps_nan=True):
                    values = np.where(values <= 0, np.float32(0.0), values)
                case Relu():
                    values = np.where(values > 0, values, np.float32(0.0))
                case ScaleOutput():
                    values = values * np.float32(inputs.output_scale)
                case CastTo(dtype=dtype):
                    values = to_float32(from_float32(values, dtype), dtype)
    return values


def _add_c(values: Float32Array, beta: np.float32, c: Float32Array, fused: bool) -> Float32Array:
    if not fused:
        return np.asarray(values + beta * c, dtype=np.float32)
    flat = fma_float32(np.full(c.size, beta, np.float32), np.ascontiguousarray(c).ravel(), values.ravel())
    return np.asarray(flat, dtype=np.float32).reshape(values.shape)


def _full(name: str, bits: Bits | None, dtype: DType, shape: tuple[int, int], *, broadcast: bool) -> Float32Array:
    if bits is None:
        raise InvalidInputError(f"{name} must be given for this descriptor's epilogue (got None)")
    try:
        full = np.broadcast_to(bits, shape)
    except ValueError:
        full = None
    if full is None or (not broadcast and bits.shape != shape):
        raise InvalidInputError(f"{name} must have shape {shape} (got {bits.shape})")
    return to_float32(full, dtype)
