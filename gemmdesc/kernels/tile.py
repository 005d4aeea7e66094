# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Pieces that every kernel shares: which tile a program owns, where its elements lie, and how a tile is stored."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

#: Arguments of the kernels that never specialise the code: no size, stride, count or alignment makes another variant.
RUN_TIME = (
    "a_ptr", "b_ptr", "out_ptr", "partial_ptr",
    "M", "N", "slices", "summed_k", "span", "k_tiles", "k_loop_step", "size", "start",
    "source_ptr", "rows", "packed_span", "stride_row", "stride_k", "packed_stride",
    "stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_os", "stride_om", "stride_on",
    "blocks", "per_slice", "zero", "scale_ptr", "output_scale_ptr",
    "a_programs", "a_packed_stride", "b_packed_stride",
    "sums_ptr", "order_ptr", "offsets_ptr", "first", "leaves", "stride_og",
)  # fmt: skip

# A kernel that may start while the one before it ends reads and writes nothing before that one's memory is to be seen;
# from the end of its own main loop on, the next one may start.
wait_for_previous = gdc_wait
let_next_start = gdc_launch_dependents

#: How an operand or the output is stored: any strides, rows of unit stride, columns of unit stride.
ANY = tl.constexpr(0)
ROWS = tl.constexpr(1)
COLUMNS = tl.constexpr(2)


@triton.jit
def minus_zero(DTYPE: tl.constexpr):
    """-0.0 by its pattern: of the literal some releases of Triton make +0.0."""
    if DTYPE == tl.float32:  # noqa: SIM300  a constexpr argument is no constant
        return tl.full((), -(2**31), dtype=tl.int32).to(tl.float32, bitcast=True)
    else:
        return tl.full((), -(2**15), dtype=tl.int16).to(DTYPE, bitcast=True)


@triton.jit
def locate(index, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """(slice, tile row, tile column) of work item ``index``: slices outermost, then groups of GROUP_M tile rows."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    part = index // (tiles_m * tiles_n)
    tile = index % (tiles_m * tiles_n)
    per_group = GROUP_M * tiles_n
    first_m = tile // per_group * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    return part, first_m + tile % per_group % rows, tile % per_group // rows


@triton.jit
def unit_strides(row_stride, column_stride, LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr):
    """The two strides as the compiler should see them: a unit stride as a constant, 32 bits unless wide."""
    if not WIDE_OFFSETS:
        row_stride = row_stride.to(tl.int32)
        column_stride = column_stride.to(tl.int32)
    if LAYOUT == ROWS:
        return row_stride, 1
    elif LAYOUT == COLUMNS:
        return 1, column_stride
    else:
        return row_stride, column_stride


@triton.jit
def extent(block, size, BLOCK: tl.constexpr, WIDE_OFFSETS: tl.constexpr):
    """Indices of one block along an axis of ``size``, and which of them exist."""
    indices = block * BLOCK + tl.arange(0, BLOCK)
    inside = indices < size
    if WIDE_OFFSETS:
        return indices.to(tl.int64), inside
    else:
        return indices, inside


@triton.jit
def load_a(a_desc, m, k, A_ROWS: tl.constexpr):
    """The tile of A whose first element is (m, k), from a descriptor over A or, unless A_ROWS, its transpose."""
    if A_ROWS:
        return a_desc.load([m, k])
    else:
        return a_desc.load([k, m]).T


@triton.jit
def load_b(b_desc, k, n, B_ROWS: tl.constexpr):
    """The tile of B whose first element is (k, n), likewise."""
    if B_ROWS:
        return b_desc.load([k, n])
    else:
        return b_desc.load([n, k]).T


@triton.jit
def store_tile(
    accumulator, out_ptr, tile_m, tile_n, M, N, stride_om, stride_on,
    OUT_LAYOUT: tl.constexpr, WIDE_OFFSETS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Round a tile to the output's type and store the part of it that exists."""
    stride_om, stride_on = unit_strides(stride_om, stride_on, OUT_LAYOUT, WIDE_OFFSETS)
    m, m_inside = extent(tile_m, M, BLOCK_M, WIDE_OFFSETS)
    n, n_inside = extent(tile_n, N, BLOCK_N, WIDE_OFFSETS)
    out_ptrs = out_ptr + m[:, None] * stride_om + n[None, :] * stride_on
    tl.store(out_ptrs, accumulator.to(out_ptr.dtype.element_ty), mask=m_inside[:, None] & n_inside[None, :])
