# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Steps of the specialised chain across a whole tile by one instruction, whose width need not be a power of two.

A tensor of Triton's must be one in every direction, and so must what its matrix steps take.  Of another width, two
steps side by side read A from shared memory twice, and the narrower one takes longer to read than to multiply.  Here
the sums of 64 rows are several tensors of ``UNIT`` columns, whose registers in turn are those of one instruction; B is
units of 8 columns without gaps, as the instruction strides over them.  B must lie along k.

A step is one piece of PTX: nothing can come between its instructions, and the registers of its sums are tied to it.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language._core import builtin

from gemmdesc.kernels.cluster import descriptor_address, load_for_both, shared_address
from gemmdesc.kernels.specialised_finish import finish_pieces
from gemmdesc.kernels.specialised_store import beside, store_elements, store_pieces

#: Columns of B that lie together, in lines of 128 bytes: where the hardware's swizzling begins again.
PATTERN = gl.constexpr(8)
#: Rows of an instruction of a group, and lanes of 16 bits.
_ROWS, _LANES = 64, 16
#: What a matrix descriptor says beside its address: lines of 128 bytes, swizzled, in patterns 1,024 bytes apart.
_MATRIX = (1 << 62) | (1024 >> 4) << 32
_ELEMENT_TYPES = {"fp16": "f16", "bf16": "bf16"}


def unit_of(width: int) -> int:
    """Columns of each tensor of sums."""
    return 16 if width % 16 == 0 else 8


@builtin
def no_sums(rows, width, _semantic=None):
    """Zeros for so many rows and columns: tensors of 64 rows, those of the upper rows first, from left to right."""
    rows, width = gl._unwrap_if_constexpr(rows), gl._unwrap_if_constexpr(width)
    unit = unit_of(width)
    layout = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, unit, 16])
    count = rows // _ROWS * (width // unit)
    return gl.tuple([gl.full([_ROWS, unit], 0.0, gl.float32, layout, _semantic=_semantic) for _ in range(count)])


