"""A problem in the library's own terms as the kernels see it: one matrix of its batch, stored as it says.  Pure."""

from __future__ import annotations

from dataclasses import replace

from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.problem import BIASED, Epilogue, GemmProblem, ScalarClass, Transpose, is_float8


def problem_meta(problem: GemmProblem, *, transposed: bool, sm_count: int, shared_bytes: int) -> KernelMeta:
    """The first product of ``problem``, op(A) (m, k) times op(B) (k, n), on tensors stored as it says.

    ``transposed``: of the transposed product, op(B)^T (n, k) times op(A)^T (k, m), as torch's row-major tensors are.
    """
    p = problem
    a = MatrixMeta(dtype=p.a_dtype, row_stride=1, column_stride=p.lda, alignment=p.a_alignment_bytes)
    b = MatrixMeta(dtype=p.b_dtype, row_stride=1, column_stride=p.ldb, alignment=p.b_alignment_bytes)
    d = MatrixMeta(dtype=p.d_dtype, row_stride=1, column_stride=p.ldd, alignment=p.d_alignment_bytes)
    meta = KernelMeta(
        m=p.m, n=p.n, k=p.k, a=a if p.transa is Transpose.N else a.transposed,
        b=b if p.transb is Transpose.N else b.transposed, out=d, sm_count=sm_count, shared_bytes=shared_bytes,
    )  # fmt: skip
    return meta.swapped if transposed else meta


def batch_strides(problem: GemmProblem, *, transposed: bool) -> tuple[int, int, int]:
    """Elements from one matrix to the next: of the kernels' a, their b, and their output."""
    p = problem
    a, b = p.a_batch_stride, p.b_batch_stride
    return (b, a, p.d_batch_stride) if transposed else (a, b, p.d_batch_stride)


def every_matrix(meta: KernelMeta, problem: GemmProblem, *, transposed: bool) -> KernelMeta:
    """``meta`` with the alignments that every matrix of the problem's batch has, not only the first."""
    if problem.batch_count == 1:
        return meta
    a, b, out = batch_strides(problem, transposed=transposed)
    return replace(meta, a=_stepped(meta.a, a), b=_stepped(meta.b, b), out=_stepped(meta.out, out))


def _stepped(matrix: MatrixMeta, stride: int) -> MatrixMeta:
    step = stride * matrix.dtype.itemsize
    return replace(matrix, alignment=min(matrix.alignment, step & -step)) if step else matrix


def is_plain(problem: GemmProblem) -> bool:
    """Whether it is one product that takes nothing beside A and B, as a call of ``torch.mm`` is."""
    p = problem
    alone = p.batch_count == 1 and p.beta is ScalarClass.ZERO and p.alpha is ScalarClass.ONE
    return alone and p.epilogue is Epilogue.DEFAULT and not is_float8(p.a_dtype)


def takes_c(problem: GemmProblem) -> bool:
    """Whether D takes C in."""
    return problem.beta is not ScalarClass.ZERO


def takes_bias(problem: GemmProblem) -> bool:
    """Whether D takes a bias in."""
    return problem.epilogue in BIASED


def takes_scales(problem: GemmProblem) -> bool:
    """Whether A and B have a scale each."""
    return is_float8(problem.a_dtype)


def takes_output_scale(problem: GemmProblem) -> bool:
    """Whether D has a scale."""
    return is_float8(problem.a_dtype) and is_float8(problem.d_dtype)
