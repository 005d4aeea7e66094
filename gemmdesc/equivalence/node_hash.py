"""The hash behind the names of expressions: MurmurHash3 (x64, 128 bits), block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

U64 = np.uint64


@njit(inline="always")
def _rotate(x: Any, n: Any) -> Any:
    return (x << U64(n)) | (x >> U64(64 - n))


@njit(inline="always")
def _finish(x: Any) -> Any:
    x ^= x >> U64(33)
    x *= U64(0xFF51AFD7ED558CCD)
    x ^= x >> U64(33)
    x *= U64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> U64(33))


@njit(inline="always")
def mix(high: Any, low: Any, a: Any, b: Any) -> Any:
    """One block of MurmurHash3 (x64, 128 bits)."""
    c1, c2 = U64(0x87C37B91114253D5), U64(0x4CF5AD432745937F)
    high ^= _rotate(a * c1, 31) * c2
    high = (_rotate(high, 27) + low) * U64(5) + U64(0x52DCE729)
    low ^= _rotate(b * c2, 33) * c1
    low = (_rotate(low, 31) + high) * U64(5) + U64(0x38495AB5)
    return high, low


@njit(inline="always")
def close(high: Any, low: Any) -> Any:
    high += low
    low += high
    high, low = _finish(high), _finish(low)
    high += low
    low += high
    return high, low
