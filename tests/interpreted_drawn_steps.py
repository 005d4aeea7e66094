"""Run by test_kernels_drawn.py with TRITON_INTERPRET=1: the steps against exact sums, and operands' extents."""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from gemmdesc.bits import to_float32
from gemmdesc.dtypes import DType
from gemmdesc.kernels.drawn_chain import drawn_extents_kernel
from gemmdesc.kernels.drawn_steps import stepped, tight_stepped
from tests.arithmetic_reference import draw_bits
from tests.interpreted_directed import patch_directed


@triton.jit
def both_kernel(acc_ptr, products_ptr, direction_ptr, out_ptr, flags_ptr, SIZE: tl.constexpr, FRACTION: tl.constexpr):  # type: ignore[no-untyped-def]
    """The short step, the long one, and the long one of a sum in three parts, float32; flags of the long ones."""
    i = tl.arange(0, SIZE)
    acc, products, direction = tl.load(acc_ptr + i), tl.load(products_ptr + i), tl.load(direction_ptr + i)
    # A zero of the short step has any sign.
    tl.store(out_ptr + i, tight_stepped(acc, products, direction, FRACTION) + 0.0)
    none = products * 0.0
    long, beyond, open = stepped(acc, products, none, none, direction, FRACTION)
    tl.store(out_ptr + SIZE + i, long)
    high = products.to(tl.float32).to(tl.float64)
    low = (products - high).to(tl.float32).to(tl.float64)
    least = products - high - low
    parts, parts_beyond, parts_open = stepped(acc, high, low, least, direction, FRACTION)
    tl.store(out_ptr + 2 * SIZE + i, parts)
    tl.store(flags_ptr + i, (beyond | open | parts_beyond | parts_open).to(tl.int8))


def _values(rng: Any, size: int, fraction: int) -> tuple[Any, Any]:
    """Accumulators of ``fraction`` bits and float64 sums beside them: of any distance, ties of signs, powers of two."""
    least = -126 - fraction

    def scaled(integers: Any, exponents: Any) -> Any:
        signs = rng.choice([-1.0, 1.0], size)
        return signs * np.ldexp(integers.astype(np.float64), np.maximum(exponents, least).astype(np.int32))

    exponents = np.where(rng.random(size) < 0.2, least, rng.integers(least, 40, size))
    significands = np.where(rng.random(size) < 0.3, 1 << fraction, rng.integers(0, 2 << fraction, size))
    acc = scaled(significands, exponents)
    bits = rng.integers(1, 54, size)
    integers = rng.integers(0, 1 << bits, size)
    integers = np.where(rng.random(size) < 0.3, 1, integers)
    below = np.where(rng.random(size) < 0.1, rng.integers(-100, 0, size), 0)
    products = scaled(integers, np.maximum(exponents + rng.integers(-70, 20, size), least)) * 2.0**below
    # Sums that cancel, wholly or to their last bits.
    products = np.where(rng.random(size) < 0.1, -acc, products)
    near = np.nextafter(-acc, 0.0)
    products = np.where((rng.random(size) < 0.1) & (np.abs(acc) > 2.0**-60), near, products)
    return (acc + 0.0).astype(np.float32), products + 0.0


def _neighbour(z: Fraction, up: bool, fraction: int) -> float:
    """What ``z`` is rounded to, down or up, with ``fraction`` bits in float32's exponents; a zero is +0.0."""
    if not z:
        return 0.0
    exponent = max(math.frexp(abs(float(z)))[1] - 1, -126)
    exponent += abs(z) >= Fraction(2) ** (exponent + 1)
    exponent -= exponent > -126 and abs(z) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - fraction)
    return float((math.ceil(z / unit) if up else math.floor(z / unit)) * unit) + 0.0


