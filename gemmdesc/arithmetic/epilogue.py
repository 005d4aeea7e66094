"""The epilogue: what it takes beside the product, and its execution in float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.kernels import fma_float32
from gemmdesc.arithmetic.pointwise import TanhApprox, apply_binary, gelu_tanh_approx, refuse_function
from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import (
    AddBias,
    AddC,
    CastTo,
    EpilogueStep,
    Gelu,
    GeluTanhApprox,
    GEMMDesc,
    Relu,
    Scale,
    ScaleOutput,
    Sigmoid,
    Silu,
    Tanh,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedOperand:
    """What a pointwise step reads: ``bits`` of ``dtype``, float16, bfloat16 or float32, that broadcast to (m, n)."""

    bits: Bits
    dtype: DType


@dataclass(frozen=True, kw_only=True, eq=False)
class EpilogueInputs:
    """What the epilogue steps read.

    ``alpha``, ``beta``, ``output_scale``: float32 values.  ``c``: bit patterns of ``c_dtype``, shape (m, n).  ``bias``:
    bit patterns of ``bias_dtype`` that broadcast to (m, n), so (n,) for one value per column and (m, 1) for one per
    row.  The types are float16, bfloat16 or float32.  ``named``: the operands of pointwise steps by name.
    ``tanh_approx``: the card's, which a library's gelu takes; None where there is no card to ask.

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
    named: Mapping[str, NamedOperand] = field(default_factory=dict)
    tanh_approx: TanhApprox | None = None

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
        InvalidInputError: a step needs ``c``, ``bias`` or a named operand, and it is missing or of another shape.
        DeclinedError: a step is a function of a GPU (gelu, silu, sigmoid, tanh; ``gelu_tanh_approx`` where ``inputs``
            have no ``tanh_approx``).
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
                case CastTo(dtype=DType.FLOAT32):
                    pass
                case CastTo(dtype=dtype):
                    values = to_float32(from_float32(values, dtype), dtype)
                case GeluTanhApprox() if inputs.tanh_approx is not None:
                    values = gelu_tanh_approx(values, step, inputs.tanh_approx)
                case Gelu() | Silu() | Sigmoid() | Tanh() | GeluTanhApprox():
                    values = refuse_function(step)
                case _:
                    values = apply_binary(values, step, _named(step.operand, inputs, shape)[at])
    return values


def finished_by(
    values: Float32Array, steps: tuple[EpilogueStep, ...], desc: GEMMDesc, inputs: EpilogueInputs
) -> Bits:
    """Bit patterns of ``desc.output_dtype`` of a whole matrix of ``values`` after ``steps``, the last ones of ``desc``.

    Raises:
        InvalidInputError, DeclinedError: as :func:`apply_epilogue`.
    """
    m, n = values.shape
    kept = steps[:-1] if desc.overflows else steps
    done = apply_epilogue(values, kept, inputs, shape=(m, n), rows=np.arange(m), cols=np.arange(n))
    return finished_bits(done, desc)


def finished_bits(values: Float32Array, desc: GEMMDesc) -> Bits:
    """Bit patterns of ``desc.output_dtype`` of values after all its steps but a last cast that overflows."""
    if desc.keeps_nan_patterns:
        return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return from_float32(values, desc.output_dtype, overflows=desc.overflows)


def _named(name: str, inputs: EpilogueInputs, shape: tuple[int, int]) -> Float32Array:
    given = inputs.named.get(name)
    if given is None:
        raise InvalidInputError(f"{name} must be given for this descriptor's epilogue (got {', '.join(inputs.named)})")
    return _full(name, given.bits, given.dtype, shape, broadcast=True)


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
