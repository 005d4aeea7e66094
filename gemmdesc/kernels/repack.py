# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Both operands copied so that a plain chain over the copies is the chain that the descriptor asks for.

Each slice of k becomes ``packed_span`` lanes: zero lanes in front, then its steps, each filled up with zero lanes.
Lines of the copies are aligned, so tensor descriptors address them.  One launch makes both copies, since launching
costs the host more than copying small operands costs the GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.grouped_chain import LANES, count_steps, lane_k
from gemmdesc.kernels.tile import RUN_TIME, extent, unit_strides


@triton.jit
def pack(
    program, source_ptr, packed_ptr, rows, slices, summed_k, span, packed_span, k_loop_step,
    stride_row, stride_k, packed_stride,
    SOURCE_LAYOUT: tl.constexpr, PACKED_ROWS: tl.constexpr, WIDE_OFFSETS: tl.constexpr, INSTRUCTION_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Copy block ``program`` of an operand; ``rows`` are those of op(A), or the columns of op(B).

    k runs along the lines of the copy if PACKED_ROWS.  Otherwise the lines are padded to a multiple of BLOCK_ROWS, and
    the padding is written too.
    """
    blocks_k = packed_span // BLOCK_K * slices
    row_block = program // blocks_k
    lane_block = program % blocks_k
    part = lane_block * BLOCK_K // packed_span
    length = min(span, summed_k - part * span)
    lead_steps, steps = count_steps(length, k_loop_step, INSTRUCTION_K)
    first = (lane_block * BLOCK_K - part * packed_span) // LANES - (packed_span // LANES - steps)
    k, real = lane_k(first, length, k_loop_step, lead_steps, BLOCK_K, INSTRUCTION_K)

    source_ptr += part.to(tl.int64) * span * stride_k
    stride_row, stride_k = unit_strides(stride_row, stride_k, SOURCE_LAYOUT, WIDE_OFFSETS)
    row, inside = extent(row_block, rows, BLOCK_ROWS, WIDE_OFFSETS)
    lane = lane_block * BLOCK_K + tl.arange(0, BLOCK_K)
    if WIDE_OFFSETS:
        k = k.to(tl.int64)
        lane = lane.to(tl.int64)
    values = tl.load(
        source_ptr + row[:, None] * stride_row + k[None, :] * stride_k, mask=inside[:, None] & real[None, :], other=0.0
    )
    stride = tl.multiple_of(packed_stride.to(row.dtype), 8)
    if PACKED_ROWS:
        tl.store(packed_ptr + row[:, None] * stride + lane[None, :], values, mask=inside[:, None])
    else:
        tl.store(packed_ptr + row[:, None] + lane[None, :] * stride, values)


@triton.jit(do_not_specialize=RUN_TIME)
def repack_kernel(
    a_ptr, a_packed_ptr, b_ptr, b_packed_ptr,
    a_programs: tl.int32, M: tl.int32, N: tl.int32,
    slices: tl.int32, summed_k: tl.int32, span: tl.int32, packed_span: tl.int32, k_loop_step: tl.int32,
    stride_am: tl.int64, stride_ak: tl.int64, a_packed_stride: tl.int64,
    stride_bn: tl.int64, stride_bk: tl.int64, b_packed_stride: tl.int64,
    A_LAYOUT: tl.constexpr, A_PACKED_ROWS: tl.constexpr, B_LAYOUT: tl.constexpr, B_PACKED_ROWS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr, INSTRUCTION_K: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The first ``a_programs`` copy A, the others B, which is seen as (N, K)."""
    program = tl.program_id(0)
    if program < a_programs:
        pack(
            program, a_ptr, a_packed_ptr, M, slices, summed_k, span, packed_span, k_loop_step,
            stride_am, stride_ak, a_packed_stride,
            A_LAYOUT, A_PACKED_ROWS, WIDE_OFFSETS, INSTRUCTION_K, BLOCK_ROWS, BLOCK_K,
        )  # fmt: skip
    else:
        pack(
            program - a_programs, b_ptr, b_packed_ptr, N, slices, summed_k, span, packed_span, k_loop_step,
            stride_bn, stride_bk, b_packed_stride,
            B_LAYOUT, B_PACKED_ROWS, WIDE_OFFSETS, INSTRUCTION_K, BLOCK_ROWS, BLOCK_K,
        )  # fmt: skip
