# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""A chain whose steps do not start at every multiple of the instruction's lanes.

The partial turn of a main loop of ``k_loop_step`` comes first and ends in a short step; each step holds INSTRUCTION_K
real products and is filled up with zero lanes.  With one slice the output receives the sums; with more, ``out`` is
scratch [slices, M, N] and ``merge`` follows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.tile import RUN_TIME, extent, locate, store_tile, unit_strides

#: Products that one matrix step of 16-bit operands takes.
LANES = tl.constexpr(16)


@triton.jit
def count_steps(length, k_loop_step, INSTRUCTION_K: tl.constexpr):
    """(steps of the leading partial turn, all steps) of a slice; ``k_loop_step`` is a multiple of INSTRUCTION_K."""
    lead = length % k_loop_step
    lead_steps = tl.cdiv(lead, INSTRUCTION_K)
    return lead_steps, lead_steps + (length - lead) // INSTRUCTION_K


@triton.jit
def lane_k(
    first_step, length, k_loop_step, lead_steps, BLOCK_K: tl.constexpr, INSTRUCTION_K: tl.constexpr,
    STEP_LANES: tl.constexpr = LANES,
):  # fmt: skip
    """The k of each of BLOCK_K lanes and whether the lane is real; steps below 0 are padding."""
    lane = tl.arange(0, BLOCK_K)
    step = first_step + lane // STEP_LANES
    within = lane % STEP_LANES
    lead = length % k_loop_step
    leading = step < lead_steps
    k = step * INSTRUCTION_K + within + tl.where(leading, 0, lead - lead_steps * INSTRUCTION_K)
    real = (step >= 0) & (within < INSTRUCTION_K) & (k < tl.where(leading, lead, length))
    return tl.max_contiguous(k, STEP_LANES), real


@triton.jit
def grouped_sums(
    a_ptr, b_ptr, part, tile_m, tile_n, M, N, summed_k, span, k_loop_step, stride_am, stride_ak, stride_bk, stride_bn,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr, INSTRUCTION_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The float32 sums of slice ``part`` of a tile."""
    begin = part.to(tl.int64) * span
    length = min(span, summed_k - part * span)
    a_ptr += begin * stride_ak
    b_ptr += begin * stride_bk
    stride_am, stride_ak = unit_strides(stride_am, stride_ak, A_LAYOUT, WIDE_OFFSETS)
    stride_bk, stride_bn = unit_strides(stride_bk, stride_bn, B_LAYOUT, WIDE_OFFSETS)
    m, m_inside = extent(tile_m, M, BLOCK_M, WIDE_OFFSETS)
    n, n_inside = extent(tile_n, N, BLOCK_N, WIDE_OFFSETS)

    PER_BLOCK: tl.constexpr = BLOCK_K // LANES
    lead_steps, steps = count_steps(length, k_loop_step, INSTRUCTION_K)
    blocks = tl.cdiv(steps, PER_BLOCK)
    first = steps - blocks * PER_BLOCK
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(blocks):
        k, real = lane_k(first + block * PER_BLOCK, length, k_loop_step, lead_steps, BLOCK_K, INSTRUCTION_K)
        if WIDE_OFFSETS:
            k = k.to(tl.int64)
        a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=m_inside[:, None] & real[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=real[:, None] & n_inside[None, :], other=0.0)
        accumulator = tl.dot(a, b, accumulator)
    return accumulator


@triton.jit(do_not_specialize=RUN_TIME)
def grouped_chain_kernel(
    a_ptr, b_ptr, out_ptr,
    M: tl.int32, N: tl.int32, summed_k: tl.int32, span: tl.int32, k_loop_step: tl.int32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_os: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, OUT_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr,
    INSTRUCTION_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One program per tile and slice, any strides and any alignment."""
    part, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    accumulator = grouped_sums(
        a_ptr, b_ptr, part, tile_m, tile_n, M, N, summed_k, span, k_loop_step, stride_am, stride_ak, stride_bk,
        stride_bn, A_LAYOUT, B_LAYOUT, WIDE_OFFSETS, INSTRUCTION_K, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    store_tile(
        accumulator, out_ptr + part.to(tl.int64) * stride_os, tile_m, tile_n, M, N, stride_om, stride_on,
        OUT_LAYOUT, WIDE_OFFSETS, BLOCK_M, BLOCK_N,
    )  # fmt: skip
