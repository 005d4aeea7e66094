"""Running experiments on a library: patterns are laid along whichever output axis is longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.library.interface import NO_INPUTS, Inputs, Library, Window
from gemmdesc.operands import ConstantOperand, DenseOperand, Operand, SparseOperand
from gemmdesc.probe.experiments import (
    Floats,
    Pattern,
    ReferenceFailed,
    encode,
    factors,
    magnitudes_of,
    to_entries,
)
from gemmdesc.probe.reading import Beside
from gemmdesc.problem import BIASED, AlgoConfig, Failed, GemmProblem, ScalarClass, is_float8

#: Scales through which an 8-bit output is read, falling: together they show every value of 40 binades.
_SCALES = tuple(2.0**e for e in (24, 12, 0, -12))


class LibraryReader:
    """A :class:`~gemmdesc.probe.experiments.Reader` on one library, problem and answer.

    An experiment is one output element.  Patterns lie in one operand, one a row of D (of all D of a batch) or one a
    column, and the other operand is constant.  8-bit operands hold too few exponents for that: there, experiment i is
    the i-th element of D's diagonal, and both of its operands hold factors of the pattern's values.  8-bit outputs are
    read several times through scales.  C and a bias, where the problem takes them, are -0.0.

    ``launches`` counts the products run, ``experiments`` the outputs read.
    """

    def __init__(self, library: Library, problem: GemmProblem, answer: AlgoConfig) -> None:
        self._library, self._problem, self._answer = library, problem, answer
        self._diagonal = is_float8(problem.a_dtype)
        self.along_m: bool = problem.m >= problem.n
        self._inputs = empty_inputs(problem)
        self.launches = 0
        self.experiments = 0

    @property
    def k(self) -> int:
        return self._problem.k

    @property
    def width(self) -> int:
        p = self._problem
        if self._diagonal:
            return min(p.m, p.n)
        return p.a_outer if self.along_m else p.n

    @property
    def operand_dtype(self) -> DType:
        return self._problem.a_dtype if self.along_m else self._problem.b_dtype

    def values(self, patterns: Sequence[Pattern], *, other: float = 1.0) -> Floats:
        """See :class:`~gemmdesc.probe.experiments.Reader`."""
        width = self.width
        blocks = [self._block(patterns[i : i + width], other) for i in range(0, len(patterns), width)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block(self, patterns: Sequence[Pattern], other: float) -> Floats:
        self.experiments += len(patterns)
        if self._diagonal:
            return self._on_the_diagonal(patterns, other)
        problem = self._problem
        steady_dtype = problem.b_dtype if self.along_m else problem.a_dtype
        walked = _sparse(patterns, self.operand_dtype)
        steady = ConstantOperand(dtype=steady_dtype, value_bits=encode(other, steady_dtype))
        index, zero = np.arange(len(patterns), dtype=np.int64), np.zeros(1, dtype=np.int64)
        if self.along_m:
            return self._run(walked, steady, Window(rows=index, columns=zero)).reshape(-1)
        return self._run(steady, walked, Window(rows=zero, columns=index)).reshape(-1)

    def _on_the_diagonal(self, patterns: Sequence[Pattern], other: float) -> Floats:
        p = self._problem
        split = [[(k, *factors(v * other, p.a_dtype, p.b_dtype)) for k, v in pattern] for pattern in patterns]
        a = _sparse([[(k, x) for k, x, _ in row] for row in split], p.a_dtype)
        b = _sparse([[(k, y) for k, _, y in row] for row in split], p.b_dtype)
        index = np.arange(len(patterns), dtype=np.int64)
        window = Window(rows=index, columns=index)
        if not is_float8(p.d_dtype):
            return self._run(a, b, window).diagonal().copy()
        found = np.zeros(len(patterns))
        for scale in _SCALES[::-1]:
            # The largest scale that does not saturate keeps most of a value; it comes last.
            seen = self._run(a, b, window, replace(self._inputs, a_scale=scale)).diagonal()
            fits = np.abs(seen) < 2.0**p.d_dtype.format.max_exponent
            found = np.where(fits, seen / scale, found)
        return found

    def outputs(self, asked: Sequence[Beside]) -> tuple[Beside, ...]:
        """See :class:`~gemmdesc.probe.experiments.Reader`; one a row of D, those of the same scalars in one product."""
        groups: dict[tuple[float, ...], list[int]] = {}
        for i, x in enumerate(asked):
            groups.setdefault((x.alpha, x.beta, x.a_scale, x.b_scale, x.d_scale), []).append(i)
        width = min(self._problem.m, self._problem.n) if self._diagonal else self._problem.m
        found: dict[int, Beside] = {}
        for places in groups.values():
            for first in range(0, len(places), width):
                chosen = places[first : first + width]
                for i, value in zip(chosen, self._beside([asked[i] for i in chosen]), strict=True):
                    found[i] = replace(asked[i], output=float(value))
        self.experiments += len(asked)
        return tuple(found[i] for i in range(len(asked)))

    def _beside(self, asked: Sequence[Beside]) -> Floats:
        p, index = self._problem, np.arange(len(asked), dtype=np.int64)
        columns = index if self._diagonal else np.zeros(1, dtype=np.int64)
        rows = [[(k, *self._split(v)) for k, v in x.pattern] for x in asked]
        a = _sparse([[(k, x) for k, x, _ in row] for row in rows], p.a_dtype)
        b: Operand = ConstantOperand(dtype=p.b_dtype, value_bits=encode(1.0, p.b_dtype))
        if self._diagonal:
            b = _sparse([[(k, y) for k, _, y in row] for row in rows], p.b_dtype)
        c = bias = None
        if p.beta is not ScalarClass.ZERO:
            c = _sparse([[(int(columns[i % len(columns)]), x.c)] for i, x in enumerate(asked)], p.c_dtype)
        if p.epilogue in BIASED:
            values = np.zeros(p.m, np.float32)
            values[: len(asked)] = [x.bias for x in asked]
            bias = DenseOperand(dtype=p.bias_dtype, array=from_float32(values, p.bias_dtype)[None, :])
        one = asked[0]
        inputs = Inputs(
            alpha=one.alpha, beta=one.beta, a_scale=one.a_scale, b_scale=one.b_scale, d_scale=one.d_scale, c=c,
            bias=bias,
        )  # fmt: skip
        got = self._run(a, b, Window(rows=index, columns=columns), inputs)
        return got.diagonal() if self._diagonal else got[:, 0]

    def _split(self, value: float) -> tuple[float, float]:
        p = self._problem
        return factors(value, p.a_dtype, p.b_dtype) if self._diagonal else (value, 1.0)

    def _run(self, a: Operand, b: Operand, window: Window, inputs: Inputs | None = None) -> Floats:
        self.launches += 1
        bits = self._library.run(self._problem, self._answer, a, b, window, inputs=inputs or self._inputs)
        if isinstance(bits, Failed):
            raise ReferenceFailed(f"answer must run on its own problem: {bits.status} (got {self._problem})")
        return to_float32(bits, self._problem.d_dtype).astype(np.float64)


class PlacedReader(LibraryReader):
    """A :class:`LibraryReader` whose experiments are chosen elements of D, all in one row or one column.

    ``places``: their rows of m (``along_m``), or columns of n; ``other``: their one column, or row.
    """

    def __init__(
        self, library: Library, problem: GemmProblem, answer: AlgoConfig, places: npt.NDArray[np.int64], other: int,
        *, along_m: bool,
    ) -> None:  # fmt: skip
        super().__init__(library, problem, answer)
        self._places, self._other, self.along_m = places, np.array([other], dtype=np.int64), along_m

    @property
    def width(self) -> int:
        return len(self._places)

    def _block(self, patterns: Sequence[Pattern], other: float) -> Floats:
        self.experiments += len(patterns)
        problem, places = self._problem, self._places[: len(patterns)]
        entries = to_entries(patterns, self.operand_dtype)
        moved = replace(entries, outer=places[entries.outer])
        walked = SparseOperand(dtype=self.operand_dtype, background_bits=0, entries=moved)
        steady_dtype = problem.b_dtype if self.along_m else problem.a_dtype
        steady = ConstantOperand(dtype=steady_dtype, value_bits=encode(other, steady_dtype))
        if self.along_m:
            return self._run(walked, steady, Window(rows=places, columns=self._other)).reshape(-1)
        return self._run(steady, walked, Window(rows=self._other, columns=places)).reshape(-1)

    def cut_elements(self, step: int) -> npt.NDArray[np.bool_]:
        """Of D's elements in every ``step``-th row and column, whose first and last k meet in no one accumulator."""
        p, size = self._problem, magnitudes_of(self._problem)
        pattern = ((0, size.tiny), (p.k - 2, size.big), (p.k - 1, -size.big))
        of_rows = p.m <= p.n
        walked_dtype, steady_dtype = (p.a_dtype, p.b_dtype) if of_rows else (p.b_dtype, p.a_dtype)
        walked = _sparse([pattern] * (p.m if of_rows else p.n), walked_dtype)
        steady = ConstantOperand(dtype=steady_dtype, value_bits=encode(1.0, steady_dtype))
        a, b = (walked, steady) if of_rows else (steady, walked)
        seen = self._run(a, b, Window(rows=np.arange(0, p.m, step), columns=np.arange(0, p.n, step)))
        return np.asarray(seen != 0.0)


def empty_inputs(problem: GemmProblem) -> Inputs:
    """Inputs under which what comes out is the product alone: C and the bias are -0.0, scales and alpha are one."""
    c = bias = None
    if problem.beta is not ScalarClass.ZERO:
        c = ConstantOperand(dtype=problem.c_dtype, value_bits=encode(-0.0, problem.c_dtype))
    if problem.epilogue in BIASED:
        bias = ConstantOperand(dtype=problem.bias_dtype, value_bits=encode(-0.0, problem.bias_dtype))
    if c is None and bias is None:
        return NO_INPUTS
    return Inputs(beta=0.0 if c is None else 1.0, c=c, bias=bias)


def _sparse(patterns: Sequence[Pattern], dtype: DType) -> SparseOperand:
    return SparseOperand(dtype=dtype, background_bits=0, entries=to_entries(patterns, dtype))
