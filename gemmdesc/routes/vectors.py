"""Which problem ``mv`` and ``addmv`` pose; ``dot`` poses none.

After ``addmv_out_cuda`` (aten/src/ATen/native/cuda/Blas.cpp) and ``gemv<at::Half>`` (aten/src/ATen/cuda/CUDABlas.cpp):
for 16-bit types the vector and the result are matrices of one row, with the vectors' strides as leading dimensions, and
the product is that row times the matrix.  alpha and beta are rounded to the operands' type first, as in no other
product.  float32 goes to cublasSgemv, which is no problem of cuBLASLt's.
"""

from __future__ import annotations

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import GemmProblem, Transpose
from gemmdesc.routes.metas import NdMeta, TensorMeta
from gemmdesc.routes.mm import flags_decline, reduction_schemes, scope_decline
from gemmdesc.routes.route import Addend, Route, as_scalar, scalar_class, scalars_decline

#: What ``torch.dot`` declines with.
DOT = Declined(code="out_of_scope", reason="torch.dot calls cublasDotEx, which is no problem of cuBLASLt's")


def route_addmv(
    a: TensorMeta,
    b: NdMeta,
    out: NdMeta,
    settings: TorchSettings,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Route | Declined:
    """``torch.addmv(addend, a, b, alpha=alpha, beta=beta, out=out)``, (m, k) x (k,) -> (m,); ``mv`` at beta 0.

    The library's A is the vector, so that routes are ``swapped``.

    Raises:
        InvalidInputError: shapes or types do not fit.
    """
    rows, inner = a.shape
    for name, t, size in (("b", b, inner), ("out", out, rows)):
        if t.shape != (size,):
            raise InvalidInputError(f"{name} must have shape {(size,)} (got {t.shape})")
        if t.dtype is not a.dtype:
            raise InvalidInputError(f"{name} must be of a's type {a.dtype.value} (got {t.dtype.value})")
    if a.dtype is DType.FLOAT32:
        reason = "a float32 matrix times a vector calls cublasSgemv, which is no problem of cuBLASLt's"
        return Declined(code="out_of_scope", reason=reason)
    numbers = (*a.strides, *b.strides, *out.strides)
    declined = scope_decline(a.dtype, (rows, inner), numbers) or flags_decline(a.dtype, out.dtype, settings)
    if declined is not None:
        return declined
    declined = scalars_decline(alpha, beta, a.dtype)
    if declined is not None:
        return declined
    times, plus = as_scalar(alpha, a.dtype), as_scalar(beta, a.dtype)
    if rows > 1 and out.strides[0] < 1:
        return Declined(code="unsupported_input", reason="an out whose elements share memory")
    by_columns = a.strides[0] == 1 and a.strides[1] >= max(1, rows)
    by_rows = a.strides[1] == 1 and a.strides[0] >= max(1, inner)
    matrix = a if by_columns or by_rows else a.copied
    vector = b.copied if b.strides[0] == 0 and inner > 1 else b
    copies = tuple(name for name, kept in (("a", matrix is a), ("b", vector is b)) if not kept)
    ldb = matrix.strides[1] if by_columns else matrix.strides[0]
    problem = GemmProblem(
        m=1, n=rows, k=inner, a_dtype=a.dtype, b_dtype=a.dtype, d_dtype=a.dtype, transa=Transpose.N,
        transb=Transpose.T if by_columns else Transpose.N,
        lda=max(1, vector.strides[0]) if inner > 1 else 1,
        ldb=ldb if (inner if by_columns else rows) > 1 else (rows if by_columns else inner),
        ldd=out.strides[0] if rows > 1 else 1,
        alpha=scalar_class(times), beta=scalar_class(plus),
        a_alignment_bytes=vector.alignment_bytes, b_alignment_bytes=matrix.alignment_bytes,
        c_alignment_bytes=out.alignment_bytes, d_alignment_bytes=out.alignment_bytes,
        workspace_limit_bytes=settings.workspace_bytes,
        reduction_scheme_mask=reduction_schemes(a.dtype, settings),
    )  # fmt: skip
    addend = Addend.UNREAD if plus == 0.0 else Addend.IN_PLACE
    return Route(problem=problem, swapped=True, addend=addend, copies=copies, scalar_dtype=a.dtype)
