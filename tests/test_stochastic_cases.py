"""Computations of known stability: what a run says of them."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic import Kind
from gemmdesc.numerics.stochastic.cases.classical import CASES, Case
from gemmdesc.numerics.stochastic.cases.operators import OPERATORS, OperatorCase
from gemmdesc.numerics.stochastic.cases.tutorials import TUTORIALS

THRESHOLDS = {(8, 23): 3.0, (11, 52): 10.0}
#: Unstable in their papers only because that moves numbers which float64 represents: the differences are exact.
EXACT_IN_FLOAT64 = ("difference of a large signal", "cancelling map", "alternating sum")


@pytest.mark.parametrize("mode", ["default", "paper"])
@pytest.mark.parametrize("fmt", THRESHOLDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_classical_formulas_are_told_apart(case: Case, fmt: tuple[int, int], mode: str) -> None:
    digits = [float(case.compute(stochastic.start(format=fmt, mode=mode, seed=s)).digits) for s in range(7)]
    assert (median(digits) >= THRESHOLDS[fmt]) == case.stable
    if mode == "default":
        # Here no seed errs: nothing inexact collapses.
        assert {d >= THRESHOLDS[fmt] for d in digits} == {case.stable}


@pytest.mark.parametrize("case", [c for c in CASES if c.stable], ids=lambda case: case.name)
def test_stable_formulas_cover_their_exact_value(case: Case) -> None:
    hits = 0
    for seed in range(20):
        found = case.compute(stochastic.start(format="float32", seed=seed)).estimate()
        hits += bool(abs(float(found.mean) - case.exact) <= float(found.half_width))
    assert hits >= 16


@pytest.mark.parametrize("mode", ["default", "paper"])
@pytest.mark.parametrize("fmt", THRESHOLDS)
@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.name)
def test_operators_are_told_apart(case: OperatorCase, fmt: tuple[int, int], mode: str) -> None:
    unstable_here = not case.stable and not (
        mode == "default" and fmt == (11, 52) and case.name in EXACT_IN_FLOAT64
    )
    for seed in range(3):
        with np.errstate(all="ignore"):
            value = case.compute(stochastic.start(format=fmt, mode=mode, seed=seed), np.random.default_rng(seed))
        assert (float(np.min(value.digits)) < THRESHOLDS[fmt]) == unstable_here, seed
        if case.name in EXACT_IN_FLOAT64 and mode == "default" and fmt == (11, 52):
            assert value.exact.all()


def test_tutorials_count_what_they_are_known_for() -> None:
    counts, results = {}, {}
    for fmt in ("float32", "float64"):
        for tutorial in TUTORIALS[:6]:
            run = stochastic.start(format=fmt, seed=1, counters="summary")
            with np.errstate(all="ignore"):
                results[fmt, tutorial.number] = dict(tutorial.run(run))
            counts[fmt, tutorial.number] = run.counters.counts
    assert counts["float32", 1] == dict.fromkeys(Kind, 0) | {Kind.CANCELLATION: 1}
    assert counts["float64", 1] == dict.fromkeys(Kind, 0) | {Kind.CANCELLATION: 2}
    assert counts["float64", 2] == counts["float32", 2] == counts["float32", 1]
    # The discriminant is noise, so the branch for a double root is taken.
    assert float(results["float64", 2]["double root"]) == pytest.approx(3.5)
    assert sum(counts["float64", 3].values()) == 0
    assert float(results["float64", 3]["determinant"]) == pytest.approx(3.0e-65, rel=0.05)
    # Muller's recurrence: the wrong limit, on the way to which divisors were noise.
    assert float(results["float64", 4]["U(30)"]) == pytest.approx(100.0)
    assert counts["float64", 4][Kind.DIVISION] > 0
    # Pivots that are noise are passed over: the solution has its digits.
    assert results["float64", 6]["x(3)"].digits > 10


def test_jacobi_stops() -> None:
    run = stochastic.start(format="float64", seed=1, counters="summary")
    lines = dict(TUTORIALS[6].run(run))
    assert 20 < lines["sweeps"] < 200
    assert float(lines["x(1)"]) == pytest.approx(1.7, abs=1e-3)
