# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: RUF005  Triton reads no stars in lists
"""One ascending chain of matrix steps per tile, by warps that each do one thing: one loads, two groups multiply.

One warp copies tiles of A and B into a ring of ``STAGES`` buffers, ahead of who multiplies and into the next tile while
a tile is stored.  Of each stage, ``full`` says that its bytes have come and ``empty`` that nobody reads them any more.
Two groups of four warps multiply: each has half of the rows of every tile, or, where they take turns, every other tile.
A tile is BLOCK_N columns and, unless BESIDE_N is 0, as many more beside them, with buffers and sums of their own; or,
if it is WHOLE, BLOCK_N columns that one instruction takes, any multiple of 8: see ``specialised_whole.py``.

In a cluster of CLUSTER_M x CLUSTER_N programs, a pair, neighbouring tiles share what is the same for both: B where one
is below the other, A where one is beside it.  Each program loads half of that, into the same place of both.  Both go
through the same steps, also where one of the tiles is beyond the edge; a stage is empty once all groups of both are
done with it.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from gemmdesc.kernels.cluster import arrive_there, load_for_both, meet, publish_barriers
from gemmdesc.kernels.specialised_finish import fetch_tile, finish_pieces
from gemmdesc.kernels.specialised_store import store_elements, store_pieces
from gemmdesc.kernels.specialised_whole import PATTERN, load_whole, multiply_whole, no_sums, store_whole
from gemmdesc.kernels.tile import RUN_TIME, let_next_start, wait_for_previous

# Triton 3.6 has another name for this than later ones.
load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared

#: Warps of a group that multiplies, and of one that loads, whose registers the groups get.
GROUP_WARPS = gl.constexpr(4)
LOADING_WARPS = gl.constexpr(1)
LOADING_REGISTERS = gl.constexpr(24)
GROUP_REGISTERS = gl.constexpr(240)


@gluon.jit
def tiles_of(M, N, BLOCK_M: gl.constexpr, WIDTH: gl.constexpr):
    """How many tiles there are."""
    return ((M + BLOCK_M - 1) // BLOCK_M) * ((N + WIDTH - 1) // WIDTH)


@gluon.jit
def corner_of(
    index, rank, M, N, BLOCK_M: gl.constexpr, WIDTH: gl.constexpr, GROUP_M: gl.constexpr,
    CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr,
):  # fmt: skip
    """(row, column) of the first element of the tile of program ``rank`` in pair ``index``.

    Pairs, or tiles where there are none, are in groups of GROUP_M rows of them.
    """
    HIGH: gl.constexpr = BLOCK_M * CLUSTER_M
    WIDE: gl.constexpr = WIDTH * CLUSTER_N
    pairs_m = (M + HIGH - 1) // HIGH
    pairs_n = (N + WIDE - 1) // WIDE
    per_group = GROUP_M * pairs_n
    first_m = index // per_group * GROUP_M
    rows = min(pairs_m - first_m, GROUP_M)
    m = (first_m + index % per_group % rows) * HIGH
    n = index % per_group // rows * WIDE
    if CLUSTER_M == 2:
        m += rank * BLOCK_M
    if CLUSTER_N == 2:
        n += rank * WIDTH
    return m, n


@gluon.jit
def idle():
    """What the warps do that fill up a cluster's last four: all of them must meet."""
    meet()


@gluon.jit
def place_of(step, STAGES: gl.constexpr):
    """(stage, parity of its use) of the program's step number ``step``, counted over all of its tiles."""
    return step % STAGES, step // STAGES % 2


@gluon.jit
def place_after(stage, parity, STAGES: gl.constexpr):
    """The place of the step after the one at ``stage``."""
    following = (stage + 1) % STAGES
    return following, parity ^ (following == 0)


