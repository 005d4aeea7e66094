# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""What fused kernels do with a tile of finished sums before they store it: a program that is compiled into them.

Operands come as addresses with two strides each; their types, and how they lie, are compiled in like the program, so
that a tile's loads are as wide as they can be and no register waits for a choice.  Contraction must be off.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.finish import relu, round_by
from gemmdesc.kernels.functions import (
    filled,
    gelu,
    gelu_tanh,
    sigmoid,
    sigmoid_between,
    silu,
    silu_between,
    spread,
    tanh,
)
from gemmdesc.kernels.tile import COLUMNS, ROWS

# The codes of gemmdesc.kernels.instructions, which a test compares.
KEEP = tl.constexpr(0)
ADD = tl.constexpr(1)
MULTIPLY = tl.constexpr(2)
DIVIDE = tl.constexpr(3)
AT_LEAST = tl.constexpr(4)
AT_MOST = tl.constexpr(5)
RELU = tl.constexpr(6)
RELU_WITHOUT_NAN = tl.constexpr(7)
GELU = tl.constexpr(8)
GELU_TANH = tl.constexpr(9)
SILU = tl.constexpr(10)
TANH = tl.constexpr(11)
SIGMOID = tl.constexpr(12)
#: The kind of an operand that is a number, and those of matrices of two types; the third is float32.
NUMBER = tl.constexpr(0)
FLOAT16 = tl.constexpr(2)
BFLOAT16 = tl.constexpr(3)
#: From a type's own code to that of finish.round_by.
TO_ROUND_BY = tl.constexpr(6)
#: How a matrix lies over the product: one row or one column for all, whole lines of 16 elements, lines of unit stride;
#: the last is one row of whole lines.
ONE_ROW = tl.constexpr(1)
ONE_COLUMN = tl.constexpr(2)
UNIT_ROW = tl.constexpr(3)
WHOLE_ROWS = tl.constexpr(4)
WHOLE_COLUMNS = tl.constexpr(5)
UNIT_ROWS = tl.constexpr(6)
UNIT_COLUMNS = tl.constexpr(7)
WHOLE_ROW = tl.constexpr(8)
#: 8-bit floats that a result is stored as.
E4M3FN = tl.constexpr(1)
#: Elements that an aligned operand or output starts and steps by.
ALIGNED_ELEMENTS = tl.constexpr(16)

#: Names of the arguments that the six operands of a program are: addresses, numbers, strides along m and n.
PROGRAM_ARGUMENTS = tuple(f"{letter}{i}" for letter in "xfmn" for i in range(6))


@triton.jit
def pointer(address, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):
    """``address`` as a pointer, which the compiler may take for a multiple of 16 bytes where ALIGNED."""
    found = address.to(tl.pointer_type(ELEMENT))
    return tl.multiple_of(found, 16) if ALIGNED else found


@triton.jit
def loaded(address, KIND: tl.constexpr, offsets, mask, ALIGNED: tl.constexpr):
    """Elements of a 16- or 32-bit float type."""
    if KIND == FLOAT16:
        return tl.load(pointer(address, tl.float16, ALIGNED) + offsets, mask=mask, other=0.0)
    elif KIND == BFLOAT16:
        return tl.load(pointer(address, tl.bfloat16, ALIGNED) + offsets, mask=mask, other=0.0)
    else:
        return tl.load(pointer(address, tl.float32, ALIGNED) + offsets, mask=mask, other=0.0)


@triton.jit
def tile_offsets(m, n, stride_m, stride_n, LAYOUT: tl.constexpr, ALIGNED: tl.constexpr):
    """Offsets of a tile's elements from its first one; what the compiler may know of strides stands in LAYOUT."""
    if LAYOUT == ROWS:
        lines = m[:, None] * stride_m
        return (tl.multiple_of(lines, (ALIGNED_ELEMENTS, ALIGNED_ELEMENTS)) if ALIGNED else lines) + n[None, :]
    elif LAYOUT == COLUMNS:
        lines = n[None, :] * stride_n
        return (tl.multiple_of(lines, (ALIGNED_ELEMENTS, ALIGNED_ELEMENTS)) if ALIGNED else lines) + m[:, None]
    else:
        return m[:, None] * stride_m + n[None, :] * stride_n


@triton.jit
def inside_tile(first_m, first_n, m, n, M, N, LAYOUT: tl.constexpr, ALIGNED: tl.constexpr):
    """Which elements of a tile exist; of aligned lines, all of 16 neighbours or none."""
    m_inside, n_inside = first_m + m < M, first_n + n < N
    if ALIGNED and LAYOUT == COLUMNS:
        m_inside = tl.max_constancy(m_inside, ALIGNED_ELEMENTS)
    elif ALIGNED:
        n_inside = tl.max_constancy(n_inside, ALIGNED_ELEMENTS)
    return m_inside[:, None] & n_inside[None, :]


