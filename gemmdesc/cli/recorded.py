"""A library that only repeats what was recorded."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.bits import Bits
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window
from gemmdesc.operands import Operand
from gemmdesc.problem import AlgoConfig, DeviceId, Failed, GemmProblem, Launch, LibraryId


@dataclass(frozen=True, kw_only=True)
class RecordedLibrary:
    """Implements :class:`~gemmdesc.library.interface.Library` with one answer for every problem; runs nothing."""

    identity: LibraryId
    device: DeviceId
    recorded: AlgoConfig

    def answer(self, problem: GemmProblem) -> AlgoConfig:
        return self.recorded

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        return answer == self.recorded

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        return None

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
        return Failed(status="a recorded library runs nothing")
