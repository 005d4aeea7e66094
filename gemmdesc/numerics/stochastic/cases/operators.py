"""Operators of networks in stable and unstable pairs: the cases of arXiv 2607.25494, eqs. 38 to 51 (table 3).

The paper leaves sizes and draws open; here they are 32 features, 64 signal points, and standard normal draws from the
given generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.run import StochasticRun

_FEATURES = 32
_POINTS = 64
_LARGE = 1e8


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """``compute``: from a run and a NumPy generator, for the inputs, to a stochastic output."""

    category: str
    name: str
    stable: bool
    compute: Callable[[StochasticRun, np.random.Generator], Any]


def softmax(logits: Any, *, shifted: bool) -> Any:
    """Of a vector; ``shifted`` by its largest element first, as it should be."""
    powers = F.exp(logits - _largest(logits) if shifted else logits)
    return powers / powers.sum()


def log_softmax(logits: Any) -> Any:
    """Of a vector, shifted by its largest element."""
    moved = logits - _largest(logits)
    return moved - F.log(F.exp(moved).sum())


def _largest(vector: Any) -> Any:
    largest = vector[0]
    for i in range(1, len(vector)):
        largest = F.maximum(largest, vector[i])
    return largest


def layer_norm(x: Any, epsilon: float) -> Any:
    """Of a vector: the mean off, over the root of the variance plus ``epsilon``."""
    centred = x - F.mean(x)
    return centred / F.sqrt(F.mean(centred * centred) + epsilon)


def attention(query: Any, keys: list[Any], values: list[Any]) -> Any:
    """One query over two keys, scores over the root of the width."""
    width = float(np.sqrt(query.shape[0]))
    scores = [F.dot(query, key) / width for key in keys]
    largest = F.maximum(*scores)
    powers = [F.exp(score - largest) for score in scores]
    total = powers[0] + powers[1]
    return (powers[0] / total) * values[0] + (powers[1] / total) * values[1]


def convolve(signal: Any, filter_: np.ndarray[Any, Any]) -> Any:
    """Correlation with a plain filter, no padding, as a product of matrices."""
    taps = len(filter_)
    places = np.arange(len(signal) - taps + 1)[:, None] + np.arange(taps)[None, :]
    return (signal[places] @ filter_[:, None])[:, 0]


def _logits(run: StochasticRun, rng: np.random.Generator) -> Any:
    return run.array(1e3 + rng.standard_normal(16))


def _sine(rng: np.random.Generator) -> Any:
    return np.sin(2 * np.pi * np.arange(_POINTS) / 16) + 2.0 + 0.01 * rng.standard_normal(_POINTS)


def _separated(run: StochasticRun, rng: np.random.Generator) -> Any:
    query = run.array(np.ones(4))
    return attention(query, [query, run.array(-np.ones(4))], [run.array([1.0, -1.0]), run.array([-1.0, 1.0])])


def _near_tie(run: StochasticRun, rng: np.random.Generator) -> Any:
    query, near = np.ones(4), np.ones(4)
    near[0] -= 2.0**-28
    keys = [run.array(query), run.array(near)]
    return attention(run.array(query), keys, [run.array([1.0, -1.0]), run.array([-1.0, 1.0])])


def _orthogonal(run: StochasticRun, rng: np.random.Generator) -> Any:
    matrix, _ = np.linalg.qr(rng.standard_normal((_FEATURES, _FEATURES)))
    return run.array(rng.standard_normal((1, _FEATURES))) @ matrix


def _cancelling(run: StochasticRun, rng: np.random.Generator) -> Any:
    x = run.array([[_LARGE + delta, _LARGE] for delta in (1.0, 2.0, 4.0)])
    return x @ np.array([[1.0], [-1.0]])


def _alternating(run: StochasticRun, rng: np.random.Generator) -> Any:
    pairs = np.stack([np.full(256, _LARGE), np.full(256, 1.0 - _LARGE)], 1)
    return run.array(pairs.ravel()).sum()


def _differences(run: StochasticRun, rng: np.random.Generator) -> Any:
    return convolve(run.array(_LARGE + rng.standard_normal(_POINTS)), np.array([1.0, -1.0]))


OPERATORS = (
    OperatorCase(category="softmax", name="naive softmax, logits near 1e3", stable=False,
                 compute=lambda run, rng: softmax(_logits(run, rng), shifted=False)),
    OperatorCase(category="softmax", name="shifted softmax, same logits", stable=True,
                 compute=lambda run, rng: softmax(_logits(run, rng), shifted=True)),
    OperatorCase(category="softmax", name="log-softmax, shifted", stable=True,
                 compute=lambda run, rng: log_softmax(_logits(run, rng))),
    OperatorCase(category="normalization", name="LayerNorm, regular variance", stable=True,
                 compute=lambda run, rng: layer_norm(run.array(rng.standard_normal(_FEATURES)), 1e-5)),
    OperatorCase(category="normalization", name="LayerNorm, near constant", stable=False,
                 compute=lambda run, rng: layer_norm(run.array(1 + 2.0**-22 * rng.standard_normal(_FEATURES)), 1e-12)),
    OperatorCase(category="attention", name="separated logits", stable=True, compute=_separated),
    OperatorCase(category="attention", name="near tie", stable=False, compute=_near_tie),
    OperatorCase(category="convolution", name="smoothing", stable=True,
                 compute=lambda run, rng: convolve(run.array(_sine(rng)), np.array([0.25, 0.5, 0.25]))),
    OperatorCase(category="convolution", name="difference of a large signal", stable=False, compute=_differences),
    OperatorCase(category="linear", name="orthogonal map", stable=True, compute=_orthogonal),
    OperatorCase(category="linear", name="cancelling map", stable=False, compute=_cancelling),
    OperatorCase(category="reduction", name="positive sum", stable=True,
                 compute=lambda run, rng: run.array(rng.uniform(1, 2, 256)).sum()),
    OperatorCase(category="reduction", name="alternating sum", stable=False, compute=_alternating),
)  # fmt: skip
