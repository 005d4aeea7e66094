# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""A nest of cuts over CUDA-core chains: every leaf's chain at once, then the folds of one cut after another.

Which k a leaf sums, in which order, and which sums a fold adds come as tables, so that one compiled kernel computes
any nest; the sums between lie in scratch, float32 [leaves, outputs].
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.merge import canonical, round_to
from gemmdesc.kernels.tile import RUN_TIME


@triton.jit(do_not_specialize=RUN_TIME)
def scalar_leaves_kernel(
    a_ptr, b_ptr, sums_ptr, order_ptr, offsets_ptr,
    first: tl.int64, size: tl.int64, N: tl.int32, leaves: tl.int32, start: tl.float32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    FUSED: tl.constexpr, WIDE_OFFSETS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_LEAVES: tl.constexpr,
):  # fmt: skip
    """Chains from ``start`` in the table's order; outputs ``first`` .. ``first + size`` of the product, row by row.

    Leaf l sums the products at ``order[offsets[l]]`` .. ``order[offsets[l + 1] - 1]``.
    """
    blocks = tl.cdiv(size, BLOCK_OUTPUTS)
    index = tl.program_id(0).to(tl.int64)
    output = index % blocks * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    leaf = (index // blocks).to(tl.int32) * BLOCK_LEAVES + tl.arange(0, BLOCK_LEAVES)
    inside, exists = output < size, leaf < leaves
    begin = tl.load(offsets_ptr + leaf, mask=exists, other=0)
    length = tl.load(offsets_ptr + leaf + 1, mask=exists, other=0) - begin
    row, column = (first + output) // N, (first + output) % N
    if not WIDE_OFFSETS:
        row, column = row.to(tl.int32), column.to(tl.int32)
        stride_am, stride_ak = stride_am.to(tl.int32), stride_ak.to(tl.int32)
        stride_bk, stride_bn = stride_bk.to(tl.int32), stride_bn.to(tl.int32)
    a_row, b_column = a_ptr + row * stride_am, b_ptr + column * stride_bn
    total = tl.full((BLOCK_OUTPUTS, BLOCK_LEAVES), start, dtype=tl.float32)
    for t in range(tl.max(length)):
        present = t < length
        k = tl.load(order_ptr + begin + t, mask=present, other=0)
        if WIDE_OFFSETS:
            k = k.to(tl.int64)
        mask = inside[:, None] & present[None, :]
        a = tl.load(a_row[:, None] + (k * stride_ak)[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_column[:, None] + (k * stride_bk)[None, :], mask=mask, other=0.0).to(tl.float32)
        if FUSED:
            following = tl.fma(a, b, total)
        else:
            following = a * b + total
        total = tl.where(present[None, :], following, total)
    sums = sums_ptr + leaf.to(tl.int64)[None, :] * size + output[:, None]
    tl.store(sums, total, mask=inside[:, None] & exists[None, :])


@triton.jit(do_not_specialize=RUN_TIME)
def fold_level_kernel(
    sums_ptr, out_ptr, offsets_ptr,
    first: tl.int64, size: tl.int64, N: tl.int32, start: tl.float32,
    stride_og: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    PARTIAL_DTYPE: tl.constexpr, MERGE_DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fold g adds sums ``offsets[g]`` .. ``offsets[g + 1] - 1``, ascending, rounding as the merge kernel does.

    ``start``: +0.0, or -0.0 where a fold starts from its first partial.  Outputs as in the chains; ``out`` is their
    place in the product, or scratch with rows of N outputs, ``stride_og`` from one fold's to the next one's.
    """
    blocks = tl.cdiv(size, BLOCK)
    index = tl.program_id(0).to(tl.int64)
    output = index % blocks * BLOCK + tl.arange(0, BLOCK)
    group = (index // blocks).to(tl.int32)
    inside = output < size
    total = tl.full((BLOCK,), start, dtype=tl.float32)
    for part in range(tl.load(offsets_ptr + group), tl.load(offsets_ptr + group + 1)):
        partial = tl.load(sums_ptr + part * size + output, mask=inside, other=0.0)
        total = round_to(total + round_to(partial, PARTIAL_DTYPE), MERGE_DTYPE)
    total = canonical(total, MERGE_DTYPE)
    place = first + output
    out_ptrs = out_ptr + group.to(tl.int64) * stride_og + (place // N) * stride_om + (place % N) * stride_on
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside)
