"""Which problem ``_scaled_mm`` poses with one scale for each operand.

After ``_scaled_mm_out_cuda`` and ``scaled_gemm`` (aten/src/ATen/native/cuda/ScaledBlas.cpp, aten/src/ATen/cuda/
CUDABlas.cpp): cuBLASLt is asked directly, with torch's own workspace for it and without a word on alignments.
"""

from __future__ import annotations

from dataclasses import replace

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import MAX_ALIGNMENT_BYTES, Epilogue, GemmProblem, Transpose, is_float8
from gemmdesc.routes.metas import NdMeta, TensorMeta
from gemmdesc.routes.mm import is_row_major
from gemmdesc.routes.route import Addend, Api, Route

_OUTPUTS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


def route_scaled_mm(
    a: TensorMeta,
    b: TensorMeta,
    out: TensorMeta,
    settings: TorchSettings,
    *,
    bias: NdMeta | None = None,
    fast_accumulation: bool = False,
) -> Route | Declined:
    """``torch._scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=..., use_fast_accum=...)`` of 8-bit operands.

    ``a`` is row-major (m, k), ``b`` column-major (k, n), as torch demands, and the scales are scalars.

    Raises:
        InvalidInputError: shapes do not fit, or types are none that such a call has.
    """
    if a.shape[1] != b.shape[0] or out.shape != (a.shape[0], b.shape[1]):
        raise InvalidInputError(f"out must be the product's shape of a and b (got {a.shape}, {b.shape}, {out.shape})")
    if not (is_float8(a.dtype) and is_float8(b.dtype)):
        raise InvalidInputError(f"a and b must be of 8 bits (got {a.dtype.value}, {b.dtype.value})")
    if is_row_major(a) is not True or is_row_major(b) is not False or is_row_major(out) is not True:
        return Declined(code="unsupported_input", reason="layouts other than row-major a and out, column-major b")
    if out.dtype not in _OUTPUTS:
        return Declined(code="out_of_scope", reason=f"a result of {out.dtype.value} is not measured")
    if bias is not None and bias.dtype is not out.dtype:
        return Declined(code="out_of_scope", reason=f"a bias of {bias.dtype.value} for a result of {out.dtype.value}")
    if settings.unsettled:
        return Declined(code="flags", reason=settings.unsettled)
    if settings.tunable_op:
        return Declined(code="flags", reason="torch.cuda.tunable is on, which chooses other algorithms")
    (rows, inner), columns = a.shape, b.shape[1]
    problem = GemmProblem(
        m=columns, n=rows, k=inner, a_dtype=b.dtype, b_dtype=a.dtype, d_dtype=out.dtype, transa=Transpose.T,
        transb=Transpose.N, lda=b.strides[1], ldb=a.strides[0], ldd=out.strides[0],
        fast_accumulation=fast_accumulation, workspace_limit_bytes=settings.lt_workspace_bytes,
        a_alignment_bytes=MAX_ALIGNMENT_BYTES,
    )  # fmt: skip
    if bias is None:
        return Route(problem=problem, swapped=True, api=Api.CUBLASLT)
    biased = replace(problem, epilogue=Epilogue.BIAS)
    return Route(problem=biased, swapped=True, api=Api.CUBLASLT, addend=Addend.BIAS)
