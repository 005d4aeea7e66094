# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Three samples of a product whose every rounding goes up or down by a coin: the twin of the compiled CPU draws.

A step's products are summed once for all samples, without error, as an unevaluated sum of two float64 (three where the
operands' exponents can lie far apart); each sample adds its accumulator and rounds once.  All operations are IEEE
float64 ones whose results do not depend on contraction, since a product of two operands is exact.
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
def _keys(base, m, n):
    """One word per element from a sample's word, rows and columns (``gemmdesc.numerics.stochastic.sites``)."""
    rows = _finalise(m.to(tl.uint64) * 0x9E3779B97F4A7C15 + base.to(tl.uint64))
    return _finalise((n.to(tl.uint64) * 0xD1342543DE82EF95)[None, :] + rows[:, None])


@triton.jit
def _up(keys, site):
    """Bits 0 or 1: up at ``site`` (int64)."""
    at = site.to(tl.uint64)
    word = _finalise(keys + ((at >> 6) + 1) * 0xD1342543DE82EF95)
    return (word >> (at & 63)) & 1


@triton.jit
def _two_sum(x, y):
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
    size = tl.abs(tl.where(up != 0, upper, lower) * _power_of_two(exponent))
    over = size >= 2.0**128
    size = tl.where(over, float("inf"), size)
    result = tl.where(usable, tl.where(v < 0.0, -size, size), value)
    return result, usable & ((lower != upper) | over)


@triton.jit
def _stepped(acc, high, low, least, up, FRACTION: tl.constexpr):
    """One sample's accumulator after a step; whether that lost something, and whether the sum was not held exactly."""
    total, rest = _two_sum(high, acc)
    second, rest = _two_sum(low, rest)
    third, dropped = _two_sum(least, rest)
    first, low_rest = _two_sum(second, third)
    value, high_rest = _two_sum(total, first)
    tail, last = _two_sum(low_rest, high_rest)
    value, rest = _two_sum(value, tail)
    rest = tl.where(rest != 0.0, rest, last)
    result, between = _neighbour(value, rest, up, FRACTION)
    finite = tl.abs(total) < float("inf")
    # A step's zero is +0.0, whatever its sign was.
    result = tl.where(result == 0.0, 0.0, result)
    return tl.where(finite, result, total), finite & between, finite & (dropped != 0.0)


@triton.jit
def _folded(running, acc, up, FIRST):
    """The running sum of a fold after ``acc`` joined it, which it is where that is the first."""
    value, rest = _two_sum(running, acc)
    result, between = _neighbour(value, rest, up, 23)
    return tl.where(FIRST, acc, result), between & (FIRST == 0)


@triton.jit(do_not_specialize=["M", "N", "steps", "stride_a", "stride_b", "stride_s"])
def drawn_chain_kernel(
    a_ptr, b_ptr, rows_ptr, cols_ptr, bases_ptr, ends_ptr, folds_ptr, out_ptr, flags_ptr,
    M: tl.int32, N: tl.int32, steps: tl.int32, stride_a: tl.int64, stride_b: tl.int64, stride_s: tl.int64,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, FRACTION: tl.constexpr, WIDE: tl.constexpr,
    OPPOSITE: tl.constexpr,
):  # fmt: skip
    """A tile of three samples; ``a`` (M, k) and ``b`` (k, N) are float32, rows contiguous.

    ``ends``: where each step ends (int32).  ``folds``: for each step -1, or what closes there: -2 the first part of a
    fold, else the site of the addition.  ``bases``: a word for each sample (int64); with ``OPPOSITE`` the third takes
    the opposite of the second's directions.  ``out``: three planes of (M, N) float32.  ``flags``: (M, N) int8, 1 where
    a rounding lost something, 2 where a sum was not held exactly.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_inside, n_inside = m < M, n < N
    row, col = tl.load(rows_ptr + m, mask=m_inside, other=0), tl.load(cols_ptr + n, mask=n_inside, other=0)
    keys0 = _keys(tl.load(bases_ptr), row, col)
    keys1 = _keys(tl.load(bases_ptr + 1), row, col)
    keys2 = _keys(tl.load(bases_ptr + 2), row, col)
    acc0 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float64)
    acc1, acc2, sum0, sum1, sum2 = acc0, acc0, acc0, acc0, acc0
    lost = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int1)
    unsure = lost
    begin = tl.load(ends_ptr) * 0
    for s in range(steps):
        end = tl.load(ends_ptr + s)
        high = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float64)
        low, least = high, high
        for kk in range(STEP):
            k = (begin + kk).to(tl.int64)
            x_inside, y_inside = m_inside & (k + 0 * m < end), n_inside & (k + 0 * n < end)
            x = tl.load(a_ptr + m.to(tl.int64) * stride_a + k, mask=x_inside, other=0.0).to(tl.float64)
            y = tl.load(b_ptr + k * stride_b + n, mask=y_inside, other=0.0).to(tl.float64)
            high, rest = _two_sum(high, x[:, None] * y[None, :])
            if WIDE:
                low, rest = _two_sum(low, rest)
                least, rest = _two_sum(least, rest)
                unsure = unsure | ((rest != 0.0) & (tl.abs(high) < float("inf")))
            else:
                low += rest
        site = begin.to(tl.int64) * 0 + s
        up1 = _up(keys1, site)
        up2 = 1 - up1 if OPPOSITE else _up(keys2, site)
        acc0, gone0, open0 = _stepped(acc0, high, low, least, _up(keys0, site), FRACTION)
        acc1, gone1, open1 = _stepped(acc1, high, low, least, up1, FRACTION)
        acc2, gone2, open2 = _stepped(acc2, high, low, least, up2, FRACTION)
        lost = lost | gone0 | gone1 | gone2
        unsure = unsure | open0 | open1 | open2
        fold = tl.load(folds_ptr + s)
        if fold != -1:
            first = fold == -2
            at = tl.maximum(fold, 0).to(tl.int64)
            up1 = _up(keys1, at)
            up2 = 1 - up1 if OPPOSITE else _up(keys2, at)
            sum0, gone0 = _folded(sum0, acc0, _up(keys0, at), first)
            sum1, gone1 = _folded(sum1, acc1, up1, first)
            sum2, gone2 = _folded(sum2, acc2, up2, first)
            lost = lost | gone0 | gone1 | gone2
            acc0 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float64)
            acc1, acc2 = acc0, acc0
        begin = end
    place = m.to(tl.int64)[:, None] * N + n[None, :]
    inside = m_inside[:, None] & n_inside[None, :]
    tl.store(out_ptr + place, sum0.to(tl.float32), mask=inside)
    tl.store(out_ptr + stride_s + place, sum1.to(tl.float32), mask=inside)
    tl.store(out_ptr + 2 * stride_s + place, sum2.to(tl.float32), mask=inside)
    tl.store(flags_ptr + place, lost.to(tl.int8) + 2 * unsure.to(tl.int8), mask=inside)
