"""A library's gelu: the courses of steps that may follow a sum with one, and experiments that tell them apart.

No walk sees through the function, so that the order of a sum is taken from a rule of products without it, and only
what follows is sought.  Which experiments tell two spellings apart depends on the card's ``tanh.approx.f32``: sums are
drawn until they do.  Pure, but for the tangent that a caller hands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.epilogue import EpilogueInputs, apply_epilogue
from gemmdesc.arithmetic.pointwise import TanhApprox, gelu_argument
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import (
    AddBias,
    CastTo,
    EpilogueStep,
    GeluArgument,
    GeluResult,
    GeluTanhApprox,
    GEMMDesc,
    Scale,
)
from gemmdesc.dtypes import DType
from gemmdesc.probe.courses import Course, Steps
from gemmdesc.probe.epilogues import ends, followed, operand_rows
from gemmdesc.probe.reading import Beside
from gemmdesc.problem import BIASED, AlgoConfig, GemmProblem, Launch, ScalarClass, environment
from gemmdesc.rule import Rule, evaluate_rule

Values = npt.NDArray[np.float32]

#: Sums drawn at once, how often at most, and of each draw those kept on which tangents differ.
_DRAWN, _TURNS, _TOLD = 1 << 18, 16, 1 << 13
#: Experiments kept for each two courses.
_KEPT = 2
#: Binades of the first product, and between it and the second one, whose last bit is a float16 then.
_BINADES, _APART = (-3, 2), (9, 12)


def gelu_courses(problem: GemmProblem) -> tuple[Course, ...]:
    """What may happen to a sum of ``problem`` that ends in gelu: roundings to D's type before it, and every form."""
    forms = [GeluTanhApprox(argument=a, result=r) for r, a in product(GeluResult, GeluArgument)]
    head: Steps = (Scale(),) if problem.alpha is ScalarClass.OTHER else ()
    bias: Steps = (AddBias(),) if problem.epilogue in BIASED else ()
    casts: list[Steps] = [()] if problem.d_dtype is DType.FLOAT32 else [(CastTo(dtype=problem.d_dtype),), ()]
    before = {(*head, *one, *bias, *other): None for one, other in product(casts, casts if bias else [()])}
    found = [Course(steps=(*steps, form)) for steps, form in product(before, forms)]
    opened = [Course(opening=bias, steps=(form,)) for form in forms] if bias and not head else []
    return (*found, *opened)


def gelu_rules(bare: Sequence[Rule], problem: GemmProblem) -> tuple[Rule, ...]:
    """The ``bare`` rules of products alone with each course, where a fold may be opened or end unrounded too."""
    known = gelu_courses(problem)
    made = [
        followed(rule, course, opened=opened)
        for rule in bare
        for opening, opened in ends(rule, known)
        for course in known
        if course.opening == opening
    ]
    return tuple({r.text: r for r in made}.values())


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """Two products of each sum and its bias."""

    first: npt.NDArray[np.float64]
    second: npt.NDArray[np.float64]
    bias: Values

    def __getitem__(self, kept: npt.NDArray[np.int64]) -> _Drawn:
        return _Drawn(first=self.first[kept], second=self.second[kept], bias=self.bias[kept])


def plan_gelu(problem: GemmProblem, tanh_approx: TanhApprox) -> tuple[Beside, ...]:
    """Experiments, their outputs yet NaN, on which every two courses differ, as far as drawing finds any."""
    known = gelu_courses(problem)
    second = max(0, problem.k - 1)
    told = dict.fromkeys(combinations(range(len(known)), 2), 0)
    chosen: dict[Beside, None] = {}
    for turn in range(_TURNS):
        drawn = _draw(problem, np.random.default_rng([9, turn]), second)
        drawn = drawn[_unlike(problem, drawn, known, tanh_approx)]
        outcomes = [_outcome(problem, drawn, course, tanh_approx) for course in known]
        for one, other in told:
            missing = max(0, _KEPT - told[one, other])
            for i in np.flatnonzero(outcomes[one] != outcomes[other])[:missing].tolist() if missing else ():
                chosen[_beside(drawn, i, second)] = None
                for pair in told:
                    told[pair] += int(outcomes[pair[0]][i] != outcomes[pair[1]][i])
        if min(told.values()) >= _KEPT:
            break
    return tuple(chosen)


