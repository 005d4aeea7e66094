# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""How a group of the specialised chain stores its sums: rounded, by the copy engine in pieces, or by addresses."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

# Triton 3.6 has other names for these than later ones.
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
REINTERPRET = gl.constexpr("reinterpret" if hasattr(gl.shared_memory_descriptor, "reinterpret") else "_reinterpret")
COLUMNS = gl.constexpr(2)


@gluon.jit
def store_pieces(
    sums, out_desc, row, column, staging, NUMBER: gl.constexpr, BUFFERS: gl.constexpr, OWN: gl.constexpr,
    PART: gl.constexpr,
):  # fmt: skip
    """Round and store sums whose first element is (row, column), as many columns at a time as ``out_desc`` has.

    NUMBER: of the first piece among those of the tile in ``staging``, which has BUFFERS of them.  OWN: unless it is 0,
    every so many buffers of ``staging`` from PART on are the group's, each as large as a piece or larger.
    """
    PIECE: gl.constexpr = out_desc.block_type.shape[1]
    if sums.shape[1] > PIECE:
        left, right = halves(sums)
        HALF: gl.constexpr = left.shape[1]
        store_pieces(left, out_desc, row, column, staging, NUMBER, BUFFERS, OWN, PART)
        store_pieces(right, out_desc, row, column + HALF, staging, NUMBER + HALF // PIECE, BUFFERS, OWN, PART)
    else:
        store_piece(sums.to(out_desc.dtype), out_desc, row, column, staging, NUMBER, BUFFERS, OWN, PART)


@gluon.jit
def store_piece(
    rounded, out_desc, row, column, staging, NUMBER: gl.constexpr, BUFFERS: gl.constexpr, OWN: gl.constexpr,
    PART: gl.constexpr,
):  # fmt: skip
    """Store one piece as :func:`store_pieces` does."""
    # Not before the copy has been read that last left from this buffer: a tile's first piece waits for all.
    if NUMBER == 0:
        tma.store_wait(0)
    elif NUMBER >= BUFFERS:
        tma.store_wait(BUFFERS - 1)
    if OWN > 0:
        larger = staging.index(NUMBER % BUFFERS * OWN + PART)
        buffer = getattr(larger, REINTERPRET.value)(out_desc.dtype, out_desc.block_type.shape, out_desc.layout)
    else:
        buffer = staging.index(NUMBER % BUFFERS)
    buffer.store(rounded)
    fence_async_shared()
    store_box(out_desc, [row, column], buffer)


@gluon.jit
def halves(sums):
    """The left and the right columns."""
    ROWS: gl.constexpr = sums.shape[0]
    HALF: gl.constexpr = sums.shape[1] // 2
    return sums.reshape([ROWS, 2, HALF]).permute((0, 2, 1)).split()


@gluon.jit
def beside(left, right):
    """``right`` to the right of ``left``."""
    ROWS: gl.constexpr = left.shape[0]
    WIDTH: gl.constexpr = 2 * left.shape[1]
    return gl.join(left, right).permute((0, 2, 1)).reshape([ROWS, WIDTH])


@gluon.jit
def rounded_sums(sums, dtype: gl.constexpr):
    """Sums as an output of dtype, two in one volatile instruction.

    Rounded as Triton does, ptxas moves that between matrix steps and the wait for them, and serialises them all.
    """
    if dtype == gl.float32:
        return sums
    elif dtype == gl.float16:
        bits = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [sums], dtype=gl.int16, is_pure=False, pack=2
        )  # fmt: skip
        return bits.to(gl.float16, bitcast=True)
    else:
        bits = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [sums], dtype=gl.int16, is_pure=False, pack=2
        )  # fmt: skip
        return bits.to(gl.bfloat16, bitcast=True)


@gluon.jit
def store_elements(
    sums, out_ptr, row, column, M, N, stride_om, stride_on, OUT_LAYOUT: gl.constexpr, WIDE_OFFSETS: gl.constexpr
):  # fmt: skip
    """Round and store the part of the sums that exists, by addresses."""
    m = row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, sums.type.layout))
    n = column + gl.arange(0, sums.shape[1], gl.SliceLayout(0, sums.type.layout))
    inside = (m < M)[:, None] & (n < N)[None, :]
    if WIDE_OFFSETS:
        m = m.to(gl.int64)
        n = n.to(gl.int64)
    else:
        stride_om = stride_om.to(gl.int32)
        stride_on = stride_on.to(gl.int32)
    if OUT_LAYOUT == COLUMNS:
        offsets = m[:, None] + n[None, :] * stride_on
    else:
        offsets = m[:, None] * stride_om + n[None, :]
    gl.store(out_ptr + offsets, rounded_sums(sums, out_ptr.dtype.element_ty), mask=inside)
