# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""What a drawn chain is made of: directions from a hash, error-free sums, and roundings to a neighbour.

All operations are IEEE float64 ones whose results do not depend on contraction, since a product of two operands is
exact, or integer ones.
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
def _power_of_two(exponent):
    return ((exponent + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _neighbour(value, rest, up, FRACTION: tl.constexpr):
    """The neighbour, ``FRACTION`` bits in float32's range, of (``value``, sign of ``rest``), and whether it differs."""
    usable = (tl.abs(value) < float("inf")) & (value != 0.0)
    v = tl.where(usable, value, 1.0)
    exponent = ((v.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1023
    exponent = tl.maximum(exponent, -126) - FRACTION
    units = v * _power_of_two(-exponent)
    low = tl.floor(units)
    on_grid = low == units
    # Under a power of two the next value toward zero is half a unit away.
    finer = (tl.abs(units) == 2.0**FRACTION) & (exponent + FRACTION > -126)
    inward = tl.where(finer, 0.5, 1.0).to(tl.float64)
    lower = tl.where(on_grid & (rest < 0.0), units - tl.where(units > 0.0, inward, 1.0), low)
    above = tl.where(on_grid, units, low + 1.0)
    upper = tl.where(on_grid & (rest > 0.0), units + tl.where(units < 0.0, inward, 1.0), above)
    size = tl.abs(tl.where(up, upper, lower) * _power_of_two(exponent))
    over = size >= 2.0**128
    size = tl.where(over, float("inf"), size)
    result = tl.where(usable, tl.where(v < 0.0, -size, size), value)
    return result, usable & ((lower != upper) | over)


@triton.jit
def stepped(acc, high, low, least, up, FRACTION: tl.constexpr):
    """One sample's accumulator after a step whose products are three float64; whether that lost something, and
    whether the sum was not held exactly.
    """
    total, rest = two_sum(high, acc)
    second, rest = two_sum(low, rest)
    third, dropped = two_sum(least, rest)
    first, low_rest = two_sum(second, third)
    value, high_rest = two_sum(total, first)
    tail, last = two_sum(low_rest, high_rest)
    value, rest = two_sum(value, tail)
    rest = tl.where(rest != 0.0, rest, last)
    result, between = _neighbour(value, rest, up, FRACTION)
    finite = tl.abs(total) < float("inf")
    # A step's zero is +0.0, whatever its sign was.
    result = tl.where(result == 0.0, 0.0, result)
    return tl.where(finite, result, total), finite & between, finite & (dropped != 0.0)


@triton.jit
def folded(running, acc, up, FIRST):
    """The running float32 sum of a fold after ``acc`` joined it, which it is where that is the first."""
    value, rest = two_sum(running.to(tl.float64), acc)
    result, between = _neighbour(value, rest, up, 23)
    return tl.where(FIRST, acc, result).to(tl.float32), between & (FIRST == 0)


@triton.jit
def tight_stepped(acc, products, direction, FRACTION: tl.constexpr):
    """:func:`stepped` where one float64 holds the products' sum and nothing leaves float32's finite numbers.

    ``direction``: int32, negative where up.  Sum and accumulator are multiples of float32's least grid of ``FRACTION``
    bits, so that below its normal range nothing is left to round.  Also int32, not 0 where that lost something.

    Rounds in the float64's bits: what lies under the grid is cut, and before that all ones are added there to go away
    from zero.  What the float64 itself left out moves them by one: back where it is toward zero and the cut would miss
    it, on where it is away from zero.
    """
    BELOW: tl.constexpr = (1 << (52 - FRACTION)) - 1
    total, rest = two_sum(products, acc)
    bits, rest_bits = total.to(tl.int64, bitcast=True), rest.to(tl.int64, bitcast=True)
    sign = (bits >> 32).to(tl.int32)
    # All ones where true.
    outward = (direction ^ sign) >> 31
    inward_rest = ((rest_bits >> 32).to(tl.int32) ^ sign) >> 31
    by_rest = tl.where(rest != 0.0, inward_rest - outward, 0)
    result = (bits + (outward.to(tl.int64) & BELOW) + by_rest.to(tl.int64)) & ~BELOW
    lost = (bits & BELOW) | rest_bits
    return result.to(tl.float64, bitcast=True), (lost | (lost >> 32)).to(tl.int32)
