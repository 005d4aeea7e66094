"""Which cuBLASLt problem ``torch.mm`` is.

``torch.mm`` reaches cuBLAS after ATen has chosen op flags and leading dimensions from the tensors' strides; the rules
are those of ``cublasCommonArgs`` (aten/src/ATen/native/cuda/cuBlasCommonArgs.h) and of the leading dimension
adjustment in aten/src/ATen/cuda/CUDABlas.cpp, torch 2.11.  cuBLAS then asks cuBLASLt's heuristic with the real
alignment of every pointer, and, where torch's reduced-precision reduction is off for the operands' type, for answers
that keep split-K partials in the compute type alone.
"""

from __future__ import annotations

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import ALL_REDUCTION_SCHEMES, ComputeType, GemmProblem, Transpose
from gemmdesc.routes.metas import TensorMeta

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_BLAS_LIBRARIES = ("default", "cublas")
_MAX_SIZE = 2**31 - 1
#: ``CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE``, all that cuBLAS may use while reduced-precision reduction is off.
COMPUTE_TYPE_REDUCTION = 2


def swaps_operands(out: TensorMeta) -> bool:
    """Whether torch computes the transposed product: cuBLAS's A is then ``b``, its B ``a``, its m ``out``'s columns."""
    return is_row_major(out) is not False


def route_mm(a: TensorMeta, b: TensorMeta, out: TensorMeta, settings: TorchSettings) -> GemmProblem | Declined:
    """The problem that ``torch.mm(a, b, out=out)`` poses, (m, k) x (k, n) -> (m, n), or why it is not known.

    With reduced-precision reduction off for the operands' type, torch gives cuBLAS the math mode
    ``CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION``; the problem then has a ``reduction_scheme_mask`` of
    :data:`COMPUTE_TYPE_REDUCTION`, whose first answer gave ``torch.mm``'s bytes on 91 of 91 float16 split-K shapes
    (docs/results.md); bfloat16 takes the same way through torch.  The mask moves which answer comes back, not what an
    answer computes, as running one takes no mask: a profile's row, found by the answer's attributes, holds though its
    evidence was asked with all schemes.

    Raises:
        InvalidInputError: shapes do not fit, or an ``out`` type that ``torch.mm`` does not take.
    """
    _require_shapes(a, b, out)
    declined = _out_of_scope(a, b, out) or flags_decline(a.dtype, out.dtype, settings)
    if declined is not None:
        return declined
    swapped = is_row_major(out)
    left, right = is_row_major(b if swapped else a), is_row_major(a if swapped else b)
    if swapped is None or left is None or right is None:
        return Declined(
            code="unsupported_input", reason="no unit stride: torch copies such a tensor before it calls cuBLAS"
        )
    a_side, b_side = (b, a) if swapped else (a, b)
    m, n = out.shape[::-1] if swapped else out.shape
    return _problem(
        sizes=(m, n, a.shape[1]),
        sides=(a_side, b_side, out),
        ops=(_op(left, swapped), _op(right, swapped)),
        lds=(a_side.strides[0 if left else 1], b_side.strides[0 if right else 1], out.strides[0 if swapped else 1]),
        settings=settings,
    )


def _op(row_major: bool, swapped: bool) -> Transpose:
    # A row-major operand is read as its transpose; the swapped product wants the transposes.
    return Transpose.T if row_major != swapped else Transpose.N


def is_row_major(t: TensorMeta) -> bool | None:
    """How ATen reads a tensor: row-major, column-major, or neither (None), in which case it copies."""
    rows, columns = t.shape
    if t.is_dense:
        return t.is_contiguous
    if t.strides[0] == 1 and t.strides[1] >= max(1, rows):
        return False
    if t.strides[1] == 1 and t.strides[0] >= max(1, columns):
        return True
    return None


def _problem(
    *,
    sizes: tuple[int, int, int],
    sides: tuple[TensorMeta, TensorMeta, TensorMeta],
    ops: tuple[Transpose, Transpose],
    lds: tuple[int, int, int],
    settings: TorchSettings,
) -> GemmProblem:
    (m, n, k), (a, b, d), (transa, transb), (lda, ldb, ldd) = sizes, sides, ops, lds
    a_columns = k if transa is Transpose.N else m
    b_columns = n if transb is Transpose.N else k
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        a_dtype=a.dtype,
        b_dtype=b.dtype,
        d_dtype=d.dtype,
        transa=transa,
        transb=transb,
        # The stride of a single column is arbitrary in torch; ATen replaces it by the column's length.
        lda=lda if a_columns > 1 else (m if transa is Transpose.N else k),
        ldb=ldb if b_columns > 1 else (k if transb is Transpose.N else n),
        ldd=ldd if n > 1 else m,
        compute_type=compute_type(a.dtype, settings),
        a_alignment_bytes=a.alignment_bytes,
        b_alignment_bytes=b.alignment_bytes,
        c_alignment_bytes=d.alignment_bytes,
        d_alignment_bytes=d.alignment_bytes,
        workspace_limit_bytes=settings.workspace_bytes,
        reduction_scheme_mask=reduction_schemes(a.dtype, settings),
    )


