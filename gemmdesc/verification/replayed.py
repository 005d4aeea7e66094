"""Our side as the CPU replay of the profile's descriptor: needs no GPU of its own, and takes any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmdesc.bits import Bits, first_mismatch
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.library.interface import Library, Window
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import Operand
from gemmdesc.plan import Description, describe, needs_launch
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem, Refused
from gemmdesc.profiles import Level, Profile, ProfileIndex, index_profile
from gemmdesc.regions import Region
from gemmdesc.routes import swaps_operands
from gemmdesc.verification.bench import Bench, Compared, Comparison, Prepared, Unprepared
from gemmdesc.verification.cases import Case, case_problem, out_meta
from gemmdesc.verification.draws import Draw, operands
from gemmdesc.verification.records import Located, Outcome

#: Rows and columns of D that are replayed, and what k may cost before the window shrinks.
_WINDOW = 16
_WINDOW_PRODUCTS = 1 << 22
#: Runs beyond the first that tell a library whose bytes vary from one that differs.
_AGAIN = 4


class ReplayBench(Bench):
    """Compares windows of the library's outputs with the replay."""

    def __init__(
        self, library: Library, index: ProfileIndex, settings: TorchSettings, *, accept: Level = Level.VERIFIED
    ) -> None:
        super().__init__(library)
        self._index, self._settings, self._accept = index, settings, accept

    @property
    def index(self) -> ProfileIndex:
        """The profile that rules come from."""
        return self._index

    @property
    def accept(self) -> Level:
        """The weakest evidence that a rule may have."""
        return self._accept

    def prepare(self, case: Case) -> Prepared | Unprepared:
        """See :class:`~gemmdesc.verification.bench.Bench`."""
        problem = case_problem(case, self._settings)
        if isinstance(problem, Declined):
            return Unprepared(declined=problem, failure="")
        answer = self.library.answer(problem)
        if isinstance(answer, Refused):
            return Unprepared(declined=None, failure=f"the heuristic: {answer.status}", problem=problem)
        found = described(self.library, self._index, problem, answer, self._accept)
        if isinstance(found, Declined):
            return Prepared(case=case, problem=problem, answer=answer, regions=(), declined=found, kernel="replay")
        return Prepared(
            case=case, problem=problem, answer=answer, regions=found.regions, declined=None, kernel="replay"
        )  # fmt: skip

    def compare(self, prepared: Prepared, draws: tuple[Draw, ...]) -> Comparison:
        """See :class:`~gemmdesc.verification.bench.Bench`; the only reference is ``cublaslt``."""
        return Comparison(compared=tuple(self._compare(prepared, d) for d in draws))

    def _compare(self, prepared: Prepared, draw: Draw) -> Compared:
        problem, a, b, swapped = prepared.problem, *problem_operands(prepared.case, draw)
        window = spread_window(problem, draw.number)
        got = self.library.run(problem, prepared.answer, a, b, window)
        if isinstance(got, Failed):
            return Compared(draw=draw, reference="cublaslt", outcome=Outcome.REFERENCE_FAILED, failure=got.status)
        ours = replay_window(prepared.regions, problem, a, b, window)
        found = first_mismatch(got, ours)
        if found is None:
            return Compared(draw=draw, reference="cublaslt", outcome=Outcome.EQUAL)
        for _ in range(_AGAIN):
            again = self.library.run(problem, prepared.answer, a, b, window)
            if isinstance(again, Failed) or first_mismatch(got, again) is not None:
                return Compared(draw=draw, reference="cublaslt", outcome=Outcome.NONDETERMINISTIC)
        at = int(window.rows[found.index[0]]), int(window.columns[found.index[1]])
        row, column = at[::-1] if swapped else at
        located = Located(
            reference="cublaslt", draw=draw.number, family=draw.family.value, row=row, column=column,
            expected_bits=found.expected_bits, got_bits=found.got_bits, count=found.count, size=found.size,
        )  # fmt: skip
        return Compared(draw=draw, reference="cublaslt", outcome=Outcome.DIFFERENT, located=located)


def described(
    library: Library, index: ProfileIndex, problem: GemmProblem, answer: AlgoConfig, accept: Level = Level.VERIFIED
) -> Description | Declined:
    """What the profile says of one answer to one problem, the library's launch asked for where the rule needs it."""
    launch = library.launch(problem, answer) if needs_launch(index, problem, answer, accept) else None
    return describe(problem, answer, launch, index=index, accept=accept)


def problem_operands(case: Case, draw: Draw) -> tuple[Operand, Operand, bool]:
    """The draw's operands as op(A) and op(B) of the problem, and whether those are torch's b and a."""
    a, b = operands(case, draw)
    swapped = swaps_operands(out_meta(case))
    return (b, a, True) if swapped else (a, b, False)


def spread_window(problem: GemmProblem, seed: int, region: Region | None = None) -> Window:
    """Rows and columns of D, or of a rectangle of it, to replay: first and last ones, and others by ``seed``.

    Fewer where k is large.
    """
    side = _WINDOW
    while side > 4 and side * side * problem.k > _WINDOW_PRODUCTS:
        side //= 2
    rng = np.random.default_rng([seed, problem.m, problem.n, problem.k])

    def some(begin: int, end: int) -> np.ndarray:
        if end - begin <= side:
            return np.arange(begin, end, dtype=np.int64)
        inner = rng.integers(begin, end, size=side - 2)
        return np.unique(np.concatenate([[begin, end - 1], inner])).astype(np.int64)

    row, row_end, column, column_end = region.bounds if region else (0, problem.m, 0, problem.n)
    return Window(rows=some(row, row_end), columns=some(column, column_end))


def replay_window(
    desc: GEMMDesc | Sequence[Region], problem: GemmProblem, a: Operand, b: Operand, window: Window
) -> Bits:
    """What ``desc`` makes of the window."""
    return replay_problem(desc, problem, a, b, window)


@dataclass(frozen=True, kw_only=True)
class ReplayBenchFactory:
    """Makes a :class:`ReplayBench` in a worker process; picklable where ``library`` is."""

    library: Callable[[], Library]
    profile: Profile
    settings: TorchSettings = field(default_factory=TorchSettings)
    accept: Level = Level.VERIFIED

    def __call__(self) -> ReplayBench:
        return ReplayBench(self.library(), index_profile(self.profile), self.settings, accept=self.accept)
