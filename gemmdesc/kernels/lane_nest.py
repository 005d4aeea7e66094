# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""A nest of lanes in one launch: chains in registers, lanes folded where they are, parts or blocks by the last program.

Three ways to read A, one way to add: each lane's chain takes its k in ascending order, a chunk's sum joins the lane's,
lanes are folded digit by digit by explicit additions, and what several programs sum meets in scratch, where the last
one to come folds all of it in the order of the descriptor.  Beyond the end of a chain A is +0.0 and B is -0.0: their
product, -0.0, leaves every sum as it is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.lane_folds import fold_blocks, fold_digits, fold_parts
from gemmdesc.kernels.tile import RUN_TIME, minus_zero

#: How A is read: outputs side by side; k side by side, one for each lane; k side by side, a run for each lane.
ACROSS = tl.constexpr(0)
ALONG = tl.constexpr(1)
RUNS = tl.constexpr(2)
_VECTOR_BYTES = tl.constexpr(16)
_RUN_TIME = (*RUN_TIME, "counters_ptr", "parts", "turn", "unit", "chunk", "rows_first")


@triton.jit
def plus(total, a, b, FUSED: tl.constexpr):
    """One step of a chain."""
    if FUSED:
        return tl.fma(a, b, total)
    else:
        return a * b + total