def compute_type(dtype: DType, settings: TorchSettings) -> ComputeType:
    """What torch asks for operands of ``dtype``: tfloat32 products of float32 operands only where it is allowed."""
    tf32 = dtype is DType.FLOAT32 and settings.allow_tf32
    return ComputeType.COMPUTE_32F_FAST_TF32 if tf32 else ComputeType.COMPUTE_32F


def reduction_schemes(dtype: DType, settings: TorchSettings) -> int:
    """How split-K partials of a product of ``dtype`` may be merged, as bits of ``cublasLtReductionScheme_t``."""
    return ALL_REDUCTION_SCHEMES if _allows_reduced_precision(dtype, settings) else COMPUTE_TYPE_REDUCTION


def _allows_reduced_precision(dtype: DType, settings: TorchSettings) -> bool:
    flags = {
        DType.FLOAT16: settings.allow_fp16_reduced_precision_reduction,
        DType.BFLOAT16: settings.allow_bf16_reduced_precision_reduction,
    }
    return flags.get(dtype, True)


def _allows_splitk(dtype: DType, settings: TorchSettings) -> bool:
    flags = {DType.FLOAT16: settings.allow_fp16_splitk, DType.BFLOAT16: settings.allow_bf16_splitk}
    return flags.get(dtype, True)


def _require_shapes(a: TensorMeta, b: TensorMeta, out: TensorMeta) -> None:
    if a.shape[1] != b.shape[0]:
        raise InvalidInputError(f"b must have {a.shape[1]} rows, as many as a has columns (got {b.shape})")
    if out.shape != (a.shape[0], b.shape[1]):
        raise InvalidInputError(f"out must have shape {(a.shape[0], b.shape[1])} (got {out.shape})")
    if b.dtype is not a.dtype:
        raise InvalidInputError(f"b must be of a's type {a.dtype.value} (got {b.dtype.value})")
    if out.dtype not in (a.dtype, DType.FLOAT32):
        raise InvalidInputError(f"out must be of {a.dtype.value} or float32 (got {out.dtype.value})")


def _out_of_scope(a: TensorMeta, b: TensorMeta, out: TensorMeta) -> Declined | None:
    numbers = (*a.strides, *b.strides, *out.strides)
    return scope_decline(a.dtype, (*out.shape, a.shape[1]), numbers)


def scope_decline(dtype: DType, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Declined | None:
    """A decline of operand types, empty products and numbers that torch gives cuBLAS no product of."""
    if dtype not in _DTYPES:
        return Declined(code="out_of_scope", reason=f"torch.mm of {dtype.value} is not covered")
    if min(sizes) < 1:
        return Declined(code="unsupported_input", reason=f"an empty product {sizes} never reaches cuBLAS")
    if max(*sizes, *strides) > _MAX_SIZE:
        return Declined(code="unsupported_input", reason="a size or stride above 2^31 - 1, which cuBLAS does not take")
    return None


def flags_decline(dtype: DType, out_dtype: DType, settings: TorchSettings) -> Declined | None:
    """A decline of torch's flags under which a product of ``dtype`` is another call, or one that is not measured."""
    if settings.unsettled:
        reason = settings.unsettled
    elif settings.blas_library not in _BLAS_LIBRARIES:
        reason = f"torch.backends.cuda.preferred_blas_library is {settings.blas_library}, not cublas"
    elif settings.tunable_op:
        reason = "torch.cuda.tunable is on, which chooses other algorithms than the heuristic's first"
    elif not _allows_splitk(dtype, settings):
        reason = f"split-K is off for {dtype.value}, which is not measured (torch.mm refuses it without cublaslt)"
    elif not _allows_reduced_precision(dtype, settings) and out_dtype is not dtype:
        types = f"{dtype.value} operands and a {out_dtype.value} result"
        reason = f"reduced-precision reduction is off, which is not measured for {types}"
    elif dtype is DType.FLOAT16 and settings.allow_fp16_accumulation:
        reason = "torch.backends.cuda.matmul.allow_fp16_accumulation is on, which is not covered"
    else:
        return None
    return Declined(code="flags", reason=reason)
