"""Which problem ``addmm`` and ``_addmm_activation`` pose, and with them ``linear`` with a bias.

After ``addmm_out_cuda_impl`` (aten/src/ATen/native/cuda/Blas.cpp) and ``gemm_and_bias`` (aten/src/ATen/cuda/
CUDABlas.cpp): a one-dimensional bias over the columns of a row-major result goes to cuBLASLt's epilogue; any other
addend is copied into the result, which cuBLAS then updates in place.  beta = 0 never reads the addend.
"""

from __future__ import annotations

from dataclasses import replace

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.problem import MAX_ALIGNMENT_BYTES, Epilogue, GemmProblem, ScalarClass
from gemmdesc.routes.metas import NdMeta, TensorMeta, has_own_elements
from gemmdesc.routes.mm import is_row_major, route_mm, swaps_operands
from gemmdesc.routes.release import Release
from gemmdesc.routes.route import Activation, Addend, Api, Route, as_scalar, scalar_class, scalars_decline

#: By activation: the epilogue with a bias, and without one.
_EPILOGUES = {
    Activation.NONE: (Epilogue.BIAS, Epilogue.DEFAULT),
    Activation.RELU: (Epilogue.RELU_BIAS, Epilogue.RELU),
    Activation.GELU: (Epilogue.GELU_BIAS, Epilogue.GELU),
}


def route_product(
    a: TensorMeta, b: TensorMeta, out: TensorMeta, settings: TorchSettings
) -> Route | Declined:
    """``torch.mm(a, b, out=out)`` (m, k) x (k, n) -> (m, n), what has no unit stride copied first.

    A result without one is computed in a row-major copy, and copied back.

    Raises:
        InvalidInputError: as :func:`gemmdesc.routes.route_mm`.
    """
    named = (("a", a), ("b", b), ("out", out))
    copies = tuple(name for name, t in named if is_row_major(t) is None)
    if "out" in copies and not has_own_elements(out.shape, out.strides):
        return Declined(code="unsupported_input", reason="elements of out that share memory")
    a, b, out = (t.copied if name in copies else t for name, t in named)
    problem = route_mm(a, b, out, settings)
    if isinstance(problem, Declined):
        return problem
    return Route(problem=problem, swapped=swaps_operands(out), copies=copies)


def route_addmm(
    addend: NdMeta,
    a: TensorMeta,
    b: TensorMeta,
    out: TensorMeta,
    settings: TorchSettings,
    *,
    release: Release,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Activation = Activation.NONE,
) -> Route | Declined:
    """``torch.addmm(addend, a, b, alpha=alpha, beta=beta, out=out)``, or ``_addmm_activation`` of the same.

    ``addend`` has a shape that expands to ``out``'s, or is ``out``.  ``release``: of torch, on which the way of a bias
    depends.

    Raises:
        InvalidInputError: as :func:`gemmdesc.routes.route_mm`.
    """
    plain = route_product(a, b, out, settings)
    if isinstance(plain, Declined):
        return plain
    declined = scalars_decline(alpha, beta)
    if declined is not None:
        return declined
    times, plus = as_scalar(alpha), as_scalar(beta)
    problem = replace(plain.problem, alpha=scalar_class(times), beta=scalar_class(plus))
    if settings.fuses_bias and _is_fused(addend, a, b, out, beta, activation, release):
        return _fused(replace(plain, problem=problem), addend, out, settings, activation, release)
    if problem.beta is ScalarClass.ZERO:
        return replace(plain, problem=problem, activation=activation)
    # The addend was copied into the result, whose memory is C's and D's.
    return replace(plain, problem=problem, addend=Addend.IN_PLACE, activation=activation)


def _is_fused(
    addend: NdMeta,
    a: TensorMeta,
    b: TensorMeta,
    out: TensorMeta,
    beta: float,
    activation: Activation,
    release: Release,
) -> bool:
    """``isInputCompliesAddmmCudaLt``: whether torch calls cuBLASLt itself."""
    vector = addend.is_contiguous and _is_vector(addend) and addend.shape[-1] == b.shape[1]
    matrix = activation is not Activation.NONE and len(addend.shape) == 2
    wide_enough = min(b.shape) > 1 and (min(a.shape) > 1 or not release.fuses_matrices_only)
    return beta == 1.0 and out.is_contiguous and (vector or matrix) and wide_enough


def _is_vector(addend: NdMeta) -> bool:
    return len(addend.shape) == 1 or sum(size != 1 for size in addend.shape) == 1


def _fused(
    route: Route,
    addend: NdMeta,
    out: TensorMeta,
    settings: TorchSettings,
    activation: Activation,
    release: Release,
) -> Route | Declined:
    with_bias, without = _EPILOGUES[activation]
    problem = replace(route.problem, workspace_limit_bytes=settings.lt_workspace_bytes)
    if problem.a_dtype is not DType.FLOAT32 and out.dtype is DType.FLOAT32:
        return Declined(code="out_of_scope", reason="a fused bias of 16-bit operands and a float32 result")
    if len(addend.shape) == 1:
        biased = replace(
            problem, beta=ScalarClass.ZERO, epilogue=with_bias, bias_alignment_bytes=addend.alignment_bytes
        )
        biased = _told(biased, addend.alignment_bytes, release)
        return replace(
            route, problem=biased, api=Api.CUBLASLT, addend=Addend.BIAS, unsplit_only=release.splits_bias_as_c
        )
    told = _told(replace(problem, epilogue=without), None, release)
    return replace(route, problem=told, api=Api.CUBLASLT, addend=Addend.IN_PLACE)


def _told(problem: GemmProblem, bias_alignment: int | None, release: Release) -> GemmProblem:
    """The alignment of D that torch tells the heuristic: the bias's address in place of D's up to one release."""
    if not release.tells_bias_for_d:
        return problem
    # No bias is the null pointer, which every alignment divides.
    return replace(problem, d_alignment_bytes=bias_alignment or MAX_ALIGNMENT_BYTES)
