"""Spot values of the exact step, worked by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gemmdesc.arithmetic.step import (
    add_float32,
    convert_float32,
    decode_number,
    encode_number,
    fused_dot_step,
    scalar_step,
)
from gemmdesc.bits import from_float32
from gemmdesc.descriptor import FusedDot, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from tests.arithmetic_reference import HOPPER

HALF = {"a_dtype": DType.FLOAT16, "b_dtype": DType.FLOAT16}


def half(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def single(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@pytest.mark.parametrize(("tiny", "kept"), [(2.0**-15, True), (2.0**-16, False)])
def test_hopper_keeps_twenty_five_bits_below_the_largest_term(tiny: float, kept: bool) -> None:
    a, b = [half(1024), half(-1024), half(tiny)], [half(1)] * 3
    assert fused_dot_step(HOPPER, a, b, 0, **HALF) == (single(tiny) if kept else 0)


def test_each_term_is_truncated_toward_zero_before_the_sum() -> None:
    # Two terms of 1.5 units each lose half a unit each: with the largest term 1, one unit is 2^-25.
    a = [half(1), half(-1), half(1.5 * 2**-14), half(1.5 * 2**-14)]
    b = [half(1), half(1), half(2**-11), half(2**-11)]
    assert fused_dot_step(HOPPER, a, b, 0, **HALF) == single(2.0**-24)
    a = [a[0], a[1], a[2] ^ 0x8000, a[3] ^ 0x8000]
    assert fused_dot_step(HOPPER, a, b, 0, **HALF) == single(-(2.0**-24))


def test_the_exponent_of_a_product_is_the_sum_of_exponents_not_that_of_the_product() -> None:
    # 1.5 x 1.5 = 2.25 aligns as if it were below 2: 2^-25 survives beside it.
    a, b = [half(1.5), half(-1.5), half(2**-13)], [half(1.5), half(1.5), half(2**-12)]
    assert fused_dot_step(HOPPER, a, b, 0, **HALF) == single(2.0**-25)


def test_a_subnormal_operand_aligns_at_its_formats_minimum_exponent() -> None:
    # 2^-24 x 1 has exponent -14; 2^-40 lies below 2^(-14 - 25).
    a, b = [0x0001, 0x8001, half(2**-14)], [half(1), half(1), 0x0000]
    assert fused_dot_step(HOPPER, a, b, single(2.0**-40), **HALF) == 0
    assert fused_dot_step(HOPPER, a, b, single(2.0**-39), **HALF) == single(2.0**-39)


def test_a_zero_counts_with_its_exponent() -> None:
    step = FusedDot(fraction_bits=10, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=0)
    a, b = [half(2**-6)], [half(2**-6)]
    assert fused_dot_step(step, a, b, 0, **HALF) == 0
    assert fused_dot_step(step, a, b, single(2.0**-12), **HALF) == single(2.0**-11)


def test_the_result_is_truncated_to_the_output_bits() -> None:
    step = FusedDot(fraction_bits=13, output_bits=13, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
    a, b = [half(1), half(1), half(2**-7)], [half(1), half(1), half(2**-6)]
    assert fused_dot_step(step, a, b, 0, **HALF) == single(2.0)


def test_a_float16_accumulator_rounds_to_nearest_even() -> None:
    step = FusedDot(
        fraction_bits=25,
        output_bits=10,
        rounding=Rounding.NEAREST_EVEN,
        zero_exponent=-21,
        accumulator_dtype=DType.FLOAT16,
    )
    assert fused_dot_step(step, [half(2**-11)], [half(1)], half(1), **HALF) == half(1)
    assert fused_dot_step(step, [half(2**-11)], [half(1)], half(1 + 2**-10), **HALF) == half(1 + 2**-9)
    assert fused_dot_step(step, [half(65504)], [half(1)], half(16), **HALF) == 0x7C00
    assert fused_dot_step(step, [half(65504)], [half(1)], half(8), **HALF) == half(65504)


def test_an_exact_or_truncated_zero_is_positive() -> None:
    assert fused_dot_step(HOPPER, [half(1), half(-1)], [half(1), half(1)], 0x80000000, **HALF) == 0
    tiny = {"a_dtype": DType.BFLOAT16, "b_dtype": DType.BFLOAT16}
    assert fused_dot_step(HOPPER, [0x8080], [0x0080], 0, **tiny) == 0


def test_scalar_steps() -> None:
    one, tiny = single(1 + 2**-12), single(2.0**-60)
    types = {"a_dtype": DType.FLOAT32, "b_dtype": DType.FLOAT32}
    assert scalar_step(ScalarStep(fused=True), one, one, tiny, **types) == single(1 + 2**-11 + 2**-23)
    assert scalar_step(ScalarStep(fused=False), one, one, tiny, **types) == single(1 + 2**-11)
    assert scalar_step(ScalarStep(fused=True), 0x80000000, one, 0x80000000, **types) == 0x80000000
    assert scalar_step(ScalarStep(fused=True), 0x7F800000, 0, 0, **types) == 0x7FFFFFFF


def test_float32_addition_and_conversion_agree_with_numpy() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 1 << 32, (2, 3000), dtype=np.uint32)
    y[::2] = x[::2] ^ np.uint32(1 << 31) ^ rng.integers(0, 1 << 24, 1500, dtype=np.uint32)
    with np.errstate(all="ignore"):
        total = from_float32(x.view(np.float32) + y.view(np.float32), DType.FLOAT32)
    assert [add_float32(p, q) for p, q in zip(x.tolist(), y.tolist(), strict=True)] == total.tolist()
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        small = np.where(rng.random(3000) < 0.5, (x & 0x87FFFFFF) | 0x30000000, x).astype(np.uint32)
        expected = from_float32(small.view(np.float32), dtype).tolist()
        assert [convert_float32(p, dtype) for p in small.tolist()] == expected


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_encoding_inverts_decoding(dtype: DType) -> None:
    rng = np.random.default_rng(2)
    for bits in rng.integers(0, 1 << dtype.format.storage_bits, 2000).tolist():
        number = decode_number(bits, dtype)
        if number.kind == "finite":
            assert encode_number(number.value, dtype, negative_zero=number.negative) == bits


def test_results_have_one_of_three_types() -> None:
    with pytest.raises(InvalidInputError, match=r"^dtype must be .*\(got float8_e4m3fn\)$"):
        encode_number(Fraction(1), DType.FLOAT8_E4M3FN)


def test_a_value_halfway_beyond_the_largest_overflows() -> None:
    assert encode_number(Fraction(65520), DType.FLOAT16) == 0x7C00
    assert encode_number(Fraction(65519), DType.FLOAT16) == 0x7BFF
    assert encode_number(Fraction(-65535), DType.FLOAT16, rounding=Rounding.TOWARD_ZERO) == 0xFBFF
