"""Silu and sigmoid of 16-bit values by a quotient without a division: the same 16 bits whatever the card approximates.

``ex2.approx`` and ``rcp.approx`` are known to within the errors that PTX promises.  So for each of the 65,536 inputs
every sum 1 + exp(-x) and every reciprocal within more than those errors is tried.  One thing is taken for granted:
where |x| is at most 2^-24, the power is one of the two floats around exp(-x), so that the sum is 2.
``tests/test_fused_gpu.py`` compares all inputs with eager's on a card.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.dtypes import DType

#: Units in the last place that a sum and a reciprocal are tried away from the exact ones, rounded.  PTX promises 2^-22
#: of ex2.approx, which are 4 units at most, and 2^-23 of rcp.approx between 1 and 2, which are 2.
SUMS, RECIPROCALS = 8, 4
FLOAT = np.float32
NAN = 0x7FFFFFFF


def fma(x: Any, y: Any, z: Any) -> Any:
    """x y + z in float32, rounded once: the sum in float64 is rounded to odd first."""
    product = x.astype(np.float64) * y.astype(np.float64)
    addend = z.astype(np.float64)
    total = product + addend
    back = total - product
    rest = (product - (total - back)) + (addend - back)
    pattern = total.view(np.int64)
    odd = np.where((rest != 0) & (pattern & 1 == 0) & np.isfinite(total), 1, 0)
    toward = np.where((rest > 0) == (total > 0), 1, -1)
    return (pattern + odd * toward).view(np.float64).astype(FLOAT)


def moved(value: Any, units: Any) -> Any:
    """Positive floats some units of the last place away, not above infinity."""
    pattern = value.view(np.int32) + units
    return np.minimum(pattern, np.int32(0x7F800000)).astype(np.int32).view(FLOAT)


def flushed(value: Any) -> Any:
    """As ftz has it: subnormals are zeros of their sign."""
    return np.where(np.abs(value) < FLOAT(2.0**-126), np.copysign(FLOAT(0), value), value).astype(FLOAT)


def narrow(value: Any, dtype: DType) -> Any:
    """The 16 bits that ``value`` is rounded to, every NaN the canonical one."""
    pattern = np.where(np.isnan(value), np.uint32(NAN), np.ascontiguousarray(value).view(np.uint32))
    found = from_float32(pattern.view(FLOAT).ravel(), dtype).reshape(value.shape)
    return np.where(np.isnan(value), np.asarray(0x7FFF, found.dtype), found)


def inputs(dtype: DType) -> Any:
    return to_float32(np.arange(65536, dtype=np.uint32).astype(np.uint16), dtype).astype(FLOAT)


def sums(x: Any) -> Any:
    """[inputs, candidates] of 1 + exp(-x): all that ex2.approx may lead to, and some more."""
    with np.errstate(over="ignore"):
        near = (1.0 + np.exp(-x.astype(np.float64))).astype(FLOAT)[:, None]
    offsets = np.arange(-SUMS, SUMS + 1, dtype=np.int32)[None, :]
    found = np.maximum(moved(near, offsets), FLOAT(1))
    fixed = np.isnan(near) | np.isinf(x)[:, None] | (np.abs(x) <= FLOAT(2.0**-24))[:, None]
    return np.where(fixed, near, found).astype(FLOAT)


def by_division(x: Any, total: Any, dtype: DType) -> Any:
    return narrow((x / total).astype(FLOAT), dtype)


def reciprocal(total: Any, units: int) -> Any:
    """rcp.approx.ftz of a positive float or a NaN, ``units`` away from the nearest; of a power of two nothing else."""
    exact = (1.0 / total.astype(np.float64)).astype(FLOAT)
    plain = np.isfinite(total) & (total.view(np.int32) & 0x7FFFFF != 0)
    return flushed(np.where(plain, moved(np.where(plain, exact, FLOAT(1)), np.int32(units)), exact).astype(FLOAT))


def improved(quotient: Any, over: Any, under: Any, inverse: Any) -> Any:
    rest = fma(-under, quotient, over)
    return np.where(np.abs(rest) > 0, fma(rest, inverse, quotient), quotient)


def silu_between(x: Any, total: Any, scale: float, units: int) -> Any:
    x, total = x * FLOAT(scale), (total * FLOAT(scale)).astype(FLOAT)
    inverse = reciprocal(total, units)
    return improved((x * inverse).astype(FLOAT), x, total, inverse)


def sigmoid_between(x: Any, total: Any, scale: float, units: int) -> Any:
    total = (total * FLOAT(scale)).astype(FLOAT)
    inverse = reciprocal(total, units)
    return (improved(inverse, np.ones_like(inverse), total, inverse) * FLOAT(scale)).astype(FLOAT)


#: What fused_steps scales by.
SCALES = {DType.FLOAT16: 1.0, DType.BFLOAT16: 0.125}


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("name", ["silu", "sigmoid"])
def test_no_approximation_changes_a_bit(name: str, dtype: DType) -> None:
    x = inputs(dtype)[:, None]
    ours = silu_between if name == "silu" else sigmoid_between
    # A silu's own operand, or one, over the sum.
    over = x if name == "silu" else np.ones_like(x)
    with np.errstate(all="ignore"):
        total = sums(x[:, 0])
        operand = np.broadcast_to(x, total.shape)
        want = by_division(np.broadcast_to(over, total.shape), total, dtype)
        for units in range(-RECIPROCALS, RECIPROCALS + 1):
            got = narrow(ours(operand, total, SCALES[dtype], units), dtype)
            wrong = np.argwhere(got != want)
            assert wrong.tolist() == [], units


@pytest.mark.parametrize("name", ["silu", "sigmoid"])
def test_without_its_step_the_quotient_would_differ(name: str) -> None:
    """So that the test above can fail."""
    x = inputs(DType.FLOAT16)[:, None]
    with np.errstate(all="ignore"):
        total = sums(x[:, 0])
        over = np.broadcast_to(x if name == "silu" else np.ones_like(x), total.shape)
        plain = narrow((over * reciprocal(total, 1)).astype(FLOAT), DType.FLOAT16)
        assert (plain != by_division(over, total, DType.FLOAT16)).any()


def test_a_bfloat16_needs_the_scale() -> None:
    """Without it a reciprocal is flushed to zero where the quotient is a number."""
    x = inputs(DType.BFLOAT16)[:, None]
    with np.errstate(all="ignore"):
        total = sums(x[:, 0])
        operand = np.broadcast_to(x, total.shape)
        got = narrow(silu_between(operand, total, 1.0, 0), DType.BFLOAT16)
        assert (got != by_division(operand, total, DType.BFLOAT16)).any()


def test_the_models_fma_rounds_once() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(20000).astype(FLOAT) for _ in range(2))
    z = np.where(rng.random(20000) < 0.5, -(x * y), rng.standard_normal(20000)).astype(FLOAT)
    z[:5000] = (z[:5000] * FLOAT(2.0**-30)).astype(FLOAT)
    small = FLOAT(2.0**-70)
    def exact(a: Any, b: Any, c: Any) -> Any:
        total = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = FLOAT(float(total))
        # Of three neighbours, the nearest, ties to the even pattern.
        around = [np.nextafter(near, FLOAT(-np.inf)), near, np.nextafter(near, FLOAT(np.inf))]
        return min(around, key=lambda v: (abs(Fraction(float(v)) - total), int(v.view(np.int32)) & 1))

    for u, v, w in ((x, y, z), (x * small, y * small, z * small * small)):
        got = fma(u, v, w)
        want = np.array([exact(*t) for t in zip(u, v, w, strict=True)], FLOAT)
        assert (got == want).all()
