"""What happens to a finished sum: which steps, in which order, and where they round.

An experiment is a sum of two products that is exact in any order, and the scales, C and bias that it meets.  They are
chosen so that every two courses of steps that might be, and ways of scaling that no descriptor states, differ on some;
which course the outputs follow is then a matter of comparing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.epilogue import EpilogueInputs, apply_epilogue
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.probe.courses import Course, Steps, courses, has_epilogue, hides_zeros
from gemmdesc.probe.experiments import Pattern, encode, factors
from gemmdesc.probe.reading import Beside, Reading
from gemmdesc.problem import GemmProblem, ScalarClass, environment, is_float8
from gemmdesc.rule import Rule, evaluate_rule

Values = npt.NDArray[np.float32]

#: Experiments drawn for each set of scalars, sets of scalars, and experiments kept for each two sequences.
_DRAWN, _SETS, _KEPT = 1 << 15, 4, 3
#: The first set whose beta is near one, so that rounding beta C shows once C has cancelled the sum.
_NEAR_ONE = 2
#: Pairs of scales that are tried.
_SCALES = 1 << 19
#: Binades between the two products of a sum, for 8-bit operands, whose accumulators may keep 13 bits, and others.
_APART8, _APART = 9, 12


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """Experiments that share their scalars: ``first`` and ``second`` products, C and bias of each."""

    first: npt.NDArray[np.float64]
    second: npt.NDArray[np.float64]
    scalars: Beside
    c: Values
    bias: Values

    @property
    def sums(self) -> Values:
        return (self.first + self.second).astype(np.float32)


def plan_beside(problem: GemmProblem, second: int) -> tuple[Beside, ...]:
    """Experiments, their outputs yet NaN, on which the courses that may be differ, and a few others.

    Sums have a product at k = 0 and one at k = ``second``, in another slice if there is one, so that partials of a
    narrow type hold each; only the first one where that is 0.
    """
    known = courses(problem)
    kept: dict[Beside, None] = {}
    for number in range(_SETS):
        drawn = _draw(problem, number, second)
        outcomes = [out for course in known for out in _follow(problem, drawn, course)]
        kept |= dict.fromkeys(_beside(drawn, i, second) for i in (0, 1, *_telling(outcomes)))
    if is_float8(problem.a_dtype):
        kept |= dict.fromkeys(_scaled(problem, second))
    if hides_zeros(problem):
        none = replace(_draw(problem, 0, 0).scalars, c=0.0, bias=0.0)
        kept[replace(none, pattern=((0, math.nan),))] = None
    return tuple(kept)


def _telling(outcomes: Sequence[Bits]) -> dict[int, None]:
    """Experiments on which two of the outcomes differ, a few for each two."""
    places: dict[int, None] = {}
    for one, other in combinations(outcomes, 2):
        places |= dict.fromkeys(np.flatnonzero(one != other)[:_KEPT].tolist())
    return places


def _scaled(problem: GemmProblem, second: int) -> Iterator[Beside]:
    """Sums and scales on which it shows how the scales are multiplied: first with one another, or into the sum in turn.

    A narrow output shows that only where it is about to round, so that many scales are tried on few sums.
    """
    rng = np.random.default_rng([8, problem.k % 2])
    drawn = _draw(problem, 0, second)
    count = _SCALES
    sums = np.resize(drawn.sums, count)
    one, two, three = (rng.uniform(0.5, 2.0, count).astype(np.float32) for _ in range(3))
    if not is_float8(problem.d_dtype):
        three = np.ones(count, np.float32)
    ways = (sums * (one * two) * three, sums * one * two * three, sums * two * one * three, sums * (one * two * three))
    for i in _telling([from_float32(w, problem.d_dtype) for w in ways]):
        yield replace(
            _beside(drawn, i % _DRAWN, second), a_scale=float(one[i]), b_scale=float(two[i]), d_scale=float(three[i])
        )


def _beside(drawn: _Drawn, i: int, second: int) -> Beside:
    pattern = ((0, float(drawn.first[i])), (second, float(drawn.second[i])))
    return replace(
        drawn.scalars, pattern=tuple(x for x in pattern if x[1]), c=float(drawn.c[i]), bias=float(drawn.bias[i])
    )


def _draw(problem: GemmProblem, number: int, second: int) -> _Drawn:
    p, rng = problem, np.random.default_rng([7, number])
    small = is_float8(p.a_dtype)
    bits = min(p.a_dtype.format.fraction_bits, p.b_dtype.format.fraction_bits, 1 if small else 6)

    def product(exponent: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        significand = 1.0 + rng.integers(0, 1 << bits, _DRAWN) / (1 << bits)
        made: npt.NDArray[np.float64] = np.ldexp(significand * rng.choice((-1.0, 1.0), _DRAWN), exponent)
        return made

    exponent = rng.integers(-1, 3, _DRAWN)
    first = product(exponent)
    # Without a second product, C may cancel the first one but for what a beta near one adds to it.
    less = product(exponent - (_APART8 if small else _APART)) if second and number != _NEAR_ONE else np.zeros(_DRAWN)
    return _Drawn(
        first=first, second=less, scalars=_scalars(p, number, rng), c=_near(rng, first, p.c_dtype),
        bias=_near(rng, first, p.bias_dtype),
    )  # fmt: skip


def _near(rng: np.random.Generator, first: npt.NDArray[np.float64], dtype: DType) -> Values:
    """Values of ``dtype``: of the sum's size, about its negative, or about half of its last bit in that type."""
    size = np.abs(first) * rng.choice((1.0, 0.5, 2.0 ** -(dtype.format.fraction_bits + 1)), len(first))
    # With more bits than a sum with ``first`` can keep, it shows what float32 sums came before it.
    bits = np.where(rng.random(len(first)) < 0.5, 6, dtype.format.fraction_bits)
    value = size * (1.0 + np.floor(np.ldexp(rng.random(len(first)), bits)) * np.ldexp(1.0, -bits))
    value *= rng.choice((-1.0, 1.0), len(first))
    kind = rng.random(len(first))
    value = np.where(kind < 0.3, -first, np.where(kind < 0.5, 0.0, value))
    return to_float32(from_float32(value.astype(np.float32), dtype), dtype)


