"""An examination of a model's or a program's digits, as Markdown and as a page of HTML."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

from gemmdesc.numerics.stochastic.examining import Examination
from gemmdesc.reports.markdown import table

_WORST = 15
_COLUMNS = ("operator", "least digits", "5%", "median", "exact", "zero", "not finite", "iteration", "rounded")
_VALUES = ("value", "elements", "least digits", "median", "exact", "zero", "not finite")


@dataclass(frozen=True, kw_only=True, eq=False)
class StabilityReport:
    """``settings``: what was run, in words.  ``plot``: the picture's path as the page links it, or empty."""

    title: str
    command: str
    settings: str
    found: Examination
    plot: str = ""


def stability_markdown(report: StabilityReport) -> str:
    """The report as a Markdown page."""
    lines = [f"# {report.title}", "", f"Made by `{report.command}`: {report.settings}.", "", verdict(report.found), ""]
    for title, columns, rows in _tables(report):
        lines += [f"## {title}", "", *table(columns, rows), ""]
    if report.plot:
        lines += [f"![Digits over iterations]({report.plot})", ""]
    return "\n".join(lines)


def stability_html(report: StabilityReport) -> str:
    """The report as one page of HTML without scripts; everything that names something of the user's is escaped."""
    parts = [f"<h1>{html.escape(report.title)}</h1>"]
    parts.append(f"<p>Made by <code>{html.escape(report.command)}</code>: {html.escape(report.settings)}.</p>")
    parts.append(f"<p>{html.escape(verdict(report.found))}</p>")
    for title, columns, rows in _tables(report):
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
        parts.append(f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{body}</table>")
    if report.plot:
        parts.append(f'<img src="{html.escape(report.plot, quote=True)}" alt="Digits over iterations">')
    style = "body{font:15px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc}"
    title = html.escape(report.title)
    head = f'<meta charset="utf-8"><title>{title}</title><style>{style}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def verdict(found: Examination) -> str:
    """One sentence: what lost its digits."""
    names = found.unstable
    if not names:
        return f"Nothing fell below {found.threshold:g} digits, and everything was finite."
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"Below {found.threshold:g} digits or not finite: {listed}."


def _tables(report: StabilityReport) -> list[tuple[str, tuple[str, ...], list[tuple[Any, ...]]]]:
    found = report.found
    tables: list[tuple[str, tuple[str, ...], list[tuple[Any, ...]]]] = []
    worst: list[tuple[Any, ...]] = [
        (r["name"], _digits(r, "least"), _digits(r, "low"), _digits(r, "median"), _share(r["exact_share"]),
         _share(r["zero_share"]), _share(r["nonfinite_share"]), r["iteration"], r["rounded"])
        for r in found.tracker.worst(_WORST)
    ]  # fmt: skip
    if worst:
        tables.append(("Operators with the fewest digits", _COLUMNS, worst))
    if found.values:
        rows: list[tuple[Any, ...]] = [
            (v["name"], v["elements"], _digits(v, "least"), _digits(v, "median"), _share(v["exact_share"]),
             _share(v["zero_share"]), _share(v["nonfinite_share"]))
            for v in found.values
        ]  # fmt: skip
        tables.append(("Values", _VALUES, rows))
    counted: list[tuple[Any, ...]] = [(kind, count) for kind, count in found.counts.items() if count]
    if counted:
        tables.append(("Instabilities counted", ("kind", "elements"), counted))
    return tables


def _digits(row: dict[str, Any], name: str) -> str:
    """A field of digits; where no element is left to have any, what the elements are."""
    if not math.isnan(row[name]):
        return f"{row[name]:.2f}"
    return "not finite" if row["nonfinite_share"] else "zero" if row["zero_share"] else "exact"


def _share(value: float) -> str:
    return "" if not value or math.isnan(value) else f"{value:.1%}"
