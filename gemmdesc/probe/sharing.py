"""Launches of answers that may share out k, at the sizes met and at others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gemmdesc.errors import Declined
from gemmdesc.library.interface import Library
from gemmdesc.probe.reader import PlacedReader
from gemmdesc.probe.scan import Example
from gemmdesc.probe.shared import cut_by
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch, dense_problem, environment
from gemmdesc.regions import evaluate_regions
from gemmdesc.rule import Rule

#: Elements of both operands, and of D, of problems that are read or made.
_MOST_READ, _MOST_OUTPUT = 2**28, 2**26
#: Outputs looked at to see which are cut; tiles have sides of at least this many elements.
_LOOKED_AT, _LEAST_TILE = 1 << 17, 16


#: What a made problem has of its own; all else is that of the problem whose answer it gets.
_SIZED = ("m", "n", "k", "lda", "ldb", "ldd", *(f"{x}_alignment_bytes" for x in "abcd"))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bounds of the m and n, and of the k, of problems that are made, each log-uniform; and how many are drawn."""

    sides: tuple[int, int] = (64, 24_000)
    depths: tuple[int, int] = (600, 24_000)
    drawn: int = 240


#: Of problems made for a real library.
SIZES = Sizes()


@dataclass(frozen=True, kw_only=True)
class Launched:
    """An answer on a problem, and what the library would enqueue."""

    example: Example
    launch: Launch

    @property
    def values(self) -> dict[str, int]:
        return environment(self.example.problem, self.example.answer, self.launch)

    @property
    def shares(self) -> bool:
        """Whether some elements' k may be cut, by one kernel; where another one folds, no rule is sought."""
        return bool(self.values["segment_k"]) and self.values["kernel_count"] == 1


def launched(library: Library, examples: Sequence[Example]) -> list[Launched]:
    """The examples with their launches, where those can be had."""
    found = ((e, library.launch(e.problem, e.answer)) for e in examples)
    return [Launched(example=e, launch=launch) for e, launch in found if launch is not None and launch.kernels]


def made_examples(library: Library, natural: Sequence[Example], seed: int, sizes: Sizes) -> list[Example]:
    """The answers on other problems of their kind: all sizes drawn, operands stored as they are; none of batches.

    Those with cut tiles are rare.
    """
    rng = np.random.default_rng([seed, 7])
    found = []
    single = [e for e in natural if e.problem.batch_count == 1]
    for i in range(sizes.drawn if single else 0):
        example = single[i % len(single)]
        p = _drawn(rng, example.problem, sizes)
        if readable_size(p) and library.check(p, example.answer):
            found.append(Example(problem=p, answer=example.answer))
    return found


def _drawn(rng: np.random.Generator, like: GemmProblem, sizes: Sizes) -> GemmProblem:
    def log_uniform(low: int, high: int) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))

    # Even sizes: such kernels want their rows aligned to a few bytes.
    m, n, k = (max(2, log_uniform(*x) // 2 * 2) for x in (sizes.sides, sizes.sides, sizes.depths))
    dense = dense_problem(m, n, k, like.a_dtype, d_dtype=like.d_dtype, transa=like.transa, transb=like.transb)
    stored = {name: getattr(dense, name) for name in _SIZED}
    return replace(like, **stored)


def readable_size(problem: GemmProblem) -> bool:
    """Whether its matrices are small enough to be read many times."""
    return (problem.m + problem.n) * problem.k <= _MOST_READ and problem.m * problem.n <= _MOST_OUTPUT


def look_step(problem: GemmProblem) -> int:
    """Which rows and columns of D to look at, to see what is cut: the fewest that every tile has one of."""
    step = _LEAST_TILE
    while -(-problem.m // step) * -(-problem.n // step) > _LOOKED_AT:
        step *= 2
    return step


def cut_elements(
    library: Library, problem: GemmProblem, answer: AlgoConfig, step: int
) -> npt.NDArray[np.bool_]:
    """Which of the elements of D in every ``step``-th row and column are cut.

    Raises:
        ReferenceFailed: the library did not run the answer.
    """
    nowhere = np.zeros(1, dtype=np.int64)
    return PlacedReader(library, problem, answer, nowhere, 0, along_m=True).cut_elements(step)


def foretells_cuts(library: Library, rule: Rule, launched: Launched) -> bool:
    """Whether ``rule`` says of a launch which elements are cut.

    Raises:
        ReferenceFailed: the library did not run the answer.
    """
    p, step = launched.example.problem, look_step(launched.example.problem)
    regions = evaluate_regions(rule, launched.values)
    if isinstance(regions, Declined):
        return False
    seen = cut_elements(library, p, launched.example.answer, step)
    return np.array_equal(cut_by(regions, p, step), seen)


def shared_examples(library: Library, natural: Sequence[Example], seed: int, count: int) -> list[Launched]:
    """At most ``count`` launches that share out k, those met first, then made ones of more than one row."""
    found: list[Launched] = []
    for few in ([e for e in natural if readable_size(e.problem)], made_examples(library, natural, seed, SIZES)):
        for x in few if len(found) < count else ():
            found += [y for y in launched(library, [x]) if y.shares and x.problem.m > 1]
            if len(found) >= count:
                break
    return found[:count]
