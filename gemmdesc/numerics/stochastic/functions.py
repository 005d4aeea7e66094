"""Functions of stochastic values, by the names that NumPy and torch share.

What a library's function leaves out is unknown, so its result is moved up or down also where the format represents it,
but at the arguments where the result is known to be exact (exp 0, log 1, ...).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic import reductions
from gemmdesc.numerics.stochastic.rounding import root_exact
from gemmdesc.numerics.stochastic.values import StochasticValue

#: Function -> the one finite argument at which its result is representable in every format.
EXACT_AT = {
    "exp": 0.0, "expm1": 0.0, "log": 1.0, "log1p": 0.0, "sin": 0.0, "cos": 0.0, "tan": 0.0, "asin": 0.0, "acos": 1.0,
    "atan": 0.0, "sinh": 0.0, "cosh": 0.0, "tanh": 0.0, "erf": 0.0,
}  # fmt: skip
#: Results are integers or the operand: no rounding that could move them.
INTEGRAL = ("floor", "ceil")


def apply(name: str, value: StochasticValue) -> Any:
    """The function called ``name`` of ``value``.

    Raises:
        InvalidInputError: there is none of this name; the message lists them.
    """
    if name == "sqrt":
        return value.map(name, value.xp.sqrt, root_exact)
    if name in INTEGRAL:
        return value.made(getattr(value.xp, name)(value.samples), value.exact)
    if name not in EXACT_AT:
        known = ", ".join(sorted(("sqrt", *INTEGRAL, *EXACT_AT)))
        raise InvalidInputError(f"name must be one of {known} (got {name!r})")
    function = getattr(value.xp, name, _erf)

    def exactly(xp: Any, x: Any) -> tuple[Any, Any]:
        result = function(x)
        return result, xp.where(x == EXACT_AT[name], 0.0, xp.full_like(result, float("nan")))

    return value.map(name, function, exactly)


def _erf(x: Any) -> Any:
    """For NumPy, which has none."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def sqrt(x: StochasticValue) -> Any:
    return apply("sqrt", x)


def exp(x: StochasticValue) -> Any:
    return apply("exp", x)


def expm1(x: StochasticValue) -> Any:
    return apply("expm1", x)


def log(x: StochasticValue) -> Any:
    return apply("log", x)


def log1p(x: StochasticValue) -> Any:
    return apply("log1p", x)


def sin(x: StochasticValue) -> Any:
    return apply("sin", x)


def cos(x: StochasticValue) -> Any:
    return apply("cos", x)


def tan(x: StochasticValue) -> Any:
    return apply("tan", x)


def asin(x: StochasticValue) -> Any:
    return apply("asin", x)


def acos(x: StochasticValue) -> Any:
    return apply("acos", x)


def atan(x: StochasticValue) -> Any:
    return apply("atan", x)


def sinh(x: StochasticValue) -> Any:
    return apply("sinh", x)


def cosh(x: StochasticValue) -> Any:
    return apply("cosh", x)


def tanh(x: StochasticValue) -> Any:
    return apply("tanh", x)


def floor(x: StochasticValue) -> Any:
    return apply("floor", x)


def ceil(x: StochasticValue) -> Any:
    return apply("ceil", x)


def maximum(x: StochasticValue, y: Any) -> Any:
    """The larger of both, sample by sample, a NaN if there is one; no rounding."""
    return _chosen(x, y, lambda a, b: ((a >= b) | (a != a)) & (b == b))


def minimum(x: StochasticValue, y: Any) -> Any:
    """The smaller of both, sample by sample, a NaN if there is one; no rounding."""
    return _chosen(x, y, lambda a, b: ((a <= b) | (a != a)) & (b == b))


def where(condition: Any, x: Any, y: Any) -> Any:
    """``x`` where the plain bool array ``condition`` holds, else ``y``; one of the two is stochastic."""
    if not isinstance(x, StochasticValue):
        if not isinstance(y, StochasticValue):
            raise InvalidInputError(f"x must be a stochastic value where y is none (got {type(x).__name__})")
        return where(~y.xp.asarray(condition), y, x)
    plain = x.xp.asarray(condition)
    return _chosen(x, y, lambda a, b: plain, axes=plain.ndim)


def _chosen(x: StochasticValue, y: Any, first: Any, axes: int = 0) -> Any:
    """``x`` where ``first`` (of the samples, or of ``axes`` axes without them), else ``y``.

    Exact where all samples took an exact operand.
    """
    theirs, their_exact = x.lanes(y)
    most = max(x.samples.ndim, theirs.ndim, axes + 1)
    a, b = (v.reshape(v.shape[0], *(1,) * (most - v.ndim), *v.shape[1:]) for v in (x.samples, theirs))
    take = first(a, b)
    samples = x.xp.where(take, a, b)
    every = x.xp.broadcast_to(take, samples.shape)
    return x.made(samples, x.xp.where(every, x.exact, their_exact).all(0))


def sum(x: StochasticValue, axis: int | None = None, *, order: str = "sequential") -> Any:
    """See :func:`gemmdesc.numerics.stochastic.reductions.total`."""
    return reductions.total(x, axis, order=order)


def mean(x: StochasticValue, axis: int | None = None) -> Any:
    """The sum over the number of elements: one rounding for each addition and one for the division."""
    return reductions.average(x, axis)


def norm(x: StochasticValue, axis: int | None = None) -> Any:
    """The square root of the sum of squares."""
    return sqrt(reductions.total(x * x, axis))


def dot(x: StochasticValue, y: Any) -> Any:
    """The inner product of two vectors: a product and an addition for each element, from left to right."""
    if x.ndim != 1 or tuple(y.shape) != x.shape:
        raise InvalidInputError(f"y must be a vector of {x.shape} (got {tuple(y.shape)})")
    return reductions.total(x * y, 0)


def matmul(x: StochasticValue, y: Any) -> Any:
    """See :func:`gemmdesc.numerics.stochastic.reductions.matmul`."""
    return reductions.matmul(x, y)
