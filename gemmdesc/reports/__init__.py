"""Reports for people: what changed between releases, by answer and by shape, and what lost its digits; with plots."""

from gemmdesc.reports.markdown import DiffReport, diff_markdown
from gemmdesc.reports.plot import can_plot, plot_panels, plot_regions
from gemmdesc.reports.releases import ReleaseReport, read_releases, release_report, releases_markdown
from gemmdesc.reports.shapes import ShapeDiff, diff_shapes, shape_counts, shapes_json, shapes_text
from gemmdesc.reports.stability import StabilityReport, stability_html, stability_markdown, verdict
from gemmdesc.reports.stability_plot import plot_digits

__all__ = [
    "DiffReport",
    "ReleaseReport",
    "ShapeDiff",
    "StabilityReport",
    "can_plot",
    "diff_markdown",
    "diff_shapes",
    "plot_digits",
    "plot_panels",
    "plot_regions",
    "read_releases",
    "release_report",
    "releases_markdown",
    "shape_counts",
    "shapes_json",
    "shapes_text",
    "stability_html",
    "stability_markdown",
    "verdict",
]
