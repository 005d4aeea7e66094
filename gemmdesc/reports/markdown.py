"""A diff as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmdesc.books import Book
from gemmdesc.profiles import Change, ChangeKind, Profile, profile_digest
from gemmdesc.reports.shapes import ShapeDiff, shape_counts

#: Rows of a table before it is cut short; the JSON has them all.
_MOST_ROWS = 60
_MOST_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class DiffReport:
    """From one release to another.

    ``books`` and ``shapes``: where answers were recorded.  ``plot``: the picture's path as the page links it, and
    ``panels``, the k that it shows.
    """

    old: Profile
    new: Profile
    changes: tuple[Change, ...]
    books: tuple[Book, Book] | None = None
    shapes: tuple[ShapeDiff, ...] = ()
    plot: str = ""
    panels: tuple[int, ...] = ()


def diff_markdown(report: DiffReport, command: str) -> str:
    """The report as a page; ``command`` is what made it."""
    old, new = report.old.library.version, report.new.library.version
    lines = [f"# cuBLASLt {old} to {new}", "", f"Made by `{command}`.", "", *sources([report.old, report.new])]
    lines += ["", *diff_sections(report, "##")]
    return "\n".join(lines) + "\n"


def sources(profiles: Iterable[Profile]) -> list[str]:
    """What was compared, as a table."""
    rows = [
        (
            str(p.library.version),
            p.device.name or p.device.folder,
            p.device.folder,
            p.library.build_id[:12] or "none",
            len(p.rows),
            profile_digest(p)[:12],
            p.metadata.date,
        )
        for p in profiles
    ]
    return table(("cuBLASLt", "card", "profile", "build-id", "rows", "digest", "date"), rows)


def diff_sections(report: DiffReport, level: str) -> list[str]:
    """By shape, the map, and by answer; ``level`` is the headings' mark."""
    lines: list[str] = []
    if report.books is not None:
        lines += [f"{level} By shape", "", *_by_shape(report), ""]
    lines += [f"{level} By answer", "", *_by_answer(report.changes)]
    return lines


def _by_shape(report: DiffReport) -> list[str]:
    listed = [d for d in report.shapes if d.shape.label != "grid"]
    grid = [d for d in report.shapes if d.shape.label == "grid"]
    lines: list[str] = []
    for what, diffs in (("listed products", listed), ("points of the grid over m and n", grid)):
        if diffs:
            changed = sum(d.numeric for d in diffs)
            lines += [f"{changed} of {len(diffs)} {what} give other bytes.", "", *_counts(diffs), ""]
    if report.plot:
        shown = ", ".join(map(str, report.panels))
        lines += [f"![Where the order changed over m and n, at k = {shown}]({report.plot})", ""]
    rows = [
        (d.shape.label, f"{d.shape.m} x {d.shape.n} x {d.shape.k} {d.shape.layout}", d.shape.dtype.value,
         ", ".join(kind.value for kind in d.kinds), d.old, d.new)
        for d in listed
        if d.kinds
    ]  # fmt: skip
    return [*lines, *table(("layer", "m x n x k", "type", "kind", "old", "new"), rows)]


def _counts(diffs: Sequence[ShapeDiff]) -> list[str]:
    return table(("kind", "shapes"), list(shape_counts(diffs).items()))


def _by_answer(changes: tuple[Change, ...]) -> list[str]:
    if not changes:
        return ["No row changed."]
    counts = Counter(change.kind for change in changes)
    lines = table(("kind", "rows"), [(kind.value, counts[kind]) for kind in ChangeKind if counts[kind]])
    rows = [
        (change.kind.value, f"{family.a_dtype.value} -> {family.d_dtype.value}", answer, change.detail, change.old,
         change.new)
        for change in changes
        for family in (change.key.family,)
        for answer in (" ".join(f"{name}={value}" for name, value in change.key.answer),)
        if change.kind not in (ChangeKind.NEWLY_SUPPORTED, ChangeKind.DROPPED, ChangeKind.NOT_MEASURED)
    ]  # fmt: skip
    return [*lines, "", *table(("kind", "types", "answer", "what", "old", "new"), rows)] if rows else lines


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table, cut short where it is long; no lines where there are no rows."""
    if not rows:
        return []
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        lines += ["", f"{len(rows) - _MOST_ROWS} more rows are left out here; `--json` has them."]
    return lines


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