@triton.jit
def operand_tile(
    address, FORMAT: tl.constexpr, stride_m, stride_n, first_m, first_n, m, n, M, N
):  # fmt: skip
    """The part of an operand that lies over a tile, in its own type; one row or one column stays one."""
    KIND: tl.constexpr = FORMAT & 3
    FORM: tl.constexpr = FORMAT >> 2
    SIZE: tl.constexpr = 2 if KIND >= FLOAT16 else 4
    address += (first_m.to(tl.int64) * stride_m + first_n.to(tl.int64) * stride_n) * SIZE
    stride_m, stride_n = stride_m.to(tl.int32), stride_n.to(tl.int32)
    if FORM == WHOLE_ROW:
        return loaded(address, KIND, n, tl.max_constancy(first_n + n < N, ALIGNED_ELEMENTS), True)[None, :]
    elif FORM == UNIT_ROW:
        return loaded(address, KIND, n, first_n + n < N, False)[None, :]
    elif FORM == ONE_ROW:
        return loaded(address, KIND, n * stride_n, first_n + n < N, False)[None, :]
    elif FORM == ONE_COLUMN:
        return loaded(address, KIND, m * stride_m, first_m + m < M, False)[:, None]
    elif FORM == WHOLE_ROWS:
        offsets = tile_offsets(m, n, stride_m, stride_n, ROWS, True)
        return loaded(address, KIND, offsets, inside_tile(first_m, first_n, m, n, M, N, ROWS, True), True)
    elif FORM == WHOLE_COLUMNS:
        offsets = tile_offsets(m, n, stride_m, stride_n, COLUMNS, True)
        return loaded(address, KIND, offsets, inside_tile(first_m, first_n, m, n, M, N, COLUMNS, True), True)
    else:
        LAYOUT: tl.constexpr = ROWS if FORM == UNIT_ROWS else (COLUMNS if FORM == UNIT_COLUMNS else 0)
        offsets = tile_offsets(m, n, stride_m, stride_n, LAYOUT, False)
        return loaded(address, KIND, offsets, inside_tile(first_m, first_n, m, n, M, N, LAYOUT, False), False)


@triton.jit
def with_operand(value, operation, other):
    """``value`` and an operand, or a number, joined by one of the five operations that take one."""
    if operation == ADD:
        value = value + other
    elif operation == MULTIPLY:
        value = value * other
    elif operation == DIVIDE:
        value = tl.div_rn(value, tl.broadcast_to(other, value.shape))
    else:
        pattern, bits = value.to(tl.int32, bitcast=True), other.to(tl.int32, bitcast=True)
        # Of two that are equal, zeros of two signs among them, the sign that both have or that one has.
        if operation == AT_LEAST:
            same = (pattern & bits).to(tl.float32, bitcast=True)
            kept = value > other
        else:
            same = (pattern | bits).to(tl.float32, bitcast=True)
            kept = value < other
        value = tl.where(kept | (value != value), value, tl.where(value == other, same, other))
    return value


@triton.jit
def alone(value, operation, BETWEEN: tl.constexpr):
    """``value`` after an operation that takes nothing else.

    BETWEEN: the 16-bit type that it has and that the result is rounded to, float16 (1) or bfloat16 (2), or 0.
    """
    # What bfloat16 values are scaled by on the way.
    SCALE: tl.constexpr = 0.125 if BETWEEN == 2 else 1.0
    if operation == RELU:
        value = relu(value)
    elif operation == RELU_WITHOUT_NAN:
        value = tl.where(value > 0.0, value, 0.0)
    elif operation == GELU:
        value = gelu(value)
    elif operation == GELU_TANH:
        value = gelu_tanh(value)
    elif operation == SILU:
        value = silu_between(value, SCALE) if BETWEEN else silu(value)
    elif operation == TANH:
        value = tanh(value)
    elif operation == SIGMOID:
        value = sigmoid_between(value, SCALE) if BETWEEN else sigmoid(value)
    return value


@triton.jit
def rounded_sums(value, ROUNDING: tl.constexpr):
    """Finished sums rounded to float16 (1) or bfloat16 (2), two in one instruction, held in float32 again.

    The instructions are volatile, or ptxas does not see that sums are read while no matrix instruction is under way,
    and lets the instructions of the next tile wait for each other.
    """
    if ROUNDING == 1:
        bits = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [value], dtype=tl.int16, is_pure=False, pack=2
        )  # fmt: skip
        return bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        bits = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [value], dtype=tl.int16, is_pure=False, pack=2
        )  # fmt: skip
        return bits.to(tl.bfloat16, bitcast=True).to(tl.float32)


