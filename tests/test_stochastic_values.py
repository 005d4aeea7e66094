"""Stochastic values: twins, exactness, digits and comparisons."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.values import StochasticValue
from tests.stochastic_reference import program

FORMATS = ["float32", "bfloat16", "float16", (11, 52), (4, 3)]
MODES = ["default", "paper"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_numpy_and_torch_give_the_same_samples(fmt: Any, mode: str) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 6)) * np.array([[4.0], [0.5]])
    runs = [stochastic.start(format=fmt, mode=mode, seed=11, samples=4, counters="summary") for _ in range(2)]
    ours = program(runs[0], runs[0].array, a, b)
    theirs = program(runs[1], lambda v: runs[1].tensor(torch.from_numpy(v)), a, b)
    if (fmt, mode) == ((11, 52), "paper"):
        # A power and matrix products of the libraries in float64 itself, whose bits are their own.
        ours, theirs = ours[:-4], theirs[:-4]
    for x, y in zip(ours, theirs, strict=True):
        assert x.samples.tobytes() == y.samples.numpy().tobytes()
        assert x.exact.tolist() == y.exact.tolist()
        assert np.asarray(x.value).tobytes() == y.value.numpy().tobytes()
    assert runs[0].counters.counts == runs[1].counters.counts


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_fixes_all_and_another_changes_it(mode: str) -> None:
    a = np.random.default_rng(1).standard_normal((2, 6))
    outputs = []
    for seed in (3, 3, 4):
        run = stochastic.start(mode=mode, seed=seed)
        outputs.append(b"".join(x.samples.tobytes() for x in program(run, run.array, *a)))
    assert outputs[0] == outputs[1] != outputs[2]


values = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(x=values, y=st.floats(-1e6, 1e6, width=32), fmt=st.sampled_from(["float32", (11, 52), (8, 30)]),
       seed=st.integers(0, 999))  # fmt: skip
def test_default_samples_are_the_neighbours_and_exact_ones_stay(x: list[float], y: float, fmt: Any, seed: int) -> None:
    run = stochastic.start(format=fmt, seed=seed)
    value = run.array(x)
    assert value.exact.all()
    operations = {"add": (value + y, [Fraction(v) + Fraction(y) for v in x]),
                  "mul": (value * y, [Fraction(v) * Fraction(y) for v in x])}  # fmt: skip
    if abs(y) > 1e-3:
        operations["div"] = (value / y, [Fraction(v) / Fraction(y) for v in x])
    for name, (result, exact) in operations.items():
        for i, z in enumerate(exact):
            samples = [Fraction(s) for s in result.samples[:, i].tolist()]
            if result.exact[i]:
                assert set(samples) == {z}, name
            else:
                # Neighbours enclose the result, and the last two samples take one each.
                assert min(samples) < z < max(samples), name
                assert {samples[1], samples[2]} == {min(samples), max(samples)}, name
                unit = Fraction(2) ** (max(math.frexp(float(abs(z)))[1] - 1, -126) - run.settings.format.fraction_bits)
                assert max(samples) - min(samples) <= unit, name


def test_integers_and_close_differences_are_exact_and_said_so() -> None:
    run = stochastic.start(format="float32", seed=1)
    x = run.array([1.0, 2.0, 3.0, 1024.0])
    total = (x * x + 7.0 - x).sum()
    assert bool(total.exact)
    assert total.samples.tolist() == [1048576.0 + 14 + 28 - 1030] * 3
    close = run.array(1.0 + 2.0**-23) - 1.0
    assert bool(close.exact)
    assert close.summary().exact_share == 1.0
    assert math.isnan(close.summary().least)
    assert (x**3).samples[0].tolist() == [1.0, 8.0, 27.0, 1024.0**3]
    # The paper's rule moves every one of them.
    paper = stochastic.start(format="float32", seed=1, mode="paper")
    y = paper.array([1.0, 2.0, 3.0, 1024.0])
    assert not y.exact.any()
    assert all(v not in (1.0, 2.0, 3.0, 1024.0) for v in y.samples.ravel().tolist())


def test_equal_coins_collapse_in_the_papers_mode_only() -> None:
    """One inexact operation on 4,000 elements: a quarter of the papers' agree, as chance has it, and none of ours."""
    x = np.random.default_rng(2).uniform(1, 2, 4000)
    shares = {}
    for mode in MODES:
        samples = stochastic.start(mode=mode, seed=5).array(x).samples
        shares[mode] = float((samples == samples[0]).all(0).mean())
    assert shares["default"] == 0.0
    assert 0.2 < shares["paper"] < 0.3


