# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: RUF005  Triton reads no stars in tuples
"""How a group of the specialised chain finishes its sums by a program before it stores them: piece by piece.

What it does to a piece is what the other fused kernels do to a tile, by the same functions: those of ``fused_steps``
take whatever layout a tensor has.  Operands are read as the sums lie, two neighbours by a thread.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton import next_power_of_2
from triton.experimental import gluon

from gemmdesc.kernels.fused_fetch import fetch_lines
from gemmdesc.kernels.fused_steps import (
    FLOAT16,
    WHOLE_COLUMNS,
    WHOLE_ROWS,
    operands_over,
    parts_of,
    rounded_tile,
    run_program,
    taken,
)
from gemmdesc.kernels.specialised_store import beside, store_piece

#: Warps of a group, in both directions of what it fetches.
WARPS = gl.constexpr(4)


@gluon.jit
def finish_pieces(
    sums, out_desc, row, column, M, N, staging, NUMBER: gl.constexpr, BUFFERS: gl.constexpr, OWN: gl.constexpr,
    PART: gl.constexpr, finishing,
):  # fmt: skip
    """Finish sums whose first element is (row, column), round and store them, as many columns at a time as a piece has.

    ``finishing``: (numbers, addresses, strides along m, along n, PROGRAM, COUNT, FORMATS, RESULT, whether the program
    begins with a rounding, columns that are finished at once, whether the operands of the next ones are asked for
    before), the first four of six operands each, the others as ``run_program`` has them.  NUMBER, BUFFERS, OWN, PART:
    as ``store_piece`` has them.
    """
    numbers, addresses, strides_m, strides_n = finishing[0], finishing[1], finishing[2], finishing[3]
    PROGRAM: gl.constexpr = finishing[4]
    COUNT: gl.constexpr = finishing[5]
    FORMATS: gl.constexpr = finishing[6]
    RESULT: gl.constexpr = finishing[7]
    ROUNDS_FIRST: gl.constexpr = finishing[8]
    PIECE: gl.constexpr = out_desc.block_type.shape[1]
    WIDTH: gl.constexpr = min(finishing[9], PIECE)
    AHEAD: gl.constexpr = finishing[10]
    PARTS: gl.constexpr = sums.shape[1] // WIDTH
    EACH: gl.constexpr = PIECE // WIDTH
    parts = parts_of(sums, PARTS)
    m = gl.arange(0, sums.shape[0], gl.SliceLayout(1, parts[0].type.layout))
    n = gl.arange(0, WIDTH, gl.SliceLayout(0, parts[0].type.layout))
    operands = operands_over(FORMATS, numbers, addresses, strides_m, strides_n, row, column, m, n, M, N)
    finished = parts[:0]
    for i in gl.static_range(PARTS):
        here = operands
        if AHEAD and i + 1 < PARTS:
            operands = operands_over(
                FORMATS, numbers, addresses, strides_m, strides_n, row, column + (i + 1) * WIDTH, m, n, M, N
            )
        # Read by volatile instructions, or ptxas moves what reads sums to before the wait for them.
        value = parts[i] if ROUNDS_FIRST else taken(parts[i])
        value = run_program(value, 0, PROGRAM, COUNT, FORMATS, here)
        finished = finished + (rounded_tile(value, out_desc.dtype, RESULT),)
        if (i + 1) % EACH == 0:
            store_piece(
                whole_of(finished), out_desc, row, column + (i + 1 - EACH) * WIDTH, staging, NUMBER + i // EACH,
                BUFFERS, OWN, PART,
            )  # fmt: skip
            finished = parts[:0]
        if not AHEAD and i + 1 < PARTS:
            operands = operands_over(
                FORMATS, numbers, addresses, strides_m, strides_n, row, column + (i + 1) * WIDTH, m, n, M, N
            )


@gluon.jit
def whole_of(parts):
    """One tensor of equal parts of its columns, from left to right; a power of two of them."""
    if len(parts) == 1:
        return parts[0]
    else:
        HALF: gl.constexpr = len(parts) // 2
        return beside(whole_of(parts[:HALF]), whole_of(parts[HALF:]))


@gluon.jit
def fetch_tile(
    finishing, row, column, M, N, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE_N: gl.constexpr
):  # fmt: skip
    """Ask for the operands over a tile that are stored by whole lines to be in the second-level cache.

    A group does so before it multiplies the tile: they are there when it ends.
    """
    addresses, strides_m, strides_n = finishing[1], finishing[2], finishing[3]
    FORMATS: gl.constexpr = finishing[6]
    for i in gl.static_range(6):
        fetch_part(
            addresses[i], (FORMATS >> (8 * i)) & 255, strides_m[i], strides_n[i], row, column, M, N, ROWS, BLOCK_N
        )
        if BESIDE_N > 0:
            fetch_part(
                addresses[i], (FORMATS >> (8 * i)) & 255, strides_m[i], strides_n[i], row, column + BLOCK_N, M, N, ROWS,
                BESIDE_N,
            )  # fmt: skip


@gluon.jit
def fetch_part(
    address, FORMAT: gl.constexpr, stride_m, stride_n, row, column, M, N, ROWS: gl.constexpr, COLUMNS: gl.constexpr
):  # fmt: skip
    """The part of one operand over ROWS x COLUMNS of a tile."""
    FORM: gl.constexpr = FORMAT >> 2
    if FORM == WHOLE_ROWS or FORM == WHOLE_COLUMNS:  # noqa: SIM109  Triton knows no `in` here
        BY_ROWS: gl.constexpr = FORM == WHOLE_ROWS
        # Elements of a line of 128 bytes.
        EACH: gl.constexpr = 64 if FORMAT & 3 >= FLOAT16 else 32
        EACH_M: gl.constexpr = 1 if BY_ROWS else EACH
        EACH_N: gl.constexpr = EACH if BY_ROWS else 1
        # A thread has lines one below or beside the other.
        LANES: gl.constexpr = [32, 1] if BY_ROWS else [1, 32]
        ACROSS: gl.constexpr = [WARPS, 1] if BY_ROWS else [1, WARPS]
        LINES: gl.constexpr = gl.BlockedLayout([1, 1], LANES, ACROSS, [1, 0])
        # Of a width that is no power of two, some lines beyond it, too.
        BELOW: gl.constexpr = max(1, ROWS // EACH_M)
        BESIDE: gl.constexpr = next_power_of_2((COLUMNS + EACH_N - 1) // EACH_N)
        m = row + gl.arange(0, BELOW, gl.SliceLayout(1, LINES)) * EACH_M
        n = column + gl.arange(0, BESIDE, gl.SliceLayout(0, LINES)) * EACH_N
        fetch_lines(address, FORMAT, stride_m, stride_n, m, n, M, N)
