# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Slices and their fold in one launch: each program sums one slice of one tile, and the last one of a tile folds them.

Which program that is depends on the card's moods, the fold does not: it reads every slice from scratch, its own too,
and adds them in ascending order as ``merge`` does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.chain import pointer_sums
from gemmdesc.kernels.finish import ROUND_BFLOAT16, ROUND_FLOAT16
from gemmdesc.kernels.grouped_chain import grouped_sums
from gemmdesc.kernels.merge import round_to
from gemmdesc.kernels.tile import RUN_TIME, let_next_start, load_a, load_b, locate, store_tile, wait_for_previous

_RUN_TIME = (*RUN_TIME, "counters_ptr", "partial_code", "merge_code")


@triton.jit
def round_selected(value, code):
    """``round_by`` without a branch: loads of several slices are to be in flight at once, and none passes a branch."""
    narrow = tl.where(code == ROUND_BFLOAT16, round_to(value, tl.bfloat16), value)
    return tl.where(code == ROUND_FLOAT16, round_to(value, tl.float16), narrow)


@triton.jit
def merge_last(
    accumulator, out_ptr, scratch_ptr, counters_ptr, part, tile_m, tile_n, M, N, slices, start, partial_code,
    merge_code, stride_om, stride_on, OUT_LAYOUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Hand in the sums of a slice of a tile; whoever hands in a tile's last ones folds all of them.

    ``scratch_ptr`` is float32 [slices, tiles, BLOCK_M, BLOCK_N], ``counters_ptr`` int32 [tiles], zero before and after.

    The stores of all threads lie before the barrier, and the barrier before the one thread's atomic: a release at the
    scope of the GPU, which is cumulative, so that it publishes what the other threads of its block had stored.  The
    last program's atomic reads from the chain of those before it and acquires; its result reaches the other threads
    through shared memory and a barrier, which puts their loads behind it.  Loads past the first-level cache
    (``.cg``) take nothing that this multiprocessor might have held from before.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tile_m * tiles_n + tile_n
    apart = (tl.cdiv(M, BLOCK_M) * tiles_n).to(tl.int64) * (BLOCK_M * BLOCK_N)
    scratch_ptr += tile.to(tl.int64) * (BLOCK_M * BLOCK_N)
    inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(scratch_ptr + part * apart + inside, accumulator)
    tl.debug_barrier()
    before = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
    if before == slices - 1:
        tl.debug_barrier()
        # All others have counted, and the next kernel on the stream starts from zero again.
        tl.store(counters_ptr + tile, 0)
        total = tl.full((BLOCK_M, BLOCK_N), start, dtype=tl.float32)
        for i in tl.range(0, slices, loop_unroll_factor=4):
            partial = tl.load(scratch_ptr + i * apart + inside, cache_modifier=".cg")
            total = round_selected(total + round_selected(partial, partial_code), merge_code)
        # A NaN that was held in a narrow type comes out as the canonical one.
        nan = tl.full((BLOCK_M, BLOCK_N), 0x7FFFFFFF, dtype=tl.int32).to(tl.float32, bitcast=True)
        total = tl.where((total != total) & (merge_code != 0), nan, total)
        store_tile(
            total, out_ptr, tile_m, tile_n, M, N, stride_om, stride_on, OUT_LAYOUT, False, BLOCK_M, BLOCK_N
        )  # fmt: skip


@triton.jit(do_not_specialize=_RUN_TIME)
def merged_tma_kernel(
    a_desc, b_desc, out_ptr, scratch_ptr, counters_ptr,
    M: tl.int32, N: tl.int32, slices: tl.int32, start: tl.float32, partial_code: tl.int32, merge_code: tl.int32,
    span: tl.int32, k_tiles: tl.int32, stride_om: tl.int64, stride_on: tl.int64,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, DEPENDENT: tl.constexpr, OUT_LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One program per tile and slice, operands by tensor descriptor; ``span`` is a multiple of BLOCK_K, or one slice.

    ``start`` is +0.0, or -0.0 where the fold starts from its first partial, which it leaves as it is.
    """
    if DEPENDENT:
        wait_for_previous()
    part, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(k_tiles):
        k = part * span + step * BLOCK_K
        a = load_a(a_desc, tile_m * BLOCK_M, k, A_ROWS)
        b = load_b(b_desc, k, tile_n * BLOCK_N, B_ROWS)
        accumulator = tl.dot(a, b, accumulator)
    if DEPENDENT:
        let_next_start()
    merge_last(
        accumulator, out_ptr, scratch_ptr, counters_ptr, part, tile_m, tile_n, M, N, slices, start, partial_code,
        merge_code, stride_om, stride_on, OUT_LAYOUT, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit(do_not_specialize=_RUN_TIME)
def merged_pointer_kernel(
    a_ptr, b_ptr, out_ptr, scratch_ptr, counters_ptr,
    M: tl.int32, N: tl.int32, slices: tl.int32, start: tl.float32, partial_code: tl.int32, merge_code: tl.int32,
    summed_k: tl.int32, span: tl.int32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_om: tl.int64, stride_on: tl.int64,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, OUT_LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """As :func:`merged_tma_kernel`, operands of any strides and any alignment, within 32-bit offsets."""
    part, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    accumulator = pointer_sums(
        a_ptr, b_ptr, part, tile_m, tile_n, M, N, summed_k, span, stride_am, stride_ak, stride_bk, stride_bn,
        A_LAYOUT, B_LAYOUT, False, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    merge_last(
        accumulator, out_ptr, scratch_ptr, counters_ptr, part, tile_m, tile_n, M, N, slices, start, partial_code,
        merge_code, stride_om, stride_on, OUT_LAYOUT, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit(do_not_specialize=_RUN_TIME)
def merged_grouped_kernel(
    a_ptr, b_ptr, out_ptr, scratch_ptr, counters_ptr,
    M: tl.int32, N: tl.int32, slices: tl.int32, start: tl.float32, partial_code: tl.int32, merge_code: tl.int32,
    summed_k: tl.int32, span: tl.int32, k_loop_step: tl.int32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_om: tl.int64, stride_on: tl.int64,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, OUT_LAYOUT: tl.constexpr, INSTRUCTION_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """As :func:`merged_pointer_kernel`, over a grouped chain."""
    part, tile_m, tile_n = locate(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    accumulator = grouped_sums(
        a_ptr, b_ptr, part, tile_m, tile_n, M, N, summed_k, span, k_loop_step, stride_am, stride_ak, stride_bk,
        stride_bn, A_LAYOUT, B_LAYOUT, False, INSTRUCTION_K, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    merge_last(
        accumulator, out_ptr, scratch_ptr, counters_ptr, part, tile_m, tile_n, M, N, slices, start, partial_code,
        merge_code, stride_om, stride_on, OUT_LAYOUT, BLOCK_M, BLOCK_N,
    )  # fmt: skip
