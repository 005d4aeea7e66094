"""Random fused epilogues: steps in any order with operands by name, and a float32 model of CUDA's functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmdesc.arithmetic.kernels import fma_float32
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

NARROW = (DType.FLOAT16, DType.BFLOAT16)
FUNCTIONS = (
    Gelu(approximate=Approximate.NONE), Gelu(approximate=Approximate.TANH), Silu(), Tanh(), Sigmoid(),
)  # fmt: skip
#: Names of operands that a drawn epilogue may read.
NAMES = ("residual", "row_scale", "column_scale", "low", "high")


def draw_after(rng: np.random.Generator, dtype: DType, most: int = 6) -> tuple[EpilogueStep, ...]:
    """What follows a product that was rounded to ``dtype``, functions left out."""
    steps: list[EpilogueStep] = []
    for _ in range(int(rng.integers(1, most + 1))):
        kind = [Add, Multiply, Divide, AtLeast, AtMost, Relu][int(rng.integers(6))]
        if kind is Relu:
            steps.append(Relu(keeps_nan=bool(rng.integers(2))))
        elif kind in (AtLeast, AtMost):
            steps.append(AtLeast(operand="low") if kind is AtLeast else AtMost(operand="high"))
        else:
            steps.append(kind(operand=NAMES[int(rng.integers(3))]))  # type: ignore[call-arg]
        if rng.random() < 0.8:
            steps.append(CastTo(dtype=(dtype, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)[int(rng.integers(4))]))
    return tuple(steps)


def draw_epilogue(rng: np.random.Generator, dtype: DType, output: DType) -> tuple[EpilogueStep, ...]:
    """All steps of a fused product of ``dtype`` operands whose result is ``output``."""
    before: list[EpilogueStep] = []
    for step in (Scale(), AddBias(), Relu(keeps_nan=False)):
        if rng.random() < 0.3:
            before.append(step)
    rounded: tuple[EpilogueStep, ...] = (CastTo(dtype=dtype),) if rng.random() < 0.8 else ()
    steps = (*before, *rounded, *draw_after(rng, dtype))
    if output in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2) and rng.random() < 0.7:
        return (*steps, CastTo(dtype=output, overflows=bool(rng.integers(2))))
    return steps


# --- eager's functions, written down from the machine code of its kernels ------------------------------------------


def _f(x: Any) -> Any:
    return np.asarray(x, dtype=np.float32)


def fma(x: Any, y: Any, z: Any) -> Any:
    """x y + z in one rounding."""
    x, y, z = np.broadcast_arrays(_f(x), _f(y), _f(z))
    return fma_float32(*(np.ascontiguousarray(v).ravel() for v in (x, y, z))).reshape(x.shape)


def stand_in_exp2(x: Any) -> Any:
    """For ``ex2.approx.ftz``, which no CPU has: nearly the same values, subnormals flushed as it does."""
    with np.errstate(all="ignore"):
        found = np.exp2(np.where(np.abs(x) < 2.0**-126, 0.0, np.asarray(x, np.float64))).astype(np.float32)
    return np.where(np.abs(found) < 2.0**-126, np.float32(0.0), found).astype(np.float32)


def stand_in_reciprocal(x: Any) -> Any:
    """For ``rcp.approx.ftz``."""
    with np.errstate(all="ignore"):
        found = (1.0 / np.asarray(x, np.float64)).astype(np.float32)
    return np.where(np.abs(found) < 2.0**-126, np.copysign(np.float32(0.0), found), found).astype(np.float32)


def fma_down(x: Any, y: Any, z: Any) -> Any:
    """x y + z toward minus infinity, of values whose exact result has 64 bits at most."""
    exact = np.asarray(x, np.longdouble) * np.asarray(y, np.longdouble) + np.asarray(z, np.longdouble)
    near = exact.astype(np.float32)
    with np.errstate(all="ignore"):
        below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near.astype(np.longdouble) > exact, below, near).astype(np.float32)


def fma_saturate(x: Any, y: Any, z: Any) -> Any:
    """x y + z in one rounding, then within 0 and 1; NaN gives 0."""
    near = fma(x, y, z)
    return np.where(np.isnan(near), np.float32(0.0), np.clip(near, 0.0, 1.0)).astype(np.float32)


def _sign_of(size: Any, sign: Any) -> Any:
    return np.copysign(_f(size), _f(sign))


def model_tanh(x: Any) -> Any:
    size = np.abs(x)
    power = _f(stand_in_exp2(_f(size * np.float32(2.8853900432586669922))) + np.float32(1))
    far = fma(stand_in_reciprocal(power), -2, 1)
    far = _sign_of(np.where(size >= np.float32(9.010913848876953125), np.float32(1), far), x)
    square = _f(x * x)
    p = fma(square, np.uint32(0x3C80F082).view(np.float32), -0.052303962409496307373)
    for constant in (0.1331529766321182251, -0.33332768082618713379, 0.0):
        p = fma(square, p, constant)
    return np.where(size >= np.float32(0.60000002384185791016), far, fma(x, p, x)).astype(np.float32)


def model_erf(x: Any) -> Any:
    size = np.abs(x)
    large = size >= np.float32(1.0029599666595458984)
    at = np.where(large, size, _f(x * x))
    far = [np.uint32(h).view(np.float32) for h in (
        0x38EB4C3A, 0xBAAE005B, 0x3C09919F, 0xBD24D99A, 0x3E235519, 0x3F69B4F9, 0x3F210A14
    )]  # fmt: skip
    near = (8.4834944573231041431e-05, -0.00082130916416645050049, 0.0052134888246655464172, -0.026868773624300956726,
            0.11284004896879196167, -0.37612664699554443359, 0.12837915122509002686)  # fmt: skip
    p = np.where(large, far[0], np.float32(near[0]))
    for one, other in zip(far[1:], near[1:], strict=True):
        p = fma(at, p, np.where(large, one, np.float32(other)))
    end = np.where(large, -size, x)
    p = fma(p, end, end)
    return np.where(large, _sign_of(_f(np.float32(1) - stand_in_exp2(p)), x), p).astype(np.float32)


def model_gelu(x: Any) -> Any:
    return _f(_f(model_erf(_f(x * np.float32(0.70710676908493041992))) + np.float32(1)) * _f(x * np.float32(0.5)))


def model_gelu_tanh(x: Any) -> Any:
    cube = _f(x * _f(x * x))
    inner = _f(fma(cube, 0.044714998453855514526, x) * np.float32(0.79788458347320556641))
    return _f(_f(x * np.float32(0.5)) * _f(model_tanh(inner) + np.float32(1)))


def one_and_power(x: Any) -> Any:
    """1 + exp(-x)."""
    whole = fma_saturate(-x, np.uint32(0x3BBB989D).view(np.float32), 0.5)
    whole = fma_down(whole, np.float32(252), np.float32(12582913))
    rest = fma(-x, 1.4426950216293334961, -_f(whole + np.float32(-12583039)))
    rest = fma(-x, 1.925963033500011079e-08, rest)
    power = (whole.view(np.uint32) << np.uint32(23)).view(np.float32)
    return fma(power, stand_in_exp2(rest), 1)


def model_silu(x: Any) -> Any:
    return _f(x / one_and_power(x))


def model_sigmoid(x: Any) -> Any:
    return _f(np.float32(1) / one_and_power(x))


MODELS = dict(zip(FUNCTIONS, (model_gelu, model_gelu_tanh, model_silu, model_tanh, model_sigmoid), strict=True))
