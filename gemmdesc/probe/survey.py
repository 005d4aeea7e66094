"""Reading many answers of each family before any rule is sought: where slices end is learned from all of them at once.

A class of answers is met on a few problems, which allow many expressions for its spans, most of them wrong elsewhere.
All classes of one ``algo_id`` together allow few.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gemmdesc.expressions import evaluate_all
from gemmdesc.library.interface import Library
from gemmdesc.plain import answer_from_plain
from gemmdesc.probe.answers import slices_at_launch
from gemmdesc.probe.examples import Draws, Variant, other_layouts, resized, varied
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.rulebook import RuleBook
from gemmdesc.probe.scan import Tally
from gemmdesc.probe.workers import Workers
from gemmdesc.problem import ANSWER_ATTRIBUTES, GemmProblem, environment

#: Readings of one family in the first round, which shows whether it is worth reading at all, and in the second.
FIRST_READINGS, READINGS = 3, 40
#: Further ones at sizes that leave one product beyond equal slices.
UNEVEN_READINGS = 12
#: Problems of one family that are looked at; rounds of readings where expressions disagree, and readings of one.
_LOOKED_AT, _ROUNDS, _DISPUTED = 3000, 4, 12
#: Problems whose answers are read in other layouts too.
_TURNED = 8
#: Problems whose k has the largest grain, and as many others, that tell expressions apart.
_DOMAIN = 128
#: A k above which a reading costs more than it tells: the answer is read at a smaller one with the same low bits.
_LARGEST_K = 1 << 15
#: Outputs along the longer axis below which a reading takes many launches.
_WIDE = 64


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """Read a problem's answer, on the problem itself or on a variant of it."""

    source: Draws
    variant: Variant


def run_read(library: Library, task: ReadTask) -> Reading | None:
    """The reading; None where the problem is refused or the answer does not run."""
    example = task.source.variant(library, task.variant)
    if example is None:
        return None
    try:
        reader = LibraryReader(library, example.problem, example.answer)
        return read_answer(reader, example.problem, example.answer, cuda_cores=False)
    except ReferenceFailed:
        return None


