"""Problems that got an answer: drawn again from their numbers, chosen for variety, and answers moved to other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemmdesc.library.interface import Library
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.probe.scan import Example, resolve
from gemmdesc.problem import GemmProblem, Transpose

#: With fewer natural examples than this, larger ones take part too, and others are made, from this many at most.
FEW_EXAMPLES, _MADE_FROM = 4, 3
#: Elements of both operands up to which a problem is preferred, and k up to which examples are made.
_MODERATE_ELEMENTS, _LARGEST_MADE_K = 2**25, 2**15
#: A k below this hides how long the turns of most main loops are.
_TELLING_K = 192


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Where numbered problems come from."""

    scope: Scope
    seed: int

    def example(self, library: Library, number: int) -> Example | None:
        return resolve(library, self.scope, self.seed, number)

    def problem(self, number: int) -> GemmProblem:
        return draw_problem(self.scope, self.seed, number)


def examples_of(library: Library, source: Draws, numbers: Sequence[int]) -> dict[int, Example]:
    """The problems of those numbers that the library answers."""
    found = ((n, source.example(library, n)) for n in numbers)
    return {n: e for n, e in found if e is not None}


def varied(source: Draws, numbers: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the numbers, spread over how powers of two divide k and which operands store it contiguously.

    Within such a bucket smaller problems come first; those with operands beyond ``_MODERATE_ELEMENTS`` take part only
    where there are few others.
    """
    problems = {n: source.problem(n) for n in numbers}
    moderate = [n for n, p in problems.items() if (p.m + p.n) * p.k <= _MODERATE_ELEMENTS]
    buckets: dict[tuple[int, int], list[tuple[bool, int, int]]] = {}
    for number in moderate if len(moderate) >= FEW_EXAMPLES else numbers:
        p = problems[number]
        twos = min(7, (p.k & -p.k).bit_length() - 1)
        contiguous = int(p.transa is Transpose.T) + int(p.transb is Transpose.N)
        buckets.setdefault((twos, contiguous), []).append((*_cost(p), number))
    queues = [sorted(b)[::-1] for b in buckets.values()]
    chosen: list[int] = []
    while queues and len(chosen) < most:
        chosen.extend(q.pop()[-1] for q in queues)
        queues = [q for q in queues if q]
    return chosen[:most]


def elsewhere(library: Library, examples: Sequence[Example]) -> list[Example]:
    """The examples' answers at other k, where the library's check accepts them there; a rare answer's only variety.

    Rules found with their help are verified on natural problems only.
    """
    made = (moved(library, e, k) for e in examples[:_MADE_FROM] for k in other_sizes(e))
    return [e for e in made if e is not None]


def moved(library: Library, example: Example, k: int) -> Example | None:
    """The example's answer at another inner size; None where the library's check does not accept it there."""
    p = example.problem
    problem = replace(
        p, k=k, lda=p.lda if p.transa is Transpose.N else p.lda + k - p.k,
        ldb=p.ldb if p.transb is Transpose.T else p.ldb + k - p.k,
    )  # fmt: skip
    return Example(problem=problem, answer=example.answer) if library.check(problem, example.answer) else None


def other_sizes(example: Example) -> tuple[int, ...]:
    """Sizes that tell much: neighbours and multiples of k, and those just above where all slices are equally long."""
    k, slices = example.problem.k, max(1, example.answer.splitk_num)
    even = max(1, k // (64 * slices)) * 64 * slices
    # Short slices of 104 and 232 tell turns of 32, 64 and 128 apart.
    sizes = (even + 1, 104 * slices - 3, 232 * slices - 5, even + slices // 2 + 8, k + 8, 2 * k + 24, k // 2 + 1, 3 * k)
    return tuple(dict.fromkeys(s for s in sizes if 0 < s <= _LARGEST_MADE_K and s != k))


def _cost(p: GemmProblem) -> tuple[bool, int]:
    """Small operands first, but after them those whose k is too short to show a main loop's turns."""
    return p.k < _TELLING_K, p.m * p.k + p.n * p.k + p.m * p.n


def cheapest_first(source: Draws, numbers: Sequence[int]) -> list[int]:
    """Problem numbers in the order in which they are worth comparing."""
    return sorted(numbers, key=lambda n: _cost(source.problem(n)))
