"""The two sides of a comparison on one machine, behind one interface that is also a library for worker processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmdesc.bits import Bits
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.library.interface import NO_INPUTS, Inputs, Library, Window, tanh_approx_of
from gemmdesc.operands import Operand
from gemmdesc.problem import AlgoConfig, DeviceId, Failed, GemmProblem, Launch, LibraryId, Refused
from gemmdesc.regions import Region
from gemmdesc.verification.cases import Case
from gemmdesc.verification.draws import Draw
from gemmdesc.verification.records import Located, Outcome

if TYPE_CHECKING:
    from gemmdesc.arithmetic.pointwise import TanhApprox


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A case that the library answers: ``ours`` is whatever the bench needs to run our side, None where it declines.

    ``regions``: D's rectangles with their descriptors, mostly one, empty where our side declines.  ``variants`` names
    the compiled kernels that our side needs.
    """

    case: Case
    problem: GemmProblem
    answer: AlgoConfig
    regions: tuple[Region, ...]
    declined: Declined | None
    kernel: str
    variants: tuple[str, ...] = ()
    ours: Any = None

    @property
    def desc(self) -> GEMMDesc | None:
        """Of the largest region; None where our side declines."""
        return self.regions[0].descriptor if self.regions else None


@dataclass(frozen=True, kw_only=True)
class Unprepared:
    """A case that never reaches a comparison: the library refuses it, or routing declines."""

    declined: Declined | None
    failure: str
    problem: GemmProblem | None = None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One draw against one reference."""

    draw: Draw
    reference: str
    outcome: Outcome
    located: Located | None = None
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All draws of one case.  ``fatal``: this process's device is of no further use."""

    compared: tuple[Compared, ...]
    torch_is_cublaslt: int = 0
    fatal: bool = False


class Bench(ABC):
    """Implements :class:`~gemmdesc.library.interface.Library` by handing on, and compares cases."""

    def __init__(self, library: Library) -> None:
        self.library = library

    @abstractmethod
    def prepare(self, case: Case) -> Prepared | Unprepared:
        """Ask the library, find the descriptor and resolve our side; nothing runs or is captured."""

    @abstractmethod
    def compare(self, prepared: Prepared, draws: tuple[Draw, ...]) -> Comparison:
        """Run both sides on every draw; ``prepared`` has not declined."""

    def cross_check(self, prepared: Prepared, launch: Launch | None) -> str:
        """Captured launch against the kernels that really ran, an ``Agreement``; "" without a profiler."""
        return ""

    @property
    def identity(self) -> LibraryId:
        return self.library.identity

    @property
    def device(self) -> DeviceId:
        return self.library.device

    @property
    def tanh_approx(self) -> TanhApprox | None:
        """See :func:`gemmdesc.library.interface.tanh_approx_of`."""
        return tanh_approx_of(self.library)

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        return self.library.answer(problem)

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        return self.library.check(problem, answer)

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        return self.library.launch(problem, answer)

    def run(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window | None = None,
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed:
        return self.library.run(problem, answer, a, b, window, inputs=inputs)
