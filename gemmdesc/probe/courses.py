"""What may happen to a sum besides its roundings: the steps that follow it, or that open the fold of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from gemmdesc.descriptor import AddBias, AddC, CastTo, EpilogueStep, Relu, Scale, ScaleOutput
from gemmdesc.problem import BIASED, Epilogue, GemmProblem, ScalarClass, is_float8

Steps = tuple[EpilogueStep, ...]

_RELU = (Epilogue.RELU, Epilogue.RELU_BIAS)
_GELU = (Epilogue.GELU, Epilogue.GELU_BIAS)


@dataclass(frozen=True, kw_only=True)
class Course:
    """``opening``: what the first part of the outermost cut meets; ``steps``: what follows the finished sum."""

    opening: Steps = ()
    steps: Steps = ()


def has_epilogue(problem: GemmProblem) -> bool:
    """Whether anything but the rounding to D's type happens to a finished sum of ``problem``."""
    p = problem
    plain = p.epilogue is Epilogue.DEFAULT and p.beta is ScalarClass.ZERO and p.alpha is not ScalarClass.OTHER
    return not plain or is_float8(p.a_dtype)


def hides_zeros(problem: GemmProblem) -> bool:
    """Whether a sum of -0.0 does not come out as it is: relu makes it +0.0."""
    return problem.epilogue in _RELU


def has_gelu(problem: GemmProblem) -> bool:
    """Whether a library's gelu ends what happens to a sum of ``problem``."""
    return problem.epilogue in _GELU


def courses(problem: GemmProblem) -> tuple[Course, ...]:
    """What may happen to ``problem``'s sum: first what follows it, then what opens its fold where C or a bias may.

    Empty for gelu, which no walk sees through: :mod:`gemmdesc.probe.gelu` has its courses.
    """
    followed = [Course(steps=steps) for steps in sequences(problem)]
    p = problem
    if not followed or is_float8(p.a_dtype) or p.alpha is ScalarClass.OTHER:
        return tuple(followed)
    biases: list[Steps] = [(AddBias(),)] if p.epilogue in BIASED else [()]
    opened = (
        Course(opening=(*c, *bias), steps=relu)
        for c, bias, relu in product(_added(problem), biases, _relus(problem))
        if c or bias
    )
    return (*followed, *opened)


def sequences(problem: GemmProblem) -> tuple[Steps, ...]:
    """The sequences of steps that may follow ``problem``'s sum, those with the fewest roundings first.

    Empty for gelu.
    """
    p = problem
    if has_gelu(p):
        return ()
    head: Steps = (Scale(),) if is_float8(p.a_dtype) or p.alpha is ScalarClass.OTHER else ()
    bias: Steps = (AddBias(),) if p.epilogue in BIASED else ()
    tail: Steps = (ScaleOutput(),) if is_float8(p.d_dtype) else ()
    found: dict[Steps, None] = {}
    for c, relu in product(_added(problem), _relus(problem)):
        for middle in ((*c, *bias, *relu), (*bias, *c, *relu), (*c, *relu, *bias), (*relu, *c, *bias)):
            found[*head, *middle, *tail] = None
    cast = CastTo(dtype=p.c_dtype)
    for steps in tuple(found):
        for place in range(len(head), len(steps) - len(tail) + bool(tail)):
            found.setdefault((*steps[:place], cast, *steps[place:]), None)
    return tuple(found)


def _added(problem: GemmProblem) -> list[Steps]:
    return [()] if problem.beta is ScalarClass.ZERO else [(AddC(fused=False),), (AddC(fused=True),)]


def _relus(problem: GemmProblem) -> list[Steps]:
    return [(Relu(),), (Relu(keeps_nan=False),)] if hides_zeros(problem) else [()]
