"""Matrices as cuBLASLt stores them, on a device: column-major, padded, and aligned exactly as a problem declares.

Everything outside a matrix (the rows beyond it up to the leading dimension, the bytes before its first element) is
filled with all-ones bytes, a NaN in every format, so that reading a gap shows in the result.
"""

from __future__ import annotations

from dataclasses import dataclass
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

    ``pointer`` is the address of its first element, ``buffer`` the allocation that it lies in.
    """

    columns: torch.Tensor
    buffer: torch.Tensor
    pointer: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a stored matrix looks like: sizes and ``ld`` in elements, ``alignment_bytes`` exact below 256."""

    rows: int
    columns: int
    ld: int
    dtype: DType
    alignment_bytes: int


def a_shape(problem: GemmProblem) -> Shape:
    """A as stored."""
    p = problem
    return Shape(rows=p.a_rows, columns=p.a_columns, ld=p.lda, dtype=p.a_dtype, alignment_bytes=p.a_alignment_bytes)


def b_shape(problem: GemmProblem) -> Shape:
    """B as stored."""
    p = problem
    return Shape(rows=p.b_rows, columns=p.b_columns, ld=p.ldb, dtype=p.b_dtype, alignment_bytes=p.b_alignment_bytes)


def d_shape(problem: GemmProblem) -> Shape:
    """D as stored; C, which beta = 0 leaves unread, is D."""
    p = problem
    return Shape(rows=p.m, columns=p.n, ld=p.ldd, dtype=p.d_dtype, alignment_bytes=p.d_alignment_bytes)


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
    extent = shape.columns * shape.ld
    buffer = torch.full((extent + spare,), -1, dtype=torch_integer(shape.dtype), device=device)
    offset = aligned_offset(buffer.data_ptr(), alignment) // size
    columns = buffer[offset : offset + extent].view(shape.columns, shape.ld)[:, : shape.rows]
    return Stored(columns=columns, buffer=buffer, pointer=buffer.data_ptr() + offset * size)


def aligned_offset(address: int, alignment: int) -> int:
    """Bytes to go from ``address`` to the next one whose largest power-of-two divisor, up to 256, is ``alignment``."""
    if alignment >= MAX_ALIGNMENT_BYTES:
        return -address % MAX_ALIGNMENT_BYTES
    return (alignment - address) % (2 * alignment)


def store_a(problem: GemmProblem, bits: torch.Tensor) -> Stored:
    """op(A) = ``bits``, shape (m, k), stored as ``problem`` says on the device of ``bits``."""
    return _store(a_shape(problem), bits.T if problem.transa is Transpose.N else bits)


def store_b(problem: GemmProblem, bits: torch.Tensor) -> Stored:
    """op(B) transposed = ``bits``, shape (n, k), stored as ``problem`` says on the device of ``bits``."""
    return _store(b_shape(problem), bits if problem.transb is Transpose.N else bits.T)


def _store(shape: Shape, columns: torch.Tensor) -> Stored:
    if tuple(columns.shape) != (shape.columns, shape.rows) or columns.element_size() != shape.dtype.itemsize:
        raise InvalidInputError(
            f"bits must fill {shape.rows} x {shape.columns} elements of {shape.dtype.value} as stored "
            f"(got {tuple(columns.shape)[::-1]} of {columns.dtype})"
        )
    stored = allocate(shape, columns.device)
    stored.columns.copy_(columns.view(torch_integer(shape.dtype)))
    return stored


def empty_d(problem: GemmProblem, device: torch.device | str) -> Stored:
    """A D of all-ones bytes, so that an element the library leaves unwritten shows as that NaN."""
    return allocate(d_shape(problem), device)


def result_of(d: Stored) -> torch.Tensor:
    """D as an (m, n) view, signed integer type."""
    return d.columns.T
