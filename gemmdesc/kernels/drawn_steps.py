# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""What a drawn chain is made of: directions from a hash, error-free sums, and roundings to a neighbour.

All operations are IEEE ones whose results do not depend on contraction, since a product of two operands is exact, or
integer ones.  Rounding down twice, first to float64 and then to float32, is rounding down once, so that an addition and
a conversion that both round down give the neighbour below; the one above is what they give of the negated numbers,
negated.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finalise(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def element_keys(base, m, n):
    """One word per element from a sample's word, rows and columns (``gemmdesc.numerics.stochastic.sites``)."""
    rows = _finalise(m.to(tl.uint64) * 0x9E3779B97F4A7C15 + base.to(tl.uint64))
    return _finalise((n.to(tl.uint64) * 0xD1342543DE82EF95)[None, :] + rows[:, None])


@triton.jit
def directions(keys, site):
    """The directions of ``site`` (int64) and those after it in its half of a 64-bit word, bit 0 first, as int32."""
    at = site.to(tl.uint64)
    word = _finalise(keys + ((at >> 6) + 1) * 0xD1342543DE82EF95)
    return (word >> (at & 63)).to(tl.int32)


@triton.jit
def laid_out_as(words, products):
    """``words``, kept by each thread for the elements of which it has ``products``: else they are moved every step."""
    return tl.where((products == products) | (products != products), words, 0)


@triton.jit
def two_sum(x, y):
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@triton.jit
def add_down(x, y):
    """x + y in float64, rounded toward minus infinity."""
    return tl.inline_asm_elementwise(
        "add.rm.f64 $0, $1, $2;", "=d,d,d", [x, y], dtype=tl.float64, is_pure=True, pack=1
    )


@triton.jit
def narrow_down(x):
    """float64 to float32, rounded toward minus infinity."""
    return tl.inline_asm_elementwise("cvt.rm.f32.f64 $0, $1;", "=f,d", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _turned(x, sign):
    """float32 ``x``, negated where ``sign`` is the sign bit and not 0."""
    return (x.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _turned_wide(x, sign):
    """:func:`_turned` of float64."""
    return (x.to(tl.int64, bitcast=True) ^ (sign.to(tl.int64) << 32)).to(tl.float64, bitcast=True)


@triton.jit
def _shortened(x, FRACTION: tl.constexpr):
    """float32 rounded toward minus infinity to ``FRACTION`` bits, below its normal range to their least grid."""
    BELOW: tl.constexpr = (1 << (23 - FRACTION)) - 1
    if FRACTION == 23:
        return x
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + ((bits >> 31) & BELOW)) & ~BELOW).to(tl.float32, bitcast=True)


@triton.jit
def _neighbour(value, rest, direction, FRACTION: tl.constexpr):
    """The neighbour, ``FRACTION`` bits in float32's range, of the sum of two float64, the second under half a unit of
    the first's last place; and whether the sum is beyond that range, whatever the direction.
    """
    sign = direction & -0x80000000
    low = add_down(_turned_wide(value, sign), _turned_wide(rest, sign))
    # Down from there ends at the largest number, but what is not below 2^128 overflows.
    result = tl.where(low >= 2.0**128, float("inf"), _shortened(narrow_down(low), FRACTION))
    result = tl.where(result == 0.0, 0.0, _turned(result, sign))
    return result, tl.abs(low) >= 2.0**128


@triton.jit
def stepped(acc, high, low, least, direction, FRACTION: tl.constexpr):
    """One sample's accumulator (float32) after a step whose products are three float64; whether it left float32's
    numbers in this step, and whether the sum was not held exactly.

    ``direction``: int32, negative where up.  A step's zero is +0.0, whatever its sign was.
    """
    total, rest = two_sum(high, acc.to(tl.float64))
    second, rest = two_sum(low, rest)
    third, dropped = two_sum(least, rest)
    first, low_rest = two_sum(second, third)
    value, high_rest = two_sum(total, first)
    tail, last = two_sum(low_rest, high_rest)
    value, rest = two_sum(value, tail)
    rest = tl.where(rest != 0.0, rest, last)
    result, beyond = _neighbour(value, rest, direction, FRACTION)
    finite = tl.abs(total) < float("inf")
    return tl.where(finite, result, total.to(tl.float32)), finite & beyond, finite & (dropped != 0.0)


@triton.jit
def folded(running, acc, direction, FIRST):
    """The running float32 sum of a fold after ``acc`` joined it, which it is where that is the first; and whether it
    left float32's numbers by that.
    """
    value, rest = two_sum(running.to(tl.float64), acc.to(tl.float64))
    result, beyond = _neighbour(value, rest, direction, 23)
    finite = tl.abs(value) < float("inf")
    result = tl.where(finite, result, value.to(tl.float32))
    return tl.where(FIRST, acc, result), finite & beyond & (FIRST == 0)


@triton.jit
def tight_stepped(acc, products, direction, FRACTION: tl.constexpr):
    """:func:`stepped` where one float64 holds the products' sum and nothing leaves float32's finite numbers.

    A zero has any sign, which no later step sees.
    """
    sign = direction & -0x80000000
    low = add_down(_turned_wide(products, sign), _turned(acc, sign).to(tl.float64))
    return _turned(_shortened(narrow_down(low), FRACTION), sign)
