"""Bit patterns and formats: exhaustive over 16-bit patterns, against exact integer arithmetic and against torch."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.bits import Mismatch, bits_dtype, bitwise_equal, first_mismatch, from_float32, to_float32
from gemmdesc.dtypes import DType, parse_dtype, represents
from gemmdesc.errors import InvalidInputError

STORED = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
TORCH = {
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
    DType.FLOAT8_E4M3FN: torch.float8_e4m3fn,
    DType.FLOAT8_E5M2: torch.float8_e5m2,
}
ALL_16 = np.arange(1 << 16, dtype=np.uint16)
EDGES = np.array(
    [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00000001, 0x807FFFFF, 0x00800000,
     0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x7F7F7FFF, 0x7F7F8000, 0x7F7EFFFF, 0x38800000],
    dtype=np.uint32,
)  # fmt: skip


def _rounded(value: Fraction, dtype: DType) -> Fraction | None:
    """``value`` rounded to nearest even in ``dtype``, exactly; None for overflow to infinity."""
    if value == 0:
        return Fraction(0)
    form, size = dtype.format, abs(value)
    exponent = form.min_exponent
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - form.fraction_bits)
    rounded = round(value / unit) * unit  # Fraction rounds ties to even
    return None if abs(rounded) >= Fraction(2) ** (form.max_exponent + 1) else rounded


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_every_16_bit_pattern_comes_back(dtype: DType) -> None:
    values = to_float32(ALL_16, dtype)
    back = from_float32(values, dtype)
    number = ~np.isnan(values)
    assert back.dtype == np.uint16
    assert np.array_equal(back[number], ALL_16[number])
    assert set(back[~number].tolist()) == {0x7FFF}


def test_only_a_float16_nan_is_another_one_when_widened() -> None:
    """As on an H200: ``cvt.f32.f16`` is an addition there, and a bfloat16 is shifted up."""
    nan = (ALL_16 & 0x7FFF) > 0x7C00
    assert set(to_float32(ALL_16[nan], DType.FLOAT16).view(np.uint32).tolist()) == {0x7FFFFFFF}
    assert np.array_equal(to_float32(ALL_16, DType.BFLOAT16).view(np.uint32), ALL_16.astype(np.uint32) << 16)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_values_are_those_of_torch(dtype: DType) -> None:
    ours = to_float32(ALL_16, dtype)
    theirs = torch.from_numpy(ALL_16.view(np.int16)).view(TORCH[dtype]).float().numpy()
    number = ~np.isnan(ours)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.array_equal(ours[number].view(np.uint32), theirs[number].view(np.uint32))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_rounding_is_that_of_torch(dtype: DType, rng: np.random.Generator) -> None:
    patterns = np.concatenate([EDGES, rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)])
    values = patterns.view(np.float32)
    ours = from_float32(values, dtype)
    theirs = torch.from_numpy(values.copy()).to(TORCH[dtype]).view(torch.int16).numpy().view(np.uint16)
    number = ~np.isnan(values)
    assert np.array_equal(ours[number], theirs[number])
    assert set(ours[~number].tolist()) == {0x7FFF}


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from([DType.FLOAT16, DType.BFLOAT16]))
def test_rounding_is_to_nearest_even_exactly(value: float, dtype: DType) -> None:
    got = to_float32(from_float32(value, dtype), dtype)
    expected = _rounded(Fraction(value), dtype)
    if expected is None:
        assert np.isinf(got)
    else:
        assert Fraction(float(got)) == expected
    assert np.signbit(got) == np.signbit(np.float32(value))


def test_float32_keeps_its_bits_but_for_nan() -> None:
    bits = np.array([0x00000000, 0x80000000, 0x7F800000, 0x7FC00001, 0xFF800001, 0x00000001], dtype=np.uint32)
    values = to_float32(bits, DType.FLOAT32)
    expected = np.array([0x00000000, 0x80000000, 0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF, 0x00000001], dtype=np.uint32)
    assert np.array_equal(from_float32(values, DType.FLOAT32), expected)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_any_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    bits = from_float32(np.full(shape, -1.5, dtype=np.float32), dtype)
    assert bits.shape == shape
    assert bits.dtype == bits_dtype(dtype)
    assert to_float32(bits, dtype).shape == shape
    assert np.all(to_float32(bits, dtype) == -1.5)
    assert bitwise_equal(bits, bits.copy())


@pytest.mark.parametrize("dtype", STORED)
def test_views_without_unit_stride_and_inputs_left_alone(dtype: DType) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    values[1, 2] = np.nan
    before = values.copy()
    assert np.array_equal(from_float32(values.T[::2], dtype), from_float32(values, dtype).T[::2])
    assert np.array_equal(values.view(np.uint32), before.view(np.uint32))


EIGHT = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)


@pytest.mark.parametrize("dtype", EIGHT)
def test_every_8_bit_pattern_is_torchs_value(dtype: DType) -> None:
    patterns = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(patterns).view(TORCH[dtype]).to(torch.float32).numpy()
    got = to_float32(patterns, dtype)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(from_float32(got[finite], dtype), patterns[finite])


@pytest.mark.parametrize("dtype", EIGHT)
def test_rounding_to_8_bits_is_torchs_and_saturates(dtype: DType) -> None:
    rng = np.random.default_rng(2)
    exponents = rng.integers(dtype.format.min_exponent - 6, dtype.format.max_exponent + 2, 50_000)
    values = np.ldexp(rng.integers(-(1 << 10), 1 << 10, 50_000) / 512.0, exponents).astype(np.float32)
    largest = to_float32(np.array([0x7E if dtype is EIGHT[0] else 0x7B], np.uint8), dtype)[0]
    inside = np.abs(values) <= largest
    expected = torch.from_numpy(values[inside]).to(TORCH[dtype]).view(torch.uint8).numpy()
    np.testing.assert_array_equal(from_float32(values[inside], dtype), expected)
    assert (np.abs(to_float32(from_float32(values[~inside], dtype), dtype)) == largest).all()
    special = to_float32(from_float32(np.array([np.inf, -np.inf, 1e30, -1e30]), dtype), dtype)
    assert special.tolist() == [largest, -largest] * 2
    assert from_float32(np.array([np.nan, -0.0, -1e-30]), dtype).tolist() == [0x7F, 0x80, 0x80]


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (*STORED, *EIGHT)])
def test_other_formats_are_refused(dtype: DType) -> None:
    with pytest.raises(InvalidInputError, match=rf"^dtype must be .*\(got {dtype.value}\)$"):
        to_float32(np.zeros(1, dtype=np.uint8), dtype)
    with pytest.raises(InvalidInputError, match=rf"^dtype must be .*\(got {dtype.value}\)$"):
        from_float32([0.0], dtype)


def test_the_first_mismatch_in_row_major_order() -> None:
    expected = np.zeros((3, 4), dtype=np.uint16)
    got = expected.copy()
    assert first_mismatch(expected, got) is None
    got[2, 0], got[1, 3] = 7, 9
    assert first_mismatch(expected, got) == Mismatch(index=(1, 3), expected_bits=0, got_bits=9, count=2, size=12)
    assert first_mismatch(expected.T, got.T) == Mismatch(index=(0, 2), expected_bits=0, got_bits=7, count=2, size=12)
    assert not bitwise_equal(expected, got)
    assert first_mismatch(np.uint16(1).reshape(()), np.uint16(2).reshape(())) == Mismatch(
        index=(), expected_bits=1, got_bits=2, count=1, size=1
    )


def test_bytes_decide_not_values() -> None:
    zero, negative = (np.array([x], dtype=np.float32).view(np.uint32) for x in (0.0, -0.0))
    assert not bitwise_equal(zero, negative)
    nans = np.array([0x7FC00000, 0x7FFFFFFF], dtype=np.uint32)
    assert not bitwise_equal(nans[:1], nans[1:])
    assert bitwise_equal(nans, nans.copy())


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (np.zeros((2, 3), np.uint16), np.zeros((3, 2), np.uint16)),
        (np.zeros(2, np.uint16), np.zeros(2, np.uint32)),
        (np.zeros((1, 2), np.uint16), np.zeros(2, np.uint16)),
    ],
)
def test_shapes_and_sizes_must_agree(expected: np.ndarray, got: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match=r"^got must have the shape .*\(got .*\)$"):
        first_mismatch(expected, got)


@pytest.mark.parametrize("dtype", list(TORCH))
def test_formats_are_those_of_torch(dtype: DType) -> None:
    info, form = torch.finfo(TORCH[dtype]), dtype.format
    assert form.storage_bits == info.bits
    assert dtype.itemsize == info.bits // 8
    assert info.eps == 2.0**-form.fraction_bits
    assert info.tiny == 2.0**form.min_exponent
    assert 2.0**form.max_exponent <= info.max
    assert info.max / 2 < 2.0**form.max_exponent


@pytest.mark.parametrize("wide", list(TORCH))
@pytest.mark.parametrize("narrow", [d for d in TORCH if d.itemsize <= 2])
def test_represents_is_what_every_finite_value_shows(wide: DType, narrow: DType) -> None:
    patterns = np.arange(1 << narrow.format.storage_bits).astype(bits_dtype(narrow))
    values = torch.from_numpy(patterns).view(TORCH[narrow]).double()
    values = values[torch.isfinite(values)]
    back = values.to(TORCH[wide]).double()
    assert represents(wide, narrow) == bool((back == values).all())


def test_represents_among_the_wide_formats() -> None:
    order = [DType.TFLOAT32, DType.FLOAT32, DType.FLOAT64]
    for i, wide in enumerate(order):
        for j, narrow in enumerate(order):
            assert represents(wide, narrow) == (i >= j)
    assert represents(DType.TFLOAT32, DType.FLOAT16)
    assert represents(DType.TFLOAT32, DType.BFLOAT16)


@pytest.mark.parametrize("dtype", list(DType))
def test_spellings_come_back(dtype: DType) -> None:
    assert parse_dtype(dtype.value) is dtype


@pytest.mark.parametrize("name", ["fp8", "half", "FLOAT16", "", "torch.float16"])
def test_other_spellings_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^dtype must be one of float16, .*\(got '.*'\)$"):
        parse_dtype(name)
