# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""The chains of ``chain``'s descriptor kernel on tiles whose width is no power of two: two widths side by side."""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.tile import (
    RUN_TIME,
    let_next_start,
    load_a,
    load_b,
    locate,
    store_tile,
    wait_for_previous,
)


@triton.jit(do_not_specialize=RUN_TIME)
def chain_wide_kernel(
    a_desc, b_desc, b_beside_desc, out_desc, out_beside_desc, out_ptr,
    M: tl.int32, N: tl.int32, slices: tl.int32, span: tl.int32, k_tiles: tl.int32,
    stride_os: tl.int64, stride_om: tl.int64, stride_on: tl.int64,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, STORE_BY_DESCRIPTOR: tl.constexpr, DEPENDENT: tl.constexpr,
    OUT_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BESIDE_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """Persistent, operands by tensor descriptor; a tile has BLOCK_N + BESIDE_N columns, and reads each row of A once.

    ``span`` is a multiple of BLOCK_K, or there is one slice.
    """
    COLUMNS: tl.constexpr = BLOCK_N + BESIDE_N
    if DEPENDENT:
        wait_for_previous()
    work = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, COLUMNS) * slices
    # ptxas serialises the wgmma of a flattened loop over two accumulators.
    for index in tl.range(tl.program_id(0), work, tl.num_programs(0), flatten=False):
        part, tile_m, tile_n = locate(index, M, N, BLOCK_M, COLUMNS, GROUP_M)
        n = tile_n * COLUMNS
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        beside = tl.zeros((BLOCK_M, BESIDE_N), dtype=tl.float32)
        for step in range(k_tiles):
            k = part * span + step * BLOCK_K
            a = load_a(a_desc, tile_m * BLOCK_M, k, A_ROWS)
            b = load_b(b_desc, k, n, B_ROWS)
            b_beside = load_b(b_beside_desc, k, n + BLOCK_N, B_ROWS)
            accumulator = tl.dot(a, b, accumulator)
            beside = tl.dot(a, b_beside, beside)
        if DEPENDENT:
            let_next_start()
        if STORE_BY_DESCRIPTOR:
            out_desc.store([tile_m * BLOCK_M, n], accumulator.to(out_desc.dtype))
            out_beside_desc.store([tile_m * BLOCK_M, n + BLOCK_N], beside.to(out_desc.dtype))
        else:
            # Where the first columns of a tile lie, in the output and in the scratch of a slice.
            start = out_ptr + part.to(tl.int64) * stride_os + n.to(tl.int64) * stride_on
            store_tile(
                accumulator, start, tile_m, 0, M, N - n, stride_om, stride_on, OUT_LAYOUT, WIDE_OFFSETS, BLOCK_M,
                BLOCK_N,
            )  # fmt: skip
            store_tile(
                beside, start + BLOCK_N * stride_on, tile_m, 0, M, N - n - BLOCK_N, stride_om, stride_on, OUT_LAYOUT,
                WIDE_OFFSETS, BLOCK_M, BESIDE_N,
            )  # fmt: skip
