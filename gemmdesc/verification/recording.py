"""Recording golden bytes: small natural examples of every verified row of a profile, run on the library itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gemmdesc.golden import GoldenRecord, golden_operands
from gemmdesc.library.interface import Library, Window
from gemmdesc.operands import Family
from gemmdesc.plan import needs_launch
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.problem import AlgoConfig, Epilogue, Failed, GemmProblem, ScalarClass
from gemmdesc.profiles import Level, ProfileIndex, ProfileRow, RowKey, RuleOutcome, matching_rows
from gemmdesc.verification.campaign import Report

#: An example's first draw, whose bytes depend most on the order, and the families that its other draws take in turn.
_FIRST = Family.CANCELLING
_OTHERS = (Family.WIDE, Family.SPECIALS, Family.RAMP)
#: Queries between two progress reports.
_REPORTED = 2000


@dataclass(frozen=True, kw_only=True)
class Options:
    """``side``: rows and columns of D that are kept.

    ``most_elements``: larger products are not recorded; a row's own example, where nothing smaller was met, may have
    ``most_own_elements``.
    """

    seed: int = 11
    queries: int = 40_000
    per_row: int = 2
    draws: int = 2
    side: int = 12
    most_elements: int = 1 << 26
    most_own_elements: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Natural:
    """A problem that the library answered of its own accord."""

    problem: GemmProblem
    answer: AlgoConfig

    @property
    def cost(self) -> tuple[int, int]:
        """What replaying it takes, then what recording it takes."""
        p = self.problem
        return p.k, (p.m + p.n) * p.k + p.m * p.n


def natural_examples(
    library: Library, index: ProfileIndex, options: Options, report: Report
) -> dict[RowKey, tuple[Natural, ...]]:
    """The cheapest ``per_row`` examples met of each verified row; the row's own example where none was met.

    Among equal costs, examples of other layouts or sizes come first: no two of a row share their k.
    """
    met: dict[RowKey, list[Natural]] = {row.key: [] for row in index.profile.rows if _recordable(row)}
    for number in range(options.queries):
        problem = draw_problem(Scope(), options.seed, number)
        answer = library.answer(problem)
        if isinstance(answer, AlgoConfig):
            for row in matching_rows(index, problem, answer):
                if row.key in met:
                    _keep(met[row.key], Natural(problem=problem, answer=answer), options)
        if number % _REPORTED == 0:
            report("examples", number, options.queries)
    return {key: tuple(found) or _own_example(library, index, key, options) for key, found in met.items()}


def _recordable(row: ProfileRow) -> bool:
    """Whether the row is verified, and golden records can state its products: one of two operands and nothing else."""
    family = row.key.family
    stated = family.epilogue is Epilogue.DEFAULT and family.c_class is ScalarClass.ZERO and not family.batched
    return stated and isinstance(row.outcome, RuleOutcome) and row.evidence.level is Level.VERIFIED


def _keep(found: list[Natural], new: Natural, options: Options) -> None:
    if new.cost[1] > options.most_elements or any(n.problem.k == new.problem.k for n in found):
        return
    found.append(new)
    found.sort(key=lambda n: n.cost)
    del found[options.per_row :]


def _own_example(library: Library, index: ProfileIndex, key: RowKey, options: Options) -> tuple[Natural, ...]:
    """The profile's example of the row, if the library still answers it the same way."""
    example = next(row.evidence.example for row in index.profile.rows if row.key == key)
    answer = library.answer(example.problem)
    natural = Natural(problem=example.problem, answer=example.answer)
    usable = answer == example.answer and natural.cost[1] <= options.most_own_elements
    return (natural,) if usable else ()


def record(
    library: Library, index: ProfileIndex, examples: Iterable[tuple[RowKey, Sequence[Natural]]], options: Options,
    report: Report,
) -> Iterator[GoldenRecord]:  # fmt: skip
    """Run every example on ``draws`` draws; what the library refuses to run is left out.

    ``index``: of the profile whose rules are to be replayed; some need the launch.
    """
    naturals = [natural for _, found in examples for natural in found]
    for number, natural in enumerate(naturals):
        problem = natural.problem
        launch = library.launch(problem, natural.answer)
        window = _window(problem, options, number)
        kept = launch if needs_launch(index, problem, natural.answer, Level.VERIFIED) else None
        for draw in range(options.draws):
            family = _FIRST if draw == 0 else _OTHERS[(number + draw) % len(_OTHERS)]
            a, b = golden_operands(problem, family, options.seed, draw)
            got = library.run(problem, natural.answer, a, b, window)
            if not isinstance(got, Failed):
                yield GoldenRecord(
                    problem=problem, answer=natural.answer, launch_names=() if launch is None else launch.names,
                    family=family, seed=options.seed, draw=draw, window=window, output=got, launch=kept,
                )  # fmt: skip
        report("record", number + 1, len(naturals))


def _window(problem: GemmProblem, options: Options, number: int) -> Window:
    rng = np.random.default_rng([options.seed, number])

    def some(size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if size <= options.side:
            return np.arange(size, dtype=np.int64)
        inner = rng.integers(0, size, size=options.side - 2)
        return np.unique(np.concatenate([[0, size - 1], inner])).astype(np.int64)

    return Window(rows=some(problem.m), columns=some(problem.n))
