"""The interface that probing, planning and verification see; they never learn which adapter is behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import Bits
from gemmdesc.operands import Operand
from gemmdesc.problem import AlgoConfig, DeviceId, Failed, GemmProblem, Launch, LibraryId, Refused


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """Which rows (m) and columns (n) of D to hand back; int64 index arrays."""

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]


class Library(Protocol):
    """One cuBLASLt on one card.

    ``run`` builds op(A) (m x k) from ``a`` and op(B) (k x n, drawn as n rows of k) from ``b``, stores them as the
    problem's layouts say, executes the given answer, and returns the bit patterns of D as an array of shape (m, n), or
    (len(window.rows), len(window.columns)).  An answer that the library refuses at these sizes is ``Failed``.
    """

    @property
    def identity(self) -> LibraryId: ...

    @property
    def device(self) -> DeviceId: ...

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused: ...

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool: ...

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None: ...

    def run(
        self, problem: GemmProblem, answer: AlgoConfig, a: Operand, b: Operand, window: Window | None = None
    ) -> Bits | Failed: ...
