"""What a route is: the problem that a torch call poses, and what torch does around it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

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
    operands (``a``, ``b``) that torch copies to new row-major tensors first; the problem is that of the copies.
    ``activation``: applied to the rounded result by a kernel of torch's own.  ``unsplit_only``: where the answer splits
    k, this torch runs it with another epilogue, which is not covered.
    """

    problem: GemmProblem
    swapped: bool
    api: Api = Api.CUBLAS
    addend: Addend = Addend.UNREAD
    copies: tuple[str, ...] = ()
    activation: Activation = Activation.NONE
    unsplit_only: bool = False


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


def as_float32(value: float) -> float:
    """``value`` as torch hands it to the library, rounded to float32; infinite where it is too large."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
