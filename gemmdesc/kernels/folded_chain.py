# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""All slices of a tile in one program: each slice's chain joins a running sum that stays in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.merge import canonical, round_to
from gemmdesc.kernels.tile import RUN_TIME, load_a, load_b, locate, store_tile


@triton.jit(do_not_specialize=RUN_TIME)
def folded_chain_kernel(
    a_desc, b_desc, out_desc, out_ptr,
    M: tl.int32, N: tl.int32, slices: tl.int32, span: tl.int32, k_tiles: tl.int32, start: tl.float32,
    stride_om: tl.int64, stride_on: tl.int64,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, STORE_BY_DESCRIPTOR: tl.constexpr, OUT_LAYOUT: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr, PARTIAL_DTYPE: tl.constexpr, MERGE_DTYPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Persistent; ``start`` is +0.0, or -0.0 where the fold starts from its first partial, which it leaves as it is."""
    work = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for index in tl.range(tl.program_id(0), work, tl.num_programs(0)):
        _, tile_m, tile_n = locate(index, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        total = tl.full((BLOCK_M, BLOCK_N), start, dtype=tl.float32)
        for part in tl.range(slices):
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for step in tl.range(k_tiles):
                k = part * span + step * BLOCK_K
                a = load_a(a_desc, tile_m * BLOCK_M, k, A_ROWS)
                b = load_b(b_desc, k, tile_n * BLOCK_N, B_ROWS)
                accumulator = tl.dot(a, b, accumulator)
            total = round_to(total + round_to(accumulator, PARTIAL_DTYPE), MERGE_DTYPE)
        total = canonical(total, MERGE_DTYPE)
        if STORE_BY_DESCRIPTOR:
            out_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N], total.to(out_desc.dtype))
        else:
            store_tile(
                total, out_ptr, tile_m, tile_n, M, N, stride_om, stride_on,
                OUT_LAYOUT, WIDE_OFFSETS, BLOCK_M, BLOCK_N,
            )  # fmt: skip
