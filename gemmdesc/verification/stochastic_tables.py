"""Stochastic arithmetic against published tables: what ``scripts/stochastic_results.py`` measures, as plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from gemmdesc.numerics import stochastic
from gemmdesc.numerics.stochastic.cases.classical import CASES
from gemmdesc.numerics.stochastic.cases.operators import OPERATORS
from gemmdesc.numerics.stochastic.cases.tutorials import PUBLISHED, TUTORIALS

#: Format -> the digits below which the paper calls a result unstable.
THRESHOLDS = {(8, 23): 3.0, (11, 52): 10.0}
#: Table 2 of arXiv 2607.25494, in the order of ``CASES``.
TABLE_2 = {
    (8, 23): (0.0, 6.905, 0.0, 6.352, 0.0, 5.895, 0.0, 6.231, 6.194, 0.0, 0.0, 0.0, 6.973),
    (11, 52): (4.196, 15.0, 0.781, 14.973, 2.773, 14.638, 3.656, 14.978, 14.787, 0.142, 0.0, 0.0, 15.0),
}
#: Table 3's minima, in the order of ``OPERATORS``; sizes and seeds of the paper's are not published.
TABLE_3 = {
    (8, 23): (0.0, 3.487, 3.620, 3.672, 0.0, 6.257, 0.0, 6.225, 0.0, 4.347, 0.0, 5.989, 0.424),
    (11, 52): (0.0, 12.217, 12.347, 12.264, 5.317, 14.840, 5.624, 14.842, 3.880, 12.881, 7.113, 14.424, 8.310),
}
#: Published digits have three decimals.
_HALF_DECIMAL = 5e-4

Row = dict[str, Any]


def classical_digits(mode: str, seeds: int) -> list[Row]:
    """Table 2's cases over ``seeds`` seeds: the published digits beside median and central 99% of ours.

    ``right_by_median``: the median is on its side of the threshold.  ``wrong_share``: seeds that are not.
    """
    rows = []
    for fmt, threshold in THRESHOLDS.items():
        for case, published in zip(CASES, TABLE_2[fmt], strict=True):
            runs = (stochastic.start(format=fmt, mode=mode, seed=s) for s in range(seeds))
            digits = np.array([float(case.compute(run).digits) for run in runs])
            low, middle, high = (float(q) for q in np.quantile(digits, [0.005, 0.5, 0.995]))
            rows.append(
                {
                    "case": case.name,
                    "format": _word(fmt),
                    "stable": case.stable,
                    "published": published,
                    "low": round(low, 3),
                    "median": round(middle, 3),
                    "high": round(high, 3),
                    "inside": low - _HALF_DECIMAL <= published <= high + _HALF_DECIMAL,
                    "right_by_median": bool((middle >= threshold) == case.stable),
                    "wrong_share": round(float(((digits >= threshold) != case.stable).mean()), 4),
                }
            )
    return rows


def operator_digits(mode: str, seeds: int) -> list[Row]:
    """Table 3's cases over ``seeds`` seeds, for directions and inputs: the least digits of an output decide."""
    rows = []
    for fmt, threshold in THRESHOLDS.items():
        for case, published in zip(OPERATORS, TABLE_3[fmt], strict=True):
            least, exact = [], 0
            for seed in range(seeds):
                run = stochastic.start(format=fmt, mode=mode, seed=seed)
                with np.errstate(all="ignore"):
                    value = case.compute(run, np.random.default_rng(seed))
                least.append(float(np.min(value.digits)))
                exact += bool(value.exact.all())
            flagged = sum(d < threshold for d in least)
            rows.append(
                {
                    "operator": f"{case.category}: {case.name}",
                    "format": _word(fmt),
                    "stable": case.stable,
                    "published_min": published,
                    "least": round(min(least), 3),
                    "median": round(float(np.median(least)), 3),
                    "flagged": flagged,
                    "exact": exact,
                    "seeds": seeds,
                }
            )
    return rows


def detection(rows: list[Row]) -> Row:
    """Accuracy, precision and recall of ``flagged`` as a detector of what is not stable, every seed a trial."""
    found: Counter[str] = Counter()
    for row in rows:
        found["unstable, flagged" if not row["stable"] else "stable, flagged"] += row["flagged"]
        found["unstable, passed" if not row["stable"] else "stable, passed"] += row["seeds"] - row["flagged"]
    hits, false = found["unstable, flagged"], found["stable, flagged"]
    return {
        **found,
        "accuracy": round((hits + found["stable, passed"]) / sum(found.values()), 4),
        "precision": round(hits / (hits + false), 4) if hits + false else 0.0,
        "recall": round(hits / (hits + found["unstable, passed"]), 4),
    }


def tutorial_counts(seeds: int) -> list[Row]:
    """Instabilities of CADNA's tutorial programs, the median over ``seeds`` seeds, beside the published totals."""
    rows = []
    for fmt, published in PUBLISHED.items():
        for tutorial, cadna, theirs in zip(TUTORIALS, published.cadna, published.noisefloat, strict=True):
            program = f"{tutorial.number}. {tutorial.title}"
            row = {"program": program, "format": fmt, "cadna": cadna, "noisefloat": theirs}
            for mode in ("default", "paper"):
                totals, kinds = [], Counter[str]()
                for seed in range(seeds):
                    run = stochastic.start(format=fmt, mode=mode, seed=seed, counters="summary")
                    with np.errstate(all="ignore"):
                        tutorial.run(run)
                    totals.append(run.counters.total)
                    kinds.update({kind.value: count for kind, count in run.counters.counts.items()})
                row[f"{mode}_median"] = float(np.median(totals))
                row[f"{mode}_kinds"] = ", ".join(f"{n / seeds:.3g} {kind}" for kind, n in kinds.most_common() if n)
            rows.append(row)
    return rows


def collapsed_share(mode: str, elements: int) -> float:
    """The share of elements, each one inexact rounding, whose three samples agree."""
    x = np.random.default_rng(0).uniform(1, 2, elements)
    samples = stochastic.start(mode=mode, seed=0).array(x).samples
    return float((samples == samples[0]).all(0).mean())


def _word(fmt: tuple[int, int]) -> str:
    return "float32" if fmt == (8, 23) else "float64"