class Survey:
    """One look at a scan's families, those with split answers; what is read goes into ``book``."""

    def __init__(
        self, workers: Workers, source: Draws, tally: Tally, book: RuleBook,
        report: Callable[[str, int, int | None], None],
    ) -> None:  # fmt: skip
        self._workers, self._source, self._book, self._report = workers, source, book, report
        split = split_numbers(tally)
        self._slices = {a: {n: s for n, s in of[:_LOOKED_AT] if _wide(source, n)} for a, of in split.items()}

    @property
    def families(self) -> frozenset[int]:
        """Their ``algo_id``."""
        return frozenset(self._slices)

    def first_asked(self, families: Container[int]) -> tuple[Variant, ...]:
        """What :meth:`run` would read of ``families`` before expressions disagree."""
        chosen = {a: varied(self._source, list(of), READINGS) for a, of in self._slices.items() if a in families}
        natural = [self._variant(n) for of in chosen.values() for n in of]
        uneven = [Variant(number=n, k=self._uneven(a, n)) for a, of in chosen.items() for n in of[:UNEVEN_READINGS]]
        return (*natural, *uneven)

    def run(self, done: Container[int]) -> Iterator[Reading]:
        """Read split answers of every family but those in ``done``; readings as they come, without those that failed.

        A family whose first readings show no fused step is read no further; the others until no problem is left on
        which the expressions that explain all their spans disagree, for a number of rounds.
        """
        chosen = {a: varied(self._source, list(of), READINGS) for a, of in self._slices.items() if a not in done}
        fused: set[int] = set()
        for reading in self._read([self._task(n) for a, of in chosen.items() for n in of[:FIRST_READINGS]]):
            if reading.fused:
                fused.add(reading.answer.algo_id)
            yield reading
        rest = []
        for a in fused:
            rest += [self._task(n) for n in chosen[a][FIRST_READINGS:]]
            rest += [self._task(n, self._uneven(a, n)) for n in chosen[a][:UNEVEN_READINGS]]
        yield from self._read(rest)
        asked = {a: {self._variant(n) for n in chosen[a]} for a in fused}
        made = {a: self._made(chosen[a][:_TURNED]) for a in fused}
        for _ in range(_ROUNDS):
            disputed = {a: self._disputed(a, asked[a], made[a]) for a in fused}
            tasks = [ReadTask(source=self._source, variant=v) for of in disputed.values() for v in of]
            yield from self._read(tasks)
            for a, of in disputed.items():
                asked[a].update(of)

    def _task(self, number: int, size: int = 0) -> ReadTask:
        variant = Variant(number=number, k=size) if size else self._variant(number)
        return ReadTask(source=self._source, variant=variant)

    def _variant(self, number: int) -> Variant:
        """The problem, or its answer at a k that can be read."""
        k = readable_size(self._source.problem(number).k)
        return Variant(number=number, k=0 if k == self._source.problem(number).k else k)

    def _problem(self, variant: Variant) -> GemmProblem:
        natural = self._source.problem(variant.number)
        return resized(natural, variant.k or natural.k, variant.layout)

    def _made(self, numbers: Sequence[int]) -> dict[Variant, GemmProblem]:
        """Variants in all layouts on which the library's check accepts the problems' answers."""
        library, found = self._workers.library, {}
        for number in numbers:
            natural = self._source.example(library, number)
            for made in () if natural is None else other_layouts(library, [natural]):
                p = made.problem
                found[Variant(number=number, k=p.k, layout=(p.transa, p.transb))] = p
        return found

    def _uneven(self, algo_id: int, number: int) -> int:
        return uneven_size(readable_size(self._source.problem(number).k), self._slices[algo_id][number])

    def _read(self, tasks: Sequence[ReadTask]) -> Iterator[Reading]:
        for count, (_, reading) in enumerate(self._workers.run(run_read, tasks), 1):
            self._report("survey", count, len(tasks))
            if reading is not None:
                self._book.observe((reading,))
                yield reading

    def _disputed(
        self, algo_id: int, asked: Container[Variant], made: Mapping[Variant, GemmProblem]
    ) -> list[Variant]:
        """Problems, one for each way in which they do, on which the expressions that are left give several spans.

        Made ones count where no problem that the library answers so by itself does.
        """
        slices = self._slices[algo_id]
        problems = {v: self._problem(v) for v in map(self._variant, slices)} | dict(made)
        left = [v for v in problems if v not in asked]
        if not left:
            return []
        environments = [split_environment(problems[v], slices[v.number]) for v in left]
        # Grains are powers of two: those of k tell most.
        by_grain = sorted(environments, key=lambda e: -(e["k"] & -e["k"]))
        domain = [*by_grain[:_DOMAIN], *by_grain[_DOMAIN :: max(1, len(by_grain) // _DOMAIN)]]
        expressions = self._book.pool.candidates(algo_id, domain)
        if len(expressions) < 2:
            return []
        columns = {name: np.array([e[name] for e in environments]) for name in environments[0]}
        values = np.stack([np.broadcast_to(evaluate_all(e, columns), (len(left),)) for e in expressions])
        ways: dict[bytes, tuple[int, int]] = {}
        for i in range(len(left)):
            _, group, counts = np.unique(values[:, i], return_inverse=True, return_counts=True)
            if len(counts) > 1:
                ways.setdefault(group.tobytes(), (int(counts.max()), i))
        # Whatever such a reading says, it leaves few.
        return [left[i] for _, i in sorted(ways.values())[:_DISPUTED]]


def split_environment(problem: GemmProblem, slices: int) -> dict[str, int]:
    """The variables of a rule at ``problem`` under an answer with so many slices."""
    answer = answer_from_plain(dict.fromkeys(ANSWER_ATTRIBUTES, 0) | {"splitk_num": slices})
    return environment(problem, answer, None)


def uneven_size(k: int, slices: int) -> int:
    """A size near ``k`` with one product more than equal slices of a multiple of 64 hold: where a tail gets lost."""
    return max(1, k // (64 * slices)) * 64 * slices + 1


def split_numbers(tally: Tally) -> dict[int, list[tuple[int, int]]]:
    """Problems that got an answer with several slices, and how many, by ``algo_id``; answers take turns."""
    found: dict[int, list[list[tuple[int, int]]]] = {}
    for key, numbers in tally.numbers.items():
        slices = key.attribute("splitk_num") or 0
        if slices > 1 and not slices_at_launch(slices):
            found.setdefault(key.family, []).append([(n, slices) for n in numbers])
    return {a: _in_turn(lists) for a, lists in found.items()}


def _in_turn(lists: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [x[i] for i in range(max(map(len, lists))) for x in lists if i < len(x)]


def readable_size(k: int) -> int:
    """``k``, or where that is too large to be read a smaller one that the same powers of two divide."""
    half = _LARGEST_K // 2
    return k if k <= _LARGEST_K else half + k % half


def _wide(source: Draws, number: int) -> bool:
    p = source.problem(number)
    return max(p.m, p.n) >= _WIDE
