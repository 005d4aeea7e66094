"""Digits of operators over iterations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.reports.plot import can_plot

_MOST_LINES = 8
_DPI = 80
#: Okabe and Ito's palette.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def plot_digits(rows: Iterable[dict[str, Any]], path: Path, title: str) -> tuple[str, ...]:
    """Write a PNG: the median and the 5% quantile of digits of the operators with the fewest, over passes in order.

    ``rows``: of a :class:`~gemmdesc.numerics.stochastic.modules.Tracker`.  A pass in which an operator was exact leaves
    a gap.  Returns the names shown, none (and no file) where no operator had inexact elements.

    Raises:
        InvalidInputError: matplotlib is not installed.
    """
    if not can_plot():
        raise InvalidInputError("plot must have matplotlib, which `pip install gemmdesc[plot]` brings (got none)")
    places: dict[tuple[Any, ...], int] = {}
    lines: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for row in rows:
        place = places.setdefault((row["epoch"], row["iteration"], row["phase"]), len(places))
        lines[row["name"]].append((place, row["median"], row["low"]))
    least = {name: min((low for _, _, low in points if not math.isnan(low)), default=math.inf)
             for name, points in lines.items()}  # fmt: skip
    shown = [name for name in sorted(least, key=lambda name: (least[name], name)) if math.isfinite(least[name])]
    if not shown:
        return ()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), dpi=_DPI, layout="constrained")
    axis = figure.subplots()
    for name, colour in zip(shown[:_MOST_LINES], _COLOURS, strict=False):
        xs, middle, low = zip(*lines[name], strict=True)
        mark = "o" if len(xs) < 20 else ""
        axis.plot(xs, middle, color=colour, marker=mark, markersize=3, label=name)
        axis.plot(xs, low, color=colour, linestyle=":", linewidth=1)
    axis.set(xlabel="pass", ylabel="digits (median; dotted: 5% quantile)", title=title)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
    return tuple(shown[:_MOST_LINES])
