"""One product as the chooser sees it: plain values, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gemmdesc.dtypes import DType

#: Tensor descriptors need base and rows aligned to this many bytes, and store chunks of as many.
TMA_ALIGNMENT = 16


class Layout(Enum):
    """Which stride of a matrix is 1: neither, that along a row, that along a column; the value is the kernels'."""

    ANY = 0
    ROWS = 1
    COLUMNS = 2

    @property
    def transposed(self) -> Layout:
        """The layout of the transpose."""
        return {Layout.ANY: Layout.ANY, Layout.ROWS: Layout.COLUMNS, Layout.COLUMNS: Layout.ROWS}[self]


@dataclass(frozen=True, kw_only=True)
class MatrixMeta:
    """A strided matrix: strides in elements; ``alignment``, a power of two in bytes, divides its address."""

    dtype: DType
    row_stride: int
    column_stride: int
    alignment: int

    @property
    def transposed(self) -> MatrixMeta:
        return replace(self, row_stride=self.column_stride, column_stride=self.row_stride)

    def at(self, row: int, column: int) -> MatrixMeta:
        """The matrix that begins at an element of this one."""
        offset = (row * self.row_stride + column * self.column_stride) * self.dtype.itemsize
        return replace(self, alignment=min(self.alignment, offset & -offset) if offset else self.alignment)

    def layout(self, rows: int, columns: int) -> Layout:
        """The layout; a stride along an axis of one element binds nothing."""
        if self.row_stride == 1 and columns == 1:
            return Layout.COLUMNS
        if self.column_stride == 1:
            return Layout.ROWS
        if self.row_stride == 1:
            return Layout.COLUMNS
        if columns == 1:
            return Layout.ROWS
        return Layout.COLUMNS if rows == 1 else Layout.ANY

    def last_offset(self, rows: int, columns: int) -> int:
        """Offset of the last element, in elements."""
        return (rows - 1) * self.row_stride + (columns - 1) * self.column_stride

    def by_descriptor(self, rows: int, columns: int) -> bool:
        """Whether a tensor descriptor can address it; with one line, the stride between lines is free."""
        match self.layout(rows, columns):
            case Layout.ROWS:
                lines, stride = rows, self.row_stride
            case Layout.COLUMNS:
                lines, stride = columns, self.column_stride
            case Layout.ANY:
                return False
        line_bytes = stride * self.dtype.itemsize
        apart = lines == 1 or (line_bytes > 0 and line_bytes % TMA_ALIGNMENT == 0)
        return apart and self.alignment % TMA_ALIGNMENT == 0

    def stored_by_descriptor(self, rows: int, columns: int) -> bool:
        """Whether a tensor descriptor can store it without leaving it: the hardware stores whole chunks of 16 bytes.

        A line that ends inside a chunk would be followed by whatever the tile holds there, in the gap before the next
        line or behind the matrix.
        """
        length = columns if self.layout(rows, columns) is Layout.ROWS else rows
        return self.by_descriptor(rows, columns) and length * self.dtype.itemsize % TMA_ALIGNMENT == 0


@dataclass(frozen=True, kw_only=True)
class KernelMeta:
    """One product as the chooser sees it: sizes, the three matrices, and the card's multiprocessors and their memory.

    ``shared_bytes``: the most shared memory that one program may ask for.
    """

    m: int
    n: int
    k: int
    a: MatrixMeta
    b: MatrixMeta
    out: MatrixMeta
    sm_count: int
    shared_bytes: int

    def part(self, rows: tuple[int, int], columns: tuple[int, int]) -> KernelMeta:
        """The product of some rows of A and columns of B; (begin, end), end exclusive."""
        return replace(
            self, m=rows[1] - rows[0], n=columns[1] - columns[0], a=self.a.at(rows[0], 0), b=self.b.at(0, columns[0]),
            out=self.out.at(rows[0], columns[0]),
        )  # fmt: skip

    @property
    def swapped(self) -> KernelMeta:
        """The transposed product: out^T = b^T a^T has the same bits, as products commute."""
        return replace(self, m=self.n, n=self.m, a=self.b.transposed, b=self.a.transposed, out=self.out.transposed)
