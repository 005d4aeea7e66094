"""Pointwise steps in float32, as eager PyTorch's CUDA kernels round them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.kernels import fma_float32
from gemmdesc.descriptor import (
    Add,
    AtLeast,
    AtMost,
    Divide,
    EpilogueStep,
    Gelu,
    GeluResult,
    GeluTanhApprox,
    Multiply,
    Sigmoid,
    Silu,
    Tanh,
)
from gemmdesc.errors import Declined, DeclinedError
from gemmdesc.pointwise import GELU_K0, GELU_K01, GELU_K1, BinaryStep, CardStep

Float32Array = npt.NDArray[np.float32]
#: ``tanh.approx.f32`` of a card, element by element, for float32 arrays of one axis.
TanhApprox = Callable[[Float32Array], Float32Array]

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


def function_decline(step: CardStep) -> Declined:
    """Why a CPU does not compute ``step``."""
    if isinstance(step, GeluTanhApprox):
        reason = "tanh.approx is a function of the card, whose bits no public model gives, so no CPU replays this gelu"
        return Declined(code="out_of_scope", reason=reason)
    name = {Gelu: "gelu", Silu: "silu", Sigmoid: "sigmoid", Tanh: "tanh"}[type(step)]
    reason = f"{name} takes ex2.approx or rcp.approx of a GPU, whose bits no public model gives, so no CPU replays it"
    return Declined(code="out_of_scope", reason=reason)


def cpu_decline(steps: Iterable[EpilogueStep]) -> Declined | None:
    """Why a CPU replays no descriptor with these steps; None where it does."""
    return next((function_decline(s) for s in steps if isinstance(s, get_args(CardStep))), None)


def refuse_function(step: CardStep) -> Float32Array:
    """Raise DeclinedError with :func:`function_decline`."""
    raise DeclinedError(function_decline(step))


def gelu_tanh_approx(values: Float32Array, step: GeluTanhApprox, tanh_approx: TanhApprox) -> Float32Array:
    """``values`` after ``step``; each operation rounds to nearest even, nothing is flushed, and ``tanh_approx`` is
    asked for the tangent alone."""
    z = np.ascontiguousarray(values, dtype=np.float32).ravel()
    with np.errstate(all="ignore"):
        half = np.float32(0.5) * z
        t = tanh_approx(gelu_argument(z, step))
        found = half * (np.float32(1.0) + t) if step.result is GeluResult.PRODUCT else fma_float32(half, t, half)
    found = np.asarray(found, dtype=np.float32)
    return np.where(np.isnan(found), _NAN.view(np.float32), found).reshape(values.shape)


def gelu_argument(z: Float32Array, step: GeluTanhApprox) -> Float32Array:
    """What ``step`` takes the tangent of, for float32 values of one axis."""
    k0, k1, k01 = (np.uint32(bits).view(np.float32) for bits in (GELU_K0, GELU_K1, GELU_K01))
    factored = step.argument.factored
    cubic, constant = (k1, np.float32(1.0)) if factored else (k01, k0)
    with np.errstate(all="ignore"):
        one, other = (np.full_like(z, cubic), z * z) if step.argument.squares else (cubic * z, z)
        inner = fma_float32(one, other, np.full_like(z, constant))
        return np.asarray((k0 * z) * inner if factored else z * inner, dtype=np.float32)
