"""``gemmdesc record``, and the replay of what it recorded."""

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
    first_lines,
    guarded,
    print_json,
    print_table,
    wants_json,
    writing,
)
from gemmdesc.cli.shapelists import (
    Asked,
    DtypeOption,
    GridOption,
    LayoutOption,
    LibraryOption,
    OutDtypeOption,
    ShapesArgument,
    TokensOption,
    asked_here,
    book_title,
)

if TYPE_CHECKING:
    from gemmdesc.books import Book, Entry, EntryReplay
    from gemmdesc.books.recording import Recorded

#: Declines and differences that a table's note lists.
_LISTED = 20


@guarded
def record(
    context: typer.Context,
    shapes: ShapesArgument,
    out: Annotated[
        Path | None, typer.Option(help="The book's file; by default <sm>-<SMs>-cublaslt-<version>.book, here.")
    ] = None,
    tokens: TokensOption = None,
    grid: GridOption = None,
    dtype: DtypeOption = None,
    out_dtype: OutDtypeOption = None,
    layout: LayoutOption = None,
    library: LibraryOption = None,
    bytes_: Annotated[
        bool, typer.Option("--bytes/--no-bytes", help="Keep some bytes of each product, for replay --book.")
    ] = True,
    launches: Annotated[bool, typer.Option(help="Keep what each answer enqueues.")] = True,
    json: JsonOption = False,
) -> None:
    """Store a library's answers for a model's products as a book, bound to its card and release."""
    from gemmdesc.books import Recording, write_book

    asked = Asked(source=shapes, tokens=tokens, grid=grid, dtype=dtype, out_dtype=out_dtype, layout=layout).shapes()
    with Progress() as progress:
        recording = Recording(check=bytes_, launches=launches)
        recorded = asked_here(asked, library, recording, command_line(), progress.report)
    book = recorded.book
    path = out or Path(f"{book.device.folder}-cublaslt-{book.library.version}.book")
    with writing("out", path):
        write_book(book, path)
    _print_recorded(recorded, len(asked), path, wants_json(context, json))


def _print_recorded(recorded: Recorded, asked: int, path: Path, json: bool) -> None:
    from gemmdesc.books import book_digest
    from gemmdesc.problem import Refused

    book = recorded.book
    counts = {
        "shapes": asked,
        "problems": len(book.entries),
        "refused": sum(isinstance(e.answer, Refused) for e in book.entries),
        "with_bytes": sum(e.check is not None for e in book.entries),
        "reference_failed": sum(bool(e.failure) for e in book.entries),
        "not_asked": len(recorded.declined),
    }
    declined = [{"shape": str(s), "label": s.label, "code": d.code, "reason": d.reason} for s, d in recorded.declined]
    if json:
        size = path.stat().st_size
        where = {"path": str(path), "bytes": size, "key": book.key, "digest": book_digest(book)}
        print_json({**where, **counts, "declined": declined})
        return
    lines = [f"not asked: {d['shape']} {d['label']}: {d['code']}: {d['reason']}" for d in declined]
    lines = first_lines(lines, _LISTED, "that were not asked")
    print_table(f"{path}: {book_title(book)}", tuple(counts), [tuple(counts.values())], "\n".join(lines))


def replay_books(paths: list[Path], profile: Path | None, accept: str, json: bool) -> int:
    """Replay the products of books; 1 where bytes differ or a product has no rule.

    Raises:
        BookError: a book is none, not whole, or of another card or release than ``profile``.
        DeclinedError: no profile of a book's card and release is at hand.
    """
    data = [_replay_book(path, profile, accept) for path in paths]
    if json:
        print_json(data)
    else:
        for one in data:
            columns = ("products", "elements", "equal", "different", "declined", "reference failed", "without bytes")
            lines = [f"{f['product']}: {f['why']}" for f in one["failures"][:_LISTED]]
            title = f"{one['path']}: {one['card']}, cuBLASLt {one['library']}, replayed here"
            print_table(title, columns, [tuple(one[c.replace(" ", "_")] for c in columns)], "\n".join(lines))
    return DIFFERENT if any(one["different"] or one["declined"] for one in data) else EQUAL


def _replay_book(path: Path, profile: Path | None, accept: str) -> dict[str, Any]:
    from gemmdesc.books import BookReader, open_reader, read_book, replay_entry
    from gemmdesc.errors import Declined, DeclinedError
    from gemmdesc.profiles import parse_level, read_profile

    book, level = read_book(path), parse_level(accept)
    if profile is not None and profile.is_file():
        # A profile that was named has to be of the book's card and release.
        reader = BookReader(book, read_profile(profile), accept=level)
    else:
        reader = open_reader(book, profile, accept=level)
    if isinstance(reader.profile, Declined):
        raise DeclinedError(reader.profile)
    found = []
    with Progress() as progress:
        for number, entry in enumerate(book.entries, 1):
            found.append((entry, replay_entry(entry, reader)))
            progress.report(f"replay {path.name}", number, len(book.entries))
    return _replayed_data(path, book, found)


def _replayed_data(path: Path, book: Book, found: list[tuple[Entry, EntryReplay]]) -> dict[str, Any]:
    counts = Counter(_outcome(entry, result) for entry, result in found)
    bad = [(entry, result) for entry, result in found if not result.equal]
    return {
        "path": str(path),
        "card": book.device.name or book.device.folder,
        "library": str(book.library.version),
        "products": len(found),
        "elements": sum(result.compared for _, result in found),
        **{name: counts[name] for name in ("equal", "different", "declined", "reference_failed", "without_bytes")},
        "failures": [{"product": str(entry), "why": _why(result)} for entry, result in bad],
    }


def _outcome(entry: Entry, result: EntryReplay) -> str:
    if result.declined is not None:
        return "declined"
    if result.mismatch is not None:
        return "different"
    if result.compared:
        return "equal"
    return "reference_failed" if entry.failure else "without_bytes"


def _why(result: EntryReplay) -> str:
    if result.declined is not None:
        return f"declined ({result.declined.code}): {result.declined.reason}"
    return f"differs first at {result.mismatch.index}, {result.mismatch.count} elements" if result.mismatch else "equal"
