# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Chains of matrix steps whose kernel also does what follows the product, and the kernel that does it alone.

The first two sum as ``chain``'s kernels of one slice do; the third reads a finished product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.fused_fetch import fetch_operands
from gemmdesc.kernels.fused_steps import (
    PROGRAM_ARGUMENTS,
    finish_tile,
    inside_tile,
    loaded,
    taken,
    tile_offsets,
)
from gemmdesc.kernels.tile import (
    ROWS,
    RUN_TIME,
    extent,
    let_next_start,
    load_a,
    load_b,
    locate,
    unit_strides,
    wait_for_previous,
)

_RUN_TIME = (*RUN_TIME, *PROGRAM_ARGUMENTS, "out", "product", "stride_dm", "stride_dn")
#: About what it takes to finish a tile by functions.
FINISHING_NS = tl.constexpr(6000)


@triton.jit
def pause(nanoseconds):
    """Wait about that long, a number for the whole program."""
    tl.inline_asm_elementwise(
        "nanosleep.u32 $1; mov.b32 $0, $1;", "=r,r", [nanoseconds], dtype=tl.int32, is_pure=False, pack=1
    )  # fmt: skip


@triton.jit(do_not_specialize=_RUN_TIME)
def fused_tma_kernel(
    a_desc, b_desc, out_desc, out: tl.int64, M: tl.int32, N: tl.int32, k_tiles: tl.int32,
    stride_om: tl.int64, stride_on: tl.int64,
    x0: tl.int64, x1: tl.int64, x2: tl.int64, x3: tl.int64, x4: tl.int64, x5: tl.int64,
    f0: tl.float32, f1: tl.float32, f2: tl.float32, f3: tl.float32, f4: tl.float32, f5: tl.float32,
    m0: tl.int64, m1: tl.int64, m2: tl.int64, m3: tl.int64, m4: tl.int64, m5: tl.int64,
    n0: tl.int64, n1: tl.int64, n2: tl.int64, n3: tl.int64, n4: tl.int64, n5: tl.int64,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, STORED: tl.constexpr, OUT_LAYOUT: tl.constexpr, ALIGNED: tl.constexpr,
    STORE_BY_DESCRIPTOR: tl.constexpr, CHUNKS: tl.constexpr, ROUNDS_FIRST: tl.constexpr, DEPENDENT: tl.constexpr,
    STAGGERED: tl.constexpr,
    PROGRAM: tl.constexpr, COUNT: tl.constexpr, FORMATS: tl.constexpr, RESULT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Persistent, operands by tensor descriptor, which fills with zeros beyond the summed k."""
    if DEPENDENT:
        wait_for_previous()
    addresses, strides_m, strides_n = (x0, x1, x2, x3, x4, x5), (m0, m1, m2, m3, m4, m5), (n0, n1, n2, n3, n4, n5)
    first, programs = tl.program_id(0), tl.num_programs(0)
    if STAGGERED:
        # Two programs that share a multiprocessor would multiply and finish at the same times.
        pause(tl.where(2 * first < programs, 0, FINISHING_NS))
    _, tile_m, tile_n = locate(first, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    fetch_operands(FORMATS, addresses, strides_m, strides_n, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)
    work = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    # Flattened, the loads of the next tile are under way while this one is finished.
    for index in tl.range(first, work, programs, flatten=True):
        _, tile_m, tile_n = locate(index, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(k_tiles):
            a = load_a(a_desc, tile_m * BLOCK_M, step * BLOCK_K, A_ROWS)
            b = load_b(b_desc, step * BLOCK_K, tile_n * BLOCK_N, B_ROWS)
            accumulator = tl.dot(a, b, accumulator)
        if DEPENDENT:
            let_next_start()
        # After the last tile, its own once more.
        later = tl.where(index + programs < work, index + programs, index)
        _, next_m, next_n = locate(later, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        fetch_operands(FORMATS, addresses, strides_m, strides_n, next_m, next_n, M, N, BLOCK_M, BLOCK_N)
        finish_tile(
            accumulator if ROUNDS_FIRST else taken(accumulator), 0, out_desc, out, PROGRAM, COUNT, FORMATS, RESULT,
            (f0, f1, f2, f3, f4, f5), addresses, strides_m, strides_n, stride_om, stride_on, tile_m, tile_n, M, N,
            STORED, OUT_LAYOUT, ALIGNED, STORE_BY_DESCRIPTOR, CHUNKS,
        )  # fmt: skip


@triton.jit(do_not_specialize=_RUN_TIME)
def fused_pointer_kernel(
    a_ptr, b_ptr, out: tl.int64, M: tl.int32, N: tl.int32, summed_k: tl.int32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_om: tl.int64, stride_on: tl.int64,
    x0: tl.int64, x1: tl.int64, x2: tl.int64, x3: tl.int64, x4: tl.int64, x5: tl.int64,
    f0: tl.float32, f1: tl.float32, f2: tl.float32, f3: tl.float32, f4: tl.float32, f5: tl.float32,
    m0: tl.int64, m1: tl.int64, m2: tl.int64, m3: tl.int64, m4: tl.int64, m5: tl.int64,
    n0: tl.int64, n1: tl.int64, n2: tl.int64, n3: tl.int64, n4: tl.int64, n5: tl.int64,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, STORED: tl.constexpr, OUT_LAYOUT: tl.constexpr,
    PROGRAM: tl.constexpr, COUNT: tl.constexpr, FORMATS: tl.constexpr, RESULT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One program per tile, any strides and any alignment, operands within 32-bit offsets."""
    _, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    stride_am, stride_ak = unit_strides(stride_am, stride_ak, A_LAYOUT, False)
    stride_bk, stride_bn = unit_strides(stride_bk, stride_bn, B_LAYOUT, False)
    m, m_inside = extent(tile_m, M, BLOCK_M, False)
    n, n_inside = extent(tile_n, N, BLOCK_N, False)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(summed_k, BLOCK_K)):
        k, k_inside = extent(step, summed_k, BLOCK_K, False)
        a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=m_inside[:, None] & k_inside[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=k_inside[:, None] & n_inside[None, :], other=0.0)
        accumulator = tl.dot(a, b, accumulator)
    finish_tile(
        accumulator, 0, None, out, PROGRAM, COUNT, FORMATS, RESULT, (f0, f1, f2, f3, f4, f5),
        (x0, x1, x2, x3, x4, x5), (m0, m1, m2, m3, m4, m5), (n0, n1, n2, n3, n4, n5),
        stride_om, stride_on, tile_m, tile_n, M, N,
        STORED, OUT_LAYOUT, False, False, 1,
    )  # fmt: skip


