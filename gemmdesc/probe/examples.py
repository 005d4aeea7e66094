"""Problems that got an answer: drawn again from their numbers, chosen for variety, and answers moved to other sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gemmdesc.library.interface import Library
from gemmdesc.probe.answers import answer_key
from gemmdesc.probe.refutations import Refutation, RefutingDraw
from gemmdesc.probe.sampling import FLOAT8_MULTIPLE, Scope, draw_problem
from gemmdesc.probe.scan import Example, resolve
from gemmdesc.problem import GemmProblem, Refused, Transpose, is_float8

#: With fewer natural examples than this, larger ones take part too, and others are made, from this many at most.
FEW_EXAMPLES, _MADE_FROM = 4, 3
#: Elements of both operands up to which a problem is preferred, and k up to which examples are made.
_MODERATE_ELEMENTS, _LARGEST_MADE_K = 2**25, 2**15
#: Multiples of k, and k beyond them, at which an answer is read deeper than it was met, and the largest k of those;
#: lengths of slices that it may not have been met with.
_DEEPER = ((4, 1), (16, 7), (64, 13))
_SHORT_SLICES = (11, 43, 104)
_DEEPEST_K = 2**18
#: The largest power of two that outer sizes near one keep.
_LARGEST_GRAIN = 64
#: Multiples of 64 near a size that are tried.
_GRAINED = 4
#: A k below this hides how long the turns of most main loops are.
_TELLING_K = 192
#: Experiments that one launch may hold, where more make a tree cheaper to read.
_WIDTHS = (8, 64)
#: Elements of both operands that an example may have to be read; larger ones are only verified.
READABLE_ELEMENTS = 2**26


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Problem ``number``, or the same with other sizes (unless 0) or operands stored otherwise (unless None)."""

    number: int
    k: int = 0
    layout: tuple[Transpose, Transpose] | None = None
    m: int = 0
    n: int = 0

    @property
    def natural(self) -> bool:
        """Whether it is the problem itself."""
        return not (self.k or self.m or self.n) and self.layout is None


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Where numbered problems come from: drawn by number, and those below 0 ``given``, the first of them as -1."""

    scope: Scope
    seed: int
    given: tuple[Refutation, ...] = ()

    def variant(self, library: Library, variant: Variant) -> Example | None:
        """The problem's answer on the variant; None where the library refuses the one or its check the other."""
        natural = self.example(library, variant.number)
        if natural is None or variant.natural:
            return natural
        return moved(library, natural, variant.k or natural.problem.k, variant.layout, (variant.m, variant.n))

    def example(self, library: Library, number: int) -> Example | None:
        """The problem's answer; None where the library refuses, or answers a given one otherwise than it did."""
        if number >= 0:
            return resolve(library, self.scope, self.seed, number)
        one = self.given[-1 - number]
        answer = library.answer(one.problem)
        if isinstance(answer, Refused) or answer_key(one.problem, answer) != one.key:
            return None
        return Example(problem=one.problem, answer=answer)

    def problem(self, number: int) -> GemmProblem:
        return draw_problem(self.scope, self.seed, number) if number >= 0 else self.given[-1 - number].problem

    def refuting(self, problem: GemmProblem) -> tuple[RefutingDraw, ...]:
        """The draws that showed a rule wrong on ``problem``."""
        return tuple(r.draw for r in self.given if r.draw is not None and r.problem == problem)


def examples_of(library: Library, source: Draws, numbers: Sequence[int]) -> dict[int, Example]:
    """The problems of those numbers that the library answers."""
    found = ((n, source.example(library, n)) for n in numbers)
    return {n: e for n, e in found if e is not None}


def varied(source: Draws, numbers: Sequence[int], most: int, *, wide: bool = False) -> list[int]:
    """At most ``most`` of the numbers, spread over how powers of two divide k and which operands store it contiguously.

    Within such a bucket smaller problems come first, if ``wide`` the wider ones, where a tree takes fewer launches;
    those with operands beyond ``_MODERATE_ELEMENTS`` take part only where there are few others.
    """
    problems = {n: source.problem(n) for n in numbers}
    moderate = [n for n, p in problems.items() if p.batch_count * (p.m + p.n) * p.k <= _MODERATE_ELEMENTS]
    buckets: dict[tuple[int, int], list[tuple[int, bool, int, int]]] = {}
    for number in moderate if len(moderate) >= FEW_EXAMPLES else numbers:
        p = problems[number]
        twos = min(7, (p.k & -p.k).bit_length() - 1)
        contiguous = int(p.transa is Transpose.T) + int(p.transb is Transpose.N)
        buckets.setdefault((twos, contiguous), []).append((_narrow(p) if wide else 0, *_cost(p), number))
    queues = [sorted(b)[::-1] for b in buckets.values()]
    chosen: list[int] = []
    while queues and len(chosen) < most:
        chosen.extend(q.pop()[-1] for q in queues)
        queues = [q for q in queues if q]
    return chosen[:most]


