"""Every shape's ratio over its operations, a colour for each set."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gemmdesc.errors import InvalidInputError
from gemmdesc.speed.measuring import geometric_mean
from gemmdesc.speed.summary import Collected

#: Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DPI = 100


def plot_ratios(collected: Collected, path: Path) -> int:
    """Write a PNG to ``path``; returns how many shapes it shows, and writes nothing where there are none.

    Raises:
        InvalidInputError: matplotlib is not installed.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for shape in collected.shapes:
        ratios = [r.ratio() for r in collected.rows.get(shape.name, ())]
        mean = geometric_mean(ratio for ratio in ratios if ratio is not None)
        if mean is not None:
            points.setdefault(shape.part, []).append((shape.operations / 1e9, mean))
    if not points:
        return 0
    if find_spec("matplotlib") is None:
        raise InvalidInputError("plot must have matplotlib, which `pip install gemmdesc[plot]` brings (got none)")
    _draw(points, path)
    return sum(map(len, points.values()))


def _draw(points: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), dpi=_DPI, layout="constrained")
    axis = figure.subplots()
    colours: Sequence[str] = _COLOURS
    for i, (part, values) in enumerate(points.items()):
        xs, ys = zip(*values, strict=True)
        axis.scatter(xs, ys, s=14, c=colours[i % len(colours)], label=part.replace("_", " "), linewidths=0)
    axis.axhline(1.0, color="#666666", linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="GFLOP", ylabel="cuBLAS time / ours", title="Equal bytes, device time")
    axis.legend(frameon=False, fontsize="small", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