@triton.jit
def tile_step(
    total, a_ptrs, b_ptrs, a_offset, b_offset, inside, present, FUSED: tl.constexpr, AXIS: tl.constexpr,
    FLAT: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One k of every lane and output; AXIS: that of the outputs.  ``present``: lanes with such a k, unless WHOLE."""
    a_ptrs += a_offset
    b_ptrs += b_offset
    if WIDTH > 1:
        a_ptrs = tl.multiple_of(a_ptrs, (1, _VECTOR_BYTES))
    if not WHOLE:
        if WIDTH > 1 and AXIS == 0:
            present = tl.max_constancy(present, WIDTH)
        nothing = minus_zero(b_ptrs.dtype.element_ty)
        b = tl.load(b_ptrs, mask=tl.expand_dims(present, AXIS) if FLAT else present, other=nothing)
        if AXIS == 0:
            # Rows that do not exist are read as the first one.
            mask = tl.broadcast_to(tl.expand_dims(present, AXIS), total.shape)
        else:
            mask = tl.expand_dims(present, AXIS) & tl.expand_dims(inside, 1 - AXIS)
        a = tl.load(a_ptrs, mask=mask, other=0.0)
    else:
        b = tl.load(b_ptrs)
        if AXIS == 0:
            a = tl.load(a_ptrs)
        else:
            a = tl.load(a_ptrs, mask=tl.expand_dims(inside, 1 - AXIS), other=0.0)
    if not FLAT:
        b = tl.expand_dims(b, AXIS)
    a, b = tl.broadcast_to(a.to(tl.float32), total.shape), tl.broadcast_to(b.to(tl.float32), total.shape)
    return plus(total, a, b, FUSED)


@triton.jit
def chain_steps(
    total, a_ptrs, b_ptrs, count, whole, left, gap, a_step, b_step, inside,
    FUSED: tl.constexpr, AXIS: tl.constexpr, FLAT: tl.constexpr, WIDTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """``count`` steps of every chain, ``gap`` k apart, the first ``whole`` of which every lane has.

    ``left``: k from each lane's first step to the end.  The loads of UNROLL steps are under way at once, those of the
    last few as well: steps that a lane lacks leave its sum as it is.
    """
    groups = whole // UNROLL
    for group in range(groups):
        a_at, b_at = group * UNROLL * a_step, group * UNROLL * b_step
        for _ in tl.static_range(UNROLL):
            total = tile_step(total, a_ptrs, b_ptrs, a_at, b_at, inside, inside, FUSED, AXIS, FLAT, WIDTH, True)
            a_at += a_step
            b_at += b_step
    steps = tl.minimum(tl.cdiv(tl.maximum(left, 0), gap), count)
    for group in range(groups, tl.cdiv(count, UNROLL)):
        a_at, b_at = group * UNROLL * a_step, group * UNROLL * b_step
        for i in tl.static_range(UNROLL):
            present = steps > group * UNROLL + i
            total = tile_step(total, a_ptrs, b_ptrs, a_at, b_at, inside, present, FUSED, AXIS, FLAT, WIDTH, False)
            a_at += a_step
            b_at += b_step
    return total


@triton.jit
def tile_sums(
    a_ptrs, b_ptrs, inside, lane, length, turn, unit, chunk, start, stride_ak, stride_bk,
    FUSED: tl.constexpr, AXIS: tl.constexpr, FLAT: tl.constexpr, WIDTH: tl.constexpr, CHUNKED: tl.constexpr,
    UNITS: tl.constexpr, LANES: tl.constexpr, OUTPUTS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sums of every lane and output, a tile of k after the other; ``length``: k from the first lane's first one on."""
    if AXIS == 1:
        total = tl.full((LANES, OUTPUTS), start, dtype=tl.float32)
    else:
        total = tl.full((OUTPUTS, LANES), start, dtype=tl.float32)
    full = max(length + turn - LANES * unit, 0) // turn
    tiles = tl.cdiv(max(length, 0), turn)
    left = length - lane * unit
    a_turn, b_turn = turn * stride_ak, turn * stride_bk
    if CHUNKED:
        opened = total
        total = tl.full(total.shape, minus_zero(tl.float32), dtype=tl.float32)
        for begin in range(0, max(tiles, 1), chunk):
            sums = chain_steps(
                opened, a_ptrs, b_ptrs, min(chunk, tiles - begin), min(chunk, max(full - begin, 0)),
                left - begin * turn, turn, a_turn, b_turn, inside, FUSED, AXIS, FLAT, WIDTH, UNROLL,
            )  # fmt: skip
            # A lane's list of k may end before: it has no such chunk then, but that of an empty list, which is empty.
            exists = (left > begin * turn) | (begin == 0)
            total = tl.where(tl.expand_dims(exists, AXIS), total + sums, total)
            a_ptrs += chunk * a_turn
            b_ptrs += chunk * b_turn
    elif UNITS:
        for t in range(tiles):
            total = chain_steps(
                total, a_ptrs, b_ptrs, unit, tl.where(t < full, unit, 0), left - t * turn, 1, stride_ak, stride_bk,
                inside, FUSED, AXIS, FLAT, WIDTH, UNROLL,
            )  # fmt: skip
            a_ptrs += a_turn
            b_ptrs += b_turn
    else:
        total = chain_steps(
            total, a_ptrs, b_ptrs, tiles, full, left, turn, a_turn, b_turn, inside, FUSED, AXIS, FLAT, WIDTH, UNROLL
        )
    return total


@triton.jit
def run_step(total, window, b_ptrs, v, length, stride_bk, FUSED: tl.constexpr):
    """The k numbered ``v`` of every run, where it is one of the run's."""
    present = (v >= 0) & (v < length)
    nothing = minus_zero(b_ptrs.dtype.element_ty)
    b = tl.load(b_ptrs + v.to(tl.int64) * stride_bk, mask=present, other=nothing).to(tl.float32)
    return plus(total, tl.where(present, window.to(tl.float32), 0.0), b, FUSED)


@triton.jit
def window_step(total, window, b_ptrs, v, length, stride_bk, FUSED: tl.constexpr):
    """As many k of every run as ``window`` (outputs, lanes, width) has, from ``v`` on."""
    outputs: tl.constexpr = window.shape[0]
    lanes: tl.constexpr = window.shape[1]
    width: tl.constexpr = window.shape[2]
    low, high = tl.split(tl.permute(tl.reshape(window, (outputs, lanes, 2, width // 2)), (0, 1, 3, 2)))
    if width == 4:
        a, b = tl.split(low)
        c, d = tl.split(high)
        total = run_step(total, a, b_ptrs, v, length, stride_bk, FUSED)
        total = run_step(total, b, b_ptrs, v + 1, length, stride_bk, FUSED)
        total = run_step(total, c, b_ptrs, v + 2, length, stride_bk, FUSED)
        return run_step(total, d, b_ptrs, v + 3, length, stride_bk, FUSED)
    else:
        total = window_step(total, low, b_ptrs, v, length, stride_bk, FUSED)
        return window_step(total, high, b_ptrs, v + 4, length, stride_bk, FUSED)


@triton.jit
def run_sums(
    a_ptr, b_ptrs, row, lane, length, turn, unit, start, M, first, stride_am, stride_bk,
    FUSED: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Sums (outputs, lanes), each lane's k one after the other in memory.

    Runs begin anywhere, and a thread that reads one alone wants wide loads: it reads whole windows of 16 aligned bytes
    and leaves out what is not its run's.  Windows reach into the rows around, which the first rows and the last lack:
    programs that hold those read element by element.  ``first``: of the program's outputs.
    """
    total = tl.full((OUTPUTS, LANES), start, dtype=tl.float32)
    at = row[:, None] * stride_am + (lane * unit)[None, :]
    b_ptrs = tl.broadcast_to((b_ptrs + (lane * unit).to(tl.int64) * stride_bk)[None, :], (OUTPUTS, LANES))
    lasts = M - OUTPUTS - first
    inner = (first * stride_am >= WIDTH) & (lasts * stride_am >= WIDTH)
    turns = tl.cdiv(max(length, 0), turn)
    size: tl.constexpr = a_ptr.dtype.element_ty.primitive_bitwidth // 8
    for t in range(turns):
        there = tl.maximum(tl.minimum(length - t * turn - lane * unit, unit), 0)
        left = tl.broadcast_to(there[None, :], (OUTPUTS, LANES))
        if inner:
            # The address is a multiple of an element's size.
            shift = ((a_ptr.to(tl.int64) // size + at) % WIDTH).to(tl.int32)
            windows = a_ptr + (at - shift)[:, :, None] + tl.arange(0, WIDTH)[None, None, :]
            for i in range(tl.cdiv(unit + WIDTH - 1, WIDTH)):
                v = i * WIDTH - shift
                ptrs = tl.multiple_of(windows + i * WIDTH, (1, 1, _VECTOR_BYTES))
                window = tl.load(ptrs, mask=(v < left)[:, :, None], other=0.0)
                total = window_step(total, window, b_ptrs, v, left, stride_bk, FUSED)
        else:
            for v in range(unit):
                present = left > v
                a = tl.load(a_ptr + at + v, mask=present, other=0.0)
                total = run_step(total, a, b_ptrs, tl.full((OUTPUTS, LANES), v, dtype=tl.int32), left, stride_bk, FUSED)
        at += turn
        b_ptrs += turn.to(tl.int64) * stride_bk
    return total


@triton.jit
def lane_sums(
    a_ptr, b_ptr, M, N, rows_first, summed_k, span, unit, turn, chunk, start,
    stride_am, stride_ak, stride_bk, stride_bn,
    FUSED: tl.constexpr, READ: tl.constexpr, FLAT: tl.constexpr, WIDTH: tl.constexpr, CHUNKED: tl.constexpr,
    UNITS: tl.constexpr, DEALT: tl.constexpr, DIGITS: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr,
    OUTPUTS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """(sums, rows, columns, which of them exist) of this program's outputs and its part of k, or block if DEALT."""
    size = M.to(tl.int64) * N
    tiles = tl.cdiv(size, OUTPUTS)
    index = tl.program_id(0).to(tl.int64)
    part = (index // tiles).to(tl.int32)
    first = index % tiles * OUTPUTS
    output = first + tl.arange(0, OUTPUTS)
    inside = output < size
    if FLAT:
        quick = tl.where(rows_first != 0, M, N)
        high, low = output // quick, output % quick
        row, column = tl.where(rows_first != 0, low, high), tl.where(rows_first != 0, high, low)
    else:
        row, column = output, tl.zeros((OUTPUTS,), dtype=tl.int64)
    if READ == ALONG:
        unit = 1
    if READ != ACROSS:
        stride_ak = 1
    if DEALT:
        begin = part * (LANES * unit)
        length = summed_k - begin
    else:
        begin = part * span
        length = min(summed_k - begin, span)
        turn = unit * LANES
    if READ == ACROSS and not FLAT:
        stride_am = 1
    a_ptr += begin.to(tl.int64) * stride_ak
    b_ptr += begin.to(tl.int64) * stride_bk
    lane = tl.arange(0, LANES)
    if READ == RUNS:
        sums = run_sums(
            a_ptr, b_ptr, tl.where(inside, row, 0), lane, length, turn, unit, start, M, first, stride_am, stride_bk,
            FUSED, WIDTH, LANES, OUTPUTS,
        )  # fmt: skip
    else:
        AXIS: tl.constexpr = 1 if READ == ACROSS else 0
        read_row, reads = row, inside
        if READ == ALONG:
            # Rows beyond the end are read as the first one: loads along k need no mask then.
            read_row = tl.where(inside, row, 0)
        elif WIDTH > 1:
            reads = tl.max_constancy(inside, WIDTH)
        k = lane.to(tl.int64) * unit
        a_ptrs = a_ptr + tl.expand_dims(read_row * stride_am, 1 - AXIS) + tl.expand_dims(k * stride_ak, AXIS)
        b_ptrs = b_ptr + k * stride_bk
        if FLAT:
            read_column = tl.where(inside, column, 0)
            b_ptrs = tl.expand_dims(b_ptrs, AXIS) + tl.expand_dims(read_column * stride_bn, 1 - AXIS)
        sums = tile_sums(
            a_ptrs, b_ptrs, reads, lane, length, turn, unit, chunk, start, stride_ak, stride_bk, FUSED, AXIS, FLAT,
            WIDTH, CHUNKED, UNITS, LANES, OUTPUTS, UNROLL,
        )  # fmt: skip
        if READ == ACROSS:
            sums = tl.trans(sums)
    return fold_digits(sums, DIGITS, COUNT), row, column, inside


@triton.jit(do_not_specialize=_RUN_TIME)
def lane_nest_kernel(
    a_ptr, b_ptr, out_ptr,
    M: tl.int32, N: tl.int32, rows_first: tl.int32, summed_k: tl.int32, span: tl.int32, unit: tl.int32,
    chunk: tl.int32, start: tl.float32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_om: tl.int64, stride_on: tl.int64,
    FUSED: tl.constexpr, READ: tl.constexpr, FLAT: tl.constexpr, WIDTH: tl.constexpr, CHUNKED: tl.constexpr,
    UNITS: tl.constexpr, DIGITS: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr, OUTPUTS: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """One program per tile of OUTPUTS outputs, chains from ``start`` on; ``span`` is not below ``summed_k``.

    Fields as in :class:`gemmdesc.kernels.lanes.Lanes`.  Outputs are numbered along rows of the product, or down its
    columns where ``rows_first``; unless FLAT there is one column.
    """
    sums, row, column, inside = lane_sums(
        a_ptr, b_ptr, M, N, rows_first, summed_k, span, unit, unit, chunk, start, stride_am, stride_ak, stride_bk,
        stride_bn, FUSED, READ, FLAT, WIDTH, CHUNKED, UNITS, False, DIGITS, COUNT, LANES, OUTPUTS, UNROLL,
    )  # fmt: skip
    out_ptrs = out_ptr + row * stride_om + column * stride_on
    tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_RUN_TIME)
def lane_join_kernel(
    a_ptr, b_ptr, out_ptr, scratch_ptr, counters_ptr,
    M: tl.int32, N: tl.int32, rows_first: tl.int32, summed_k: tl.int32, span: tl.int32, parts: tl.int32,
    blocks: tl.int32, unit: tl.int32, chunk: tl.int32, start: tl.float32,
    stride_am: tl.int64, stride_ak: tl.int64, stride_bk: tl.int64, stride_bn: tl.int64,
    stride_om: tl.int64, stride_on: tl.int64,
    FUSED: tl.constexpr, READ: tl.constexpr, FLAT: tl.constexpr, WIDTH: tl.constexpr, CHUNKED: tl.constexpr,
    UNITS: tl.constexpr, DEALT: tl.constexpr, DIGITS: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr,
    OUTPUTS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """As :func:`lane_nest_kernel`, a program for each tile and part of ``span`` k, or block if DEALT.

    ``parts``: programs of each tile.  Of ``blocks`` those beyond have no k.
    """
    tiles = tl.cdiv(M.to(tl.int64) * N, OUTPUTS)
    index = tl.program_id(0).to(tl.int64)
    sums, row, column, inside = lane_sums(
        a_ptr, b_ptr, M, N, rows_first, summed_k, span, unit, blocks * unit * LANES, chunk, start, stride_am, stride_ak,
        stride_bk, stride_bn, FUSED, READ, FLAT, WIDTH, CHUNKED, UNITS, DEALT, DIGITS, COUNT, LANES, OUTPUTS, UNROLL,
    )  # fmt: skip
    # The last program of a tile sees what the others stored: see merged_chain.merge_last.
    tile = index % tiles
    output = tl.arange(0, OUTPUTS)
    scratch_ptr += tile * OUTPUTS
    apart = tiles * OUTPUTS
    tl.store(scratch_ptr + index // tiles * apart + output, sums)
    tl.debug_barrier()
    before = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
    if before == parts - 1:
        tl.debug_barrier()
        # All others have counted, and the next kernel on the stream starts from zero again.
        tl.store(counters_ptr + tile, 0)
        if DEALT:
            total = fold_blocks(scratch_ptr, apart, parts, blocks, start, OUTPUTS)
        else:
            total = fold_parts(scratch_ptr, apart, parts, OUTPUTS)
        out_ptrs = out_ptr + row * stride_om + column * stride_on
        tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside)
