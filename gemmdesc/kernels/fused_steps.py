# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""What fused kernels do with a tile of finished sums before they store it: a program that they read at run time.

Operands come as addresses with a kind and two strides each, so that neither their number nor their types compile
another kernel.  Contraction must be off.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.finish import relu, round_by
from gemmdesc.kernels.functions import gelu, gelu_tanh, silu, tanh
from gemmdesc.kernels.tile import ANY, COLUMNS, ROWS

# The codes of gemmdesc.kernels.instructions, which a test compares.
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
#: The kind of an operand that is a number, and those of matrices of two types; the third is float32.
NUMBER = tl.constexpr(0)
FLOAT16 = tl.constexpr(2)
BFLOAT16 = tl.constexpr(3)
#: From a type's own code to that of finish.round_by.
TO_ROUND_BY = tl.constexpr(6)
#: 8-bit floats that a result is stored as.
E4M3FN = tl.constexpr(1)
#: Elements that an aligned operand or output starts and steps by.
ALIGNED_ELEMENTS = tl.constexpr(16)

#: Names of the arguments that a program and its six operands are: addresses, numbers, strides along m and n.
PROGRAM_ARGUMENTS = (
    *(f"w{i}" for i in range(4)), "count", *(f"x{i}" for i in range(6)), "kinds", *(f"f{i}" for i in range(6)),
    *(f"m{i}" for i in range(6)), *(f"n{i}" for i in range(6)), "overflows", "canonical", "float8",
)  # fmt: skip


@triton.jit
def picked(items, index):
    """The item of a tuple of six that a run-time index names."""
    found = items[0]
    for i in tl.static_range(1, 6):
        found = tl.where(index == i, items[i], found)
    return found


@triton.jit
def pointer(address, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):
    """``address`` as a pointer, which the compiler may take for a multiple of 16 bytes where ALIGNED."""
    found = address.to(tl.pointer_type(ELEMENT))
    return tl.multiple_of(found, 16) if ALIGNED else found


@triton.jit
def loaded(address, kind, offsets, mask, ALIGNED: tl.constexpr):
    """Elements of a 16- or 32-bit float type, in float32."""
    if kind == FLOAT16:
        value = tl.load(pointer(address, tl.float16, ALIGNED) + offsets, mask=mask, other=0.0).to(tl.float32)
    elif kind == BFLOAT16:
        value = tl.load(pointer(address, tl.bfloat16, ALIGNED) + offsets, mask=mask, other=0.0).to(tl.float32)
    else:
        value = tl.load(pointer(address, tl.float32, ALIGNED) + offsets, mask=mask, other=0.0)
    return value


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
    address, kind, stride_m, stride_n, first_m, first_n, m, n, M, N, LAYOUT: tl.constexpr,
):  # fmt: skip
    """The part of an operand that lies over a tile, float32; a stride of 0 repeats a row or a column."""
    size = tl.where(kind >= FLOAT16, 2, 4)
    address += (first_m.to(tl.int64) * stride_m + first_n.to(tl.int64) * stride_n) * size
    stride_m, stride_n = stride_m.to(tl.int32), stride_n.to(tl.int32)
    inside = (first_m + m < M)[:, None] & (first_n + n < N)[None, :]
    if stride_m == 0:
        row = loaded(address, kind, n * stride_n, first_n + n < N, False)
        value = tl.broadcast_to(row[None, :], inside.shape)
    elif stride_n == 0:
        column = loaded(address, kind, m * stride_m, first_m + m < M, False)
        value = tl.broadcast_to(column[:, None], inside.shape)
    else:
        if LAYOUT == COLUMNS:
            unit, step, line = stride_m, stride_n, M
        else:
            unit, step, line = stride_n, stride_m, N
        # Whole lines of 16 bytes, where the operand lies as the output does.
        whole = (step % ALIGNED_ELEMENTS == 0) & (line % ALIGNED_ELEMENTS == 0) & (address % 16 == 0)
        if (LAYOUT != ANY) & (unit == 1) & whole:
            offsets = tile_offsets(m, n, stride_m, stride_n, LAYOUT, True)
            lines = inside_tile(first_m, first_n, m, n, M, N, LAYOUT, True)
            value = loaded(address, kind, offsets, lines, True)
        else:
            value = loaded(address, kind, tile_offsets(m, n, stride_m, stride_n, ANY, False), inside, False)
    return value


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
def alone(value, operation):
    """``value`` after an operation that takes nothing else."""
    if operation == RELU:
        value = relu(value)
    elif operation == RELU_WITHOUT_NAN:
        value = tl.where(value > 0.0, value, 0.0)
    elif operation == GELU:
        value = gelu(value)
    elif operation == GELU_TANH:
        value = gelu_tanh(value)
    elif operation == SILU:
        value = silu(value)
    elif operation == TANH:
        value = tanh(value)
    return value


