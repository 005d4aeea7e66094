"""What a route is: the problem that a torch call poses, and what torch does around it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.problem import GemmProblem, ScalarClass


class Api(Enum):
    """Whom torch calls: cuBLAS, which asks cuBLASLt's heuristic itself, or cuBLASLt directly."""

    CUBLAS = "cublas"
    CUBLASLT = "cublaslt"


class Addend(Enum):
    """What becomes of ``addmm``'s first tensor.

    UNREAD: beta is 0, or there is none.  IN_PLACE: torch copies it, broadcast, into the result, which the library then
    takes as C and as D.  BIAS: the library's epilogue adds it.
    """

    UNREAD = "unread"
    IN_PLACE = "in_place"
    BIAS = "bias"


class Activation(Enum):
    """``_addmm_activation``'s function; GELU is the tanh form."""

    NONE = "none"
    RELU = "relu"
    GELU = "gelu"


@dataclass(frozen=True, kw_only=True)
class Route:
    """Which problem a torch call poses, and what torch does before and after.

    ``swapped``: the library's A is the call's second operand, and its D the transpose of the result.  ``copies``: the
    operands (``a``, ``b``) that torch copies to new row-major tensors first, and ``out`` where it computes in a copy,
    of matrices by rows where ``swapped`` and by columns else, and copies that back; the problem is that of the copies.
    ``activation``: applied to the rounded result by a kernel of torch's own.  ``unsplit_only``: where the answer splits
    k, this torch runs it with another epilogue, which is not covered.  ``scalar_dtype``: the type that torch rounds
    alpha and beta to before the library is given them as float32.
    """

    problem: GemmProblem
    swapped: bool
    api: Api = Api.CUBLAS
    addend: Addend = Addend.UNREAD
    copies: tuple[str, ...] = ()
    activation: Activation = Activation.NONE
    unsplit_only: bool = False
    scalar_dtype: DType = DType.FLOAT32

    def scalars(self, alpha: float, beta: float) -> tuple[float, float]:
        """The call's ``alpha`` and ``beta`` as the library is given them; beta is 0 where C is not read."""
        plus = 0.0 if self.problem.beta is ScalarClass.ZERO else as_scalar(beta, self.scalar_dtype)
        return as_scalar(alpha, self.scalar_dtype), plus


def epilogue_words(route: Route) -> str:
    """Whom torch asks, alpha and C where there are such, the epilogue, and what torch does after it."""
    p = route.problem
    alpha = "alpha " if p.alpha is ScalarClass.OTHER else ""
    added = "" if p.beta is ScalarClass.ZERO else f"C {p.beta.value} "
    after = "" if route.activation is Activation.NONE else f" then {route.activation.value}"
    return f"{route.api.value} {alpha}{added}{p.epilogue.value}{after}"


def scalar_class(value: float) -> ScalarClass:
    """The class of an alpha or beta."""
    return {0.0: ScalarClass.ZERO, 1.0: ScalarClass.ONE}.get(value, ScalarClass.OTHER)


def as_scalar(value: float, dtype: DType = DType.FLOAT32) -> float:
    """``value`` as torch hands it to the library: rounded to float32, and to ``dtype`` after that."""
    with np.errstate(over="ignore"):
        single = np.array([value], dtype=np.float64).astype(np.float32)
    if dtype is not DType.FLOAT32:
        single = to_float32(from_float32(single, dtype), dtype)
    return float(single[0])


def scalars_decline(alpha: float, beta: float, dtype: DType = DType.FLOAT32) -> Declined | None:
    """A decline of scalars that torch refuses, being finite and beyond the range of ``dtype``, and of alpha = 0."""
    form = dtype.format
    most = (2.0 - 2.0**-form.fraction_bits) * 2.0**form.max_exponent
    for name, value in (("alpha", alpha), ("beta", beta)):
        if np.isfinite(value) and abs(value) > most:
            reason = f"{name} = {value} is beyond the range of {dtype.value}, which torch refuses"
            return Declined(code="unsupported_input", reason=reason)
    if as_scalar(alpha, dtype) == 0.0:
        return Declined(code="out_of_scope", reason="alpha = 0 is not measured")
    return None
