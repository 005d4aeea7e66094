"""The seven programs of CADNA's tutorial, written for stochastic values, with the instabilities that they met.

The programs are described in the CADNA user's guide (https://cadna.lip6.fr); ``PUBLISHED`` holds the totals that CADNA
and the package of arXiv 2607.25494 report for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.cases.classical import rump
from gemmdesc.numerics.stochastic.run import StochasticRun

Lines = list[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Tutorial:
    """``run``: from a run, whose counters it feeds, to named results, stochastic or plain."""

    number: int
    title: str
    run: Callable[[StochasticRun], Lines]


@dataclass(frozen=True, kw_only=True)
class PublishedTotals:
    """Instabilities of programs 1 to 7 in one precision, as two programs count them."""

    cadna: tuple[int, ...]
    noisefloat: tuple[int, ...]


#: Precision -> totals, from the comparison in the repository of arXiv 2607.25494 (``verifications``).
PUBLISHED = {
    "float32": PublishedTotals(cadna=(1, 1, 48, 7, 336, 2, 376), noisefloat=(1, 1, 48, 9, 346, 1, 328)),
    "float64": PublishedTotals(cadna=(2, 1, 0, 8, 480, 1, 406), noisefloat=(2, 1, 0, 9, 498, 1, 346)),
}


def _rump(run: StochasticRun) -> Lines:
    return [("P(10864, 18817)", rump(run, 10864.0, 18817.0)), ("P(1/3, 2/3)", rump(run, 1 / 3, 2 / 3))]


def _quadratic(run: StochasticRun) -> Lines:
    """0.3 x^2 - 2.1 x + 3.675 = 0, whose discriminant is 0."""
    a, b, c = run.array(0.3), run.array(-2.1), run.array(3.675)
    b, c = b / a, c / a
    discriminant = b * b - 4.0 * c
    if discriminant == 0.0:
        return [("discriminant", discriminant), ("double root", -b * 0.5)]
    if discriminant > 0.0:
        root = F.sqrt(discriminant)
        return [("discriminant", discriminant), ("roots", (-b - root) * 0.5), ("", (-b + root) * 0.5)]
    return [("discriminant", discriminant), ("real part", -b * 0.5), ("imaginary part", F.sqrt(-discriminant) * 0.5)]


def _hilbert_determinant(run: StochasticRun) -> Lines:
    n = 11
    rows = [run.array(1.0 / (i + np.arange(n) + 1.0)) for i in range(n)]
    determinant, lines = run.array(1.0), []
    for i in range(n):
        pivot = rows[i][i]
        lines.append((f"pivot {i + 1}", pivot))
        determinant = determinant * pivot
        if i == n - 1:
            break
        inverse = (1.0 / pivot).reshape(1)
        scaled = rows[i][i + 1 :] * inverse
        for j in range(i + 1, n):
            factor = rows[j][i : i + 1]
            rest = rows[j][i + 1 :] - factor * scaled
            rows[j] = rows[j].made(
                np.concatenate([rows[j].samples[:, : i + 1], rest.samples], 1),
                np.concatenate([rows[j].exact[: i + 1], rest.exact]),
            )
    return [*lines, ("determinant", determinant)]


def _muller(run: StochasticRun) -> Lines:
    """u(n + 1) = 111 - 1130 / u(n) + 3000 / (u(n) u(n - 1)): the limit is 6, every rounding leads to 100."""
    a, b = run.array(5.5), run.array(61.0) / 11.0
    lines = []
    for i in range(3, 31):
        a, b = b, 111.0 - 1130.0 / b + 3000.0 / (a * b)
        lines.append((f"U({i})", b))
    return lines


def _newton(run: StochasticRun) -> Lines:
    """1.47 x^3 + 1.19 x^2 - 1.83 x + 0.45 = 0 from x = 0.5 on, a double root."""
    y, step, count = run.array(0.5), run.array(1.0), 0
    while count < 100 and not step < 1e-12:
        x, count = y, count + 1
        value = 1.47 * x**3 + 1.19 * x**2 - 1.83 * x + 0.45
        y = x - value / (4.41 * x**2 + 2.38 * x - 1.83)
        step = abs(x - y)
    return [(f"x({count})", y), ("step", step)]


def _gauss(run: StochasticRun) -> Lines:
    """A 4 x 4 system with partial pivoting, where noise can be chosen as a pivot."""
    system = np.array([[21.0, 130.0, 0.0, 2.1, 153.1], [13.0, 80.0, 4.74e8, 752.0, 849.74],
                       [0.0, -0.4, 3.9816e8, 4.2, 7.7816], [0.0, 0.0, 1.7, 9.0e-9, 2.6e-8]])  # fmt: skip
    n = len(system)
    rows = [[run.array(x) for x in row] for row in system]
    for i in range(n - 1):
        largest, place = run.array(0.0), i
        for j in range(i, n):
            size = abs(rows[j][i])
            if size > largest:
                largest, place = size, j
        rows[i], rows[place] = rows[place], rows[i]
        inverse = 1.0 / rows[i][i]
        rows[i] = [*rows[i][: i + 1], *(x * inverse for x in rows[i][i + 1 :])]
        for k in range(i + 1, n):
            factor = rows[k][i]
            pairs = zip(rows[k][i + 1 :], rows[i][i + 1 :], strict=True)
            rows[k] = [*rows[k][: i + 1], *(x - factor * y for x, y in pairs)]
    solution = [row[n] for row in rows]
    solution[n - 1] = solution[n - 1] / rows[n - 1][n - 1]
    for i in reversed(range(n - 1)):
        for j in range(i + 1, n):
            solution[i] = solution[i] - rows[i][j] * solution[j]
    return [(f"x({i + 1})", x) for i, x in enumerate(solution)]


_JACOBI = (1.7, -4746.89, 50.23, -245.32, 4778.29, -75.73, 3495.43, 4.35, 452.98, -2.76, 8239.24, 3.46, 1000.0, -5.0,
           3642.4, 735.36, 1.7, -2349.17, -8247.52, 9843.57)  # fmt: skip


def _jacobi(run: StochasticRun) -> Lines:
    """Twenty unknowns, at most 1,000 sweeps, until the largest change is below 1e-4."""
    n, state = len(_JACOBI), 23
    plain = np.empty(n * n)
    for i in range(n * n):
        state = (state * 5363 + 143) % 1387
        plain[i] = 2.0 * state / 1387.0 - 1.0
    diagonal = np.eye(n, dtype=bool)
    matrix = F.where(diagonal, run.array(plain.reshape(n, n)) + 4.5 * diagonal, run.array(plain.reshape(n, n)))
    right = (matrix * run.array(np.array(_JACOBI))).sum(1)
    others, own = F.where(~diagonal, matrix, 0.0), matrix[np.arange(n), np.arange(n)]
    y, moving, sweeps = run.array(np.full(n, 10.0)), True, 0
    while sweeps < 1000 and moving:
        x, rest, sweeps = y, right, sweeps + 1
        for k in range(n):
            # The diagonal's zero makes this step exact where a loop would leave it out.
            rest = rest - others[:, k] * x[k]
        y = rest / own
        moving = bool((abs(x - y) > 1e-4).any())
    return [("sweeps", sweeps), *((f"x({i + 1})", y[i]) for i in range(n))]


TUTORIALS = (
    Tutorial(number=1, title="Rump's polynomial", run=_rump),
    Tutorial(number=2, title="second-order equation", run=_quadratic),
    Tutorial(number=3, title="determinant of a Hilbert matrix", run=_hilbert_determinant),
    Tutorial(number=4, title="Muller's recurrence", run=_muller),
    Tutorial(number=5, title="Newton's method at a double root", run=_newton),
    Tutorial(number=6, title="Gaussian elimination with pivoting", run=_gauss),
    Tutorial(number=7, title="Jacobi iteration", run=_jacobi),
)