def test_an_inexact_element_is_never_surer_than_its_format() -> None:
    run = stochastic.start(format="float16", seed=0)
    x = (run.array(1.0) + 2.0**-12) + run.array(np.zeros(4096))
    x = x - 2.0**-12
    collapsed = (x.samples == x.samples[0]).all(0)
    assert not x.exact.any()
    assert collapsed.any()
    assert (x.digits[collapsed] <= math.log10(2.0**11 * 3 / stochastic.student_quantile(0.95, 2))).all()


def test_exceptional_cases() -> None:
    run = stochastic.start(mode="paper", seed=0)
    same = run.array(0.0)
    assert same.digits == 15.0
    balanced = same.made(np.array([1.0, -1.0, 0.0]), same.exact)
    assert balanced.digits == 0.0
    assert balanced.is_noise()
    broken = same.made(np.array([1.0, math.inf, 1.0]), same.exact)
    assert broken.digits == 0.0
    assert math.isnan(float(broken))
    assert broken.summary().nonfinite_share == 1.0
    split = same.made(np.array([1.0, 1.0, 1.0 + 2.0**-23]), same.exact)
    expected = math.log10(math.sqrt(3) / (4.302652729749461 * 2.0**-23 / math.sqrt(3)))
    assert split.digits == pytest.approx(expected, abs=1e-6)
    assert stochastic.start(format="float16").array(2.0).digits == 11 * math.log10(2)


def test_numbers_beyond_the_format_become_infinite() -> None:
    run = stochastic.start(format="float16", counters="summary")
    big = run.array(60000.0) * 2.0
    assert np.isinf(big.samples).all()
    assert run.counters.counts[stochastic.Kind.MATHEMATICAL] == 1
    assert stochastic.start(format="float8_e4m3fn").array(1e9).samples.tolist() == [448.0] * 3


def test_sums_cover_the_exact_value() -> None:
    """A stated confidence is met: 300 float16 sums of 64 numbers, against their exact sums."""
    x = np.random.default_rng(3).uniform(0, 1, (64, 300)).astype(np.float16).astype(np.float64)
    run = stochastic.start(format="float16", seed=2)
    found = run.array(x).sum(0).estimate()
    covered = np.abs(found.mean - x.sum(0)) <= found.half_width
    assert covered.mean() >= 0.93
    assert 0.2 < np.median(np.log10(found.half_width / np.abs(found.mean - x.sum(0)))) < 1.0


def test_comparisons_go_by_what_is_significant() -> None:
    run = stochastic.start(format="float32", seed=4, counters="detailed")
    noise = (run.array(1e8 / 3) + 0.3) - run.array(1e8 / 3)
    zero = run.array(0.0)
    assert noise == zero
    assert noise <= zero
    assert not noise < zero
    assert run.counters.counts[stochastic.Kind.BRANCHING] == 2
    run.counters.clear()
    one, two = run.array(1.0), run.array(2.0)
    assert one < two
    assert two > 1.0
    assert one != two
    assert one <= 1.0
    assert one >= 1.0
    assert run.counters.total == 0


def test_numpy_functions_and_reflected_operators() -> None:
    run, again = (stochastic.start(seed=6) for _ in range(2))
    x, y = run.array([0.5, 2.0]), again.array([0.5, 2.0])
    pairs = [(np.exp(x), F.exp(y)), (np.arcsin(x / 4.0), F.asin(y / 4.0)),
             (np.array([1.0, 2.0]) - x, np.array([1.0, 2.0]) - y),
             (np.float64(2.0) * x, 2.0 * y), (np.maximum(1.0, x), F.maximum(y, 1.0)), (2.0**x, 2.0**y)]  # fmt: skip
    for ours, theirs in pairs:
        assert ours.samples.tobytes() == theirs.samples.tobytes()
    assert pairs[2][0].samples[0].tolist() == [0.5, 0.0]
    with pytest.raises(TypeError):
        np.add.reduce(x)


@pytest.mark.parametrize("name", sorted(F.EXACT_AT))
def test_functions_are_exact_where_they_are_known_to_be(name: str) -> None:
    run = stochastic.start(format=(11, 52), seed=8)
    known = F.apply(name, run.array(F.EXACT_AT[name]))
    assert bool(known.exact)
    other = F.apply(name, run.array(0.625))
    assert not bool(other.exact)
    reference = getattr(math, name)(0.625)
    assert other.samples.min() < reference + 2 * math.ulp(reference)
    assert other.samples.max() - other.samples.min() > 0