def elsewhere(library: Library, examples: Sequence[Example]) -> list[Example]:
    """The examples' answers at other k, where the library's check accepts them there; a rare answer's only variety."""
    made = (moved(library, e, k) for e in examples[:_MADE_FROM] for k in other_sizes(e))
    return [e for e in made if e is not None]


def other_layouts(library: Library, examples: Sequence[Example]) -> list[Example]:
    """The examples' answers with each operand stored either way, at k of several grains, where the check accepts them.

    A kernel's slices may end elsewhere where k is not contiguous, or has another power of two in it.
    """
    made = (
        moved(library, e, k, (transa, transb))
        for e in examples
        for transa, transb in product(Transpose, Transpose)
        for k in grained_sizes(e)
    )
    return [e for e in made if e is not None]


def nearby(library: Library, example: Example) -> Iterator[Example]:
    """The example's answer at outer sizes near its own, where the library's check accepts it; the nearest ones first.

    Steps are as aligned as the sizes are, and relative ones follow: an answer met once may have a narrow range.
    """
    p = example.problem
    sizes = product(near_sizes(p.m), near_sizes(p.n))
    for m, n in sorted(sizes, key=lambda s: abs(math.log(s[0] / p.m)) + abs(math.log(s[1] / p.n))):
        made = moved(library, example, p.k, outer=(m, n)) if (m, n) != (p.m, p.n) else None
        if made is not None:
            yield made


