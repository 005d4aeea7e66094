"""Values with s samples: arithmetic, comparisons and the digits they have left.  One program for NumPy and torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic import events, reductions
from gemmdesc.numerics.stochastic.counters import Level
from gemmdesc.numerics.stochastic.digits import DigitSummary, Estimate, estimate, summarise
from gemmdesc.numerics.stochastic.formats import RoundingFormat, parse_format
from gemmdesc.numerics.stochastic.rounding import add_exact, divide_exact, multiply_exact, round_nearest
from gemmdesc.numerics.stochastic.run import Mode, StochasticRun

#: Integer powers up to here are products; beyond, a power function's result.
_MOST_FACTORS = 64


class StochasticValue(ABC):
    """s samples of an array, one leading axis in front of its ``shape``, in float64 holding values of the run's format.

    ``exact``: bool lanes of ``shape``, whether no rounding lay on the way to an element.  Numbers and plain arrays may
    stand beside a value in every operation; they are constants, in the default mode rounded to nearest in the format.
    Every operation rounds once, in the directions that the run draws for it.  Values of two runs do not mix.
    """

    #: Before NumPy's own operators, so that ``array + value`` is ours.
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, samples: Any, exact: Any, run: StochasticRun) -> None:
        self.samples = samples
        self.exact = exact
        self.run = run

    # --- what NumPy and torch do differently

    @property
    @abstractmethod
    def xp(self) -> Any:
        """The module ``numpy`` or ``torch``."""

    @abstractmethod
    def constant(self, value: Any) -> Any:
        """Float64 lanes of a number or a plain array."""

    def detached(self, lanes: Any) -> Any:
        """``lanes`` without their gradient."""
        return lanes

    def straight(self, value: Any, rounded: Any) -> Any:
        """``rounded``, with the gradient of ``value``."""
        return rounded

    # --- shape and digits

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.samples.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def estimate(self) -> Estimate:
        """Mean, spread and digits per element at the run's confidence."""
        settings = self.run.settings
        with np.errstate(all="ignore"):
            return estimate(
                self.xp,
                self.detached(self.samples),
                self.exact,
                confidence=settings.confidence,
                cap=settings.cap,
                resolution=settings.resolution,
                wider=settings.wider,
            )

    @property
    def value(self) -> Any:
        """The samples' mean, a plain array; NaN where a sample is not finite."""
        return self.estimate().mean

    @property
    def spread(self) -> Any:
        """The samples' standard deviation (s - 1)."""
        return self.estimate().std

    @property
    def digits(self) -> Any:
        """Significant decimal digits per element."""
        return self.estimate().digits

    def summary(self) -> DigitSummary:
        """Digits over all elements, exact and zero ones apart."""
        return summarise(self.estimate())

    def is_noise(self) -> Any:
        """Bool lanes: CADNA's computed zero, a value none of whose digits mean anything, or an exact zero."""
        found = self.estimate()
        if self.run.settings.mode is Mode.PAPER:
            return found.noise | found.zero | (found.digits < self.run.settings.noise_digits)
        return found.noise | found.zero

    def __float__(self) -> float:
        return float(self.value)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        found = self.estimate()
        return f"{type(self).__name__}(value={found.mean}, digits={found.digits})"

    def __getitem__(self, index: Any) -> Self:
        place = index if isinstance(index, tuple) else (index,)
        return self.made(self.samples[(slice(None), *place)], self.exact[index])

    def reshape(self, *shape: int) -> Self:
        return self.made(self.samples.reshape(self.samples.shape[0], *shape), self.exact.reshape(*shape))

    @property
    def T(self) -> Self:
        """The transpose of a matrix."""
        return self.made(self.samples.swapaxes(1, 2), self.exact.swapaxes(0, 1))

    # --- operations

    def made(self, samples: Any, exact: Any) -> Self:
        """Another value of this run."""
        return type(self)(samples, exact, self.run)

    def lanes(self, other: Any) -> tuple[Any, Any]:
        """Samples and exactness of ``other``: a value of this run, or a constant with a sample axis of length 1.

        Raises:
            InvalidInputError: ``other`` belongs to another run, or is not of numbers.
        """
        if isinstance(other, StochasticValue):
            if other.run is not self.run or type(other) is not type(self):
                raise InvalidInputError(f"other must be a {type(self).__name__} of the same run (got {other!r})")
            return other.samples, other.exact
        plain = self.constant(other)
        if self.run.settings.mode is Mode.DEFAULT:
            plain = self.straight(plain, round_nearest(self.xp, self.detached(plain), self.run.settings.format))
        return plain[None], self.xp.ones_like(plain, dtype=self.xp.bool)

    def combine(self, name: str, exactly: Any, plainly: Any, other: Any, *, swapped: bool = False) -> Self:
        """One rounded operation on two operands; ``exactly`` gives a value and its rest, ``plainly`` the value."""
        mine, theirs = (self.samples, self.exact), self.lanes(other)
        (a, a_exact), (b, b_exact) = (theirs, mine) if swapped else (mine, theirs)
        a, b = _aligned(a, b)
        with np.errstate(all="ignore"):
            value, rest = exactly(self.xp, self.detached(a), self.detached(b))
            rounded, kept = self.run.close(self.xp, value, rest)
            result = self.made(self.straight(plainly(a, b), rounded), kept & a_exact & b_exact)
        if self.run.counters.level is not Level.OFF:
            left, right = (other, self) if swapped else (self, other)
            events.after_operation(name, left, right, result)
        if self.run.observe is not None:
            self.run.observe(name, result)
        return result

    def map(self, name: str, function: Any, exactly: Any) -> Self:
        """One rounded function of one operand; ``exactly`` as in :meth:`combine`, of detached samples."""
        with np.errstate(all="ignore"):
            value, rest = exactly(self.xp, self.detached(self.samples))
            rounded, kept = self.run.close(self.xp, value, rest)
            result = self.made(self.straight(function(self.samples), rounded), kept & self.exact)
        if self.run.counters.level is not Level.OFF:
            events.after_function(name, self, result)
        if self.run.observe is not None:
            self.run.observe(name, result)
        return result

    def __add__(self, other: Any) -> Self:
        return self.combine("add", add_exact, lambda a, b: a + b, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Self:
        return self.combine("sub", _subtract_exact, lambda a, b: a - b, other)

    def __rsub__(self, other: Any) -> Self:
        return self.combine("sub", _subtract_exact, lambda a, b: a - b, other, swapped=True)

    def __mul__(self, other: Any) -> Self:
        return self.combine("mul", multiply_exact, lambda a, b: a * b, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Self:
        return self.combine("div", divide_exact, lambda a, b: a / b, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self.combine("div", divide_exact, lambda a, b: a / b, other, swapped=True)

    def __pow__(self, other: Any) -> Self:
        """Integers from 0 to 64 are products of the operand in the default mode, each rounded; others one function."""
        if self.run.settings.mode is Mode.DEFAULT and isinstance(other, int) and 0 <= other <= _MOST_FACTORS:
            return self._product(other)
        return self.combine("pow", _powers, lambda a, b: a**b, other)

    def __rpow__(self, other: Any) -> Self:
        return self.combine("pow", _powers, lambda a, b: a**b, other, swapped=True)

    def _product(self, count: int) -> Self:
        result: Self | None = None
        square = self
        while count:
            if count & 1:
                result = square if result is None else result * square
            count >>= 1
            square = square * square if count else square
        return self * 0.0 + 1.0 if result is None else result

    def __neg__(self) -> Self:
        return self.made(-self.samples, self.exact)

    def __abs__(self) -> Self:
        result = self.made(self.xp.abs(self.samples), self.exact)
        if self.run.counters.level is not Level.OFF:
            events.after_function("abs", self, result)
        return result

    def __matmul__(self, other: Any) -> Self:
        return reductions.matmul(self, other)  # type: ignore[no-any-return]

    def sum(self, axis: int | None = None, *, order: str = "sequential") -> Any:
        """See :func:`gemmdesc.numerics.stochastic.reductions.total`."""
        return reductions.total(self, axis, order=order)

    def mean(self, axis: int | None = None, *, order: str = "sequential") -> Any:
        """The sum over the number of elements; the division rounds once more."""
        return reductions.average(self, axis, order=order)

    def cast(self, format: str | tuple[int, int] | RoundingFormat) -> Self:
        """Rounded in drawn directions to another format, to go on in the run's from there."""
        rounded, kept = self.run.close(self.xp, self.detached(self.samples), None, fmt=parse_format(format))
        return self.made(self.straight(self.samples, rounded), kept & self.exact)

    # --- comparisons, on what is significant

    def __eq__(self, other: object) -> Any:
        return self._compare("eq", other)[1]

    def __ne__(self, other: object) -> Any:
        return ~self._compare("ne", other)[1]

    def __lt__(self, other: Any) -> Any:
        difference, equal = self._compare("lt", other)
        return (difference < 0) & ~equal

    def __le__(self, other: Any) -> Any:
        difference, equal = self._compare("le", other)
        return (difference < 0) | equal

    def __gt__(self, other: Any) -> Any:
        difference, equal = self._compare("gt", other)
        return (difference > 0) & ~equal

    def __ge__(self, other: Any) -> Any:
        difference, equal = self._compare("ge", other)
        return (difference > 0) | equal

    def _compare(self, name: str, other: Any) -> tuple[Any, Any]:
        """The difference's mean, and where it is noise: two values that differ by noise are equal (Vignes)."""
        settings = self.run.settings
        if settings.mode is Mode.PAPER:
            theirs, _ = self.lanes(other)
            left, right = (self.made(*self.run.close(self.xp, x, None)) for x in _aligned(self.samples, theirs))
            difference = left.combine("compare", _subtract_exact, lambda a, b: a - b, right)
        else:
            difference = self.combine("compare", _subtract_exact, lambda a, b: a - b, other)
        found = difference.estimate()
        # Equality means that the difference is noise or 0: on noise only an ordering is unstable.
        if self.run.counters.level is not Level.OFF and name not in ("eq", "ne"):
            events.after_comparison(name, self.run, found)
        return found.mean, difference.is_noise()


def _aligned(a: Any, b: Any) -> tuple[Any, Any]:
    """Samples whose trailing axes broadcast."""
    axes = max(a.ndim, b.ndim)
    first, second = (x.reshape(x.shape[0], *(1,) * (axes - x.ndim), *x.shape[1:]) for x in (a, b))
    return first, second


def _subtract_exact(xp: Any, x: Any, y: Any) -> tuple[Any, Any]:
    return add_exact(xp, x, -y)


def _powers(xp: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """A power function's result; what it left out is not known, so a representable one is moved (rest NaN marks it)."""
    return x**y, xp.full_like(x * y, float("nan"))
