"""Decoding of operands: all patterns of the narrow formats, samples of the wide ones, against the exact decoder."""

from __future__ import annotations

import numpy as np
import pytest

from gemmdesc.arithmetic.decode import ZERO_OPERAND_EXPONENT, decode
from gemmdesc.arithmetic.step import decode_number
from gemmdesc.bits import bits_dtype
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.FLOAT64])
def test_values_and_exponents_are_exact(dtype: DType) -> None:
    width = dtype.format.storage_bits
    if width <= 16:
        bits = np.arange(1 << width).astype(bits_dtype(dtype))
    else:
        edges = [0, 1, 0x2000, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7F802000]
        drawn = np.random.default_rng(0).integers(0, 1 << 32, 5000)
        bits = np.concatenate([edges, np.array(edges) + (1 << 31), drawn]).astype(np.uint32)
    values, exponents = decode(bits, dtype)
    for pattern, value, exponent in zip(bits.tolist(), values.tolist(), exponents.tolist(), strict=True):
        number = decode_number(pattern, dtype)
        if number.kind == "nan":
            assert value != value
        elif number.kind == "infinite":
            assert value == (-np.inf if number.negative else np.inf)
        else:
            assert value == number.value
            assert np.signbit(value) == number.negative
            assert exponent == (ZERO_OPERAND_EXPONENT if number.exponent is None else number.exponent)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_any_strides_come_out_in_c_order(dtype: DType) -> None:
    bits = np.random.default_rng(1).integers(0, 1 << 15, (30, 30)).astype(bits_dtype(dtype))
    values, exponents = decode(bits, dtype)
    for array, turned in zip((values, exponents), decode(bits.T, dtype), strict=True):
        assert array.flags.c_contiguous
        assert turned.flags.c_contiguous
        assert np.array_equal(array.T, turned, equal_nan=True)


def test_misuse_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"^dtype must .*\(got float64\)$"):
        decode(np.zeros(1, np.uint64), DType.FLOAT64)
    with pytest.raises(InvalidInputError, match=r"^bits must be uint16 .*\(got uint8\)$"):
        decode(np.zeros(1, np.uint8), DType.FLOAT16)
    with pytest.raises(InvalidInputError, match=r"^bits must .*\(got 65536\)$"):
        decode_number(65536, DType.FLOAT16)
