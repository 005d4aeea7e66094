"""Bytes: comparing them, and the conversions between formats as the hardware rounds them.

Arrays of a format that NumPy lacks travel as unsigned integers holding the bit patterns.  Conversions follow
NVIDIA's ``cvt.rn``: round to nearest, ties to even, subnormals kept, overflow to infinity, and any NaN to the
format's canonical NaN (0x7fff for float16 and bfloat16, 0x7fffffff for float32).  So does widening a float16, which
Hopper does in its half-precision adder; a bfloat16 is shifted up, NaN and all.  To 8-bit formats there is
``cvt.rn.satfinite`` only: what lies beyond the largest finite value becomes that, infinity too, and a NaN is 0x7f;
software may let it overflow instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

Bits = npt.NDArray[np.unsignedinteger]

_CANONICAL_NAN = {
    DType.FLOAT16: 0x7FFF,
    DType.BFLOAT16: 0x7FFF,
    DType.FLOAT32: 0x7FFFFFFF,
    DType.FLOAT8_E4M3FN: 0x7F,
    DType.FLOAT8_E5M2: 0x7F,
}
#: The largest finite pattern of the 8-bit formats.
_LARGEST = {DType.FLOAT8_E4M3FN: 0x7E, DType.FLOAT8_E5M2: 0x7B}


def bits_dtype(dtype: DType) -> np.dtype[np.unsignedinteger]:
    """The unsigned NumPy type that holds one element of ``dtype``."""
    return np.dtype(f"u{dtype.itemsize}")


def to_float32(bits: Bits, dtype: DType) -> npt.NDArray[np.float32]:
    """Exact float32 values of float16, bfloat16, float32 or 8-bit float patterns, any shape.

    A NaN of float16 becomes the canonical one; one of bfloat16 or float32 keeps its bits.

    Raises:
        InvalidInputError: ``dtype`` is not one of those.
    """
    if dtype is DType.FLOAT16:
        with np.errstate(invalid="ignore"):
            widened = bits.astype(np.uint16).view(np.float16).astype(np.float32)
        return np.where(np.isnan(widened), np.uint32(_CANONICAL_NAN[DType.FLOAT32]).view(np.float32), widened)
    if dtype is DType.BFLOAT16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype is DType.FLOAT32:
        return bits.astype(np.uint32).view(np.float32)
    if dtype in _LARGEST:
        return np.take(_values8(dtype), bits.astype(np.intp))
    raise InvalidInputError(f"dtype must be float16, bfloat16, float32 or an 8-bit float (got {dtype.value})")


def from_float32(values: npt.ArrayLike, dtype: DType, *, overflows: bool = False) -> Bits:
    """Bit patterns of float32 ``values`` rounded to ``dtype`` (nearest, ties to even), any shape.

    ``overflows``, of an 8-bit float: what rounds beyond the largest finite value becomes infinity, or in e4m3fn NaN
    with the value's sign.

    Raises:
        InvalidInputError: ``dtype`` is not float16, bfloat16, float32 or an 8-bit float.
    """
    x = np.asarray(values, dtype=np.float32)
    if dtype is DType.FLOAT16:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            out: Bits = x.astype(np.float16).view(np.uint16)
    elif dtype is DType.BFLOAT16:
        u = x.view(np.uint32).astype(np.uint64)
        out = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    elif dtype is DType.FLOAT32:
        out = x.view(np.uint32)
    elif dtype in _LARGEST:
        out = _round8(x, dtype)
        if overflows:
            signed = (_LARGEST[dtype] + 1) | np.where(np.signbit(x), 0x80, 0)
            out = np.where(_beyond8(x, dtype), signed.astype(np.uint8), out)
    else:
        raise InvalidInputError(f"dtype must be float16, bfloat16, float32 or an 8-bit float (got {dtype.value})")
    return np.where(np.isnan(x), np.asarray(_CANONICAL_NAN[dtype], dtype=bits_dtype(dtype)), out)


@cache
def _values8(dtype: DType) -> npt.NDArray[np.float32]:
    """Float32 values of all 256 patterns of an 8-bit format."""
    layout = dtype.format
    magnitude = np.arange(128)
    stored = magnitude >> layout.fraction_bits
    fraction = magnitude & ((1 << layout.fraction_bits) - 1)
    significand = fraction + np.where(stored > 0, 1 << layout.fraction_bits, 0)
    exponent = np.maximum(stored, 1) - 1 + layout.min_exponent - layout.fraction_bits
    values = np.ldexp(significand.astype(np.float64), exponent)
    beyond = magnitude > _LARGEST[dtype]
    values[beyond] = np.nan
    if dtype is DType.FLOAT8_E5M2:
        values[_LARGEST[dtype] + 1] = np.inf
    return np.concatenate([values, -values]).astype(np.float32)


def _round8(x: npt.NDArray[np.float32], dtype: DType) -> Bits:
    layout, largest = dtype.format, _LARGEST[dtype]
    values = _values8(dtype)[: largest + 1].astype(np.float64)
    magnitude = np.minimum(np.abs(np.where(np.isnan(x), 0.0, x)).astype(np.float64), values[-1])
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, layout.min_exponent) - layout.fraction_bits
    rounded = np.ldexp(np.rint(np.ldexp(magnitude, -exponent)), exponent)
    pattern = np.searchsorted(values, np.minimum(rounded, values[-1]))
    signed: Bits = (pattern | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)
    return signed


def _beyond8(x: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[np.bool_]:
    """Where ``x`` rounds to the value that would follow the largest finite one, or lies beyond that."""
    values = _values8(dtype).astype(np.float64)
    largest = _LARGEST[dtype]
    middle = values[largest] + (values[largest] - values[largest - 1]) / 2
    # A tie goes to the even pattern.
    found: npt.NDArray[np.bool_] = np.abs(x) >= middle if largest & 1 else np.abs(x) > middle
    return found


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The first differing element in row-major order, and how many differ."""

    index: tuple[int, ...]
    expected_bits: int
    got_bits: int
    count: int
    size: int


def first_mismatch(expected: Bits, got: Bits) -> Mismatch | None:
    """None where the two arrays hold the same bytes; NaN payloads and the sign of zero count.

    Raises:
        InvalidInputError: shapes or element sizes differ.
    """
    if expected.shape != got.shape or expected.dtype.itemsize != got.dtype.itemsize:
        raise InvalidInputError(
            f"got must have the shape and element size of expected, {expected.shape} x {expected.dtype.itemsize} bytes "
            f"(got {got.shape} x {got.dtype.itemsize})"
        )
    kind = f"u{expected.dtype.itemsize}"
    e, g = expected.view(kind), got.view(kind)
    different = np.asarray(e != g)
    count = int(different.sum())
    if count == 0:
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(different)), e.shape))
    return Mismatch(
        index=index, expected_bits=int(e[index]), got_bits=int(g[index]), count=count, size=int(e.size)
    )


def bitwise_equal(expected: Bits, got: Bits) -> bool:
    """Whether the two arrays hold the same bytes (see :func:`first_mismatch`)."""
    return first_mismatch(expected, got) is None