def near_sizes(size: int) -> tuple[int, ...]:
    """``size`` and others near it, divided by the powers of two up to ``_LARGEST_GRAIN`` that divide it."""
    grain = min(_LARGEST_GRAIN, size & -size)
    steps = {grain, 2 * grain, 3 * grain, *(max(1, size // (part * grain)) * grain for part in (16, 4, 2))}
    return tuple(sorted({size, *(size + s for s in steps), *(size - s for s in steps if s < size)}))


def moved(
    library: Library, example: Example, k: int, layout: tuple[Transpose, Transpose] | None = None,
    outer: tuple[int, int] = (0, 0),
) -> Example | None:  # fmt: skip
    """The example's answer at another inner size, and with dense operands stored otherwise if ``layout`` says so.

    ``outer``: other m and n, unless 0.  None where the library's check does not accept the answer there, or 8-bit
    operands cannot have that size or layout.
    """
    p = example.problem
    if is_float8(p.a_dtype) and (k % FLOAT8_MULTIPLE or layout not in (None, (p.transa, p.transb))):
        return None
    problem = resized(reshaped(p, outer[0] or p.m, outer[1] or p.n), k, layout)
    return Example(problem=problem, answer=example.answer) if library.check(problem, example.answer) else None


def reshaped(problem: GemmProblem, m: int, n: int) -> GemmProblem:
    """The problem at other outer sizes, padded as before."""
    p = problem
    lda = p.lda if p.transa is Transpose.T else p.lda + m - p.m
    ldb = p.ldb if p.transb is Transpose.N else p.ldb + n - p.n
    return _restrided(p, replace(p, m=m, n=n, lda=lda, ldb=ldb, ldd=p.ldd + m - p.m))


def resized(problem: GemmProblem, k: int, layout: tuple[Transpose, Transpose] | None = None) -> GemmProblem:
    """The problem at another inner size, padded as before, or with dense operands stored as ``layout`` says."""
    p = problem
    if layout in (None, (p.transa, p.transb)):
        lda = p.lda if p.transa is Transpose.N else p.lda + k - p.k
        return _restrided(p, replace(p, k=k, lda=lda, ldb=p.ldb if p.transb is Transpose.T else p.ldb + k - p.k))
    transa, transb = layout
    turned = replace(
        p, k=k, transa=transa, transb=transb, lda=p.m if transa is Transpose.N else k,
        ldb=k if transb is Transpose.N else p.n,
    )  # fmt: skip
    return _restrided(p, turned)


def _restrided(old: GemmProblem, new: GemmProblem) -> GemmProblem:
    """``new`` with the matrices of a batch as far behind one another as in ``old``."""
    if old.batch_count == 1:
        return new
    a = old.a_batch_stride + new.lda * new.a_columns - old.lda * old.a_columns if old.a_batch_stride else 0
    b = old.b_batch_stride + new.ldb * new.b_columns - old.ldb * old.b_columns if old.b_batch_stride else 0
    d = old.d_batch_stride + new.ldd * new.n - old.ldd * old.n if old.d_batch_stride else 0
    return replace(new, a_batch_stride=a, b_batch_stride=b, d_batch_stride=d)


def grained_sizes(example: Example) -> tuple[int, ...]:
    """Sizes near the example's k that 64, 32, 8 and nothing divides, not shared out evenly, in several ways each.

    One more than half of 64 beyond a multiple tells turns of 32, 64 and 128 apart.
    """
    slices = max(1, example.answer.splitk_num)
    least = max(2, min(example.problem.k, _LARGEST_MADE_K) // 64)
    grains = [g for g in range(least, least + 2 * _GRAINED) if slices == 1 or g % slices][:_GRAINED]
    return tuple(64 * g + beyond for g in grains for beyond in (0, 8, 32, 40, 1))


def other_sizes(example: Example) -> tuple[int, ...]:
    """Sizes that tell much: neighbours and multiples of k, and those just above where all slices are equally long."""
    k, slices = example.problem.k, max(1, example.answer.splitk_num)
    even = max(1, k // (64 * slices)) * 64 * slices
    # Short slices of 104 and 232 tell turns of 32, 64 and 128 apart.
    sizes = (
        even + 1, 104 * slices - 3, 104 * slices, 232 * slices - 5, even + slices // 2 + 8, k + 8, 2 * k + 24,
        k // 2 + 1, 3 * k,
    )  # fmt: skip
    return tuple(dict.fromkeys(s for s in sizes if 0 < s <= _LARGEST_MADE_K and s != k))


def stretched(library: Library, examples: Sequence[Example]) -> list[Example]:
    """The examples' answers at several times their k and with short slices, where operands stay moderate.

    Only those that the library's check accepts.
    """
    made = (
        moved(library, e, k)
        for e in examples
        for k in _stretched_sizes(e)
        if k <= _DEEPEST_K and (e.problem.m + e.problem.n) * k <= _MODERATE_ELEMENTS
    )
    return [e for e in made if e is not None]


def _stretched_sizes(example: Example) -> list[int]:
    slices = max(1, example.answer.splitk_num)
    short = [length * slices - 1 for length in _SHORT_SLICES] if slices > 1 else []
    return [*(times * example.problem.k + beyond for times, beyond in _DEEPER), *short]


def _cost(p: GemmProblem) -> tuple[bool, int]:
    """Small operands first, but after them those whose k is too short to show a main loop's turns."""
    return p.k < _TELLING_K, p.batch_count * (p.m * p.k + p.n * p.k + p.m * p.n)


def _narrow(p: GemmProblem) -> int:
    return sum(max(p.m, p.n) < width for width in _WIDTHS)


def widest(examples: Sequence[Example], of: Sequence[int]) -> list[int]:
    """Those ``of`` the examples that are not narrower than need be: a tree of many sites is too dear on others."""
    narrow = {i: _narrow(examples[i].problem) for i in of}
    least = max(1, min(narrow.values(), default=0))
    return [i for i in of if narrow[i] <= least]


def cheapest_first(source: Draws, numbers: Sequence[int]) -> list[int]:
    """Problem numbers in the order in which they are worth comparing."""
    return sorted(numbers, key=lambda n: _cost(source.problem(n)))


def ends_of(source: Draws, numbers: Sequence[int]) -> tuple[int, ...]:
    """Of the problem numbers the one with the longest side of D, and the one with the longest k."""
    problems = {n: source.problem(n) for n in numbers}
    widest = max(numbers, key=lambda n: max(problems[n].m, problems[n].n))
    return tuple(dict.fromkeys((widest, max(numbers, key=lambda n: problems[n].k))))


def readable(example: Example) -> bool:
    """Whether the example's operands are small enough to be read."""
    p = example.problem
    return (p.m + p.n) * p.k <= READABLE_ELEMENTS


def reading_order(examples: Sequence[Example]) -> list[int]:
    """Indices of ``examples``, those worth reading first: many experiments a launch, k of some size, moderate operands.

    Examples with operands beyond ``READABLE_ELEMENTS`` come last.
    """

    def cost(i: int) -> tuple[bool, int, float]:
        p, s = examples[i].problem, max(1, examples[i].answer.splitk_num)
        elements = (p.m + p.n) * p.k
        width = max(p.m, p.n)
        odd = p.k % 8 != 0
        launches = 2500 / width
        price = launches * (1 + elements / 2**22) - (4 if odd else 0)
        return not readable(examples[i]), 0 if p.k > 200 * s else 1, price

    return sorted(range(len(examples)), key=cost)
