# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Spellings of gelu, silu, sigmoid and tanh that might have eager torch's bytes, the shipped one first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

from gemmdesc.kernels import functions as f


@triton.jit
def tanh_libdevice(x):
    return libdevice.tanh(x)


@triton.jit
def tanh_of_sigmoid(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def tanh_approx(x):
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def gelu_libdevice(x):
    return (x * 0.5) * (libdevice.erf(x * 0.7071067690849304) + 1.0)


@triton.jit
def gelu_contracted(x):
    half = x * 0.5
    return tl.fma(half, f.erf(x * 0.7071067690849304), half)


@triton.jit
def gelu_from_other_side(x):
    return x * ((f.erf(x * 0.7071067690849304) + 1.0) * 0.5)


@triton.jit
def gelu_tanh_uncontracted(x):
    inner = x + (x * (x * x)) * 0.044714998453855515
    return (x * 0.5) * (f.tanh(inner * 0.7978845834732056) + 1.0)


@triton.jit
def gelu_tanh_libdevice(x):
    inner = tl.fma(x * (x * x), f.filled(x, 0.044714998453855515), x)
    return (x * 0.5) * (libdevice.tanh(inner * 0.7978845834732056) + 1.0)


@triton.jit
def gelu_tanh_contracted_end(x):
    inner = tl.fma(x * (x * x), f.filled(x, 0.044714998453855515), x)
    half = x * 0.5
    return tl.fma(half, f.tanh(inner * 0.7978845834732056), half)


@triton.jit
def silu_libdevice(x):
    return tl.div_rn(x, libdevice.exp(x * -1.0) + 1.0)


@triton.jit
def silu_exp2(x):
    return tl.div_rn(x, f.exp2_approx(x * -1.4426950216293335) + 1.0)


@triton.jit
def silu_fast_division(x):
    return x / (libdevice.exp(x * -1.0) + 1.0)


@triton.jit
def silu_of_sigmoid(x):
    return x * tl.sigmoid(x)


@triton.jit
def silu_reciprocal(x):
    return x * f.reciprocal_approx(libdevice.exp(x * -1.0) + 1.0)


@triton.jit
def sigmoid_uncontracted(x):
    return tl.div_rn(f.filled(x, 1.0), libdevice.exp(x * -1.0) + 1.0)


@triton.jit
def sigmoid_reciprocal(x):
    return f.reciprocal_approx(f.one_and_power(x))


@triton.jit
def sigmoid_of_tanh(x):
    return tanh_approx(x * 0.5) * 0.5 + 0.5


#: Function of torch's -> spelling -> what computes it.
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "gelu": {
        "shipped": f.gelu, "libdevice": gelu_libdevice, "contracted": gelu_contracted,
        "halved last": gelu_from_other_side,
    },
    "gelu_tanh": {
        "shipped": f.gelu_tanh, "uncontracted": gelu_tanh_uncontracted, "libdevice": gelu_tanh_libdevice,
        "contracted at its end": gelu_tanh_contracted_end,
    },
    "silu": {
        "shipped": f.silu, "libdevice": silu_libdevice, "exp2": silu_exp2, "fast division": silu_fast_division,
        "sigmoid": silu_of_sigmoid, "reciprocal": silu_reciprocal,
    },
    "sigmoid": {
        "shipped": f.sigmoid, "uncontracted": sigmoid_uncontracted, "reciprocal": sigmoid_reciprocal,
        "tanh": sigmoid_of_tanh,
    },
    "tanh": {
        "shipped": f.tanh, "libdevice": tanh_libdevice, "sigmoid": tanh_of_sigmoid, "approx": tanh_approx,
    },
}  # fmt: skip


@triton.jit
def spelled_kernel(x_ptr, y_ptr, SPELLING: tl.constexpr, BLOCK: tl.constexpr):
    """``y``, of the type that it has, from 16-bit values ``x``."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = SPELLING(tl.load(x_ptr + index).to(tl.float32))
    tl.store(y_ptr + index, value.to(y_ptr.dtype.element_ty))


def spelled(spelling: Any, x: Any) -> Any:
    """``spelling`` of every element of ``x``, whose number is a multiple of 1024, rounded to its type."""
    import torch

    y = torch.empty_like(x)
    spelled_kernel[(x.numel() // 1024,)](x, y, spelling, 1024, enable_fp_fusion=False)
    return y
