# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""One ascending chain of matrix steps per slice of k, the short step last.

With one slice the output receives the sums; with more, ``out`` is scratch [slices, M, N] and ``merge`` follows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.tile import (
    RUN_TIME,
    extent,
    let_next_start,
    load_a,
    load_b,
    locate,
    store_tile,
    unit_strides,
    wait_for_previous,
)


@triton.jit(do_not_specialize=RUN_TIME)
def chain_tma_kernel(
    a_desc, b_desc, out_desc, out_ptr,
    M: tl.int32, N: tl.int32, slices: tl.int32, span: tl.int32, k_tiles: tl.int32,
    stride_os: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, STORE_BY_DESCRIPTOR: tl.constexpr, DEPENDENT: tl.constexpr,
    OUT_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Persistent, operands by tensor descriptor, which fills with zeros beyond the summed k.

    ``span`` is a multiple of BLOCK_K, or there is one slice.
    """
    if DEPENDENT:
        wait_for_previous()
    work = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N) * slices
    # ptxas serialises a flattened loop of wgmma with 8 columns; thin products have hardly more tiles than programs.
    for index in tl.range(tl.program_id(0), work, tl.num_programs(0), flatten=BLOCK_N > 8):
        part, tile_m, tile_n = locate(index, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(k_tiles):
            k = part * span + step * BLOCK_K
            a = load_a(a_desc, tile_m * BLOCK_M, k, A_ROWS)
            b = load_b(b_desc, k, tile_n * BLOCK_N, B_ROWS)
            accumulator = tl.dot(a, b, accumulator)
        if DEPENDENT:
            let_next_start()
        if STORE_BY_DESCRIPTOR:
            out_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N], accumulator.to(out_desc.dtype))
        else:
            store_tile(
                accumulator, out_ptr + part.to(tl.int64) * stride_os, tile_m, tile_n, M, N, stride_om, stride_on,
                OUT_LAYOUT, WIDE_OFFSETS, BLOCK_M, BLOCK_N,
            )  # fmt: skip


@triton.jit
def pointer_sums(
    a_ptr, b_ptr, part, tile_m, tile_n, M, N, summed_k, span, stride_am, stride_ak, stride_bk, stride_bn,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The float32 sums of slice ``part`` of a tile, by masked pointers."""
    begin = part.to(tl.int64) * span
    length = min(span, summed_k - part * span)
    a_ptr += begin * stride_ak
    b_ptr += begin * stride_bk
    stride_am, stride_ak = unit_strides(stride_am, stride_ak, A_LAYOUT, WIDE_OFFSETS)
    stride_bk, stride_bn = unit_strides(stride_bk, stride_bn, B_LAYOUT, WIDE_OFFSETS)
    m, m_inside = extent(tile_m, M, BLOCK_M, WIDE_OFFSETS)
    n, n_inside = extent(tile_n, N, BLOCK_N, WIDE_OFFSETS)

    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(length, BLOCK_K)):
        k, k_inside = extent(step, length, BLOCK_K, WIDE_OFFSETS)
        a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=m_inside[:, None] & k_inside[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=k_inside[:, None] & n_inside[None, :], other=0.0)
        accumulator = tl.dot(a, b, accumulator)
    return accumulator


@triton.jit(do_not_specialize=RUN_TIME)
def chain_pointer_kernel(
    a_ptr, b_ptr, out_ptr,
    M: tl.int32, N: tl.int32, summed_k: tl.int32, span: tl.int32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_os: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, OUT_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One program per tile and slice, any strides and any alignment."""
    part, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    accumulator = pointer_sums(
        a_ptr, b_ptr, part, tile_m, tile_n, M, N, summed_k, span, stride_am, stride_ak, stride_bk, stride_bn,
        A_LAYOUT, B_LAYOUT, WIDE_OFFSETS, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    store_tile(
        accumulator, out_ptr + part.to(tl.int64) * stride_os, tile_m, tile_n, M, N, stride_om, stride_on,
        OUT_LAYOUT, WIDE_OFFSETS, BLOCK_M, BLOCK_N,
    )  # fmt: skip