@gluon.jit
def load_tiles(
    a_desc, b_desc, b_beside_desc, a_ring, b_ring, beside_ring, full, empty, M, N, k_tiles,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, DEPENDENT: gl.constexpr, PARTS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr,
    WHOLE: gl.constexpr,
):  # fmt: skip
    """What the loading warp does: every step of every tile of the program, each into the next stage of the ring."""
    PAIR: gl.constexpr = CLUSTER_M * CLUSTER_N
    ROWS: gl.constexpr = BLOCK_M // PARTS
    WIDTH: gl.constexpr = BLOCK_N + BESIDE_N
    # In a cluster, too: what the other program loads for both counts here as it comes.
    STEP_BYTES: gl.constexpr = (BLOCK_M + WIDTH) * BLOCK_K * 2
    if PAIR == 2:
        meet()
    if DEPENDENT:
        wait_for_previous()
    rank = gl.program_id(0) % PAIR
    work = tiles_of(M, N, BLOCK_M * CLUSTER_M, WIDTH * CLUSTER_N)
    stage = 0
    parity = 0
    for index in range(gl.program_id(0) // PAIR, work, gl.num_programs(0) // PAIR):
        m, n = corner_of(index, rank, M, N, BLOCK_M, WIDTH, GROUP_M, CLUSTER_M, CLUSTER_N)
        for step in range(k_tiles):
            k = step * BLOCK_K
            # The use before this one must be over; of a ring's first round a fresh barrier says so.
            mbarrier.wait(empty.index(stage), parity ^ 1)
            filled = full.index(stage)
            mbarrier.expect(filled, STEP_BYTES)
            if CLUSTER_N == 2:
                rows = m + rank * ROWS
                own = a_ring.index(stage * PARTS + rank)
                load_for_both(a_desc, rows if A_ROWS else k, k if A_ROWS else rows, 0, filled, own)
            else:
                for part in gl.static_range(PARTS):
                    rows = m + part * ROWS
                    load_box(a_desc, [rows, k] if A_ROWS else [k, rows], filled, a_ring.index(stage * PARTS + part))
            if WHOLE:
                load_whole(b_desc, b_beside_desc, k, n, rank, filled, b_ring, stage, BLOCK_N, CLUSTER_M)
            else:
                load_columns(b_desc, k, n, rank, filled, b_ring.index(stage), B_ROWS, CLUSTER_M)
            if BESIDE_N > 0:
                load_columns(b_beside_desc, k, n + BLOCK_N, rank, filled, beside_ring.index(stage), B_ROWS, CLUSTER_M)
            stage, parity = place_after(stage, parity, STAGES)
    if PAIR == 2:
        # Shared memory goes when the program ends: not before the other one's last arrivals have come, after which it
        # comes no more, as what it has loaded for both has been multiplied here.
        for _ in gl.static_range(STAGES):
            mbarrier.wait(empty.index(stage), parity ^ 1)
            stage, parity = place_after(stage, parity, STAGES)


@gluon.jit
def load_columns(desc, k, n, rank, filled, buffer, B_ROWS: gl.constexpr, CLUSTER_M: gl.constexpr):
    """Lanes from ``k`` on of columns from ``n`` on; where tiles are below each other, half of the lines, for both."""
    line = k if B_ROWS else n
    along = n if B_ROWS else k
    if CLUSTER_M == 2:
        first = rank * desc.block_type.shape[0]
        load_for_both(desc, line + first, along, first, filled, buffer)
    else:
        load_box(desc, [line, along], filled, buffer)


@gluon.jit
def multiply_tiles(
    a_ring, b_ring, beside_ring, full, empty, turns, out_desc, out_beside_desc, staging, staging_beside, out_ptr,
    M, N, k_tiles, stride_om, stride_on, finishing, GROUP: gl.constexpr,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, STORE_BY_DESCRIPTOR: gl.constexpr, DEPENDENT: gl.constexpr,
    OUT_LAYOUT: gl.constexpr, WIDE_OFFSETS: gl.constexpr, PARTS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, STORE_N: gl.constexpr, STORE_BUFFERS: gl.constexpr,
    ALONE: gl.constexpr, CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """What a group does that multiplies: its rows of every tile, or, if PARTS is 1, every other tile whole."""
    PAIR: gl.constexpr = CLUSTER_M * CLUSTER_N
    ROWS: gl.constexpr = BLOCK_M // PARTS
    WIDTH: gl.constexpr = BLOCK_N + BESIDE_N
    PART: gl.constexpr = GROUP if PARTS == 2 else 0
    FIRST: gl.constexpr = GROUP if PARTS == 1 else 0
    EVERY: gl.constexpr = 2 if PARTS == 1 else 1
    # Instructions that may be in flight while the stage before theirs is handed back: those of one step.
    FLYING: gl.constexpr = 2 if BESIDE_N > 0 else 1
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, BLOCK_N, 16])
    UNITS: gl.constexpr = BLOCK_N // PATTERN if WHOLE else 1
    BESIDE_SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, max(BESIDE_N, 8), 16])
    if PAIR == 2:
        meet()
    if DEPENDENT:
        wait_for_previous()
    # Never added to: the first step of each tile begins new sums.
    if WHOLE:
        sums = no_sums(ROWS, BLOCK_N)
    else:
        sums = gl.zeros([ROWS, BLOCK_N], gl.float32, SUMS)
    beside = gl.zeros([ROWS, max(BESIDE_N, 8)], gl.float32, BESIDE_SUMS)
    rank = gl.program_id(0) % PAIR
    work = tiles_of(M, N, BLOCK_M * CLUSTER_M, WIDTH * CLUSTER_N)
    programs = gl.num_programs(0) // PAIR
    number = FIRST
    turn = 1 - FIRST
    for index in range(gl.program_id(0) // PAIR + FIRST * programs, work, EVERY * programs):
        m, n = corner_of(index, rank, M, N, BLOCK_M, WIDTH, GROUP_M, CLUSTER_M, CLUSTER_N)
        stage, parity = place_of(number * k_tiles, STAGES)
        if finishing is not None:
            fetch_tile(finishing, m + PART * ROWS, n, M, N, ROWS, BLOCK_N, BESIDE_N)
        if PARTS == 1:
            # Waiting for a use of a stage is sound only once the use before it has come: a parity tells two uses
            # apart, not three.  So a group begins to wait after the other one has waited for all of its own.
            mbarrier.wait(turns.index(GROUP), turn)
        # A value of its own: Triton 3.6 does not carry a variable into the next turn that begins as another one's.
        before = stage + 0
        for step in range(k_tiles):
            mbarrier.wait(full.index(stage), parity)
            a = a_ring.index(stage * PARTS + PART)
            b = b_ring.index(stage * UNITS)
            if WHOLE:
                sums = multiply_whole(a, b, sums, step > 0, BLOCK_N, A_ROWS)
            else:
                a = a if A_ROWS else a.permute((1, 0))
                b = b if B_ROWS else b.permute((1, 0))
                sums = warpgroup_mma(a, b, sums, use_acc=step > 0, is_async=True)
            if WHOLE:
                sums = warpgroup_mma_wait(FLYING, deps=sums)
            elif BESIDE_N > 0:
                more = beside_ring.index(stage)
                more = more if B_ROWS else more.permute((1, 0))
                beside = warpgroup_mma(a, more, beside, use_acc=step > 0, is_async=True)
                sums, beside = warpgroup_mma_wait(FLYING, deps=[sums, beside])
            else:
                sums = warpgroup_mma_wait(FLYING, deps=[sums])
            mbarrier.arrive(empty.index(before), pred=step > 0)
            if PAIR == 2:
                arrive_there(empty.index(before), 1 - rank, step > 0)
            before = stage
            stage, parity = place_after(stage, parity, STAGES)
        # The other group's instructions queue up behind these.  Where addresses are stored to, ptxas would serialise
        # all of them if anything stood between the last one and the wait for it.
        if PARTS == 1 and STORE_BY_DESCRIPTOR:
            mbarrier.arrive(turns.index(1 - GROUP))
        if WHOLE:
            sums = warpgroup_mma_wait(0, deps=sums)
        elif BESIDE_N > 0:
            sums, beside = warpgroup_mma_wait(0, deps=[sums, beside])
        else:
            sums = warpgroup_mma_wait(0, deps=[sums])
        if PARTS == 1 and not STORE_BY_DESCRIPTOR:
            mbarrier.arrive(turns.index(1 - GROUP))
        mbarrier.arrive(empty.index(before))
        if PAIR == 2:
            arrive_there(empty.index(before), 1 - rank, True)
        if DEPENDENT:  # noqa: SIM102  one of them is known when it is compiled
            if index + programs >= work:
                let_next_start()
        rows = m + PART * ROWS
        # In a program's only tile, the group's own boxes of A are done with.
        OWN: gl.constexpr = PARTS if ALONE else 0
        # What is narrower than a piece has a buffer of its own, once in a tile.
        APART: gl.constexpr = BESIDE_N < STORE_N and not ALONE
        NUMBER: gl.constexpr = -1 if APART else BLOCK_N // STORE_N
        BUFFERS: gl.constexpr = 1 if APART else STORE_BUFFERS
        if WHOLE:
            store_whole(
                sums, out_desc, out_beside_desc, out_ptr, staging, staging_beside, rows, n, M, N, stride_om, stride_on,
                finishing, STORE_BY_DESCRIPTOR, OUT_LAYOUT, WIDE_OFFSETS, BLOCK_N, STORE_N, STORE_BUFFERS, ALONE, PARTS,
                PART,
            )  # fmt: skip
        elif finishing is not None:
            finish_pieces(sums, out_desc, rows, n, M, N, staging, 0, STORE_BUFFERS, OWN, PART, finishing)
            if BESIDE_N > 0:
                finish_pieces(
                    beside, out_beside_desc, rows, n + BLOCK_N, M, N, staging_beside, NUMBER, BUFFERS, OWN, PART,
                    finishing,
                )  # fmt: skip
        elif STORE_BY_DESCRIPTOR:
            store_pieces(sums, out_desc, rows, n, staging, 0, STORE_BUFFERS, OWN, PART)
            if BESIDE_N > 0:
                store_pieces(beside, out_beside_desc, rows, n + BLOCK_N, staging_beside, NUMBER, BUFFERS, OWN, PART)
        else:
            store_elements(sums, out_ptr, rows, n, M, N, stride_om, stride_on, OUT_LAYOUT, WIDE_OFFSETS)
            if BESIDE_N > 0:
                store_elements(
                    beside, out_ptr, rows, n + BLOCK_N, M, N, stride_om, stride_on, OUT_LAYOUT, WIDE_OFFSETS
                )
        number += EVERY
        turn ^= 1
    if STORE_BY_DESCRIPTOR:
        # Shared memory goes when the program ends.
        tma.store_wait(0)


@gluon.jit
def run_specialised(
    a_desc, b_desc, b_beside_desc, out_desc, out_beside_desc, out_ptr, M, N, k_tiles, stride_om, stride_on, finishing,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, STORE_BY_DESCRIPTOR: gl.constexpr, DEPENDENT: gl.constexpr,
    OUT_LAYOUT: gl.constexpr, WIDE_OFFSETS: gl.constexpr, TURNS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, STORE_N: gl.constexpr, STORE_BUFFERS: gl.constexpr,
    ALONE: gl.constexpr, CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """What a kernel of specialised warps does.  ``finishing``: what it does to a tile before that is stored, or None.

    TURNS: the groups take turns, a tile each.  Else each has half of the rows of every tile.  ALONE: no program has
    more than one tile, which is then staged in the ring.  CLUSTER_M, CLUSTER_N: programs of a cluster, 1 x 1, 2 x 1 or
    1 x 2, in which the launch must come, its number of programs a multiple; tiles of pairs are shared, not TURNS.
    """
    PARTS: gl.constexpr = 1 if TURNS else 2
    PAIR: gl.constexpr = CLUSTER_M * CLUSTER_N
    dtype: gl.constexpr = a_desc.dtype
    a_ring = gl.allocate_shared_memory(dtype, [STAGES * PARTS] + a_desc.block_type.shape, a_desc.layout)
    NARROW: gl.constexpr = BLOCK_N % STORE_N if WHOLE else (BESIDE_N if BESIDE_N < STORE_N else 0)
    if WHOLE:
        units: gl.constexpr = [STAGES * (BLOCK_N // PATTERN), PATTERN, BLOCK_K]
        b_ring = gl.allocate_shared_memory(dtype, units, b_desc.layout)
    else:
        columns: gl.constexpr = [STAGES, b_desc.block_type.shape[0] * CLUSTER_M, b_desc.block_type.shape[1]]
        b_ring = gl.allocate_shared_memory(dtype, columns, b_desc.layout)
    beside_ring = b_ring
    if BESIDE_N > 0:
        more: gl.constexpr = [STAGES, b_beside_desc.block_type.shape[0] * CLUSTER_M, b_beside_desc.block_type.shape[1]]
        beside_ring = gl.allocate_shared_memory(dtype, more, b_beside_desc.layout)
    staging_0 = a_ring
    staging_1 = a_ring
    if STORE_BY_DESCRIPTOR and not ALONE:
        box: gl.constexpr = [STORE_BUFFERS] + out_desc.block_type.shape
        staging_0 = gl.allocate_shared_memory(out_desc.dtype, box, out_desc.layout)
        staging_1 = gl.allocate_shared_memory(out_desc.dtype, box, out_desc.layout)
    beside_0 = staging_0
    beside_1 = staging_1
    if STORE_BY_DESCRIPTOR and not ALONE and NARROW > 0:
        narrow: gl.constexpr = [1] + out_beside_desc.block_type.shape
        beside_0 = gl.allocate_shared_memory(out_desc.dtype, narrow, out_beside_desc.layout)
        beside_1 = gl.allocate_shared_memory(out_desc.dtype, narrow, out_beside_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=PARTS * PAIR)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    fence_async_shared()
    if PAIR == 2:
        publish_barriers()
    gl.warp_specialize(
        [
            (multiply_tiles, (
                a_ring, b_ring, beside_ring, full, empty, turns, out_desc, out_beside_desc, staging_0, beside_0,
                out_ptr, M, N, k_tiles, stride_om, stride_on, finishing, 0,
                A_ROWS, B_ROWS, STORE_BY_DESCRIPTOR, DEPENDENT, OUT_LAYOUT, WIDE_OFFSETS, PARTS,
                BLOCK_M, BLOCK_N, BESIDE_N, BLOCK_K, GROUP_M, STAGES, STORE_N, STORE_BUFFERS, ALONE, CLUSTER_M,
                CLUSTER_N, WHOLE,
            )),
            (multiply_tiles, (
                a_ring, b_ring, beside_ring, full, empty, turns, out_desc, out_beside_desc, staging_1, beside_1,
                out_ptr, M, N, k_tiles, stride_om, stride_on, finishing, 1,
                A_ROWS, B_ROWS, STORE_BY_DESCRIPTOR, DEPENDENT, OUT_LAYOUT, WIDE_OFFSETS, PARTS,
                BLOCK_M, BLOCK_N, BESIDE_N, BLOCK_K, GROUP_M, STAGES, STORE_N, STORE_BUFFERS, ALONE, CLUSTER_M,
                CLUSTER_N, WHOLE,
            )),
            (load_tiles, (
                a_desc, b_desc, b_beside_desc, a_ring, b_ring, beside_ring, full, empty, M, N, k_tiles,
                A_ROWS, B_ROWS, DEPENDENT, PARTS, BLOCK_M, BLOCK_N, BESIDE_N, BLOCK_K, GROUP_M, STAGES, CLUSTER_M,
                CLUSTER_N, WHOLE,
            )),
        ] + ([(idle, ()), (idle, ())] if PAIR == 2 else []),
        [GROUP_WARPS, LOADING_WARPS] + ([1, 2] if PAIR == 2 else []),
        [GROUP_REGISTERS, LOADING_REGISTERS] + ([LOADING_REGISTERS, LOADING_REGISTERS] if PAIR == 2 else []),
    )  # fmt: skip


@gluon.jit(do_not_specialize=RUN_TIME)
def chain_specialised_kernel(
    a_desc, b_desc, b_beside_desc, out_desc, out_beside_desc, out_ptr,
    M: tl.int32, N: tl.int32, k_tiles: tl.int32, stride_om: tl.int64, stride_on: tl.int64,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, STORE_BY_DESCRIPTOR: gl.constexpr, DEPENDENT: gl.constexpr,
    OUT_LAYOUT: gl.constexpr, WIDE_OFFSETS: gl.constexpr, TURNS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, STORE_N: gl.constexpr, STORE_BUFFERS: gl.constexpr,
    ALONE: gl.constexpr, CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Persistent, operands by tensor descriptor, which fills with zeros beyond the summed k.  ``k_tiles`` is positive.

    Constants as in :func:`run_specialised`.
    """
    run_specialised(
        a_desc, b_desc, b_beside_desc, out_desc, out_beside_desc, out_ptr, M, N, k_tiles, stride_om, stride_on, None,
        A_ROWS, B_ROWS, STORE_BY_DESCRIPTOR, DEPENDENT, OUT_LAYOUT, WIDE_OFFSETS, TURNS, BLOCK_M, BLOCK_N, BESIDE_N,
        BLOCK_K, GROUP_M, STAGES, STORE_N, STORE_BUFFERS, ALONE, CLUSTER_M, CLUSTER_N, WHOLE,
    )