def _scalars(problem: GemmProblem, number: int, rng: np.random.Generator) -> Beside:
    def odd() -> float:
        return float(np.float32(rng.uniform(0.5, 2.0)))

    scaled, p = is_float8(problem.a_dtype), problem
    other = 1.0 + (2 * int(rng.integers(1, 64)) + 1) * 2.0**-22 if number >= _NEAR_ONE else odd()
    return Beside(
        pattern=(), alpha=odd() if p.alpha is ScalarClass.OTHER and number < _NEAR_ONE else 1.0,
        beta={ScalarClass.ZERO: 0.0, ScalarClass.ONE: 1.0}.get(p.beta, other), a_scale=odd() if scaled else 1.0,
        b_scale=odd() if scaled else 1.0, d_scale=odd() if is_float8(p.d_dtype) else 1.0, c=0.0, bias=0.0,
    )  # fmt: skip


def _follow(problem: GemmProblem, drawn: _Drawn, course: Course) -> Iterator[Bits]:
    """What may come out: where a fold is opened, with and without a rounding of what opens it to D's type."""
    inputs = _inputs(problem, drawn.scalars, drawn.c, drawn.bias)
    index = np.arange(len(drawn.first))

    def after(values: Values, steps: Steps) -> Values:
        shape = (1, len(index))
        return apply_epilogue(values, steps, inputs, shape=shape, rows=np.zeros(1, np.int64), cols=index)

    sums = [drawn.sums[None, :]]
    if course.opening:
        first = after(drawn.first.astype(np.float32)[None, :], course.opening)
        second = drawn.second.astype(np.float32)[None, :]
        sums = [x + second for x in (first, to_float32(from_float32(first, problem.c_dtype), problem.c_dtype))]
    for total in sums:
        yield from_float32(after(total, course.steps), problem.d_dtype)[0]


def _inputs(problem: GemmProblem, scalars: Beside, c: Values, bias: Values) -> EpilogueInputs:
    scale = np.float32(scalars.a_scale) * np.float32(scalars.b_scale)
    return EpilogueInputs(
        alpha=float(np.float32(scalars.alpha) * scale), beta=scalars.beta, output_scale=scalars.d_scale,
        c=from_float32(c, problem.c_dtype)[None, :], c_dtype=problem.c_dtype,
        bias=from_float32(bias, problem.bias_dtype)[None, :], bias_dtype=problem.bias_dtype,
    )  # fmt: skip