@triton.jit
def run_program(
    value, words, count, numbers, addresses, kinds, strides_m, strides_n, first_m, first_n, m, n, M, N,
    LAYOUT: tl.constexpr,
):  # fmt: skip
    """A float32 tile after ``count`` instructions, four 16-bit ones in each of the four words."""
    for place in range(count):
        word = tl.where(place < 8, tl.where(place < 4, words[0], words[1]), tl.where(place < 12, words[2], words[3]))
        code = (word >> ((place & 3) * 16)).to(tl.int32)
        operation, slot, rounding = code & 31, (code >> 5) & 7, (code >> 8) & 3
        if (operation >= ADD) & (operation <= AT_MOST):
            kind = (kinds >> (4 * slot)) & 15
            if kind == NUMBER:
                value = with_operand(value, operation, picked(numbers, slot).to(tl.float32))
            else:
                other = operand_tile(
                    picked(addresses, slot), kind, picked(strides_m, slot), picked(strides_n, slot), first_m, first_n,
                    m, n, M, N, LAYOUT,
                )  # fmt: skip
                value = with_operand(value, operation, other)
        else:
            value = alone(value, operation)
        value = round_by(value, rounding + TO_ROUND_BY)
    return value


@triton.jit
def float8_bits(value, float8, overflows):
    """Patterns of an 8-bit float nearest to ``value``, ties to even; too large a one is the largest, or overflows."""
    pattern = value.to(tl.int32, bitcast=True)
    size = pattern & 0x7FFFFFFF
    # e4m3fn: 3 bits of fraction, exponents from -6; e5m2: 2 bits, exponents from -14.
    narrow = float8 == E4M3FN
    shift, least = tl.where(narrow, 20, 21), tl.where(narrow, 0x3C800000, 0x38800000)
    rebias, largest = tl.where(narrow, 120 << 3, 112 << 2), tl.where(narrow, 0x7E, 0x7B)
    # An addition to a value whose last place is the subnormals' own rounds those.
    anchor = tl.where(narrow, 0x46800000, 0x43000000)
    small = (tl.abs(value) + anchor.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True) - anchor
    normal = ((size + ((1 << (shift - 1)) - 1) + ((size >> shift) & 1)) >> shift) - rebias
    found = tl.where(size < least, small, normal)
    beyond = tl.where(overflows != 0, largest + 1, largest)
    found = tl.where(found > largest, beyond, found)
    found = tl.where(size > 0x7F800000, 0x7F, found)
    sign = tl.where(size > 0x7F800000, 0, (pattern >> 24) & 0x80)
    return (found | sign).to(tl.int8)


@triton.jit
def finish_tile(
    value, out, words, count, numbers, addresses, kinds, strides_m, strides_n, overflows, canonical, float8,
    stride_om, stride_on, tile_m, tile_n, M, N,
    STORED: tl.constexpr, OUT_LAYOUT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Run the program on a tile, round it to the output's type and store what of it exists."""
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    value = run_program(
        value, words, count, numbers, addresses, kinds, strides_m, strides_n, first_m, first_n, m, n, M, N, OUT_LAYOUT
    )
    out += (first_m.to(tl.int64) * stride_om + first_n.to(tl.int64) * stride_on) * (STORED.primitive_bitwidth // 8)
    if STORED == tl.int8:  # noqa: SIM300  a constexpr argument is no constant
        stored = float8_bits(value, float8, overflows)
    else:
        if STORED == tl.float32:  # noqa: SIM300
            nan = tl.full(value.shape, 0x7FFFFFFF, dtype=tl.int32).to(tl.float32, bitcast=True)
            value = tl.where((value != value) & (canonical != 0), nan, value)
        stored = value.to(STORED)
    offsets = tile_offsets(m, n, stride_om.to(tl.int32), stride_on.to(tl.int32), OUT_LAYOUT, ALIGNED)
    inside = inside_tile(first_m, first_n, m, n, M, N, OUT_LAYOUT, ALIGNED)
    tl.store(pointer(out, STORED, ALIGNED) + offsets, stored, mask=inside)