def compare_steps(size: int = 1 << 14) -> dict[str, int]:
    """How many of the three results differ from exact ones, are told to overflow or not to be held; and what was met;
    over both numbers of fraction bits.
    """
    rng = np.random.default_rng(5)
    found = {"steps": 0, "different": 0, "flagged": 0, "lost": 0, "beyond_float64": 0, "zeros": 0, "subnormal": 0}
    for fraction in (23, 13):
        acc, products = _values(rng, size, fraction)
        direction = rng.integers(-(1 << 31), 1 << 31, size).astype(np.int32)
        out, flags = torch.empty((3, size), dtype=torch.float32), torch.empty(size, dtype=torch.int8)
        both_kernel[(1,)](
            torch.from_numpy(acc), torch.from_numpy(products), torch.from_numpy(direction), out, flags, SIZE=size,
            FRACTION=fraction,
        )  # fmt: skip
        sums = [Fraction(float(x)) + Fraction(float(y)) for x, y in zip(acc, products, strict=True)]
        exact = [_neighbour(z, d < 0, fraction) for z, d in zip(sums, direction.tolist(), strict=True)]
        expected = torch.from_numpy(np.array(exact, dtype=np.float32).view(np.int32))
        found["steps"] += size
        found["different"] += int((out.view(torch.int32) != expected).sum())
        found["flagged"] += int((flags != 0).sum())
        found["lost"] += sum(Fraction(x) != z for x, z in zip(exact, sums, strict=True))
        totals = acc.astype(np.float64) + products
        found["beyond_float64"] += sum(Fraction(float(t)) != z for t, z in zip(totals, sums, strict=True))
        found["zeros"] += int((out[1] == 0).sum())
        found["subnormal"] += int(((out[1] != 0) & (out[1].abs() < 2.0**-126)).sum())
    return found


def compare_extents() -> dict[str, int]:
    """How many of the extents of random operands are wrong, against exact fractions."""
    rng = np.random.default_rng(6)
    ends = np.array([3, 16, 19, 19], dtype=np.int32)
    found = {"extents": 0, "wrong": 0, "infinite": 0, "zero": 0}
    for dtype, kind in [(DType.FLOAT16, "any"), (DType.BFLOAT16, "any"), (DType.BFLOAT16, "tiny"),
                        (DType.FLOAT8_E5M2, "any"), (DType.FLOAT16, "zeros"), (DType.FLOAT16, "narrow")]:  # fmt: skip
        x = np.ascontiguousarray(to_float32(draw_bits(rng, kind, (40, 19), dtype), dtype))
        x[:16, :3] = 0.0
        out = torch.empty((3, len(ends)), dtype=torch.int32)
        drawn_extents_kernel[(len(ends), 2)](
            torch.from_numpy(x), torch.from_numpy(ends), out, 40, len(ends), 19, 1, BLOCK=16, BLOCKS=2, INNER=16
        )
        for block in range(3):
            for s, (begin, end) in enumerate(zip((0, 3, 16, 19), ends.tolist(), strict=True)):
                part = x[16 * block : 16 * block + 16, begin:end]
                word = int(out[block, s])
                low, above = word >> 16, (word & 0xFFFF) - 1024
                found["extents"] += 1
                if not np.isfinite(part).all():
                    found["infinite"] += 1
                    found["wrong"] += low > -2048
                elif not part.any():
                    found["zero"] += 1
                    found["wrong"] += low < 1024
                else:
                    found["wrong"] += not _right(part, low, above)
    return found


def _right(part: Any, low: int, above: int) -> bool:
    """All are multiples of 2^low and not all of twice that; rows' squares stay below 2^above, not all of half that."""
    numbers = [Fraction(float(v)) / Fraction(2) ** low for v in part.ravel()]
    squares = max(sum(Fraction(float(v)) ** 2 for v in row) for row in part)
    bounded = squares < Fraction(2) ** above and squares * (1 + Fraction(1, 1 << 39)) >= Fraction(2) ** (above - 1)
    return bounded and all(v.denominator == 1 for v in numbers) and any(v.numerator % 2 for v in numbers)


def main() -> None:
    patch_directed()
    sys.stdout.write(json.dumps({"steps": compare_steps(), "extents": compare_extents()}) + "\n")


if __name__ == "__main__":
    main()
