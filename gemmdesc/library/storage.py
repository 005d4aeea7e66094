"""Matrices as cuBLASLt stores them, on a device: column-major, padded, and aligned exactly as a problem declares.

Everything outside a matrix (the rows beyond it up to the leading dimension, the bytes before its first element) is
filled with all-ones bytes, a NaN in every format, so that reading a gap shows in the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands import torch_integer
from gemmdesc.problem import MAX_ALIGNMENT_BYTES, GemmProblem, Transpose

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A column-major matrix on a device: ``columns`` has shape (columns, rows), stride (ld, 1), signed integer type.

    A batch of them: shape (matrices, columns, rows), the matrices as far apart as the problem says.  ``pointer``
    is the address of the first element, ``buffer`` the allocation that it lies in.
    """

    columns: torch.Tensor
    buffer: torch.Tensor
    pointer: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a stored matrix looks like: sizes and ``ld`` in elements, ``alignment_bytes`` exact below 256.

    ``matrices`` of them lie ``stride`` elements apart.
    """

    rows: int
    columns: int
    ld: int
    dtype: DType
    alignment_bytes: int
    matrices: int = 1
    stride: int = 0

    @property
    def extent(self) -> int:
        """Elements from the first one to the end of the last column's padding."""
        return (self.matrices - 1) * self.stride + self.columns * self.ld


def a_shape(problem: GemmProblem) -> Shape:
    """A as stored."""
    p = problem
    return Shape(
        rows=p.a_rows, columns=p.a_columns, ld=p.lda, dtype=p.a_dtype, alignment_bytes=p.a_alignment_bytes,
        matrices=p.a_outer // p.m, stride=p.a_batch_stride,
    )  # fmt: skip


def b_shape(problem: GemmProblem) -> Shape:
    """B as stored."""
    p = problem
    return Shape(
        rows=p.b_rows, columns=p.b_columns, ld=p.ldb, dtype=p.b_dtype, alignment_bytes=p.b_alignment_bytes,
        matrices=p.b_outer // p.n, stride=p.b_batch_stride,
    )  # fmt: skip


def c_shape(problem: GemmProblem) -> Shape:
    """C as stored: as D is, at C's alignment and of C's type."""
    return replace(d_shape(problem), dtype=problem.c_dtype, alignment_bytes=problem.c_alignment_bytes)


def d_shape(problem: GemmProblem) -> Shape:
    """D as stored; C, which beta = 0 leaves unread, is D."""
    p = problem
    return Shape(
        rows=p.m, columns=p.n, ld=p.ldd, dtype=p.d_dtype, alignment_bytes=p.d_alignment_bytes,
        matrices=p.batch_count, stride=p.d_batch_stride,
    )  # fmt: skip


def allocate(shape: Shape, device: torch.device | str) -> Stored:
    """A matrix of all-ones bytes at an address that ``alignment_bytes`` divides and, below 256, no larger power of two.

    Raises:
        InvalidInputError: the alignment is less than one element.
    """
    import torch

    size, alignment = shape.dtype.itemsize, shape.alignment_bytes
    if alignment < size:
        raise InvalidInputError(f"alignment_bytes must be at least one element, {size} (got {alignment})")
    spare = 2 * MAX_ALIGNMENT_BYTES // size
    buffer = torch.full((shape.extent + spare,), -1, dtype=torch_integer(shape.dtype), device=device)
    offset = aligned_offset(buffer.data_ptr(), alignment) // size
    one = (shape.columns, shape.rows), (shape.ld, 1)
    sizes, strides = one if shape.matrices == 1 else ((shape.matrices, *one[0]), (shape.stride, *one[1]))
    columns = buffer.as_strided(sizes, strides, offset)
    return Stored(columns=columns, buffer=buffer, pointer=buffer.data_ptr() + offset * size)


def aligned_offset(address: int, alignment: int) -> int:
    """Bytes to go from ``address`` to the next one whose largest power-of-two divisor, up to 256, is ``alignment``."""
    if alignment >= MAX_ALIGNMENT_BYTES:
        return -address % MAX_ALIGNMENT_BYTES
    return (alignment - address) % (2 * alignment)


def store_a(problem: GemmProblem, bits: torch.Tensor) -> Stored:
    """All op(A) = ``bits``, shape (a_outer, k), stored as ``problem`` says on the device of ``bits``."""
    return _store(a_shape(problem), bits, problem.m, turned=problem.transa is Transpose.N)


def store_b(problem: GemmProblem, bits: torch.Tensor) -> Stored:
    """All op(B) transposed = ``bits``, shape (b_outer, k), stored as ``problem`` says on the device of ``bits``."""
    return _store(b_shape(problem), bits, problem.n, turned=problem.transb is not Transpose.N)


def store_c(problem: GemmProblem, bits: torch.Tensor) -> Stored:
    """All C = ``bits``, shape (d_outer, n), stored as ``problem`` says on the device of ``bits``."""
    return _store(c_shape(problem), bits, problem.m, turned=True)


def a_rows(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """A stored A as its operand draws it: op(A), (m, k) or (matrices, m, k), a view."""
    return stored.columns.mT if problem.transa is Transpose.N else stored.columns


def b_rows(problem: GemmProblem, stored: Stored) -> torch.Tensor:
    """A stored B as its operand draws it: op(B) transposed, (n, k) or (matrices, n, k), a view."""
    return stored.columns if problem.transb is Transpose.N else stored.columns.mT


def c_rows(stored: Stored) -> torch.Tensor:
    """A stored C as its operand draws it: (m, n) or (matrices, m, n), a view."""
    return stored.columns.mT


def _store(shape: Shape, bits: torch.Tensor, outer: int, *, turned: bool) -> Stored:
    """``bits``: matrices of ``outer`` rows below one another, each of which is stored as a column unless ``turned``."""
    inner = shape.columns if turned else shape.rows
    wanted = (shape.matrices * outer, inner)
    if tuple(bits.shape) != wanted or bits.element_size() != shape.dtype.itemsize:
        raise InvalidInputError(
            f"bits must have shape {wanted}, of {shape.dtype.value} elements (got {tuple(bits.shape)} of {bits.dtype})"
        )
    stored = allocate(shape, bits.device)
    each = bits.view(torch_integer(shape.dtype)).reshape(shape.matrices, outer, inner)
    each = each.transpose(1, 2) if turned else each
    stored.columns.copy_(each if shape.matrices > 1 else each[0])
    return stored


def empty_d(problem: GemmProblem, device: torch.device | str) -> Stored:
    """A D of all-ones bytes, so that an element the library leaves unwritten shows as that NaN."""
    return allocate(d_shape(problem), device)


def result_of(d: Stored) -> torch.Tensor:
    """All D as (d_outer, n), signed integer type; a view unless there are several."""
    if d.columns.dim() == 2:
        return d.columns.T
    return d.columns.transpose(1, 2).reshape(-1, d.columns.shape[1])
