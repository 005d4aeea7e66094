# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Asking for operands of a program before the tile is there that they lie over."""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.fused_steps import FLOAT16, WHOLE_COLUMNS, WHOLE_ROWS


@triton.jit
def fetch_lines(address, FORMAT: tl.constexpr, stride_m, stride_n, m, n, M, N):
    """Ask for the lines of a matrix at rows ``m`` and columns ``n`` to be in the second-level cache."""
    SIZE: tl.constexpr = 2 if FORMAT & 3 >= FLOAT16 else 4
    # Beyond its ends there may be no memory.
    m, n = tl.minimum(m, M - 1).to(tl.int64) * stride_m, tl.minimum(n, N - 1).to(tl.int64) * stride_n
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address + (m[:, None] + n[None, :]) * SIZE],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def fetch_operand(
    address, FORMAT: tl.constexpr, stride_m, stride_n, tile_m, tile_n, M, N, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Ask for the part of a matrix that lies over a tile to be in the second-level cache, if it is stored by lines."""
    FORM: tl.constexpr = FORMAT >> 2
    if FORM == WHOLE_ROWS or FORM == WHOLE_COLUMNS:  # noqa: SIM109  Triton knows no `in` here
        # Elements of a line of 128 bytes.
        EACH: tl.constexpr = 64 if FORMAT & 3 >= FLOAT16 else 32
        EACH_M: tl.constexpr = 1 if FORM == WHOLE_ROWS else EACH
        EACH_N: tl.constexpr = EACH if FORM == WHOLE_ROWS else 1
        m = tile_m * BLOCK_M + tl.arange(0, max(1, BLOCK_M // EACH_M)) * EACH_M
        n = tile_n * BLOCK_N + tl.arange(0, max(1, BLOCK_N // EACH_N)) * EACH_N
        fetch_lines(address, FORMAT, stride_m, stride_n, m, n, M, N)


@triton.jit
def fetch_operands(
    FORMATS: tl.constexpr, addresses, strides_m, strides_n, tile_m, tile_n, M, N, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """:func:`fetch_operand` of each of six operands."""
    for i in tl.static_range(6):
        fetch_operand(
            addresses[i], (FORMATS >> (8 * i)) & 255, strides_m[i], strides_n[i], tile_m, tile_n, M, N, BLOCK_M, BLOCK_N
        )  # fmt: skip