def with_epilogues(rules: Sequence[Rule], readings: Sequence[Reading]) -> tuple[Rule, ...]:
    """The rules with the course of steps that all experiments of the readings follow.

    Where running sums are narrow, the last one may be rounded like the others, or be what the steps take.  Of what has
    one outcome on all experiments the first stands for all.  The rules as they are where nothing follows the sum; none
    where no course does what was seen.
    """
    if not rules or not has_epilogue(readings[0].problem):
        return tuple(rules)
    asked = [r for r in readings if r.beside]
    known = courses(readings[0].problem) if asked else ()
    for opening, opened in ends(rules[0], known):
        form = followed(rules[0], Course(opening=opening), opened=opened)
        alive = [c for c in known if c.opening == opening]
        for reading in asked:
            sums = _sums(form, reading) if alive else None
            alive = [] if sums is None else [c for c in alive if _gives(reading, sums, c.steps)]
        if alive:
            return tuple(followed(rule, alive[0], opened=opened) for rule in rules)
    return ()


def ends(rule: Rule, known: Sequence[Course]) -> Iterator[tuple[Steps, bool]]:
    """What may open the rule's fold, and whether its last sum is left as it is, where either could be seen."""
    cuts = rule.structure.cuts
    openings = dict.fromkeys(c.opening for c in known)
    narrow = bool(cuts) and cuts[0].merge_dtype is not DType.FLOAT32
    for opening in openings if cuts else [()] if known else []:
        yield opening, bool(cuts) and cuts[0].open_end
        if narrow and not cuts[0].open_end:
            yield opening, True


def followed(rule: Rule, course: Course, *, opened: bool) -> Rule:
    """``rule`` with the course; ``opened``: the last sum of its outermost fold is not rounded."""

    def changed(desc: GEMMDesc) -> GEMMDesc:
        cuts = desc.cuts
        if cuts and (opened or course.opening):
            cuts = (replace(cuts[0], open_end=opened, opening=course.opening), *cuts[1:])
        return replace(desc, epilogue=course.steps, cuts=cuts)

    return rule.restructured(changed)


def _sums(rule: Rule, reading: Reading) -> list[Values] | None:
    """The finished sum of each experiment under ``rule``; None where it declines."""
    p = reading.problem
    desc = evaluate_rule(rule, environment(p, reading.answer, reading.launch))
    if not isinstance(desc, GEMMDesc):
        return None
    bare = replace(desc, output_dtype=DType.FLOAT32, epilogue=())
    out = []
    for beside in reading.beside:
        a, b = operand_rows(p, beside.pattern)
        bits = replay(bare, a[None, :], b[:, None], epilogue=_inputs_of(p, beside))
        out.append(to_float32(bits, DType.FLOAT32))
    return out


def operand_rows(problem: GemmProblem, pattern: Pattern) -> tuple[Bits, Bits]:
    """One row of A and one column of B, (k,) patterns each, whose products are those of ``pattern``."""
    rows = [from_float32(np.zeros(problem.k, np.float32), d) for d in (problem.a_dtype, problem.b_dtype)]
    for k, value in pattern:
        both = factors(value, problem.a_dtype, problem.b_dtype) if is_float8(problem.a_dtype) else (value, 1.0)
        for row, part, dtype in zip(rows, both, (problem.a_dtype, problem.b_dtype), strict=True):
            row[k] = encode(part, dtype)
    return rows[0], rows[1]


def _gives(reading: Reading, sums: Sequence[Values], steps: Steps) -> bool:
    """Whether ``steps`` on the sums give what came out, zeros by their sign too."""
    p, one = reading.problem, np.zeros(1, np.int64)
    for beside, total in zip(reading.beside, sums, strict=True):
        followed = apply_epilogue(total, steps, _inputs_of(p, beside), shape=(1, 1), rows=one, cols=one)
        if from_float32(followed, p.d_dtype)[0, 0] != from_float32(np.array([beside.output]), p.d_dtype)[0]:
            return False
    return True


def _inputs_of(problem: GemmProblem, beside: Beside) -> EpilogueInputs:
    return _inputs(problem, beside, np.array([beside.c], np.float32), np.array([beside.bias], np.float32))
