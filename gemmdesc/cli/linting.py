"""``gemmdesc lint``: what a user should know about the products of a model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdesc.cli.output import (
    DIFFERENT,
    EQUAL,
    JsonOption,
    Progress,
    command_line,
    guarded,
    print_json,
    print_table,
    wants_json,
    writing,
)
from gemmdesc.cli.shapelists import (
    AcceptOption,
    Asked,
    DtypeOption,
    LayoutOption,
    LibraryOption,
    OutDtypeOption,
    ProfileOption,
    ShapesArgument,
    TokensOption,
    asked_here,
    book_title,
)
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError

if TYPE_CHECKING:
    from gemmdesc.books import Book, BookReader, Shape
    from gemmdesc.lint import FindingKind, LintReport, ShapeReport, Sweep

_DEFAULT, _ANY, _NONE = "default", "any", "none"


@guarded
def lint(
    context: typer.Context,
    shapes: ShapesArgument,
    book: Annotated[Path | None, typer.Option(help="Recorded answers; else the library at hand is asked.")] = None,
    tokens: TokensOption = None,
    dtype: DtypeOption = None,
    out_dtype: OutDtypeOption = None,
    layout: LayoutOption = None,
    library: LibraryOption = None,
    profile: ProfileOption = None,
    accept: AcceptOption = "verified",
    gate: Annotated[
        str,
        typer.Option(
            help="Findings that make the exit code 1: default (lost_tail,narrow_partials), any, none, or kinds joined "
            "by commas."
        ),
    ] = _DEFAULT,
    reproducer: Annotated[
        Path | None, typer.Option(help="Where to write a stand-alone script that shows the smallest lost tail.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Lost tails, sums held in fewer bits than float32, split-K, orders that change with the batch, declines."""
    from gemmdesc.books import open_reader, read_book
    from gemmdesc.lint import lint_shapes
    from gemmdesc.profiles import parse_level

    kinds, level = parse_gate(gate), parse_level(accept)
    asked = Asked(source=shapes, tokens=tokens, dtype=dtype, out_dtype=out_dtype, layout=layout).shapes()
    if book is not None and library is not None:
        raise InvalidInputError(f"library must not be given beside a book, which has its answers (got {library})")
    answers = _answers(asked, library) if book is None else read_book(book)
    reader = open_reader(answers, profile, accept=level)
    if isinstance(reader.profile, Declined):
        raise DeclinedError(reader.profile)
    report = lint_shapes(asked, reader)
    note = "" if reproducer is None else _write_reproducer(report, answers, reproducer)
    if wants_json(context, json):
        print_json(_data(report, reader))
    else:
        _print(report, reader)
    if note:
        typer.echo(note, err=True)
    return DIFFERENT if report.kinds() & kinds else EQUAL


def _answers(asked: tuple[Shape, ...], library: str | None) -> Book:
    from gemmdesc.books import Recording

    with Progress() as progress:
        return asked_here(asked, library, Recording(check=False), command_line(), progress.report).book


def parse_gate(text: str) -> frozenset[FindingKind]:
    """The kinds that ``--gate`` names.

    Raises:
        InvalidInputError: a word is no kind.
    """
    from gemmdesc.lint import DEFAULT_GATE, FindingKind

    words = {_DEFAULT: DEFAULT_GATE, _ANY: frozenset(FindingKind), _NONE: frozenset[FindingKind]()}
    if text in words:
        return words[text]
    try:
        return frozenset(FindingKind(word.strip()) for word in text.split(","))
    except ValueError:
        known = ", ".join(kind.value for kind in FindingKind)
        raise InvalidInputError(f"gate must be {', '.join(words)}, or some of {known} (got {text!r})") from None


def _write_reproducer(report: LintReport, book: Book, path: Path) -> str:
    from gemmdesc.lint import reproducer

    losing = [r for r in report.shapes if r.lost_tail]
    if not losing:
        return f"reproducer: no product of the list loses a tail; {path} was not written"
    smallest = min(losing, key=lambda r: (r.shape.m * r.shape.n * r.shape.k, r.shape.k))
    with writing("reproducer", path):
        path.write_text(reproducer(smallest, book, path.name), encoding="utf-8")
    return f"reproducer: {path}, for {smallest.shape}"


def _data(report: LintReport, reader: BookReader) -> dict[str, Any]:
    book = reader.book
    counts = Counter(f.kind.value for r in report.shapes for f in r.findings)
    return {
        "card": book.device.name or book.device.folder,
        "key": book.key,
        "counts": {"shapes": len(report.shapes), **dict(sorted(counts.items()))},
        "shapes": [_shape_data(r) for r in report.shapes],
        "sweeps": [_sweep_data(s) for s in report.sweeps],
    }


def _plain(shape: Shape) -> dict[str, Any]:
    from gemmdesc.plain import to_plain

    data: dict[str, Any] = to_plain(shape)
    return data


def _shape_data(report: ShapeReport) -> dict[str, Any]:
    from gemmdesc.lint.words import order_text
    from gemmdesc.text import to_text

    desc = report.descriptor
    return {
        **_plain(report.shape),
        "order": None if desc is None else order_text(desc, report.shape.k),
        "descriptor": None if desc is None else to_text(desc),
        "lost_tail": report.lost_tail,
        "findings": [{"kind": f.kind.value, "message": f.message} for f in report.findings],
    }


def _sweep_data(sweep: Sweep) -> dict[str, Any]:
    runs = [{"m_min": r.low, "m_max": r.high, "digest": r.digest, "order": r.order} for r in sweep.runs]
    return {**_plain(sweep.shape), "orders": sweep.orders, "changes_at_m": list(sweep.changes), "runs": runs}


def _print(report: LintReport, reader: BookReader) -> None:
    from gemmdesc.lint import FindingKind
    from gemmdesc.lint.words import order_text

    counts = Counter(f.kind.value for r in report.shapes for f in r.findings)
    rows = [
        (r.shape.label, str(r.shape), f.kind.value, f.message,
         "" if r.descriptor is None else order_text(r.descriptor, r.shape.k))
        for r in report.shapes
        for f in r.findings
        if f.kind is not FindingKind.ORDER_CHANGES_OVER_M  # the second table has these
    ]  # fmt: skip
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing to report"
    title = f"{book_title(reader.book)}: {len(report.shapes)} products, {found}"
    print_table(title, ("layer", "product", "finding", "what", "order"), rows)
    moving = [
        (s.shape.label, f"n={s.shape.n} k={s.shape.k} {s.shape.layout}", f"{r.low}..{r.high}", r.order)
        for s in report.sweeps
        if s.orders > 1
        for r in s.runs
    ]
    if moving:
        print_table("order of a row's sum over the batch sizes m", ("layer", "product", "m", "order"), moving)
