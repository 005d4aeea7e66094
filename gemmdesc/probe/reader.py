"""Running experiments on a library: patterns are laid along whichever output axis is longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmdesc.bits import to_float32
from gemmdesc.dtypes import DType
from gemmdesc.library.interface import Library, Window
from gemmdesc.operands import ConstantOperand, Operand, SparseOperand
from gemmdesc.probe.experiments import Floats, Pattern, ReferenceFailed, encode, to_entries
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem


class LibraryReader:
    """A :class:`~gemmdesc.probe.experiments.Reader` on one library, problem and answer.

    ``launches`` counts the products run, ``experiments`` the outputs read.
    """

    def __init__(self, library: Library, problem: GemmProblem, answer: AlgoConfig) -> None:
        self._library, self._problem, self._answer = library, problem, answer
        self.along_m: bool = problem.m >= problem.n
        self.launches = 0
        self.experiments = 0

    @property
    def k(self) -> int:
        return self._problem.k

    @property
    def width(self) -> int:
        return max(self._problem.m, self._problem.n)

    @property
    def operand_dtype(self) -> DType:
        return self._problem.a_dtype if self.along_m else self._problem.b_dtype

    def values(self, patterns: Sequence[Pattern], *, other: float = 1.0) -> Floats:
        """See :class:`~gemmdesc.probe.experiments.Reader`."""
        width = self.width
        blocks = [self._block(patterns[i : i + width], other) for i in range(0, len(patterns), width)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block(self, patterns: Sequence[Pattern], other: float) -> Floats:
        problem = self._problem
        dtype, steady_dtype = self.operand_dtype, problem.b_dtype if self.along_m else problem.a_dtype
        walked = SparseOperand(dtype=dtype, background_bits=0, entries=to_entries(patterns, dtype))
        steady = ConstantOperand(dtype=steady_dtype, value_bits=encode(other, steady_dtype))
        index, zero = np.arange(len(patterns), dtype=np.int64), np.zeros(1, dtype=np.int64)
        a: Operand
        b: Operand
        if self.along_m:
            a, b, window = walked, steady, Window(rows=index, columns=zero)
        else:
            a, b, window = steady, walked, Window(rows=zero, columns=index)
        self.launches += 1
        self.experiments += len(patterns)
        bits = self._library.run(problem, self._answer, a, b, window)
        if isinstance(bits, Failed):
            raise ReferenceFailed(f"answer must run on its own problem: {bits.status} (got {problem})")
        return to_float32(bits.reshape(-1), problem.d_dtype).astype(np.float64)
