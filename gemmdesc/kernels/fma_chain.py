# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Tiles of CUDA-core chains of float32: one fused step for each k, ascending, a slice of k after the other's scratch.

``tl.dot`` in full precision is that chain: Triton spells it as ``fma`` on one accumulator for each output, which the
tests read from the PTX.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.tile import RUN_TIME, extent, locate, minus_zero, store_tile, unit_strides


@triton.jit(do_not_specialize=RUN_TIME)
def fma_chain_kernel(
    a_ptr, b_ptr, out_ptr,
    M: tl.int32, N: tl.int32, summed_k: tl.int32, span: tl.int32, start: tl.float32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_os: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, OUT_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One program per tile and slice, chains from ``start`` on.

    Beyond the end of a slice A is +0.0 and B is -0.0: their product, -0.0, leaves every sum as it is.
    """
    part, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    begin = part.to(tl.int64) * span
    length = min(span, summed_k - part * span)
    a_ptr += begin * stride_ak
    b_ptr += begin * stride_bk
    stride_am, stride_ak = unit_strides(stride_am, stride_ak, A_LAYOUT, WIDE_OFFSETS)
    stride_bk, stride_bn = unit_strides(stride_bk, stride_bn, B_LAYOUT, WIDE_OFFSETS)
    m, m_inside = extent(tile_m, M, BLOCK_M, WIDE_OFFSETS)
    n, n_inside = extent(tile_n, N, BLOCK_N, WIDE_OFFSETS)
    total = tl.full((BLOCK_M, BLOCK_N), start, dtype=tl.float32)
    for step in range(tl.cdiv(length, BLOCK_K)):
        k, k_inside = extent(step, length, BLOCK_K, WIDE_OFFSETS)
        a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=m_inside[:, None] & k_inside[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=k_inside[:, None] & n_inside[None, :], other=minus_zero(tl.float32))
        total = tl.dot(a, b, total, input_precision="ieee")
    store_tile(
        total, out_ptr + part.to(tl.int64) * stride_os, tile_m, tile_n, M, N, stride_om, stride_on,
        OUT_LAYOUT, WIDE_OFFSETS, BLOCK_M, BLOCK_N,
    )  # fmt: skip
