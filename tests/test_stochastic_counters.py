"""Counters of instabilities: each kind on an operation that shows it, and none on one that does not."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic import Kind
from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.run import StochasticRun
from gemmdesc.numerics.stochastic.values import StochasticValue


def noise(run: StochasticRun, size: int = 1) -> StochasticValue:
    """Differences of equal reals that were rounded apart."""
    third = run.array(np.full(size, 1e6 / 3))
    value = (third + 0.1) - third - 0.1
    run.counters.clear()
    return value


def counted(level: str = "summary", seed: int = 1) -> StochasticRun:
    return stochastic.start(seed=seed, counters=level)


def test_cancellation() -> None:
    run = counted()
    x = run.array([1.0 / 3, 2.0])
    y = x * 3.0 - 1.0
    assert run.counters.counts[Kind.CANCELLATION] == 1
    assert y.exact.tolist() == [False, True]
    x + x
    assert run.counters.total == 1


def test_division_multiplication_power_and_intrinsic() -> None:
    run = counted()
    zero = noise(run)
    1.0 / zero
    assert run.counters.counts[Kind.DIVISION] == 1
    run.counters.clear()
    zero * zero
    zero * 2.0
    assert run.counters.counts[Kind.MULTIPLICATION] == 1
    run.counters.clear()
    run.array([2.0]) ** zero
    assert run.counters.counts[Kind.POWER] == 1
    run.counters.clear()
    abs(zero)
    F.sin(zero)
    assert run.counters.counts[Kind.INTRINSIC] == 2
    run.counters.clear()
    F.sin(run.array([0.5]))
    abs(run.array([-0.5]))
    assert run.counters.total == 0


def test_mathematical_counts_elements_and_comes_first() -> None:
    run = counted()
    broken = F.log(run.array([-1.0, 0.0, 1.0]))
    assert run.counters.counts == dict.fromkeys(Kind, 0) | {Kind.MATHEMATICAL: 2}
    # What is broken already is not counted again.
    broken + 1.0
    assert run.counters.total == 2


def test_branching() -> None:
    run = counted()
    zero = noise(run, 3)
    taken = zero > 0.0
    assert not taken.any()
    assert run.counters.counts[Kind.BRANCHING] == 3


def test_levels_and_places() -> None:
    off = counted("off")
    1.0 / noise(off)
    assert off.counters.total == 0
    detailed = counted("detailed")
    zero = noise(detailed)
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    1.0 / zero
    (event,) = detailed.counters.events
    assert event == stochastic.Event(kind=Kind.DIVISION, operation="div", elements=1, place=f"{__file__}:{line}")
    summary = counted()
    1.0 / noise(summary)
    assert summary.counters.events == ()
    assert summary.counters.counts == detailed.counters.counts


@pytest.mark.parametrize("seed", range(4))
def test_counts_do_not_change_the_samples(seed: int) -> None:
    outputs = []
    for level in ("off", "summary", "detailed"):
        run = counted(level, seed)
        x = run.tensor(torch.linspace(-1, 1, 9, dtype=torch.float64))
        outputs.append((F.exp(x * 3.0) - x / 7.0).samples.numpy().tobytes())
    assert outputs[0] == outputs[1] == outputs[2]
