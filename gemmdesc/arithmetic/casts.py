"""Operands as a matrix instruction takes them: float32 patterns rounded to tfloat32, which travels in 32 bits too."""

from __future__ import annotations

import numpy as np

from gemmdesc.bits import Bits
from gemmdesc.descriptor import OperandCast, Rounding

#: Magnitudes from here on are infinity and NaN.
_INFINITY = 0x7F800000


def cast_operand(bits: Bits, cast: OperandCast) -> Bits:
    """Float32 patterns of any shape, each rounded to the nearest or next smaller value of ``cast.dtype``.

    The pattern stays 32 bits wide; the fraction bits that the type lacks come out as 0.  A finite value beyond the
    type's largest becomes infinity where it rounds to nearest.  Toward zero, a NaN whose payload lies in the bits that
    are dropped becomes infinity, as in an instruction that ignores them; to nearest, every NaN stays one.
    """
    spare = 23 - cast.dtype.format.fraction_bits
    pattern = bits.astype(np.uint32)
    match cast.rounding:
        case Rounding.TOWARD_ZERO:
            rounded = pattern
        case Rounding.NEAREST_AWAY:
            rounded = pattern + np.uint32(1 << (spare - 1))
        case Rounding.NEAREST_EVEN:
            odd = (pattern >> np.uint32(spare)) & np.uint32(1)
            rounded = pattern + np.uint32((1 << (spare - 1)) - 1) + odd
    if cast.rounding is not Rounding.TOWARD_ZERO:
        magnitude = pattern & np.uint32(0x7FFFFFFF)
        rounded = np.where(magnitude < _INFINITY, rounded, np.where(magnitude > _INFINITY, 0x7FFFFFFF, pattern))
    kept: Bits = rounded.astype(np.uint32) & np.uint32(-1 << spare & 0xFFFFFFFF)
    return kept
