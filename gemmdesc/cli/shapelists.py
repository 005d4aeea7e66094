"""From ``SHAPES|MODULE`` and its options to products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    from gemmdesc.books import Book, Recording, Shape, ShapeDefaults
    from gemmdesc.books.recording import Recorded, Report
    from gemmdesc.library.interface import Library

#: The packaged list of layers of published models.
NAMED = "named"
_SUFFIXES = (".csv", ".json", ".jsonl")

ShapesArgument = Annotated[
    str,
    typer.Argument(
        metavar="SHAPES|MODULE",
        help="A list of products, CSV, JSON or JSONL, with m, n, k; or package.module:function, which returns a "
        f"torch.nn.Module; or {NAMED}, the packaged layers of published models.",
    ),
]
TokensOption = Annotated[
    str | None, typer.Option(help="Batch sizes joined by commas: every product at each of these m. A module needs it.")
]
GridOption = Annotated[
    str | None, typer.Option(help="Also, for each of these k joined by commas, a grid over m and n (no bytes).")
]
DtypeOption = Annotated[str | None, typer.Option(help="Of operands where the list does not say (float16).")]
OutDtypeOption = Annotated[str | None, typer.Option(help="Of results where the list does not say: the operands'.")]
LayoutOption = Annotated[
    str | None, typer.Option(help=f"Where the list does not say: nn, nt, tn or tt (nn; nt for a module and {NAMED}).")
]
SetOption = Annotated[
    str | None,
    typer.Option(
        "--set",
        help="Of a list only rows whose label is one of these, joined by commas, or begins with one and a space: "
        "the sets of docs/speed_shapes.csv, such as model,decode.",
    ),
]
LibraryOption = Annotated[
    str | None, typer.Option(help="A path, PACKAGE==VERSION, or simulated:SEED; torch's own by default.")
]
ProfileOption = Annotated[Path | None, typer.Option(help="A profile's file or folder, looked at first.")]
AcceptOption = Annotated[
    str, typer.Option(help="The weakest evidence that a rule may have: published, observed, inferred or verified.")
]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options that say which products are meant."""

    source: str
    tokens: str | None = None
    grid: str | None = None
    dtype: str | None = None
    out_dtype: str | None = None
    layout: str | None = None
    sets: str | None = None

    def shapes(self) -> tuple[Shape, ...]:
        """The products.

        Raises:
            InvalidInputError: an option or the list is malformed, or the module cannot be made.
        """
        from gemmdesc.books import grid_shapes, module_shapes, read_shapes, with_tokens

        tokens = numbers("tokens", self.tokens)
        defaults, sets = self._defaults(), words("set", self.sets)
        if sets and self.source != NAMED and not _is_file(self.source):
            raise InvalidInputError(f"set must be left out for a module, which has no labels (got {self.sets!r})")
        if self.source == NAMED:
            listed = with_tokens(read_shapes(_named_file(), defaults, sets), tokens)
        elif _is_file(self.source):
            listed = with_tokens(read_shapes(Path(self.source), defaults, sets), tokens)
        elif ":" in self.source:
            if self.layout is not None:
                raise InvalidInputError(f"layout must be left to a module's layers, which are nt (got {self.layout})")
            own = defaults.dtype if self.dtype else None
            listed = module_shapes(self.source, tokens, dtype=own, out_dtype=defaults.out_dtype)
        else:
            raise InvalidInputError(
                f"shapes must be a file ending in {', '.join(_SUFFIXES)}, package.module:function or {NAMED} "
                f"(got {self.source!r})"
            )
        return (*listed, *grid_shapes(numbers("grid", self.grid), defaults))

    def _defaults(self) -> ShapeDefaults:
        from gemmdesc.books import ShapeDefaults
        from gemmdesc.dtypes import parse_dtype

        return ShapeDefaults(
            dtype=parse_dtype(self.dtype or "float16"),
            out_dtype=None if self.out_dtype is None else parse_dtype(self.out_dtype),
            layout=self.layout or ("nt" if self.source == NAMED else "nn"),
        )


def _is_file(source: str) -> bool:
    return Path(source).suffix in _SUFFIXES or Path(source).exists()


def _named_file() -> Path:
    from importlib import resources

    return Path(str(resources.files("gemmdesc.verification") / "model_layers.csv"))


def numbers(name: str, text: str | None) -> tuple[int, ...]:
    """Whole numbers of at least 1, joined by commas; none for None.

    Raises:
        InvalidInputError: something else.
    """
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) >= 1 for word in words):
        raise InvalidInputError(f"{name} must be whole numbers of at least 1 joined by commas (got {text!r})")
    return tuple(dict.fromkeys(int(word) for word in words))


def words(name: str, text: str | None) -> tuple[str, ...]:
    """What stands between commas; none for None.

    Raises:
        InvalidInputError: a part is empty.
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InvalidInputError(f"{name} must be words joined by commas (got {text!r})")
    return tuple(dict.fromkeys(parts))


def asked_here(
    asked: tuple[Shape, ...], spec: str | None, recording: Recording, command: str, report: Report
) -> Recorded:
    """The book of a library at hand.

    Raises:
        LibraryError: no such library, or no GPU.
    """
    from datetime import date

    from gemmdesc.books import record_book
    from gemmdesc.cli.libraries import Opener
    from gemmdesc.library.identity import with_digest
    from gemmdesc.library.torch_settings import TorchSettings, read_settings

    opener = Opener(spec=spec)
    library: Library = opener()
    settings, version = TorchSettings(), ""
    if not opener.simulated:
        import torch

        settings, version = read_settings(library.device.sm), str(torch.__version__)
    recorded = record_book(
        library, asked, settings, torch=version, command=command, date=date.today().isoformat(), recording=recording,
        report=report,
    )  # fmt: skip
    if opener.simulated:
        return recorded
    # The file's digest is provenance, and all that tells a library without a build-id from others.
    book = recorded.book
    return replace(recorded, book=replace(book, library=with_digest(book.library)))


def book_title(book: Book) -> str:
    """The card and release of a book, for a table's head."""
    return f"{book.device.name or book.device.folder}, cuBLASLt {book.library.version}"