@triton.jit
def taken(value):
    """Finished sums as they are, read by volatile instructions as :func:`rounded_sums` does."""
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [value], dtype=tl.float32, is_pure=False, pack=1
    )  # fmt: skip


@triton.jit
def operand_over(
    SLOT: tl.constexpr, FORMATS: tl.constexpr, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N
):  # fmt: skip
    """What the program reads from SLOT over a tile: a number, also where there is nothing, or elements."""
    FORMAT: tl.constexpr = (FORMATS >> (8 * SLOT)) & 255
    if FORMAT == NUMBER:
        return numbers[SLOT]
    else:
        return operand_tile(
            addresses[SLOT], FORMAT, strides_m[SLOT], strides_n[SLOT], first_m, first_n, m, n, M, N
        )  # fmt: skip


@triton.jit
def operands_over(
    FORMATS: tl.constexpr, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N
):  # fmt: skip
    """The six operands of a program over a tile, :func:`operand_over` of each."""
    return (
        operand_over(0, FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N),
        operand_over(1, FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N),
        operand_over(2, FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N),
        operand_over(3, FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N),
        operand_over(4, FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N),
        operand_over(5, FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N),
    )  # fmt: skip


#: Whether 16-bit values take quotients by rcp.approx: not before tests/test_fused_gpu.py has run with them to its end,
#: as that all 65,536 come out alike rests on what exp(-x) is next to 0, which only a card says.
QUOTIENTS = tl.constexpr(False)


@triton.jit
def instructed(value, CODE: tl.constexpr, HELD: tl.constexpr, FORMATS: tl.constexpr, operands):
    """``value`` after one instruction of 16 bits; HELD: the rounding that it has."""
    OPERATION: tl.constexpr = CODE & 31
    SLOT: tl.constexpr = (CODE >> 5) & 7
    ROUNDING: tl.constexpr = (CODE >> 8) & 3
    if OPERATION == KEEP and ROUNDING != 0:
        return rounded_sums(value, ROUNDING)
    if OPERATION >= ADD and OPERATION <= AT_MOST:
        FORMAT: tl.constexpr = (FORMATS >> (8 * SLOT)) & 255
        if FORMAT == NUMBER:
            value = with_operand(value, OPERATION, filled(value, operands[SLOT]))
        else:
            value = with_operand(value, OPERATION, tl.broadcast_to(operands[SLOT].to(tl.float32), value.shape))
    else:
        value = alone(value, OPERATION, ROUNDING if QUOTIENTS and ROUNDING == HELD else 0)
    return round_by(value, ROUNDING + TO_ROUND_BY)


@triton.jit
def run_program(
    value, HELD: tl.constexpr, PROGRAM: tl.constexpr, COUNT: tl.constexpr, FORMATS: tl.constexpr, operands
):  # fmt: skip
    """A float32 tile after the COUNT instructions of PROGRAM, 16 bits each, the first in the lowest.

    HELD: the rounding that the tile has, as an instruction says it.
    """
    for place in tl.static_range(COUNT):
        value = instructed(
            value, (PROGRAM >> (16 * place)) & 0xFFFF,
            HELD if place == 0 else (PROGRAM >> (16 * (place - 1) + 8)) & 3, FORMATS, operands,
        )  # fmt: skip
    return value


@triton.jit
def float8_bits(value, NARROW: tl.constexpr, OVERFLOWS: tl.constexpr):
    """Patterns of an 8-bit float nearest to ``value``, ties to even; too large a one is the largest, or overflows."""
    pattern = value.to(tl.int32, bitcast=True)
    size = pattern & 0x7FFFFFFF
    # NARROW is e4m3fn: 3 bits of fraction, exponents from -6; else e5m2: 2 bits, exponents from -14.
    SHIFT: tl.constexpr = 20 if NARROW else 21
    LEAST: tl.constexpr = 0x3C800000 if NARROW else 0x38800000
    REBIAS: tl.constexpr = 120 << 3 if NARROW else 112 << 2
    LARGEST: tl.constexpr = 0x7E if NARROW else 0x7B
    # An addition to a value whose last place is the subnormals' own rounds those.
    ANCHOR: tl.constexpr = 0x46800000 if NARROW else 0x43000000
    anchor = spread(value, ANCHOR, tl.int32).to(tl.float32, bitcast=True)
    small = (tl.abs(value) + anchor).to(tl.int32, bitcast=True) - ANCHOR
    normal = ((size + ((1 << (SHIFT - 1)) - 1) + ((size >> SHIFT) & 1)) >> SHIFT) - REBIAS
    found = tl.where(size < LEAST, small, normal)
    found = tl.where(found > LARGEST, LARGEST + OVERFLOWS, found)
    found = tl.where(size > 0x7F800000, 0x7F, found)
    sign = tl.where(size > 0x7F800000, 0, (pattern >> 24) & 0x80)
    return (found | sign).to(tl.int8)


