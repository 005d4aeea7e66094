"""Which problem ``bmm`` and ``baddbmm`` pose.

After ``baddbmm_out_cuda_impl`` and ``prepare_batch_matrix_for_cublas`` (aten/src/ATen/native/cuda/Blas.cpp): one
strided-batched product, op flags and leading dimensions from the strides of the last two axes; one product alone where
the batch holds one.  torch sets no math mode for it, so that its reduced-precision flags do not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import ALL_REDUCTION_SCHEMES, MAX_ALIGNMENT_BYTES, GemmProblem, ScalarClass, Transpose
from gemmdesc.routes.metas import NdMeta, has_own_elements
from gemmdesc.routes.mm import compute_type, flags_decline, reduction_schemes, scope_decline
from gemmdesc.routes.route import Addend, Route, as_scalar, scalar_class, scalars_decline


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One batch of matrices as cuBLAS is given it."""

    meta: NdMeta
    transposed: bool
    ld: int
    copied: bool


def route_baddbmm(
    a: NdMeta,
    b: NdMeta,
    out: NdMeta,
    settings: TorchSettings,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Route | Declined:
    """``torch.baddbmm(addend, a, b, alpha=alpha, beta=beta, out=out)``, (batch, m, k) x (batch, k, n); ``bmm`` at 0.

    The addend is copied into the result first unless beta is 0, so that its layout does not matter.  A result without
    a unit stride is computed in a copy, whose matrices lie by columns, and copied back.

    Raises:
        InvalidInputError: shapes or types do not fit.
    """
    _require(a, b, out)
    _, rows, columns = out.shape
    inner = a.shape[2]
    declined = _declined(a, b, out, settings) or scalars_decline(alpha, beta)
    if declined is not None:
        return declined
    times, plus = as_scalar(alpha), as_scalar(beta)
    found = _is_row_major(out)
    if found is None and not has_own_elements(out.shape, out.strides):
        return Declined(code="unsupported_input", reason="elements of out that share memory")
    swapped = bool(found)
    if found is None:
        out = replace(out, strides=(rows * columns, 1, rows), alignment_bytes=MAX_ALIGNMENT_BYTES)
    (m, n), (first, second) = ((columns, rows), (b, a)) if swapped else ((rows, columns), (a, b))
    left, right = _prepared(first, swapped, m, inner), _prepared(second, swapped, inner, n)
    names = ("b", "a") if swapped else ("a", "b")
    addend = Addend.UNREAD if plus == 0.0 else Addend.IN_PLACE
    problem = _problem((m, n, inner), left, right, out, out.strides[1 if swapped else 2], settings)
    problem = replace(problem, alpha=scalar_class(times), beta=scalar_class(plus))
    copies = tuple(sorted(name for name, side in zip(names, (left, right), strict=True) if side.copied))
    copies += ("out",) * (found is None)
    return Route(problem=problem, swapped=swapped, addend=addend, copies=copies)


def _require(a: NdMeta, b: NdMeta, out: NdMeta) -> None:
    for name, t in (("a", a), ("b", b), ("out", out)):
        if len(t.shape) != 3:
            raise InvalidInputError(f"{name} must have three axes (got {t.shape})")
    wanted = (a.shape[0], a.shape[2])
    if b.shape[:2] != wanted:
        raise InvalidInputError(f"b must have {wanted[0]} matrices of {wanted[1]} rows (got {b.shape})")
    if out.shape != (a.shape[0], a.shape[1], b.shape[2]):
        raise InvalidInputError(f"out must have shape {(a.shape[0], a.shape[1], b.shape[2])} (got {out.shape})")
    if b.dtype is not a.dtype:
        raise InvalidInputError(f"b must be of a's type {a.dtype.value} (got {b.dtype.value})")
    if out.dtype not in (a.dtype, DType.FLOAT32):
        raise InvalidInputError(f"out must be of {a.dtype.value} or float32 (got {out.dtype.value})")


def _declined(a: NdMeta, b: NdMeta, out: NdMeta, settings: TorchSettings) -> Declined | None:
    flags = settings
    if out.shape[0] > 1:
        flags = replace(
            settings, allow_fp16_reduced_precision_reduction=True, allow_bf16_reduced_precision_reduction=True,
            allow_fp16_splitk=True, allow_bf16_splitk=True,
        )  # fmt: skip
    numbers = (*a.strides, *b.strides, *out.strides)
    return scope_decline(a.dtype, (*out.shape, a.shape[2]), numbers) or flags_decline(a.dtype, out.dtype, flags)


def _is_row_major(out: NdMeta) -> bool | None:
    """Whether cuBLAS computes the transposed product; None where torch computes into a copy of ``out``."""
    (_, rows, columns), (_, across, along) = out.shape, out.strides
    if across == 1 and (columns == 1 or along >= max(1, rows)):
        return False
    if along == 1 and (rows == 1 or across >= max(1, columns)):
        return True
    return None


def _prepared(t: NdMeta, swapped: bool, rows: int, columns: int) -> _Side:
    """``prepare_batch_matrix_for_cublas``: ``rows`` x ``columns`` are those of the matrix as cuBLAS multiplies it."""
    fast, leading = (2, 1) if swapped else (1, 2)
    if t.strides[fast] == 1 and t.strides[leading] >= max(1, rows):
        return _Side(meta=t, transposed=False, ld=t.strides[leading], copied=False)
    if t.strides[leading] == 1 and t.strides[fast] >= max(1, columns):
        return _Side(meta=t, transposed=True, ld=t.strides[fast], copied=False)
    copied = not (t.is_contiguous and t.strides[1] and t.strides[2])
    t = t.copied if copied else t
    return _Side(meta=t, transposed=not swapped, ld=t.strides[1], copied=copied)


def _problem(
    sizes: tuple[int, int, int], a: _Side, b: _Side, out: NdMeta, ldd: int, settings: TorchSettings
) -> GemmProblem:
    m, n, k = sizes
    batch = out.shape[0]
    transa, transb = (Transpose.T if side.transposed else Transpose.N for side in (a, b))
    strides = [t.strides[0] if batch > 1 else 0 for t in (a.meta, b.meta, out)]
    dtype = a.meta.dtype
    return GemmProblem(
        m=m, n=n, k=k, a_dtype=dtype, b_dtype=dtype, d_dtype=out.dtype, transa=transa, transb=transb,
        # The stride of a single column is arbitrary in torch; ATen replaces it by the column's length.
        lda=a.ld if (m if a.transposed else k) > 1 else (k if a.transposed else m),
        ldb=b.ld if (k if b.transposed else n) > 1 else (n if b.transposed else k),
        ldd=ldd if n > 1 else m,
        compute_type=compute_type(dtype, settings), beta=ScalarClass.ZERO,
        batch_count=batch, a_batch_stride=strides[0], b_batch_stride=strides[1], d_batch_stride=strides[2],
        a_alignment_bytes=a.meta.alignment_bytes, b_alignment_bytes=b.meta.alignment_bytes,
        c_alignment_bytes=out.alignment_bytes, d_alignment_bytes=out.alignment_bytes,
        workspace_limit_bytes=settings.workspace_bytes,
        reduction_scheme_mask=ALL_REDUCTION_SCHEMES if batch > 1 else reduction_schemes(dtype, settings),
    )  # fmt: skip
