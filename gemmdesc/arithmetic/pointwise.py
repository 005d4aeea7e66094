"""Pointwise steps in float32, as eager PyTorch's CUDA kernels round them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import Add, AtLeast, AtMost, Divide, Gelu, Multiply, Sigmoid, Silu, Tanh
from gemmdesc.errors import Declined, DeclinedError
from gemmdesc.pointwise import BinaryStep, FunctionStep

Float32Array = npt.NDArray[np.float32]

_NAN = np.uint32(0x7FFFFFFF)


def apply_binary(values: Float32Array, step: BinaryStep, operand: Float32Array) -> Float32Array:
    """``values`` after ``step`` with ``operand``, which broadcasts to them; a NaN that comes of a sum, a product or a
    quotient is canonical, and a comparison keeps the pattern of a NaN in ``values``."""
    with np.errstate(all="ignore"):
        match step:
            case Add():
                found = values + operand
            case Multiply():
                found = values * operand
            case Divide():
                found = values / operand
            case AtLeast():
                # Of two that are equal, the bits that both have: +0.0 unless both are -0.0.
                same = (values.view(np.uint32) & operand.view(np.uint32)).view(np.float32)
                return _chosen(values, operand, values > operand, same)
            case AtMost():
                same = (values.view(np.uint32) | operand.view(np.uint32)).view(np.float32)
                return _chosen(values, operand, values < operand, same)
    found = np.asarray(found, dtype=np.float32)
    return np.where(np.isnan(found), _NAN.view(np.float32), found)


def _chosen(
    values: Float32Array, operand: Float32Array, kept: npt.NDArray[np.bool_], same: Float32Array
) -> Float32Array:
    found = np.where(kept | np.isnan(values), values, np.where(values == operand, same, operand))
    return np.asarray(found, dtype=np.float32)


def function_decline(step: FunctionStep) -> Declined:
    """Why a CPU does not compute ``step``."""
    name = {Gelu: "gelu", Silu: "silu", Sigmoid: "sigmoid", Tanh: "tanh"}[type(step)]
    reason = f"{name} takes ex2.approx or rcp.approx of a GPU, whose bits no public model gives, so no CPU replays it"
    return Declined(code="out_of_scope", reason=reason)


def refuse_function(step: FunctionStep) -> Float32Array:
    """Raise DeclinedError with :func:`function_decline`."""
    raise DeclinedError(function_decline(step))
