"""Reports for people: what changed between releases, by answer and by shape, as Markdown with a plot."""

from gemmdesc.reports.markdown import DiffReport, diff_markdown
from gemmdesc.reports.plot import can_plot, plot_panels, plot_regions
from gemmdesc.reports.releases import ReleaseReport, read_releases, release_report, releases_markdown
from gemmdesc.reports.shapes import ShapeDiff, diff_shapes, shape_counts, shapes_json, shapes_text

__all__ = [
    "DiffReport",
    "ReleaseReport",
    "ShapeDiff",
    "can_plot",
    "diff_markdown",
    "diff_shapes",
    "plot_panels",
    "plot_regions",
    "read_releases",
    "release_report",
    "releases_markdown",
    "shape_counts",
    "shapes_json",
    "shapes_text",
]
