"""Where a replay finds what a library answered: in a book, or in a library that is asked, such as a simulated one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from gemmdesc.books import Book, BookReader
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.interface import Library
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.ops.booked import book_reader
from gemmdesc.plan import Description, describe, needs_launch
from gemmdesc.problem import AlgoConfig, GemmProblem, Refused
from gemmdesc.profiles import Level, Profile, ProfileIndex, index_profile
from gemmdesc.routes import READ_FOR, Release


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A problem's answer, and what a profile says of it."""

    answer: AlgoConfig
    description: Description


@runtime_checkable
class Source(Protocol):
    """A library's answers to torch's problems, under the settings and the release of torch that posed them."""

    @property
    def settings(self) -> TorchSettings: ...

    @property
    def release(self) -> Release: ...

    def look_up(self, problem: GemmProblem) -> Answered | Declined: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class BookSource:
    """The answers of a book, with the profile of its card."""

    reader: BookReader

    @property
    def settings(self) -> TorchSettings:
        """Those that the book was recorded under."""
        return self.reader.book.settings

    @property
    def release(self) -> Release:
        """Of the torch that the book was recorded with; the measured one where torch had no part."""
        return Release.parse(self.reader.book.torch) if self.reader.book.torch else READ_FOR

    def look_up(self, problem: GemmProblem) -> Answered | Declined:
        """Declines as :meth:`gemmdesc.books.BookReader.describe`."""
        found = self.reader.describe(problem)
        if isinstance(found, Declined):
            return found
        answer = self.reader.book.by_problem[problem].answer
        assert isinstance(answer, AlgoConfig)
        return Answered(answer=answer, description=found)


@dataclass(frozen=True, kw_only=True, eq=False)
class LibrarySource:
    """The answers of a library that is asked for each problem, with a profile of its card and release.

    Raises:
        InvalidInputError: the profile is of another card or release than the library.
    """

    library: Library
    profile: Profile
    settings: TorchSettings = field(default_factory=TorchSettings)
    release: Release = READ_FOR
    accept: Level = Level.VERIFIED

    def __post_init__(self) -> None:
        wanted = (self.library.device, self.library.identity)
        if (self.profile.device, self.profile.library) != wanted:
            raise InvalidInputError(f"profile must be of the library's card and release {wanted} (got another's)")

    @cached_property
    def _index(self) -> ProfileIndex:
        return index_profile(self.profile)

    def look_up(self, problem: GemmProblem) -> Answered | Declined:
        """Declines where the library refuses (``refused_by_library``), and as :func:`gemmdesc.plan.describe`."""
        index = self._index
        answer = self.library.answer(problem)
        if isinstance(answer, Refused):
            return Declined(code="refused_by_library", reason=f"no answer, {answer.status}, for {problem}")
        asked = needs_launch(index, problem, answer, self.accept)
        launch = self.library.launch(problem, answer) if asked else None
        found = describe(problem, answer, launch, index=index, accept=self.accept)
        return found if isinstance(found, Declined) else Answered(answer=answer, description=found)


def source_of(
    replay: Source | Book | str | Path, profiles: str | Path | None = None, accept: Level | str = Level.VERIFIED
) -> Source:
    """``replay`` itself, or the source of a book or its file, with the profile of its card as products find it.

    Raises:
        BookError: the book's file is none, or not whole.
        ProfileError: the profile that should apply is broken.
        InvalidInputError: none of these, or ``profiles`` beside a source, which has its own.
    """
    if isinstance(replay, Book | str | Path):
        return BookSource(reader=book_reader(replay, profiles, accept))
    if not isinstance(replay, Source):
        raise InvalidInputError(f"replay must be a book, its file, or a source (got {type(replay).__name__})")
    if profiles is not None:
        raise InvalidInputError(f"profiles must be None beside a source, which has its own (got {profiles})")
    return replay