def _draw(problem: GemmProblem, rng: np.random.Generator, second: int) -> _Drawn:
    bits = min(problem.a_dtype.format.fraction_bits, problem.b_dtype.format.fraction_bits, 10)

    def drawn(exponent: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        significand = 1.0 + rng.integers(0, 1 << bits, _DRAWN) / (1 << bits)
        made: npt.NDArray[np.float64] = np.ldexp(significand * rng.choice((-1.0, 1.0), _DRAWN), exponent)
        return made

    exponent = rng.integers(*_BINADES, _DRAWN)
    first, less = drawn(exponent), drawn(exponent - rng.integers(*_APART, _DRAWN))
    bias = from_float32(rng.normal(0, 1.5, _DRAWN).astype(np.float32), problem.bias_dtype)
    return _Drawn(
        first=first, second=less if second else np.zeros(_DRAWN), bias=to_float32(bias, problem.bias_dtype)
    )


def _unlike(
    problem: GemmProblem, drawn: _Drawn, known: Sequence[Course], tanh_approx: TanhApprox
) -> npt.NDArray[np.int64]:
    """Sums on which the tangents of two arguments differ, whatever stands before them, and a few others."""
    kept = [np.arange(64, dtype=np.int64)]
    for course in {(c.opening, c.steps[:-1]): c for c in known}.values():
        z = _entering(problem, drawn, course.opening, course.steps[:-1])
        asked = [gelu_argument(z, GeluTanhApprox(argument=a, result=GeluResult.FUSED)) for a in GeluArgument]
        tangents = [tanh_approx(y).view(np.uint32) for y in asked]
        differ = np.any([t != tangents[0] for t in tangents[1:]], axis=0)
        kept.append(np.flatnonzero(differ)[:_TOLD])
    return np.unique(np.concatenate(kept))


def _entering(problem: GemmProblem, drawn: _Drawn, opening: Steps, steps: Steps) -> Values:
    """What is left of the sums after ``opening``, which the first product meets, and after ``steps``."""
    one, other = drawn.first.astype(np.float32), drawn.second.astype(np.float32)
    opened = _after(problem, one, drawn.bias, opening)
    return _after(problem, opened + other, drawn.bias, steps)


def _after(
    problem: GemmProblem, values: Values, bias: Values, steps: Sequence[EpilogueStep],
    tanh_approx: TanhApprox | None = None,
) -> Values:  # fmt: skip
    inputs = _inputs(problem, bias, tanh_approx)
    rows, cols = np.zeros(1, np.int64), np.arange(len(values), dtype=np.int64)
    made = apply_epilogue(values[None, :], tuple(steps), inputs, shape=(1, len(values)), rows=rows, cols=cols)
    return made.reshape(-1)


def _inputs(problem: GemmProblem, bias: Values, tanh_approx: TanhApprox | None) -> EpilogueInputs:
    return EpilogueInputs(
        bias=from_float32(bias, problem.bias_dtype)[None, :], bias_dtype=problem.bias_dtype, tanh_approx=tanh_approx
    )


def _outcome(problem: GemmProblem, drawn: _Drawn, course: Course, tanh_approx: TanhApprox) -> Bits:
    z = _entering(problem, drawn, course.opening, course.steps[:-1])
    return from_float32(_after(problem, z, drawn.bias, course.steps[-1:], tanh_approx), problem.d_dtype)


def _beside(drawn: _Drawn, i: int, second: int) -> Beside:
    pattern = ((0, float(drawn.first[i])), (second, float(drawn.second[i])))
    return Beside(
        pattern=tuple(x for x in pattern if x[1]), alpha=1.0, beta=0.0, a_scale=1.0, b_scale=1.0, d_scale=1.0, c=0.0,
        bias=float(drawn.bias[i]),
    )  # fmt: skip


class Experiments:
    """Outputs of one answer at one problem, and what rules make of them; sums of like orders are replayed once."""

    def __init__(
        self, problem: GemmProblem, answer: AlgoConfig, launch: Launch | None, asked: Sequence[Beside],
        tanh_approx: TanhApprox,
    ) -> None:  # fmt: skip
        self._problem, self._asked, self._tanh = problem, asked, tanh_approx
        self._environment = environment(problem, answer, launch)
        self._sums: dict[GEMMDesc, Values] = {}

    def given_by(self, rule: Rule) -> bool:
        """Whether the rule, which ends in gelu, gives every output, zeros by their sign too."""
        p, desc = self._problem, evaluate_rule(rule, self._environment)
        if not isinstance(desc, GEMMDesc):
            return False
        bare = replace(desc, output_dtype=DType.FLOAT32, epilogue=())
        if bare not in self._sums:
            self._sums[bare] = np.array(list(self._replayed(bare)), np.float32)
        bias = np.array([x.bias for x in self._asked], np.float32)
        made = from_float32(_after(p, self._sums[bare], bias, desc.epilogue, self._tanh), p.d_dtype)
        seen = from_float32(np.array([x.output for x in self._asked], np.float32), p.d_dtype)
        return bool((made == seen).all())

    def _replayed(self, bare: GEMMDesc) -> Iterator[np.float32]:
        p = self._problem
        for x in self._asked:
            a, b = operand_rows(p, x.pattern)
            inputs = _inputs(p, np.array([x.bias], np.float32), None)
            yield to_float32(replay(bare, a[None, :], b[:, None], epilogue=inputs), DType.FLOAT32)[0, 0]
