# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""The fold of a cut: partial sums of the slices, added in ascending order with a rounding after each addition."""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.tile import RUN_TIME


@triton.jit
def round_to(value, DTYPE: tl.constexpr):
    """A float32 value rounded to DTYPE, nearest even, and held in float32 again."""
    return value.to(DTYPE).to(tl.float32)


@triton.jit
def canonical(value, HELD_DTYPE: tl.constexpr):
    """``value`` with every NaN as 0x7fffffff, which widening a narrow NaN need not give; HELD_DTYPE rounded it last."""
    if HELD_DTYPE == tl.float32:  # noqa: SIM300  a constexpr argument is no constant
        return value
    else:
        nan = tl.full(value.shape, 0x7FFFFFFF, dtype=tl.int32).to(tl.float32, bitcast=True)
        return tl.where(value != value, nan, value)


@triton.jit(do_not_specialize=RUN_TIME)
def merge_kernel(
    partial_ptr, out_ptr, size: tl.int64, N: tl.int32, slices: tl.int32, start: tl.float32,
    stride_om: tl.int64, stride_on: tl.int64,
    PARTIAL_DTYPE: tl.constexpr, MERGE_DTYPE: tl.constexpr, WIDE_OFFSETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``partial_ptr`` is float32 [slices, size], rows of N output columns one after another.

    ``start`` is +0.0, or -0.0 where the fold starts from its first partial, which it leaves as it is.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    if not WIDE_OFFSETS:
        index = index.to(tl.int32)
    total = tl.full((BLOCK,), start, dtype=tl.float32)
    for part in tl.range(slices, num_stages=4):
        partial = tl.load(partial_ptr + part * size + index, mask=inside)
        total = round_to(total + round_to(partial, PARTIAL_DTYPE), MERGE_DTYPE)
    total = canonical(total, MERGE_DTYPE)
    out_ptrs = out_ptr + (index // N) * stride_om + (index % N) * stride_on
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside)
