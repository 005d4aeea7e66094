# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Three samples of a product whose every rounding goes up or down by a coin: the twin of the compiled CPU draws.

A step's products are summed once for all samples, without error.  Where their exponents lie so close that one float64
holds every partial sum, float64 matrix instructions sum them, in whatever order; elsewhere the sum is an unevaluated
one of two float64 (three where the operands' exponents can lie far apart).  Each sample adds its accumulator and
rounds once.

Nothing lost so far, all samples are equal, and opposite directions of one sum differ just where it is not kept: whether
anything was lost is told by two samples with opposite directions, or by one and what it would be with the opposite.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.drawn_steps import directions, element_keys, folded, laid_out_as, stepped, tight_stepped, two_sum


@triton.jit
def _lowest(x):
    """The exponent of the lowest bit set of float32 numbers, int32; 2048 of a zero, -4096 of what is not finite."""
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    field = magnitude >> 23
    significand = (magnitude & 0x7FFFFF) | tl.where(field > 0, 0x800000, 0)
    lowest = ((significand & -significand).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.where(field == 255, -4096, tl.maximum(field, 1) - 150 + lowest)
    return tl.where(magnitude == 0, 2048, exponent)


# A stride of 1 (one of a type that is named is not) and a count divisible by 16 are known, so that what lies side by
# side is loaded at once.
@triton.jit(do_not_specialize=["steps"])
def drawn_extents_kernel(
    x_ptr, ends_ptr, out_ptr, COUNT: tl.int32, steps: tl.int32, stride_row, stride_k,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """For each ``BLOCK`` of rows of x, ``BLOCKS`` a program, and one step, int32 (blocks, steps): l * 65536 + q + 1024.

    l: the least exponent of a bit set; the squares of any row add up to less than 2^q.  By Cauchy and Schwarz every
    partial sum of a product of two rows then is below 2^((q + q')/2), and a multiple of 2^(l + l').
    """
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    row = tl.program_id(1) * (BLOCKS * BLOCK) + tl.arange(0, BLOCKS * BLOCK)
    s = tl.program_id(0)
    begin, end = tl.load(ends_ptr + tl.maximum(s - 1, 0)), tl.load(ends_ptr + s)
    begin = tl.where(s == 0, 0, begin)
    place = row.to(tl.int64) * stride_row + begin.to(tl.int64) * stride_k
    squares = tl.zeros((BLOCKS * BLOCK,), dtype=tl.float64)
    lowest = tl.full((BLOCKS * BLOCK,), 2048, dtype=tl.int32)
    for k in tl.static_range(INNER):
        x = tl.load(x_ptr + place, mask=(row < COUNT) & (0 * row + begin + k < end), other=0.0).to(tl.float32)
        place += stride_k
        wide = x.to(tl.float64)
        squares += wide * wide
        lowest = tl.minimum(lowest, _lowest(x))
    # A little more than the squares' sum, which was rounded.
    squares = tl.max(tl.reshape(squares, (BLOCKS, BLOCK)), 1) * (1.0 + 2.0**-40)
    above = ((squares.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - 1022
    word = tl.min(tl.reshape(lowest, (BLOCKS, BLOCK)), 1) * 65536 + above + 1024
    tl.store(out_ptr + block.to(tl.int64) * steps + s, word, mask=block * BLOCK < COUNT)


@triton.jit
def _operands(left, right, m_inside, n_inside, count, INNER: tl.constexpr, EVEN: tl.constexpr):
    """The next ``count`` of a row's and a column's numbers, then zeros: (rows, ``INNER``), (``INNER``, columns)."""
    if EVEN:
        x = tl.load(left, mask=m_inside[:, None], other=0.0)
        y = tl.load(right, mask=n_inside[None, :], other=0.0)
    else:
        k = tl.arange(0, INNER)
        x = tl.load(left, mask=m_inside[:, None] & (k < count)[None, :], other=0.0)
        y = tl.load(right, mask=(k < count)[:, None] & n_inside[None, :], other=0.0)
    return x, y


@triton.jit
def _reach(acc0, acc1, acc2):
    """The largest magnitude of the accumulators as one float32, infinity if any is not finite."""
    size = tl.maximum(tl.maximum(tl.abs(acc0), tl.abs(acc1)), tl.abs(acc2))
    infinite = (acc0 - acc0) + (acc1 - acc1) + (acc2 - acc2) != 0.0
    return tl.max(tl.max(tl.where(infinite, float("inf"), size), 1), 0)


@triton.jit
def _apart(one, other):
    """Whether two numbers differ; not, of a NaN."""
    return (one < other) | (one > other)


@triton.jit
def _spread_sums(
    a_ptr, b_ptr, m, n, M, N, begin, end, stride_a, stride_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A step's products as three float64, and where those do not hold their sum."""
    high = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float64)
    low, least = high, high
    unsure = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int1)
    for kk in range(STEP):
        k = tl.zeros((), dtype=tl.int64) + begin + kk
        x_inside, y_inside = (m < M) & (k + 0 * m < end), (n < N) & (k + 0 * n < end)
        x = tl.load(a_ptr + m.to(tl.int64) * stride_a + k, mask=x_inside, other=0.0).to(tl.float32).to(tl.float64)
        y = tl.load(b_ptr + k * stride_b + n, mask=y_inside, other=0.0).to(tl.float32).to(tl.float64)
        high, rest = two_sum(high, x[:, None] * y[None, :])
        if WIDE:
            low, rest = two_sum(low, rest)
            least, rest = two_sum(least, rest)
            unsure = unsure | ((rest != 0.0) & (tl.abs(high) < float("inf")))
        else:
            low += rest
    return high, low, least, unsure


# Strides and sizes divisible by 16 are known to be, so that operands are loaded several at a time.
@triton.jit(do_not_specialize=["base0", "base1", "base2", "steps", "stride_s"])
def drawn_chain_kernel(
    a_ptr, b_ptr, rows_ptr, cols_ptr, ends_ptr, folds_ptr, a_extents_ptr, b_extents_ptr, out_ptr, flags_ptr,
    base0: tl.int64, base1: tl.int64, base2: tl.int64,
    M: tl.int32, N: tl.int32, steps: tl.int32, stride_a: tl.int64, stride_b: tl.int64, stride_s: tl.int64,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, INNER: tl.constexpr, FRACTION: tl.constexpr,
    WIDE: tl.constexpr, FOLDED: tl.constexpr, OPPOSITE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """A tile of three samples; ``a`` (M, k) and ``b`` (k, N) are of a type that float32 holds, rows contiguous.

    ``ends``: where each step ends (int32), with ``EVEN`` the multiples of ``INNER``.  ``folds``: for each step -1, or
    what closes there: -2 the first part of a fold, else the site of the addition; not read unless ``FOLDED``.
    ``base0`` to ``base2``: a word for each sample; with ``OPPOSITE`` the third takes the opposite of the second's
    directions.  ``extents``: of the operands' blocks, from :func:`drawn_extents_kernel`.  ``INNER``: a power of two not
    below ``STEP``, the products of a step.  ``out``: three planes of (M, N) float32.
    ``flags``: (M, N) int8, 1 where a rounding lost something, 3 where a sum was not held exactly.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_inside, n_inside = m < M, n < N
    row, col = tl.load(rows_ptr + m, mask=m_inside, other=0), tl.load(cols_ptr + n, mask=n_inside, other=0)
    a_extents_ptr += tl.program_id(0).to(tl.int64) * steps
    b_extents_ptr += tl.program_id(1).to(tl.int64) * steps
    acc0 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    acc1, acc2 = acc0, acc0
    sum0, sum1, sum2 = acc0, acc0, acc0
    # Not 0 where anything was lost, and a NaN, which stays one, where a sum was not held.
    lost = acc0
    word0 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    word1, word2 = word0, word0
    # What the next step needs is loaded a step ahead.
    end = INNER if EVEN else tl.load(ends_ptr)
    begin = tl.zeros((), dtype=tl.int32)
    next_end = tl.load(ends_ptr + tl.minimum(1, steps - 1))
    reach = tl.zeros((), dtype=tl.float32)
    a_extent, b_extent = tl.load(a_extents_ptr), tl.load(b_extents_ptr)
    inner = tl.arange(0, INNER).to(tl.int64)
    left = a_ptr + m.to(tl.int64)[:, None] * stride_a + inner[None, :]
    right = b_ptr + inner[:, None] * stride_b + n[None, :]
    x, y = _operands(left, right, m_inside, n_inside, end, INNER, EVEN)
    for s in range(steps):
        wide_x, wide_y = x.to(tl.float32).to(tl.float64), y.to(tl.float32).to(tl.float64)
        products = tl.dot(wide_x, wide_y, out_dtype=tl.float64)
        if EVEN:
            begin, end, next_end = s * INNER, (s + 1) * INNER, (s + 2) * INNER
            ahead = tl.where(s + 1 < steps, INNER, 0)
        else:
            ahead = end - begin
        left += ahead
        right += ahead.to(tl.int64) * stride_b
        x, y = _operands(left, right, m_inside, n_inside, next_end - end, INNER, EVEN)
        # Without folds none is asked for below.
        fold = tl.load(folds_ptr + s) if FOLDED else -1
        after_end = next_end if EVEN else tl.load(ends_ptr + tl.minimum(s + 2, steps - 1))
        above = (a_extent & 0xFFFF) + (b_extent & 0xFFFF) - 2048
        lowest = (a_extent >> 16) + (b_extent >> 16)
        # Any partial sum of products is a float64, and no accumulator comes near float32's largest number.
        tight = above - 2 * lowest <= 2 * 53
        exponent = tl.minimum(tl.maximum((above + 1) >> 1, -126), 127)
        grown = (reach + ((exponent + 127) << 23).to(tl.float32, bitcast=True)) * 1.001
        tight = tight & (grown < 2.0**126)
        a_extent = tl.load(a_extents_ptr + tl.minimum(s + 1, steps - 1))
        b_extent = tl.load(b_extents_ptr + tl.minimum(s + 1, steps - 1))
        site = tl.zeros((), dtype=tl.int64) + s
        if s % 32 == 0:
            word0 = laid_out_as(directions(element_keys(base0, row, col), site), products)
            word1 = laid_out_as(directions(element_keys(base1, row, col), site), products)
            if not OPPOSITE:
                word2 = laid_out_as(directions(element_keys(base2, row, col), site), products)
        # A direction is the sign.
        toward0, toward1 = word0 << (31 - s % 32), word1 << (31 - s % 32)
        toward2 = ~toward1 if OPPOSITE else word2 << (31 - s % 32)
        if tight:
            one = acc0 if OPPOSITE else tight_stepped(acc0, products, ~toward0, FRACTION)
            acc0 = tight_stepped(acc0, products, toward0, FRACTION)
            acc1 = tight_stepped(acc1, products, toward1, FRACTION)
            acc2 = tight_stepped(acc2, products, toward2, FRACTION)
            lost += tl.abs(acc2 - acc1) if OPPOSITE else tl.abs(acc0 - one)
            reach = grown
        else:
            high, low, least, kept = _spread_sums(
                a_ptr, b_ptr, m, n, M, N, begin, end, stride_a, stride_b, BLOCK_M, BLOCK_N, STEP, WIDE
            )
            one = acc0
            if not OPPOSITE:
                one, _, _ = stepped(acc0, high, low, least, ~toward0, FRACTION)
            # One at a time, so that this does not ask for more registers than the short way.
            for _ in range(3):
                result, beyond, open = stepped(acc0, high, low, least, toward0, FRACTION)
                acc0, acc1, acc2 = acc1, acc2, result
                toward0, toward1, toward2 = toward1, toward2, toward0
                kept = kept | open
                lost = tl.where(beyond, lost + 1.0, lost)
            apart = _apart(acc1, acc2) if OPPOSITE else _apart(acc0, one)
            lost = tl.where(kept, float("nan"), tl.where(apart, lost + 1.0, lost))
            reach = _reach(acc0, acc1, acc2)
        if fold != -1:
            first = fold == -2
            at = tl.maximum(fold, 0).to(tl.int64)
            # Bit 0 becomes the sign.
            toward0 = directions(element_keys(base0, row, col), at) << 31
            toward1 = directions(element_keys(base1, row, col), at) << 31
            toward2 = ~toward1 if OPPOSITE else directions(element_keys(base2, row, col), at) << 31
            one = acc0
            if not OPPOSITE:
                one, _ = folded(sum0, acc0 + 0.0, ~toward0, first)
            sum0, beyond0 = folded(sum0, acc0 + 0.0, toward0, first)
            sum1, beyond1 = folded(sum1, acc1 + 0.0, toward1, first)
            sum2, beyond2 = folded(sum2, acc2 + 0.0, toward2, first)
            apart = _apart(sum1, sum2) if OPPOSITE else _apart(sum0, one)
            lost = tl.where(apart | beyond0 | beyond1 | beyond2, lost + 1.0, lost)
            reach = tl.zeros((), dtype=tl.float32)
            acc0 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            acc1, acc2 = acc0, acc0
        begin, end, next_end = end, next_end, after_end
    place = m.to(tl.int64)[:, None] * N + n[None, :]
    inside = m_inside[:, None] & n_inside[None, :]
    if not FOLDED:
        # A step's zero is +0.0.
        sum0, sum1, sum2 = acc0 + 0.0, acc1 + 0.0, acc2 + 0.0
    tl.store(out_ptr + place, sum0, mask=inside)
    tl.store(out_ptr + stride_s + place, sum1, mask=inside)
    tl.store(out_ptr + 2 * stride_s + place, sum2, mask=inside)
    tl.store(flags_ptr + place, (lost != 0.0).to(tl.int8) + 2 * (lost != lost).to(tl.int8), mask=inside)
