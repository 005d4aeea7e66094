"""How many decimal digits s samples of one result have in common, with the Student factor.

The estimate is that of CESTAC (J. Vignes, *Numerical Algorithms* 37, 2004; arXiv 2607.25494, eq. 6 to 8):
C = log10(sqrt(s) |mean| / (t std)), t the two-sided Student quantile with s - 1 degrees of freedom.  It is a statement
about one element at the confidence asked for, not about all elements of an array at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.formats import RoundingFormat
from gemmdesc.numerics.stochastic.rounding import power_of_two, quantum_exponents


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Lanes of one shape: the representative value and how far it can be trusted.

    ``half_width``: of the confidence interval about ``mean``.  ``digits``: within [0, cap].  ``exact``: no rounding
    happened on the way there.  ``zero``: all samples are zero.  ``finite``: all samples are.
    """

    mean: Any
    std: Any
    half_width: Any
    digits: Any
    exact: Any
    zero: Any
    finite: Any

    @property
    def noise(self) -> Any:
        """Where the interval holds zero though not all samples are zero, or a sample is not finite."""
        return ~(self.finite & (abs(self.mean) > self.half_width)) & ~self.zero


@dataclass(frozen=True, kw_only=True)
class DigitSummary:
    """Digits of an array: those of inexact, non-zero, finite elements, and the shares of the other ones.

    The fields for digits are NaN where no element is left.
    """

    elements: int
    least: float
    low: float
    median: float
    mean: float
    exact_share: float
    zero_share: float
    nonfinite_share: float


@cache
def student_quantile(confidence: float, degrees: int) -> float:
    """t with P(\\|T\\| <= t) = ``confidence`` for Student's distribution with ``degrees`` >= 1 degrees of freedom.

    The distribution function of an integer number of degrees is a finite sum in theta = atan(t / sqrt(degrees))
    (Abramowitz and Stegun, 26.7.3 and 26.7.4); theta is bisected to the last bit.

    Raises:
        InvalidInputError: ``confidence`` is not inside (0, 1).
    """
    if not 0.0 < confidence < 1.0:
        raise InvalidInputError(f"confidence must be inside (0, 1) (got {confidence!r})")
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _student(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(high)


def widening(samples: int, *, antithetic: bool) -> float:
    """By how much the interval of fair coins is widened, at least 1, where all samples meet the same fraction.

    Let an exact result lie a fraction f above the value below it.  Sample i is off by c_i - f, c_i its coin, so f is
    common to all samples and their spread does not show it: their mean is off by the mean coin less f, whose variance
    is 1/12 (f uniform) plus that of the mean coin, and not 1/s of the spread's.  Sums meet this case whenever they add
    exact operands to accumulators that differ by whole units.  The factor is the ratio of the two standard deviations:
    1 for three antithetic samples, sqrt(2) for three independent ones, and growing with ``samples``, since the mean of
    directed roundings does not converge to the exact result.
    """
    pair = 2 if antithetic else 0
    spread = 0.25 * (1 + pair / (samples * (samples - 1)))
    return max(1.0, math.sqrt(mean_variance(samples, antithetic=antithetic) * samples / spread))


def mean_variance(samples: int, *, antithetic: bool) -> float:
    """The variance of what one rounding in a gap of 1 moves the samples' mean by: 1/9 for three antithetic samples."""
    drawn = samples - 2 if antithetic else samples
    return 1 / 12 + drawn / (4 * samples**2)


def _student(theta: float, degrees: int) -> float:
    sine, cosine = math.sin(theta), math.cos(theta)
    first = degrees % 2
    term, total = (cosine if first else 1.0), 0.0
    for j in range(first, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (j + 1) / (j + 2)
    return 2 / math.pi * (theta + sine * total) if first else sine * total


def estimate(
    xp: Any,
    samples: Any,
    exact: Any,
    *,
    confidence: float,
    cap: float,
    resolution: RoundingFormat | None,
    wider: float = 1.0,
) -> Estimate:
    """The estimate for samples (s, \\*shape) in float64 lanes; ``exact``: bool lanes (\\*shape).

    ``wider``: a factor of the half width, see :func:`widening`.

    Elements whose samples all agree have ``cap`` digits, but where they are not ``exact`` and a ``resolution`` is
    given: there, and wherever the spread is smaller than that, the spread counts as that of one sample one unit of
    ``resolution`` away, and a zero has no digits.  A zero mean with a spread has no digits, and neither has an element
    with a sample that is not finite (as in arXiv 2607.25494, 3.1).
    """
    count = samples.shape[0]
    finite = xp.isfinite(samples).all(0)
    usable = xp.where(finite, samples, 0.0)
    mean = usable[0] + (usable - usable[0]).sum(0) / count
    distance = xp.abs(usable - mean)
    largest = xp.where((usable == usable[0]).all(0), 0.0, xp.amax(distance, 0))
    relative = distance / xp.where(largest > 0, largest, 1.0)
    std = largest * xp.sqrt((relative * relative).sum(0) / (count - 1))
    if resolution is not None:
        unit = power_of_two(xp, quantum_exponents(xp, mean, resolution).clip(-1022, None))
        std = xp.where(exact, std, xp.maximum(std, unit / math.sqrt(count)))
    half = wider * student_quantile(confidence, count - 1) / math.sqrt(count) * std
    zero = (usable == 0).all(0) & finite
    spread = half > 0
    ratio = xp.abs(mean) / xp.where(spread, half, 1.0)
    digits = xp.log10(xp.where(ratio > 0, ratio, 1.0)).clip(0.0, cap)
    digits = xp.where(spread & ~zero, digits, cap)
    if resolution is not None:
        digits = xp.where(zero & ~exact, 0.0, digits)
    return Estimate(
        mean=xp.where(finite, mean, float("nan")),
        std=xp.where(finite, std, float("nan")),
        half_width=xp.where(finite, half, float("inf")),
        digits=xp.where(finite, digits, 0.0),
        exact=exact & finite,
        zero=zero,
        finite=finite,
    )


def summarise(found: Estimate) -> DigitSummary:
    """The digits of an array as a few numbers; ``low`` is the 5% quantile."""
    lanes = (found.digits, found.exact, found.zero, found.finite)
    digits, exact, zero, finite = (np.asarray(x.cpu() if hasattr(x, "cpu") else x) for x in lanes)
    counted = digits[~exact & ~zero & finite]
    least, low, median = (float(q) for q in np.quantile(counted, [0, 0.05, 0.5])) if counted.size else (np.nan,) * 3
    return DigitSummary(
        elements=int(digits.size),
        least=least,
        low=low,
        median=median,
        mean=float(counted.mean()) if counted.size else np.nan,
        exact_share=float(exact.mean()) if digits.size else np.nan,
        zero_share=float((zero & ~exact).mean()) if digits.size else np.nan,
        nonfinite_share=float((~finite).mean()) if digits.size else np.nan,
    )
