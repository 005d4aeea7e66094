"""Directed rounding, and products with drawn directions, in Python fractions: none of the fast code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gemmdesc.arithmetic import step as exact
from gemmdesc.bits import to_float32
from gemmdesc.descriptor import Cut, FusedDot, GEMMDesc, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.numerics.stochastic import functions
from gemmdesc.numerics.stochastic.formats import RoundingFormat, format_of
from gemmdesc.numerics.stochastic.run import StochasticRun
from gemmdesc.numerics.stochastic.sites import Numbering, site_direction
from gemmdesc.numerics.stochastic.values import StochasticValue
from tests.arithmetic_reference import groups, split


def exact_neighbour(z: Fraction, up: bool, fmt: RoundingFormat) -> float:
    """The neighbour of a non-zero ``z``, from its definition."""
    exponent = max(fmt.min_exponent, _leading(abs(z)))
    unit = Fraction(2) ** (exponent - fmt.fraction_bits)
    result = (math.ceil(z / unit) if up else math.floor(z / unit)) * unit
    if abs(result) > Fraction(fmt.largest):
        return math.copysign(fmt.largest if fmt.saturates else math.inf, z)
    return math.copysign(float(result), z)


def _leading(z: Fraction) -> int:
    e = z.numerator.bit_length() - z.denominator.bit_length()
    return e if z >= Fraction(2) ** e else e - 1


def program(run: StochasticRun, make: Any, a: np.ndarray, b: np.ndarray) -> list[StochasticValue]:
    """Every operation that IEEE 754 fixes; ``make`` is an array or a tensor of the run."""
    x, y = make(a), make(b)
    steps = [x + y, x - y, x * y, x / y, 3.0 - x, 1.0 / y, x * 0.1, -y, functions.sqrt(abs(x))]
    steps += [functions.maximum(x, y), functions.minimum(x, 0.25), functions.floor(x)]
    steps += [functions.where(x < y, x, y * 2.0)]
    steps += [steps[2].sum(), steps[0].sum(order="pairwise"), functions.mean(x), functions.norm(y), functions.dot(x, y)]
    steps += [(x + y).cast("bfloat16")]
    matrix = x.reshape(2, 3) @ y.reshape(3, 2)
    return [*steps, abs(x) ** 2, matrix, matrix @ np.array([[1.0], [-0.3]]), matrix.T[1]]


class DrawnInterpreter:
    """One element of one sample, straight from the descriptor's definition, without an epilogue; all sites draw."""

    def __init__(self, desc: GEMMDesc, numbers: Numbering, key: int, *, opposite: bool) -> None:
        self._desc, self._numbers, self._opposite = desc, numbers, opposite
        self._key = np.array([key], dtype=np.int64)
        self._row = self._step = self._place = 0
        self.lost = False
        self.gaps = 0.0

    def run(self, a_row: Sequence[int], b_column: Sequence[int]) -> float:
        desc = self._desc
        if desc.a_cast is not None:
            a_row = [exact.cast_operand_step(x, desc.a_cast) for x in a_row]
        if desc.b_cast is not None:
            b_column = [exact.cast_operand_step(x, desc.b_cast) for x in b_column]
        a = [_float(x, desc.a_dtype) for x in a_row]
        b = [_float(x, desc.b_dtype) for x in b_column]
        value = self._node(list(range(min(len(a), desc.summed_k))), desc.cuts, a, b)
        if desc.output_dtype is DType.FLOAT32 or not math.isfinite(value):
            return value
        kept = self.gaps
        stored = self._rounded(Fraction(value), value, format_of(desc.output_dtype), self._numbers.output)
        self.gaps = kept
        return stored

    def _node(self, ks: list[int], cuts: tuple[Cut, ...], a: list[float], b: list[float]) -> float:
        if not cuts:
            self._row += 1
            return self._leaf(ks, a, b)
        cut = cuts[0]
        return self._fold(split(ks, cut.layout), cut.fold, cuts, a, b, open_end=cut.open_end)

    def _fold(
        self,
        parts: list[list[int]],
        fold: Any,
        cuts: tuple[Cut, ...],
        a: list[float],
        b: list[float],
        *,
        open_end: bool,
    ) -> float:
        cut = cuts[0]
        terms: Any = parts or [[]]
        if fold:
            terms = [[parts[i] for i in group] for group in split(list(range(len(parts))), fold[0])]
        running = 0.0
        for j, term in enumerate(terms):
            if fold:
                value = self._fold(term, fold[1:], cuts, a, b, open_end=False)
            else:
                value = self._stored(self._node(term, cuts[1:], a, b), cut.partial_dtype)
            if j:
                running = self._added(running, value, self._next_row())
            elif cut.start is Start.ZERO:
                self._next_row()
                running = value + 0.0
            else:
                running = value
            if not open_end or j < len(terms) - 1:
                running = self._stored(running, cut.merge_dtype)
        return running

    def _next_row(self) -> int:
        self._row += 1
        return self._numbers.program + self._row - 1

    def _stored(self, value: float, dtype: DType) -> float:
        if dtype is DType.FLOAT32:
            return value
        site = self._next_row()
        return value if not math.isfinite(value) else self._rounded(Fraction(value), value, format_of(dtype), site)

    def _added(self, x: float, y: float, site: int) -> float:
        if not math.isfinite(x + y):
            return x + y
        return self._rounded(Fraction(x) + Fraction(y), x + y, format_of(DType.FLOAT32), site)

    def _leaf(self, ks: list[int], a: list[float], b: list[float]) -> float:
        step = self._desc.accumulator.step
        running = -0.0 if isinstance(step, ScalarStep) and step.start is Start.FIRST else 0.0
        for group in groups(ks, self._desc.accumulator):
            products = [a[k] * b[k] for k in group]
            plain = sum(products, running)
            if isinstance(step, FusedDot):
                site, self._step = self._step, self._step + 1
                if math.isfinite(plain):
                    z = sum((Fraction(p) for p in products), Fraction(running))
                    layout = format_of(step.accumulator_dtype)
                    fmt = RoundingFormat(
                        fraction_bits=step.output_bits, min_exponent=layout.min_exponent,
                        largest=math.ldexp(2.0 - 2.0**-step.output_bits, step.accumulator_dtype.format.max_exponent),
                    )  # fmt: skip
                    plain = self._rounded(z, 0.0, fmt, site) + 0.0
                running = plain
            else:
                running = self._chained(step, products[0], running)
                self._place += 1
        return running

    def _chained(self, step: ScalarStep, product: float, running: float) -> float:
        single, site = format_of(DType.FLOAT32), 2 * self._place
        if not step.fused and math.isfinite(product):
            product = self._rounded(Fraction(product), product, single, site)
        return self._added(product, running, site + 1)

    def _rounded(self, z: Fraction, zero: float, fmt: RoundingFormat, site: int) -> float:
        """The neighbour of ``z``; ``zero`` where that is 0."""
        if not z:
            return zero
        up = bool(site_direction(self._key, site, opposite=self._opposite)[0])
        result, other = exact_neighbour(z, up, fmt), exact_neighbour(z, not up, fmt)
        infinite = not math.isfinite(result)
        self.gaps += math.inf if infinite else (result - _finite(other, fmt)) ** 2
        self.lost |= not math.isfinite(result) or Fraction(result) != z
        return result


def _finite(x: float, fmt: RoundingFormat) -> float:
    """What infinity stands for beside ``fmt.largest``."""
    beyond = fmt.largest + math.ulp(fmt.largest) * 2.0 ** (52 - fmt.fraction_bits)
    return x if math.isfinite(x) else math.copysign(beyond, x)


def _float(bits: int, dtype: DType) -> float:
    number = exact.decode_number(bits, dtype)
    if number.kind != "finite":
        return math.nan if number.kind == "nan" else math.copysign(math.inf, -1.0 if number.negative else 1.0)
    return math.copysign(float(number.value), -1.0 if number.negative else 1.0)


def value_of(pattern: int, dtype: DType) -> float:
    """The float of an output pattern."""
    return float(to_float32(np.array([pattern], dtype=f"u{dtype.itemsize}"), dtype)[0])
