"""A map of where the order changed: a panel for each k, the sizes m and n on its axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.reports.shapes import DECLINED_BOTH, SAME, ShapeDiff

#: Fewer shapes of one k make no map.
_FEWEST = 9
_PANELS = 4
_DPI = 80
#: Okabe and Ito's palette, which colour-blind readers can tell apart; what did not change stays in the background.
_COLOURS = {
    SAME: "#dddddd",
    "renamed_same_order": "#999999",
    "order_changed": "#d55e00",
    "split_changed": "#0072b2",
    "merge_type_changed": "#cc79a7",
    "accumulator_changed": "#000000",
    "newly_supported": "#009e73",
    "dropped": "#e69f00",
    "not_measured": "#f0e442",
    DECLINED_BOTH: "#f7f7f7",
}


def can_plot() -> bool:
    """Whether matplotlib, the extra ``plot``, is installed."""
    return find_spec("matplotlib") is not None


def plot_panels(diffs: Iterable[ShapeDiff], ks: Sequence[int] = ()) -> tuple[int, ...]:
    """The k that get a panel: those of ``ks``, by default up to four with the most pairs (m, n), ascending."""
    pairs = {(d.shape.k, d.shape.m, d.shape.n) for d in diffs}
    counts = Counter(k for k, _, _ in pairs)
    if ks:
        missing = sorted(set(ks) - set(counts))
        if missing:
            raise InvalidInputError(f"ks must be inner sizes of the shapes compared (got {missing})")
        return tuple(dict.fromkeys(ks))
    mapped = [(count, k) for k, count in counts.items() if count >= _FEWEST]
    return tuple(sorted(k for _, k in sorted(mapped, key=lambda x: (-x[0], x[1]))[:_PANELS]))


def plot_regions(diffs: Sequence[ShapeDiff], path: Path, title: str, ks: Sequence[int] = ()) -> tuple[int, ...]:
    """Write a small PNG to ``path``; returns the k that it shows, none (and no file) where no k has enough shapes.

    Raises:
        InvalidInputError: matplotlib is not installed, or ``ks`` names an inner size that no shape has.
    """
    panels = plot_panels(diffs, ks)
    if not panels:
        return ()
    if not can_plot():
        raise InvalidInputError("plot must have matplotlib, which `pip install gemmdesc[plot]` brings (got none)")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(panels), 4.0), dpi=_DPI, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    seen: dict[str, Any] = {}
    for axis, k in zip(axes, panels, strict=True):
        _panel(axis, [d for d in diffs if d.shape.k == k], seen)
        axis.set(title=f"k = {k}", xlabel="n", xscale="log", yscale="log")
    axes[0].set_ylabel("m")
    names = [name for name in _COLOURS if name in seen]
    figure.legend(
        [seen[name] for name in names], [name.replace("_", " ") for name in names],
        loc="outside lower center", ncols=min(len(names), 2 * len(panels)), frameon=False, fontsize="small",
    )  # fmt: skip
    figure.suptitle(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
    return panels


def _panel(axis: Any, diffs: Sequence[ShapeDiff], seen: dict[str, Any]) -> None:
    for name, colour in _COLOURS.items():
        points = [d.shape for d in diffs if d.name == name]
        if points:
            drawn = axis.scatter(
                [p.n for p in points], [p.m for p in points], s=26, marker="s", c=colour, linewidths=0.2,
                edgecolors="#666666",
            )  # fmt: skip
            seen.setdefault(name, drawn)
