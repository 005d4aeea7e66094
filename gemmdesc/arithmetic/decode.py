"""Operands as pairs of a value and the exponent that the hardware aligns by."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from numba import njit

from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.dtypes import DType, Format
from gemmdesc.errors import InvalidInputError

#: Stands for the exponent of an exact zero; the sum of two still fits int16, and lies below every product of non-zeros.
ZERO_OPERAND_EXPONENT = -16384

Values = npt.NDArray[np.float32]
Exponents = npt.NDArray[np.int16]
Index = npt.NDArray[np.int64]

#: k that are read for one lane before the next one, so that a block of a tile stays in the cache.
_BLOCK_K = 64


def decode(bits: Bits, dtype: DType) -> tuple[Values, Exponents]:
    """Exact float32 values and alignment exponents (int16) of ``bits``, any shape, in C order.

    A normal number has the exponent of its leading bit; a subnormal has its format's minimum exponent, its significand
    being below 1; a zero has ``ZERO_OPERAND_EXPONENT``.  The 13 low bits of a tfloat32 pattern are ignored.
    ``float8_e4m3fn`` has no infinity and one NaN per sign.

    Raises:
        InvalidInputError: ``dtype`` is float64, or ``bits`` is not of its unsigned type.
    """
    if dtype is DType.FLOAT64:
        raise InvalidInputError("dtype must be at most 32 bits wide (got float64)")
    if bits.dtype != bits_dtype(dtype):
        raise InvalidInputError(f"bits must be {bits_dtype(dtype)} patterns of {dtype.value} (got {bits.dtype})")
    bits = np.ascontiguousarray(bits)
    if dtype.format.storage_bits > 16:
        return _decode_wide(bits, dtype.format)
    index = bits.astype(np.intp)
    values, exponents = _table(dtype)
    return np.take(values, index), np.take(exponents, index)


def decode_rows(bits: Bits, dtype: DType, rows: Index, order: Index) -> tuple[Values, Exponents]:
    """:func:`decode` of ``bits[rows][:, order]``, shape (len(rows), len(order)); ``bits`` has any strides.

    Raises:
        InvalidInputError: as :func:`decode`.
    """
    if dtype.format.storage_bits > 16 or bits.dtype != bits_dtype(dtype):
        return decode(bits[np.ix_(rows, order)], dtype)
    values, exponents = np.empty((len(rows), len(order)), np.float32), np.empty((len(rows), len(order)), np.int16)
    _look_up_rows(bits, rows, order, _packed_table(dtype), values.view(np.uint32), exponents)
    return values, exponents


def decode_tiles(bits: Bits, dtype: DType, order: Index, columns: Index, lanes: int) -> tuple[Values, Exponents]:
    """:func:`decode` of ``bits[order][:, columns]`` as tiles (tiles, len(order), ``lanes``), zeros in the last ones.

    Raises:
        InvalidInputError: as :func:`decode`.
    """
    count = -(-len(columns) // lanes)
    if dtype.format.storage_bits > 16 or bits.dtype != bits_dtype(dtype):
        padded = np.zeros((len(order), count * lanes), dtype=bits.dtype)
        padded[:, : len(columns)] = bits[np.ix_(order, columns)]
        return decode(padded.reshape(len(order), count, lanes).transpose(1, 0, 2), dtype)
    shape = (count, len(order), lanes)
    values, exponents = np.zeros(shape, np.float32), np.full(shape, ZERO_OPERAND_EXPONENT, np.int16)
    _look_up_tiles(bits, order, columns, _packed_table(dtype), values.view(np.uint32), exponents)
    return values, exponents


@njit(nogil=True, cache=True)
def _look_up_rows(bits, rows, order, table, values, exponents):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        for k in range(order.size):
            word = table[bits[rows[i], order[k]]]
            values[i, k] = np.uint32(word & 0xFFFFFFFF)
            exponents[i, k] = np.int16(word >> 32)


@njit(nogil=True, cache=True)
def _look_up_tiles(bits, order, columns, table, values, exponents):  # type: ignore[no-untyped-def]
    lanes = values.shape[2]
    for begin in range(0, order.size, _BLOCK_K):
        for j in range(columns.size):
            tile, lane, column = j // lanes, j % lanes, columns[j]
            for k in range(begin, min(begin + _BLOCK_K, order.size)):
                word = table[bits[order[k], column]]
                values[tile, k, lane] = np.uint32(word & 0xFFFFFFFF)
                exponents[tile, k, lane] = np.int16(word >> 32)


def _decode_wide(bits: Bits, layout: Format) -> tuple[Values, Exponents]:
    """Of the formats with the exponent of float32, in 32 bits: their patterns are float32 already."""
    patterns, exponents = np.empty(bits.shape, np.uint32), np.empty(bits.shape, np.int16)
    ignored = np.uint32((1 << (23 - layout.fraction_bits)) - 1)
    _read_wide(bits.reshape(-1), ~ignored, patterns.reshape(-1), exponents.reshape(-1))
    return patterns.view(np.float32), exponents


@njit(nogil=True, cache=True)
def _read_wide(bits, kept, patterns, exponents):  # type: ignore[no-untyped-def]
    for i in range(bits.size):
        pattern = bits[i] & kept
        magnitude = pattern & np.uint32(0x7FFFFFFF)
        if magnitude > np.uint32(0x7F800000):
            pattern = pattern & np.uint32(0x80000000) | np.uint32(0x7FC00000)
        patterns[i] = pattern
        field = np.int16(magnitude >> np.uint32(23))
        exponents[i] = ZERO_OPERAND_EXPONENT if magnitude == 0 else max(field, np.int16(1)) - np.int16(127)


@cache
def _packed_table(dtype: DType) -> npt.NDArray[np.int64]:
    """:func:`_table` with a value's pattern and its exponent in one word, which one look finds."""
    values, exponents = _table(dtype)
    packed: npt.NDArray[np.int64] = values.view(np.uint32).astype(np.int64) | (exponents.astype(np.int64) << 32)
    return packed


@cache
def _table(dtype: DType) -> tuple[Values, Exponents]:
    """All patterns of a format of at most 16 bits: looking them up is far cheaper than ldexp on each element."""
    layout = dtype.format
    bits = np.arange(1 << layout.storage_bits)
    exponent_bits = layout.storage_bits - 1 - layout.fraction_bits
    fraction = bits & ((1 << layout.fraction_bits) - 1)
    field = (bits >> layout.fraction_bits) & ((1 << exponent_bits) - 1)
    negative = (bits >> (layout.storage_bits - 1)) & 1 == 1

    exponent = np.maximum(field, 1) + (layout.min_exponent - 1)
    significand = fraction + ((field > 0).astype(np.int64) << layout.fraction_bits)
    values = np.ldexp(significand.astype(np.float64), exponent - layout.fraction_bits)

    last = (1 << exponent_bits) - 1
    if last - 1 + layout.min_exponent > layout.max_exponent:
        values[field == last] = np.inf
        values[(field == last) & (fraction > 0)] = np.nan
    else:
        values[(field == last) & (fraction == (1 << layout.fraction_bits) - 1)] = np.nan
    values = np.where(negative, -values, values)
    exponent[values == 0] = ZERO_OPERAND_EXPONENT
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32), exponent.astype(np.int16)
