"""Asking a library for a model's products, once, with some bytes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemmdesc.books.schema import Book, Check, Entry, check_operands
from gemmdesc.books.shapes import Shape
from gemmdesc.books.store import require_book
from gemmdesc.errors import BookError, Declined, InvalidInputError
from gemmdesc.library.interface import Library, Window
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import Family
from gemmdesc.problem import Failed, GemmProblem, Refused

Report = Callable[[str, int, int | None], None]
#: Shapes that share this label are points of a map, of which no bytes are taken.
_UNCHECKED_LABEL = "grid"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What is taken of each product beside the answer.

    ``check``: bytes of up to ``side`` rows and columns, where A, B and D have at most ``most_elements`` together.
    ``launches``: what the answer enqueues.
    """

    check: bool = True
    launches: bool = True
    side: int = 6
    seed: int = 11
    most_elements: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A book, and the shapes that pose no problem which a library could be asked, each with why."""

    book: Book
    declined: tuple[tuple[Shape, Declined], ...]


def record_book(
    library: Library,
    shapes: Iterable[Shape],
    settings: TorchSettings,
    *,
    torch: str,
    command: str,
    date: str,
    recording: Recording | None = None,
    report: Report = lambda phase, done, total: None,
) -> Recorded:
    """The answers of ``library`` to ``shapes`` as torch poses them under ``settings``; one entry a problem.

    ``torch``, ``command`` and ``date`` go into the book.

    Raises:
        InvalidInputError: a shape's result type is one that ``torch.mm`` does not take.
        LibraryError: the library fails otherwise than by refusing.
    """
    chosen = recording or Recording()
    listed = tuple(shapes)
    declined: list[tuple[Shape, Declined]] = []
    entries: dict[GemmProblem, Entry] = {}
    for number, shape in enumerate(listed, 1):
        problem = shape.problem(settings)
        if isinstance(problem, Declined):
            declined.append((shape, problem))
        elif problem not in entries or (entries[problem].check is None and shape.label != _UNCHECKED_LABEL):
            own = chosen if shape.label != _UNCHECKED_LABEL else replace(chosen, check=False)
            entries[problem] = entry_of(library, problem, own)
        report("record", number, len(listed))
    book = Book(
        device=library.device, library=library.identity, settings=settings, torch=torch, command=command, date=date,
        entries=tuple(entries.values()),
    )  # fmt: skip
    return Recorded(book=book, declined=tuple(declined))


def merged_books(books: Sequence[Book]) -> Book:
    """One book of parts that were recorded alike; of two entries of one problem, the one that holds bytes.

    ``command`` and ``date`` are those of the last part.

    Raises:
        InvalidInputError: there is no part.
        BookError: the parts are of other cards, builds or torch settings, or disagree on an answer.
    """
    if not books:
        raise InvalidInputError("books must hold one part at least (got none)")
    last, entries = books[-1], dict[GemmProblem, Entry]()
    for book in books:
        require_book(book, last.device, last.library, "the last part")
        if book.settings != last.settings:
            raise BookError(f"book must be of the other parts' torch settings {last.settings} (got {book.settings})")
        for entry in book.entries:
            known = entries.get(entry.problem)
            if known is not None and known.answer != entry.answer:
                raise BookError(f"book must give the other parts' answer to {entry} (got {entry.answer})")
            if known is None or known.check is None:
                entries[entry.problem] = entry
    return replace(last, entries=tuple(entries.values()))


def entry_of(library: Library, problem: GemmProblem, recording: Recording) -> Entry:
    """What ``library`` makes of one problem."""
    answer = library.answer(problem)
    if isinstance(answer, Refused):
        return Entry(problem=problem, answer=answer)
    launch = library.launch(problem, answer) if recording.launches else None
    p = problem
    if not recording.check or (p.m + p.n) * p.k + p.m * p.n > recording.most_elements:
        return Entry(problem=problem, answer=answer, launch=launch)
    window = _window(problem, recording)
    family, draw = Family.CANCELLING, 0
    got = library.run(problem, answer, *check_operands(problem, family, recording.seed, draw), window)
    if isinstance(got, Failed):
        return Entry(problem=problem, answer=answer, launch=launch, failure=got.status)
    check = Check(family=family, seed=recording.seed, draw=draw, window=window, output=got)
    return Entry(problem=problem, answer=answer, launch=launch, check=check)


def _window(problem: GemmProblem, recording: Recording) -> Window:
    """First and last rows and columns, and others between them."""
    rng = np.random.default_rng([recording.seed, problem.m, problem.n, problem.k])

    def some(size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if size <= recording.side:
            return np.arange(size, dtype=np.int64)
        inner = rng.integers(0, size, size=recording.side - 2)
        return np.unique(np.concatenate([[0, size - 1], inner])).astype(np.int64)

    return Window(rows=some(problem.m), columns=some(problem.n))
