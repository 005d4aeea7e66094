# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Chains of matrix steps that take both operands along k only: 8-bit floats, and float32 rounded to tfloat32.

Such operands are read by tensor descriptors whose lines run along k ("K-major" in PTX); whatever is stored otherwise
is copied so first.  Finished sums of several slices, and those that an epilogue follows, go through float32 scratch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.grouped_chain import count_steps, lane_k
from gemmdesc.kernels.merge import canonical, round_to
from gemmdesc.kernels.tile import RUN_TIME, extent, locate, store_tile, unit_strides

#: How a float32 operand is rounded to tfloat32 while it is copied.
KEEP = tl.constexpr(0)
TOWARD_ZERO = tl.constexpr(1)
NEAREST_EVEN = tl.constexpr(2)
NEAREST_AWAY = tl.constexpr(3)


@triton.jit(do_not_specialize=RUN_TIME)
def kmajor_chain_kernel(
    a_desc, b_desc, out_ptr,
    M: tl.int32, N: tl.int32, slices: tl.int32, blocks: tl.int32, per_slice: tl.int32, k_tiles: tl.int32,
    start: tl.float32, zero: tl.float32,
    stride_os: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    FOLDED: tl.constexpr, OUT_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Persistent; k is ``blocks`` blocks of ``k_tiles`` BLOCK_K each, of which a slice takes ``per_slice``.

    A block is one chain.  FOLDED: a slice's sum is the fold of its blocks' from ``start`` on, in float32; otherwise a
    slice is one block.  ``zero`` is +0.0, which the compiler must not know: it would move a fold's addition into the
    matrix instruction's accumulator.
    """
    work = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N) * slices
    for index in tl.range(tl.program_id(0), work, tl.num_programs(0)):
        part, tile_m, tile_n = locate(index, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        if FOLDED == 0:
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for step in tl.range(part * k_tiles, (part + 1) * k_tiles):
                a = a_desc.load([tile_m * BLOCK_M, step * BLOCK_K])
                b = b_desc.load([tile_n * BLOCK_N, step * BLOCK_K])
                total = tl.dot(a, b.T, total, input_precision="tf32")
        elif FOLDED == 1:
            total = tl.full((BLOCK_M, BLOCK_N), start, dtype=tl.float32)
            for block in tl.range(part * per_slice, min((part + 1) * per_slice, blocks)):
                a = a_desc.load([tile_m * BLOCK_M, block * BLOCK_K])
                b = b_desc.load([tile_n * BLOCK_N, block * BLOCK_K])
                opened = tl.full((BLOCK_M, BLOCK_N), zero, dtype=tl.float32)
                total = total + tl.dot(a, b.T, opened, input_precision="tf32")
        else:
            total = tl.full((BLOCK_M, BLOCK_N), start, dtype=tl.float32)
            for block in tl.range(part * per_slice, min((part + 1) * per_slice, blocks)):
                accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for step in tl.range(block * k_tiles, (block + 1) * k_tiles):
                    a = a_desc.load([tile_m * BLOCK_M, step * BLOCK_K])
                    b = b_desc.load([tile_n * BLOCK_N, step * BLOCK_K])
                    accumulator = tl.dot(a, b.T, accumulator, input_precision="tf32")
                total = total + accumulator
        store_tile(
            total, out_ptr + part.to(tl.int64) * stride_os, tile_m, tile_n, M, N, stride_om, stride_on,
            OUT_LAYOUT, WIDE_OFFSETS, BLOCK_M, BLOCK_N,
        )  # fmt: skip


@triton.jit
def as_tfloat32(values, CAST: tl.constexpr):
    """Float32 values rounded to tfloat32; NaN as a cast to nearest leaves it, or cut off like any other pattern."""
    bits = values.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    rounded = bits
    if CAST == NEAREST_EVEN:
        rounded = bits + 0xFFF + ((bits >> 13) & 1)
    if CAST == NEAREST_AWAY:
        rounded = bits + 0x1000
    if CAST != TOWARD_ZERO:
        special = tl.where(magnitude > 0x7F800000, 0x7FFFFFFF, bits)
        rounded = tl.where(magnitude < 0x7F800000, rounded, special)
    return (rounded & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=RUN_TIME)
def kmajor_pack_kernel(
    source_ptr, packed_ptr,
    rows: tl.int32, slices: tl.int32, summed_k: tl.int32, span: tl.int32, packed_span: tl.int32, k_loop_step: tl.int32,
    stride_row: tl.int64, stride_k: tl.int64, packed_stride: tl.int64,
    SOURCE_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr, CAST: tl.constexpr, INSTRUCTION_K: tl.constexpr,
    STEP_LANES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As :mod:`gemmdesc.kernels.repack`, lines of the copy along k, and float32 rounded to tfloat32.

    ``slices`` of ``span`` k each become ``packed_span`` lanes, a multiple of BLOCK_K, whose steps have STEP_LANES.
    """
    blocks_k = packed_span // BLOCK_K * slices
    row_block = tl.program_id(0) // blocks_k
    lane_block = tl.program_id(0) % blocks_k
    part = lane_block * BLOCK_K // packed_span
    length = min(span, summed_k - part * span)
    lead_steps, steps = count_steps(length, k_loop_step, INSTRUCTION_K)
    first = (lane_block * BLOCK_K - part * packed_span) // STEP_LANES - (packed_span // STEP_LANES - steps)
    k, real = lane_k(first, length, k_loop_step, lead_steps, BLOCK_K, INSTRUCTION_K, STEP_LANES)

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
    if CAST != KEEP:
        values = as_tfloat32(values, CAST)
    stride = tl.multiple_of(packed_stride.to(row.dtype), 16)
    tl.store(packed_ptr + row[:, None] * stride + lane[None, :], values, mask=inside[:, None])


@triton.jit(do_not_specialize=RUN_TIME)
def scaled_merge_kernel(
    partial_ptr, out_ptr, scale_ptr, output_scale_ptr, size: tl.int64, N: tl.int32, slices: tl.int32, start: tl.float32,
    stride_om: tl.int64, stride_on: tl.int64,
    PARTIAL_DTYPE: tl.constexpr, MERGE_DTYPE: tl.constexpr, SCALED: tl.constexpr, OUTPUT_SCALED: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As the merge kernel, and then one product with each scale, a float32 behind its pointer, before the last cast."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    if not WIDE_OFFSETS:
        index = index.to(tl.int32)
    total = tl.full((BLOCK,), start, dtype=tl.float32)
    for part in tl.range(slices, num_stages=4):
        partial = tl.load(partial_ptr + part * size + index, mask=inside, other=0.0)
        total = round_to(total + round_to(partial, PARTIAL_DTYPE), MERGE_DTYPE)
    total = canonical(total, MERGE_DTYPE)
    if SCALED:
        total = total * tl.load(scale_ptr)
    if OUTPUT_SCALED:
        total = total * tl.load(output_scale_ptr)
    out_ptrs = out_ptr + (index // N) * stride_om + (index % N) * stride_on
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside)