@triton.jit
def rounded_tile(value, STORED: tl.constexpr, RESULT: tl.constexpr):
    """A tile as it is stored; RESULT: bit 0 canonical NaN, bit 1 an 8-bit float overflows, bit 2 it is e4m3fn."""
    if STORED == tl.int8:  # noqa: SIM300  a constexpr argument is no constant
        return float8_bits(value, (RESULT >> 2) & 1, (RESULT >> 1) & 1)
    elif STORED == tl.float32 and RESULT & 1:  # noqa: SIM300
        nan = spread(value, 0x7FFFFFFF, tl.int32).to(tl.float32, bitcast=True)
        return tl.where(value != value, nan, value)
    else:
        return value.to(STORED)


@triton.jit
def halves(tile):
    """The left and the right half of a tile's columns, which a matrix instruction leaves in other registers."""
    return tl.split(tl.permute(tl.reshape(tile, (tile.shape[0], 2, tile.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def finish_chunk(
    value, HELD: tl.constexpr, out_desc, out, PROGRAM: tl.constexpr, COUNT: tl.constexpr, FORMATS: tl.constexpr,
    RESULT: tl.constexpr, operands, stride_om, stride_on, first_m, first_n, M, N,
    STORED: tl.constexpr, OUT_LAYOUT: tl.constexpr, ALIGNED: tl.constexpr, STORE_BY_DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Run the program on some columns of a tile, round them to the output's type and store what of them exists."""
    m, n = tl.arange(0, value.shape[0]), tl.arange(0, value.shape[1])
    stored = rounded_tile(run_program(value, HELD, PROGRAM, COUNT, FORMATS, operands), STORED, RESULT)
    if STORE_BY_DESCRIPTOR:
        out_desc.store([first_m, first_n], stored)
    else:
        out += (first_m.to(tl.int64) * stride_om + first_n.to(tl.int64) * stride_on) * (STORED.primitive_bitwidth // 8)
        offsets = tile_offsets(m, n, stride_om.to(tl.int32), stride_on.to(tl.int32), OUT_LAYOUT, ALIGNED)
        inside = inside_tile(first_m, first_n, m, n, M, N, OUT_LAYOUT, ALIGNED)
        tl.store(pointer(out, STORED, ALIGNED) + offsets, stored, mask=inside)


@triton.jit
def parts_of(tile, PARTS: tl.constexpr):
    """The columns of a tile in PARTS equal parts, from left to right, as a tuple."""
    if PARTS == 1:
        return (tile,)
    else:
        left, right = halves(tile)
        return parts_of(left, PARTS // 2) + parts_of(right, PARTS // 2)


@triton.jit
def finish_tile(
    value, HELD: tl.constexpr, out_desc, out, PROGRAM: tl.constexpr, COUNT: tl.constexpr, FORMATS: tl.constexpr,
    RESULT: tl.constexpr, numbers, addresses, strides_m, strides_n, stride_om, stride_on, tile_m, tile_n, M, N,
    STORED: tl.constexpr, OUT_LAYOUT: tl.constexpr, ALIGNED: tl.constexpr, STORE_BY_DESCRIPTOR: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Finish a tile in CHUNKS parts of its columns, 1, 2, 4 or 8: each of them needs registers of its own only.

    HELD: the 16-bit type that its elements have, float16 (1) or bfloat16 (2), or 0.  The operands of the next part are
    asked for before a part is finished.
    """
    first_m, first_n = tile_m * value.shape[0], tile_n * value.shape[1]
    WIDTH: tl.constexpr = value.shape[1] // CHUNKS
    m, n = tl.arange(0, value.shape[0]), tl.arange(0, WIDTH)
    parts = parts_of(value, CHUNKS)
    operands = operands_over(FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n, m, n, M, N)
    for i in tl.static_range(CHUNKS):
        here = operands
        if i + 1 < CHUNKS:
            operands = operands_over(
                FORMATS, numbers, addresses, strides_m, strides_n, first_m, first_n + (i + 1) * WIDTH, m, n, M, N
            )  # fmt: skip
        finish_chunk(
            parts[i], HELD, out_desc, out, PROGRAM, COUNT, FORMATS, RESULT, here, stride_om, stride_on, first_m,
            first_n + i * WIDTH, M, N, STORED, OUT_LAYOUT, ALIGNED, STORE_BY_DESCRIPTOR,
        )  # fmt: skip
