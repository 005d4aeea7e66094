"""Bytes: comparing them, and the conversions between formats as the hardware rounds them.

Arrays of a format that NumPy lacks travel as unsigned integers holding the bit patterns.  Conversions follow
NVIDIA's ``cvt.rn``: round to nearest, ties to even, subnormals kept, overflow to infinity, and any NaN to the
format's canonical NaN (0x7fff for float16 and bfloat16, 0x7fffffff for float32).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

Bits = npt.NDArray[np.unsignedinteger]

_CANONICAL_NAN = {DType.FLOAT16: 0x7FFF, DType.BFLOAT16: 0x7FFF, DType.FLOAT32: 0x7FFFFFFF}


def bits_dtype(dtype: DType) -> np.dtype[np.unsignedinteger]:
    """The unsigned NumPy type that holds one element of ``dtype``."""
    return np.dtype(f"u{dtype.itemsize}")


def to_float32(bits: Bits, dtype: DType) -> npt.NDArray[np.float32]:
    """Exact float32 values of float16, bfloat16 or float32 bit patterns, any shape.

    Raises:
        InvalidInputError: ``dtype`` is not one of those three.
    """
    if dtype is DType.FLOAT16:
        with np.errstate(invalid="ignore"):
            return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    if dtype is DType.BFLOAT16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype is DType.FLOAT32:
        return bits.astype(np.uint32).view(np.float32)
    raise InvalidInputError(f"dtype must be float16, bfloat16 or float32 (got {dtype.value})")


def from_float32(values: npt.ArrayLike, dtype: DType) -> Bits:
    """Bit patterns of float32 ``values`` rounded to ``dtype`` (nearest, ties to even), any shape.

    Raises:
        InvalidInputError: ``dtype`` is not float16, bfloat16 or float32.
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
    else:
        raise InvalidInputError(f"dtype must be float16, bfloat16 or float32 (got {dtype.value})")
    return np.where(np.isnan(x), np.asarray(_CANONICAL_NAN[dtype], dtype=bits_dtype(dtype)), out)


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
