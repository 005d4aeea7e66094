"""``gemmdesc diff``: what changed between two releases, by answer and by shape."""

from __future__ import annotations

import json as writer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmdesc.cli.output import DIFFERENT, EQUAL, JsonOption, command_line, guarded, print_json, wants_json, writing
from gemmdesc.cli.shapelists import (
    AcceptOption,
    Asked,
    DtypeOption,
    GridOption,
    LayoutOption,
    OutDtypeOption,
    TokensOption,
    numbers,
)
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    from gemmdesc.books import Book
    from gemmdesc.profiles import ChangeKind
    from gemmdesc.reports import DiffReport, ShapeDiff

_NUMERIC = "numeric"
_ANY = "any"


@guarded
def diff(
    context: typer.Context,
    old: Annotated[Path, typer.Argument(help="The earlier profile.")],
    new: Annotated[Path, typer.Argument(help="The later profile.")],
    gate: Annotated[
        str, typer.Option(help="Kinds of change that make the exit code 1: numeric, any, or kinds joined by commas.")
    ] = _NUMERIC,
    shapes: Annotated[
        str | None, typer.Option(help="Also by shape: a list, a module or named, as for record; needs --books.")
    ] = None,
    books: Annotated[
        tuple[Path, Path] | None, typer.Option(help="The books of the earlier and of the later release.")
    ] = None,
    tokens: TokensOption = None,
    grid: GridOption = None,
    dtype: DtypeOption = None,
    out_dtype: OutDtypeOption = None,
    layout: LayoutOption = None,
    accept: AcceptOption = "verified",
    markdown: Annotated[
        Path | None, typer.Option(help="Also write a report, with a map of (m, n) beside it where matplotlib is there.")
    ] = None,
    plot_k: Annotated[str | None, typer.Option(help="The k of the map's panels joined by commas.")] = None,
    json: JsonOption = False,
) -> int:
    """What changed between two profiles; exit code 1 where a gated kind of change is among it."""
    from gemmdesc.profiles import diff_profiles, has_numeric_change, read_profile
    from gemmdesc.reports import DiffReport

    kinds = parse_gate(gate)
    if (shapes is None) is not (books is None):
        raise InvalidInputError("shapes and books must be given together (got one of them)")
    profiles = read_profile(old), read_profile(new)
    report = DiffReport(old=profiles[0], new=profiles[1], changes=diff_profiles(*profiles))
    if shapes is not None and books is not None:
        asked = Asked(source=shapes, tokens=tokens, grid=grid, dtype=dtype, out_dtype=out_dtype, layout=layout)
        report = _with_shapes(report, asked, books, accept)
    if markdown is not None:
        report = _write_markdown(report, markdown, numbers("plot_k", plot_k))
    _print(report, wants_json(context, json))
    by_shape = any(kind in kinds for d in report.shapes for kind in d.kinds)
    # With a list of shapes the question is what becomes of those.
    found = by_shape if report.books is not None else has_numeric_change(report.changes, kinds)
    return DIFFERENT if found else EQUAL


def _with_shapes(report: DiffReport, asked: Asked, paths: tuple[Path, Path], accept: str) -> DiffReport:
    from dataclasses import replace

    from gemmdesc.books import BookReader, read_book
    from gemmdesc.profiles import parse_level
    from gemmdesc.reports import diff_shapes

    level, found = parse_level(accept), (read_book(paths[0]), read_book(paths[1]))
    readers = [
        BookReader(book, profile, accept=level) for book, profile in zip(found, (report.old, report.new), strict=True)
    ]
    diffs: tuple[ShapeDiff, ...] = diff_shapes(asked.shapes(), *readers)
    both: tuple[Book, Book] = found
    return replace(report, books=both, shapes=diffs)


def _write_markdown(report: DiffReport, path: Path, ks: tuple[int, ...]) -> DiffReport:
    from dataclasses import replace

    from gemmdesc.reports import can_plot, diff_markdown, plot_panels, plot_regions

    picture = path.with_suffix(".png")
    with writing("markdown", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not can_plot() and plot_panels(report.shapes, ks):
            typer.echo("no map: matplotlib is not installed; `pip install gemmdesc[plot]` brings it", err=True)
        elif report.shapes:
            title = f"cuBLASLt {report.old.library.version} to {report.new.library.version}"
            panels = plot_regions(report.shapes, picture, title, ks)
            report = replace(report, plot=picture.name if panels else "", panels=panels)
        path.write_text(diff_markdown(report, command_line()), encoding="utf-8")
    return report


def _print(report: DiffReport, json: bool) -> None:
    from gemmdesc.profiles import changes_json, changes_text
    from gemmdesc.reports import shape_counts, shapes_json, shapes_text

    if json:
        rows = changes_json(report.changes)
        if report.books is None:
            typer.echo(rows)
            return
        counts = shape_counts(report.shapes)
        print_json({"rows": writer.loads(rows), "shape_counts": counts, "shapes": shapes_json(report.shapes)})
        return
    if report.books is not None:
        typer.echo(shapes_text(report.shapes))
    typer.echo(changes_text(report.changes) or "no change\n", nl=False)


def parse_gate(text: str) -> frozenset[ChangeKind]:
    """The kinds that ``--gate`` names.

    Raises:
        InvalidInputError: a word is no kind.
    """
    from gemmdesc.profiles import NUMERIC_KINDS, ChangeKind

    if text == _NUMERIC:
        return NUMERIC_KINDS
    if text == _ANY:
        return frozenset(ChangeKind)
    try:
        return frozenset(ChangeKind(word.strip()) for word in text.split(","))
    except ValueError:
        known = ", ".join(kind.value for kind in ChangeKind)
        raise InvalidInputError(f"gate must be {_NUMERIC}, {_ANY}, or some of {known} (got {text!r})") from None
