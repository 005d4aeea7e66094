"""Experiments: a few values on an otherwise empty k axis, and what the output says about where they met.

One experiment is one output element.  With a large pair +L, -L and a tiny r whose ratio exceeds what any accumulator
keeps, r comes out exactly when it was never added to an L that was not yet cancelled.  All values are products with
1, so they need only be representable in the operand and output types; r is never a rounding error, it is there or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import GemmdescError, InvalidInputError
from gemmdesc.operands import Entries
from gemmdesc.probe.reading import Beside
from gemmdesc.problem import GemmProblem, is_float8

#: The values of one experiment: (k, value) pairs, everything else 0.
Pattern = Sequence[tuple[int, float]]
Floats = npt.NDArray[np.float64]


class ReferenceFailed(GemmdescError):
    """The library did not run an answer that it had given."""


class Reader(Protocol):
    """Runs experiments on one problem and one answer."""

    @property
    def k(self) -> int: ...

    @property
    def width(self) -> int:
        """Experiments that one launch holds."""
        ...

    @property
    def along_m(self) -> bool:
        """Whether patterns lie in A, one a row of D; else in B, one a column."""
        ...

    def values(self, patterns: Sequence[Pattern], *, other: float = 1.0) -> Floats:
        """One output value per pattern; every product is with ``other`` (1.0).

        Raises:
            ReferenceFailed: the library refused or failed.
        """
        ...

    def outputs(self, asked: Sequence[Beside]) -> tuple[Beside, ...]:
        """The experiments with their outputs.

        Raises:
            ReferenceFailed: the library refused or failed.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Magnitudes:
    """``big`` and ``tiny`` as far apart as operand and output types allow, up to 2^39.

    ``countable`` units of tiny add exactly.
    """

    big: float
    tiny: float
    countable: int


def magnitudes(operand: DType, output: DType) -> Magnitudes:
    """The pair to use for operands of one type and outputs of another, the other operand being 1.

    Raises:
        InvalidInputError: the two types leave fewer than 16 binades between them.
    """
    a, d = operand.format, output.format
    low = max(-24, a.min_exponent - a.fraction_bits, d.min_exponent - d.fraction_bits)
    high = min(15, a.max_exponent, d.max_exponent)
    if high - low < 16:
        raise InvalidInputError(f"operand and output must span 16 binades (got {operand.value}, {output.value})")
    return Magnitudes(big=2.0**high, tiny=2.0**low, countable=2 ** min(d.fraction_bits, 11))


def magnitudes_of(problem: GemmProblem) -> Magnitudes:
    """The pair to use for ``problem``.

    8-bit operands share the exponents of a product between them, and an 8-bit output is read through scales, so that
    neither narrows the pair; only how many units add up exactly is the output's.
    """
    if not is_float8(problem.a_dtype):
        return magnitudes(problem.a_dtype, problem.d_dtype)
    a, b, d = (t.format for t in (problem.a_dtype, problem.b_dtype, problem.d_dtype))
    low = max(-24, a.min_exponent - a.fraction_bits + b.min_exponent - b.fraction_bits)
    high = min(15, a.max_exponent + b.max_exponent)
    if not is_float8(problem.d_dtype):
        low = max(low, d.min_exponent - d.fraction_bits)
    return Magnitudes(big=2.0**high, tiny=2.0**low, countable=2 ** min(d.fraction_bits, 11))


def factors(value: float, a: DType, b: DType) -> tuple[float, float]:
    """Two values, one of each format, whose product is ``value``; the second one a power of two, or 0 with the first.

    Raises:
        InvalidInputError: there are none.
    """
    if value == 0.0:
        return value, 1.0
    fraction, exponent = math.frexp(value)
    fraction, exponent = 2.0 * fraction, exponent - 1
    low, high = b.format.min_exponent - b.format.fraction_bits, b.format.max_exponent
    half = min(max(exponent // 2, low), high)
    first = exponent - half
    # Powers of two reach down to the least subnormal, other values to the least normal one.
    least = a.format.min_exponent - (a.format.fraction_bits if abs(fraction) == 1.0 else 0)
    first = min(max(first, least), a.format.max_exponent)
    second = exponent - first
    if not low <= second <= high:
        raise InvalidInputError(f"value must be a product of {a.value} and {b.value} (got {value!r})")
    return math.ldexp(fraction, first), math.ldexp(1.0, second)


def encode(value: float, dtype: DType) -> int:
    """The bit pattern of ``value``, the canonical one of a NaN.

    Raises:
        InvalidInputError: ``dtype`` cannot hold it exactly.
    """
    bits = from_float32(np.array([value], dtype=np.float32), dtype)
    if float(to_float32(bits, dtype)[0]) != value and not math.isnan(value):
        raise InvalidInputError(f"value must be exact in {dtype.value} (got {value!r})")
    return int(bits[0])


def to_entries(patterns: Sequence[Pattern], dtype: DType) -> Entries:
    """Encode patterns as the entries of an operand of ``dtype``, one experiment a row.

    Raises:
        InvalidInputError: a value is not exact in ``dtype``.
    """
    lengths = [len(pattern) for pattern in patterns]
    # k are small enough to be exact in float64.
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(patterns)), np.float64, 2 * sum(lengths))
    ks, values = flat[::2].astype(np.int64), flat[1::2]
    # Patterns of bits tell -0.0 from +0.0.
    distinct, which = np.unique(values.view(np.int64), return_inverse=True)
    codes = np.array([encode(float(x), dtype) for x in distinct.view(np.float64)], np.int64)
    return Entries(outer=np.repeat(np.arange(len(patterns), dtype=np.int64), lengths), k=ks, bits=codes[which])


def pair_then_unit(low: int, unit: int, size: Magnitudes) -> Pattern:
    """+L at ``low``, -L just after it, r at ``unit``."""
    return ((low, size.big), (low + 1, -size.big), (unit, size.tiny))
