"""Classical formulas, stable and not: the cases of arXiv 2607.25494, section 4.2 (eqs. 30 to 37, table 2).

What the paper leaves open is chosen here: constants are stochastic values as well (the published digits of 1 - cos x
need that); the rotation is the first component of Q(pi/4) (1, 2); a fourth power is a product, from left to right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.run import StochasticRun


@dataclass(frozen=True, kw_only=True)
class Case:
    """``compute``: from a run to one stochastic value.  ``exact``: its value in real arithmetic."""

    name: str
    stable: bool
    compute: Callable[[StochasticRun], Any]
    exact: float


def _exp(run: StochasticRun) -> Any:
    return F.exp(run.array(1e-11)) - run.array(1.0)


def _expm1(run: StochasticRun) -> Any:
    return F.expm1(run.array(1e-11))


def _roots(run: StochasticRun) -> Any:
    x, one = run.array(1e14), run.array(1.0)
    return F.sqrt(x + one) - F.sqrt(x)


def _roots_rationalised(run: StochasticRun) -> Any:
    x, one = run.array(1e14), run.array(1.0)
    return one / (F.sqrt(x + one) + F.sqrt(x))


def _cosine(run: StochasticRun) -> Any:
    return run.array(1.0) - F.cos(run.array(1e-6))


def _cosine_by_sine(run: StochasticRun) -> Any:
    two = run.array(2.0)
    half = F.sin(run.array(1e-6) / two)
    return two * (half * half)


def _quadratic(run: StochasticRun) -> Any:
    b, two, four = run.array(-1e6), run.array(2.0), run.array(4.0)
    return (-b - F.sqrt(b * b - four)) / two


def _quadratic_vieta(run: StochasticRun) -> Any:
    b, two, four = run.array(-1e6), run.array(2.0), run.array(4.0)
    return two / (-b + F.sqrt(b * b - four))


def _rotation(run: StochasticRun) -> Any:
    angle = run.array(math.pi / 4)
    return F.cos(angle) * run.array(1.0) - F.sin(angle) * run.array(2.0)


def rump(run: StochasticRun, x: float, y: float) -> Any:
    """9 x^4 - y^4 + 2 y^2."""
    u, v, nine, two = (run.array(c) for c in (x, y, 9.0, 2.0))
    return nine * u * u * u * u - v * v * v * v + two * v * v


def solve_without_pivoting(rows: list[Any]) -> list[Any]:
    """Gaussian elimination on augmented rows (n values of n + 1 elements each), and back substitution."""
    n = len(rows)
    rows = list(rows)
    for i in range(n - 1):
        for j in range(i + 1, n):
            factor = rows[j][i] / rows[i][i]
            rows[j] = rows[j] - factor.reshape(1) * rows[i]
    solution: list[Any] = [None] * n
    for i in reversed(range(n)):
        rest = rows[i][n]
        for j in range(i + 1, n):
            rest = rest - rows[i][j] * solution[j]
        solution[i] = rest / rows[i][i]
    return solution


def _hilbert(run: StochasticRun) -> Any:
    i = np.arange(12)
    matrix = 1.0 / (i[:, None] + i[None, :] + 1.0)
    rows = np.concatenate([matrix, matrix.sum(1, keepdims=True)], 1)
    return solve_without_pivoting([run.array(row) for row in rows])[6]


def _vandermonde(run: StochasticRun) -> Any:
    nodes = 0.99 + 0.02 * np.arange(8) / 7
    matrix = nodes[:, None] ** np.arange(8)
    right = (matrix * np.arange(1.0, 9.0)).sum(1, keepdims=True)
    return solve_without_pivoting([run.array(row) for row in np.concatenate([matrix, right], 1)])[4]


#: Name -> formula pairs in the order of the paper's table.
CASES = (
    Case(name="expm1, exp(x) - 1", stable=False, compute=_exp, exact=math.expm1(1e-11)),
    Case(name="expm1, expm1(x)", stable=True, compute=_expm1, exact=math.expm1(1e-11)),
    Case(name="sqrt difference, direct", stable=False, compute=_roots, exact=5e-8),
    Case(name="sqrt difference, rationalised", stable=True, compute=_roots_rationalised, exact=5e-8),
    Case(name="1 - cos x, direct", stable=False, compute=_cosine, exact=2 * math.sin(5e-7) ** 2),
    Case(name="1 - cos x, 2 sin^2(x/2)", stable=True, compute=_cosine_by_sine, exact=2 * math.sin(5e-7) ** 2),
    Case(name="quadratic root, formula", stable=False, compute=_quadratic, exact=1.000000000001e-6),
    Case(name="quadratic root, Vieta", stable=True, compute=_quadratic_vieta, exact=1.000000000001e-6),
    Case(name="rotation", stable=True, compute=_rotation, exact=-math.sqrt(0.5)),
    Case(name="Hilbert 12 x 12, no pivot", stable=False, compute=_hilbert, exact=1.0),
    Case(name="Vandermonde, no pivot", stable=False, compute=_vandermonde, exact=5.0),
    Case(name="Rump (10864, 18817)", stable=False, compute=lambda run: rump(run, 10864.0, 18817.0), exact=1.0),
    Case(name="Rump (1/3, 2/3)", stable=True, compute=lambda run: rump(run, 1 / 3, 2 / 3), exact=65 / 81),
)
