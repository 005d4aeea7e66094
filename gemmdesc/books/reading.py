"""Following a book: its answers as a library that runs nothing, its problems as descriptors, its bytes replayed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from gemmdesc.bits import Bits, Mismatch, first_mismatch
from gemmdesc.books.schema import Book, Entry, problem_text
from gemmdesc.books.store import require_book
from gemmdesc.errors import Declined
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window
from gemmdesc.library.replayed import replay_decline, replay_problem
from gemmdesc.operands import Operand
from gemmdesc.plain import to_plain
from gemmdesc.plan.decide import describe
from gemmdesc.plan.values import Description
from gemmdesc.problem import AlgoConfig, DeviceId, Failed, GemmProblem, Launch, LibraryId, Refused
from gemmdesc.profiles import Level, Profile, find_profile, index_profile, profile_folders

#: Fields in which an entry may differ from a problem and still be told as near to it.
_NEAR = 3


class BookReader:
    """A book together with the profile of its card and release.

    ``profile``: where it declines, so does every product.  ``accept``: the weakest evidence that a rule may have.

    Raises:
        BookError: the profile is of another card or release than the book.
    """

    def __init__(self, book: Book, profile: Profile | Declined, *, accept: Level = Level.VERIFIED) -> None:
        if isinstance(profile, Profile):
            require_book(book, profile.device, profile.library, "the profile")
        self._book, self._accept, self._profile = book, accept, profile
        self._index = profile if isinstance(profile, Declined) else index_profile(profile)

    @property
    def book(self) -> Book:
        return self._book

    @property
    def profile(self) -> Profile | Declined:
        return self._profile

    @property
    def accept(self) -> Level:
        return self._accept

    def objection(self, problem: GemmProblem) -> Declined | None:
        """A decline (``not_in_book``) that names ``problem`` and what comes nearest, where the book lacks it."""
        book = self._book
        if problem in book.by_problem:
            return None
        reason = (
            f"the book of {book.key} has no answer for {problem_text(problem)} under its torch settings; "
            f"{_nearest(book, problem)}"
        )
        return Declined(code="not_in_book", reason=reason)

    def describe(self, problem: GemmProblem) -> Description | Declined:
        """What the profile says of the book's answer to ``problem``; needs no GPU and no kernel.

        Declines where the book lacks it (``not_in_book``), the library refused it (``refused_by_library``), there is no
        profile (``no_profile``), and as :func:`gemmdesc.profiles.lookup` does.
        """
        objection = self.objection(problem)
        if objection is not None:
            return objection
        entry = self._book.by_problem[problem]
        if isinstance(entry.answer, Refused):
            reason = f"cuBLASLt {self._book.library.version} had no answer, {entry.answer.status}"
            return Declined(code="refused_by_library", reason=f"{reason}, for {problem_text(problem)}")
        if isinstance(self._index, Declined):
            return self._index
        return describe(problem, entry.answer, entry.launch, index=self._index, accept=self._accept)


def open_reader(book: Book, profiles: Path | None = None, *, accept: Level = Level.VERIFIED) -> BookReader:
    """The reader of ``book``, its profile from ``profiles`` (a folder or file looked at first) or the usual folders.

    Raises:
        ProfileError: the profile that should apply is broken.
    """
    found = find_profile(book.device, book.library, profile_folders(profiles), accept=accept)
    return BookReader(book, found, accept=accept)


def _nearest(book: Book, problem: GemmProblem) -> str:
    """The entry with the fewest other fields, where these are few."""
    names = [f.name for f in fields(GemmProblem)]
    best: tuple[int, list[str], GemmProblem] | None = None
    for other in book.by_problem:
        differing = [name for name in names if getattr(problem, name) != getattr(other, name)]
        if best is None or len(differing) < best[0]:
            best = (len(differing), differing, other)
    held = f"it holds {len(book.entries)} products"
    if best is None or best[0] > _NEAR:
        return f"{held}, none of them near"
    held_there, asked = to_plain(best[2]), to_plain(problem)
    parts = [f"{name} {held_there[name]} instead of {asked[name]}" for name in best[1]]
    return f"{held}, the nearest with {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class BookLibrary:
    """Implements :class:`~gemmdesc.library.interface.Library` with a book's answers; runs nothing."""

    book: Book

    @property
    def identity(self) -> LibraryId:
        return self.book.library

    @property
    def device(self) -> DeviceId:
        return self.book.device

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        entry = self.book.by_problem.get(problem)
        return Refused(status="not in the book") if entry is None else entry.answer

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        return self.answer(problem) == answer

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        entry = self.book.by_problem.get(problem)
        return entry.launch if entry is not None and entry.answer == answer else None

    def run(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window | None = None,
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed:
        return Failed(status="a book runs nothing")


@dataclass(frozen=True, kw_only=True)
class EntryReplay:
    """``declined``: no descriptor, or none that a CPU replays.

    ``compared``: elements whose bytes were compared; ``mismatch``: among them.
    """

    declined: Declined | None = None
    compared: int = 0
    mismatch: Mismatch | None = None

    @property
    def equal(self) -> bool:
        return self.declined is None and self.mismatch is None


def replay_entry(entry: Entry, reader: BookReader) -> EntryReplay:
    """The entry's recorded bytes made again on the CPU; nothing is compared where it holds none."""
    described = reader.describe(entry.problem)
    if isinstance(described, Declined):
        return EntryReplay(declined=described)
    check = entry.check
    if check is None:
        return EntryReplay()
    declined = replay_decline(described.regions)
    if declined is not None:
        return EntryReplay(declined=declined)
    got = replay_problem(described.regions, entry.problem, *check.operands(entry.problem), check.window)
    return EntryReplay(compared=check.output.size, mismatch=first_mismatch(check.output, got))