@builtin
def multiply_whole(a, b, sums, use_acc, width, a_rows, _semantic=None):
    """``sums`` and what a step adds, once it is waited for: a is a box of A, b the first unit of a stage of B.

    Without ``use_acc`` the step begins new sums.  Each m64nWIDTHk16 in order of k, all rows' after one another.
    """
    width, a_rows = gl._unwrap_if_constexpr(width), gl._unwrap_if_constexpr(a_rows)
    unit = unit_of(width)
    blocks, registers = len(sums) * unit // width, width // 2
    lanes = a.shape[1] if a_rows else a.shape[0]
    outputs = blocks * registers
    # Elements that a thread has of a tensor of sums, and places in PTX of the other values: each has as many.
    pack = unit // 2
    a_place, b_place, adds = (f"${2 * outputs + i * pack}" for i in range(3))
    text = [
        "{", ".reg .pred adds, goes_on;", ".reg .b32 place;", ".reg .b64 a, b, a_now, b_now;",
        f"setp.ne.b32 adds, {adds}, 0;", "setp.eq.b32 goes_on, 0, 0;",
    ]  # fmt: skip
    for name, place in (("a", a_place), ("b", b_place)):
        text += [f"bfe.u32 place, {place}, 4, 14;", f"cvt.u64.u32 {name}, place;", f"or.b64 {name}, {name}, {_MATRIX};"]
    kind = _ELEMENT_TYPES[str(a.dtype)]
    shape = f"m{_ROWS}n{width}k{_LANES}"
    text.append("wgmma.fence.sync.aligned;")
    for block in range(blocks):
        held = ", ".join(f"${block * registers + i}" for i in range(registers))
        for step in range(lanes // _LANES):
            # Of A by rows, 16 lanes are 32 bytes of a line, and 64 rows so many lines; by columns lanes are lines, and
            # 64 rows are a piece of the box with all lines.
            bytes_on = step * _LANES * (2 if a_rows else 2 * _ROWS) + block * _ROWS * (128 if a_rows else 2 * lanes)
            text += [
                f"add.s64 a_now, a, {bytes_on >> 4};", f"add.s64 b_now, b, {step * _LANES * 2 >> 4};",
                f"wgmma.mma_async.sync.aligned.{shape}.f32.{kind}.{kind} {{{held}}}, a_now, b_now, "
                f"{'goes_on' if step else 'adds'}, 1, 1, {0 if a_rows else 1}, 0;",
            ]  # fmt: skip
    text += ["wgmma.commit_group.sync.aligned;", "}"]
    values = [
        shared_address(a, _semantic=_semantic), shared_address(b, _semantic=_semantic),
        gl.to_tensor(use_acc, _semantic=_semantic).to(gl.int32, _semantic=_semantic),
    ]  # fmt: skip
    layout = sums[0].type.layout
    spread = [gl.full([_ROWS, unit], value, gl.int32, layout, _semantic=_semantic) for value in values]
    constraints = ["=f"] * outputs + [str(i) for i in range(outputs)] + ["r"] * (3 * pack)
    return gl.tuple(
        gl.inline_asm_elementwise(
            "\n".join(text),
            ",".join(constraints),
            [*sums, *spread],
            dtype=[gl.float32] * len(sums),
            is_pure=False,
            pack=pack,
            _semantic=_semantic,
        )
    )


@gluon.jit
def load_lines(desc, line, column, barrier, buffer):
    """Copy the descriptor's box at (line, column), lines of 128 bytes, to where ``buffer`` begins.  Called by one warp.

    As ``barrier`` has been told to expect.  Triton would have the buffer be as large as the box.
    """
    map_address = descriptor_address(desc)
    barrier_address = shared_address(barrier)
    begin = shared_address(buffer)
    gl.inline_asm_elementwise(
        """{
        .reg .pred alone;
        .reg .b32 lane;
        mov.u32 lane, %laneid;
        setp.eq.b32 alone, lane, 0;
        @alone cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];
        mov.b32 $0, 0;
        }""",
        "=r,r,l,r,r,r", [begin, map_address, column, line, barrier_address], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def load_whole(desc, rest_desc, k, n, rank, filled, ring, stage, WIDTH: gl.constexpr, CLUSTER_M: gl.constexpr):
    """Lanes from ``k`` on of columns from ``n`` on, to a stage of the ring: a box of ``desc``, then smaller ones."""
    UNITS: gl.constexpr = WIDTH // PATTERN
    LINES: gl.constexpr = desc.block_type.shape[0] * CLUSTER_M
    load_part(desc, k, n, rank, filled, ring.index(stage * UNITS), CLUSTER_M)
    if WIDTH > LINES:
        REST: gl.constexpr = rest_desc.block_type.shape[0] * CLUSTER_M
        for i in gl.static_range((WIDTH - LINES) // REST):
            buffer = ring.index(stage * UNITS + (LINES + i * REST) // PATTERN)
            load_part(rest_desc, k, n + LINES + i * REST, rank, filled, buffer, CLUSTER_M)


@gluon.jit
def load_part(desc, k, n, rank, filled, buffer, CLUSTER_M: gl.constexpr):
    """A box of so many columns; where tiles are below each other, half of it, for both."""
    if CLUSTER_M == 2:
        first = rank * desc.block_type.shape[0]
        load_for_both(desc, n + first, k, first, filled, buffer)
    else:
        load_lines(desc, n, k, filled, buffer)


@gluon.jit
def below(upper, lower):
    """``lower`` below ``upper``."""
    ROWS: gl.constexpr = 2 * upper.shape[0]
    WIDTH: gl.constexpr = upper.shape[1]
    return gl.join(upper, lower).permute((2, 0, 1)).reshape([ROWS, WIDTH])


@gluon.jit
def joined(sums, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """COUNT tensors of 64 rows from number FIRST on, side by side; a power of two of them."""
    if COUNT == 1:
        return sums[FIRST]
    else:
        HALF: gl.constexpr = COUNT // 2
        return beside(joined(sums, FIRST, HALF), joined(sums, FIRST + HALF, HALF))


@gluon.jit
def piece_of(sums, COLUMN: gl.constexpr, PIECE: gl.constexpr, WIDTH: gl.constexpr):
    """The columns from COLUMN on, of all rows: one tensor that lies as a matrix instruction's sums do."""
    UNIT: gl.constexpr = sums[0].shape[1]
    FIRST: gl.constexpr = COLUMN // UNIT
    COUNT: gl.constexpr = PIECE // UNIT
    ACROSS: gl.constexpr = WIDTH // UNIT
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16])
    upper = joined(sums, FIRST, COUNT)
    if len(sums) > ACROSS:
        return gl.convert_layout(below(upper, joined(sums, ACROSS + FIRST, COUNT)), LAYOUT, assert_trivial=True)
    else:
        return gl.convert_layout(upper, LAYOUT, assert_trivial=True)


@gluon.jit
def store_whole(
    sums, out_desc, out_beside_desc, out_ptr, staging, staging_beside, row, column, M, N, stride_om, stride_on,
    finishing,
    STORE_BY_DESCRIPTOR: gl.constexpr, OUT_LAYOUT: gl.constexpr, WIDE_OFFSETS: gl.constexpr, WIDTH: gl.constexpr,
    STORE_N: gl.constexpr, STORE_BUFFERS: gl.constexpr, ALONE: gl.constexpr, PARTS: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Finish, round and store the sums of one instruction across: pieces of STORE_N columns, then what is narrower."""
    PIECES: gl.constexpr = WIDTH // STORE_N
    REST: gl.constexpr = WIDTH % STORE_N
    OWN: gl.constexpr = PARTS if ALONE else 0
    for i in gl.static_range(PIECES):
        piece = piece_of(sums, i * STORE_N, STORE_N, WIDTH)
        n = column + i * STORE_N
        if finishing is not None:
            finish_pieces(piece, out_desc, row, n, M, N, staging, i, STORE_BUFFERS, OWN, PART, finishing)
        elif STORE_BY_DESCRIPTOR:
            store_pieces(piece, out_desc, row, n, staging, i, STORE_BUFFERS, OWN, PART)
        else:
            store_elements(piece, out_ptr, row, n, M, N, stride_om, stride_on, OUT_LAYOUT, WIDE_OFFSETS)
    if REST > 0:
        rest = piece_of(sums, PIECES * STORE_N, REST, WIDTH)
        n = column + PIECES * STORE_N
        NUMBER: gl.constexpr = PIECES if ALONE else -1
        BUFFERS: gl.constexpr = STORE_BUFFERS if ALONE else 1
        if finishing is not None:
            finish_pieces(
                rest, out_beside_desc, row, n, M, N, staging_beside, NUMBER, BUFFERS, OWN, PART, finishing
            )  # fmt: skip
        elif STORE_BY_DESCRIPTOR:
            store_pieces(rest, out_beside_desc, row, n, staging_beside, NUMBER, BUFFERS, OWN, PART)
        else:
            store_elements(rest, out_ptr, row, n, M, N, stride_om, stride_on, OUT_LAYOUT, WIDE_OFFSETS)