@triton.jit(do_not_specialize=_RUN_TIME)
def fused_after_kernel(
    product: tl.int64, out: tl.int64, M: tl.int32, N: tl.int32,
    stride_dm: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    x0: tl.int64, x1: tl.int64, x2: tl.int64, x3: tl.int64, x4: tl.int64, x5: tl.int64,
    f0: tl.float32, f1: tl.float32, f2: tl.float32, f3: tl.float32, f4: tl.float32, f5: tl.float32,
    m0: tl.int64, m1: tl.int64, m2: tl.int64, m3: tl.int64, m4: tl.int64, m5: tl.int64,
    n0: tl.int64, n1: tl.int64, n2: tl.int64, n3: tl.int64, n4: tl.int64, n5: tl.int64,
    KIND: tl.constexpr, STORED: tl.constexpr, OUT_LAYOUT: tl.constexpr, ALIGNED: tl.constexpr,
    PROGRAM: tl.constexpr, COUNT: tl.constexpr, FORMATS: tl.constexpr, RESULT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program per tile of a finished product of the type KIND, by rows ``stride_dm`` apart."""
    _, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, 1)
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    inside = inside_tile(tile_m * BLOCK_M, tile_n * BLOCK_N, m, n, M, N, ROWS, ALIGNED and OUT_LAYOUT == ROWS)
    SIZE: tl.constexpr = 2 if KIND >= 2 else 4
    start = product + ((tile_m * BLOCK_M).to(tl.int64) * stride_dm + tile_n * BLOCK_N) * SIZE
    # Lines of the product are as long as the output's.
    offsets = tile_offsets(m, n, stride_dm.to(tl.int32), 1, ROWS, ALIGNED and OUT_LAYOUT == ROWS)
    value = loaded(start, KIND, offsets, inside, ALIGNED and OUT_LAYOUT == ROWS).to(tl.float32)
    finish_tile(
        value, KIND - 1 if KIND >= 2 else 0, None, out, PROGRAM, COUNT, FORMATS, RESULT, (f0, f1, f2, f3, f4, f5),
        (x0, x1, x2, x3, x4, x5), (m0, m1, m2, m3, m4, m5), (n0, n1, n2, n3, n4, n5),
        stride_om, stride_on, tile_m, tile_n, M, N,
        STORED, OUT_LAYOUT, ALIGNED, False, 1,
    )  # fmt: skip