def test_gradients_pass_straight_through() -> None:
    run = stochastic.start(format="bfloat16", seed=9)
    plain = torch.tensor([1.1, 2.3, -0.7], dtype=torch.float64, requires_grad=True)
    x = run.tensor(plain)
    loss = (x * x * 3.0 + F.exp(x)).sum()
    loss.samples.mean().backward()
    with torch.no_grad():
        expected = 6 * plain + torch.exp(plain)
    # Each of the samples' factors is a bfloat16 neighbour, up to 2^-7 off: no bytes to compare.
    assert torch.allclose(plain.grad, expected, rtol=0.05)
    assert loss.digits.item() > 0


def test_perturbed_products_leave_plain_weights_alone() -> None:
    run = stochastic.start(mode="paper", seed=10, perturbation=0.0)
    x = run.array(np.eye(2))
    product = x @ np.array([[3.0, 1.0], [0.0, 2.0]])
    assert product.shape == (2, 2)
    moved = stochastic.start(mode="paper", seed=10)
    y = moved.array(np.eye(2))
    samples = (y @ np.array([[3.0, 1.0], [0.0, 2.0]])).samples
    assert np.abs(samples / np.array([[3.0, 1.0], [np.nan, 2.0]]) - 1)[:, [0, 0, 1], [0, 1, 1]].max() < 2.0**-20
    repeated = stochastic.start(mode="paper", seed=10)
    assert (repeated.array(np.eye(2)) @ np.array([[3.0, 1.0], [0.0, 2.0]])).samples.tobytes() == samples.tobytes()


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("samples", {"samples": 1}), ("samples", {"samples": 65}), ("samples", {"samples": 2.5}),
        ("seed", {"seed": -1}),
        ("confidence", {"confidence": 1.0}), ("confidence", {"confidence": math.nan}), ("mode", {"mode": "cestac"}),
        ("counters", {"counters": "all"}), ("format", {"format": 16}), ("dtype", {"format": "float15"}),
        ("cancellation_digits", {"cancellation_digits": math.inf}), ("noise_digits", {"noise_digits": math.nan}),
        ("perturbation", {"perturbation": -0.5}), ("threshold", {"threshold": 1.0}),
    ],
)  # fmt: skip
def test_bad_settings_are_named(name: str, keywords: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{name} must .*\(got "):
        stochastic.start(**keywords)


def test_bad_values_are_named() -> None:
    run, other = stochastic.start(), stochastic.start()
    x = run.array([1.0, 2.0])
    for bad, message in [(lambda: x + other.array(1.0), "same run"), (lambda: x + "text", "array of numbers"),
                         (lambda: run.tensor(torch.tensor([1])), "floating"), (lambda: run.tensor([1.0]), "tensor"),
                         (lambda: run.tensor(torch.eye(2).to_sparse()), "to_dense"), (lambda: x.sum(1), "axis"),
                         (lambda: x.sum(order="random"), "order"), (lambda: x @ x, "right"),
                         (lambda: F.dot(x, x[:1]), "y must"), (lambda: F.apply("gamma", x), "name must be one of"),
                         (lambda: F.where(True, 1.0, 2.0), "x must"),
                         (lambda: x + run.tensor(torch.ones(2)), "StochasticArray")]:  # fmt: skip
        with pytest.raises(InvalidInputError, match=message):
            bad()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_choices_between_values(kind: str) -> None:
    run = stochastic.start(seed=12)

    def make(values: Any) -> StochasticValue:
        return run.array(values) if kind == "numpy" else run.tensor(torch.tensor(values, dtype=torch.float64))

    x = make([1.0, 0.1, math.nan])
    condition = [[True, False, True], [False, True, False]]
    plain = np.array(condition) if kind == "numpy" else torch.tensor(condition)
    chosen = F.where(plain, x, math.nan)
    assert np.isnan(np.asarray(chosen.samples)).tolist() == [[[False, True, True], [True, False, True]]] * 3
    assert F.where(plain, 5.0, x).exact.tolist() == [[True, False, True], [True, True, False]]
    for function in (F.maximum, F.minimum):
        assert np.isnan(np.asarray(function(x, math.nan).samples)).all()
        assert np.isnan(np.asarray(function(x, 3.0).samples)).tolist() == [[False, False, True]] * 3
    assert F.maximum(x, 0.5).exact.tolist() == [True, True, False]
    row = make([[2.0], [3.0]])
    assert F.maximum(row, x)[:, :2].value.tolist() == [[2.0, 2.0], [3.0, 3.0]]
