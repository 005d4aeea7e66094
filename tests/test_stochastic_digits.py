"""The Student factor against an independent incomplete beta function, and digits against their formula."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.digits import estimate, student_quantile, summarise, widening
from gemmdesc.numerics.stochastic.formats import ieee_format


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 15, 63])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99, 0.9999])
def test_quantiles_invert_the_distribution(confidence: float, degrees: int) -> None:
    t = mpmath.mpf(student_quantile(confidence, degrees))
    inside = 1 - mpmath.betainc(mpmath.mpf(degrees) / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True)
    assert abs(inside - confidence) < 1e-13


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_no_confidence_is_an_error(confidence: float) -> None:
    with pytest.raises(InvalidInputError, match="confidence must be inside"):
        student_quantile(confidence, 2)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_digits_follow_the_formula(count: int) -> None:
    samples = 1.0 + np.random.default_rng(count).standard_normal((count, 200)) * 10.0 ** -np.arange(200.0).clip(0, 12)
    found = estimate(np, samples, np.zeros(200, bool), confidence=0.95, cap=15.0, resolution=None)
    std = samples.std(0, ddof=1)
    plain = np.log10(math.sqrt(count) * abs(samples.mean(0)) / (student_quantile(0.95, count - 1) * std))
    assert np.abs(found.digits - plain.clip(0, 15)).max() < 1e-3
    assert found.noise.tolist() == (plain <= 0).tolist()


@pytest.mark.parametrize("scale", [2.0**-1060, 2.0**-600, 1.0, 2.0**1000])
def test_digits_do_not_depend_on_a_power_of_two(scale: float) -> None:
    samples = np.array([[1.0], [1.0], [1.0 + 2.0**-10]])
    digits = [estimate(np, samples * s, np.zeros(1, bool), confidence=0.95, cap=15.0, resolution=None).digits
              for s in (1.0, scale)]  # fmt: skip
    assert digits[0] == pytest.approx(digits[1], abs=0.05 if scale < 2.0**-1000 else 1e-12)


def test_shares_are_apart() -> None:
    samples = np.array([[1.0, 0.0, 2.0, math.nan, 3.0], [1.0, 0.0, 2.0, 1.0, 3.0], [1.0, 0.0, 2.5, 1.0, 3.0]])
    exact = np.array([True, False, False, False, False])
    fmt = ieee_format(8, 7)
    summary = summarise(estimate(np, samples, exact, confidence=0.95, cap=fmt.decimal_digits, resolution=fmt))
    assert (summary.elements, summary.exact_share, summary.zero_share, summary.nonfinite_share) == (5, 0.2, 0.2, 0.2)
    # The last element's samples agree, but a rounding lay on its way: it counts as one unit in the last place apart.
    assert summary.median == pytest.approx(np.median([0.4752, math.log10(3 / (4.30265 / 3 * 2.0**-6))]), abs=0.05)


@pytest.mark.parametrize(
    ("samples", "antithetic"), [(3, True), (3, False), (2, True), (4, True), (8, True), (8, False)]
)
def test_the_widening_is_what_a_common_fraction_costs(samples: int, antithetic: bool) -> None:
    """Sums of many coins less a common fraction each: the widened interval covers, and is no wider than it must be."""
    rng = np.random.default_rng(samples)
    sites, elements = 200, 4000
    fractions = rng.random((sites, elements))
    coins = rng.random((samples, sites, elements)) < 0.5
    if antithetic:
        coins[-1] = ~coins[-2]
    found = estimate(
        np, (coins - fractions).sum(1), np.zeros(elements, bool), confidence=0.95, cap=15.0, resolution=None,
        wider=widening(samples, antithetic=antithetic),
    )  # fmt: skip
    covered = float((np.abs(found.mean) <= found.half_width).mean())
    assert 0.935 < covered <= (1.0 if samples == 2 else 0.975)
    if (samples, antithetic) == (3, True):
        assert widening(3, antithetic=True) == pytest.approx(1.0)
