"""The values of a book: recorded answers by problem, the settings that entered those, and where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.interface import Window
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.operands import Family, HashOperand
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch, LibraryId, Refused

#: Raised whenever a reader of the former version could misread a file.
BOOK_VERSION = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """Some bytes of D that the library gave, to hold a replay against.

    Operands are the HashOperands of (family, seed, draw) with roles "a" and "b".  ``output``: bit patterns of D at
    ``window``, shape (rows, columns).
    """

    family: Family
    seed: int
    draw: int
    window: Window
    output: Bits

    def operands(self, problem: GemmProblem) -> tuple[HashOperand, HashOperand]:
        """op(A) as m rows of k and op(B) as n rows of k."""
        return check_operands(problem, self.family, self.seed, self.draw)


def check_operands(problem: GemmProblem, family: Family, seed: int, draw: int) -> tuple[HashOperand, HashOperand]:
    """The operands of a check, in the problem's own terms."""
    return (
        HashOperand(dtype=problem.a_dtype, family=family, seed=seed, draw=draw, role="a"),
        HashOperand(dtype=problem.b_dtype, family=family, seed=seed, draw=draw, role="b"),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One problem and what the library made of it.

    ``launch``: what the answer enqueues, None where that was not captured.  ``check``: bytes, None where none were
    taken.  ``failure``: the status with which running the answer failed, "" where it ran or was not tried.

    Raises:
        InvalidInputError: the check's output does not fit the problem and the window, or a refusal holds more.
    """

    problem: GemmProblem
    answer: AlgoConfig | Refused
    launch: Launch | None = None
    check: Check | None = None
    failure: str = ""

    def __post_init__(self) -> None:
        check = self.check
        if isinstance(self.answer, Refused) and (self.launch is not None or check is not None or self.failure):
            raise InvalidInputError(f"entry must hold no launch, check or failure beside a refusal (got {self.answer})")
        if check is None:
            return
        shape = (len(check.window.rows), len(check.window.columns))
        if check.output.shape != shape or check.output.dtype != bits_dtype(self.problem.d_dtype):
            raise InvalidInputError(
                f"check.output must be {shape} patterns of {self.problem.d_dtype.value} "
                f"(got {check.output.shape}, {check.output.dtype})"
            )

    def __str__(self) -> str:
        return problem_text(self.problem)


def problem_text(problem: GemmProblem) -> str:
    """A problem's sizes, op flags and types, in cuBLASLt's column-major terms."""
    p = problem
    ops = f"{p.transa.value}{p.transb.value}"
    return f"m={p.m} n={p.n} k={p.k} {ops} {p.a_dtype.value} x {p.b_dtype.value} -> {p.d_dtype.value}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Book:
    """What one library on one card answered.

    ``settings``: torch's, as far as they entered the problems.  ``torch``: its version, "" where it had no part.
    ``command``, ``date``: what recorded it and the day (ISO).

    Raises:
        InvalidInputError: two entries are of one problem.
    """

    device: DeviceId
    library: LibraryId
    settings: TorchSettings
    torch: str
    command: str
    date: str
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len(self.by_problem) != len(self.entries):
            twice = len(self.entries) - len(self.by_problem)
            raise InvalidInputError(f"entries must be of distinct problems (got {twice} that repeat one)")

    @cached_property
    def by_problem(self) -> Mapping[GemmProblem, Entry]:
        """The entries by their problem."""
        return {entry.problem: entry for entry in self.entries}

    @property
    def key(self) -> str:
        """The card and release that it is bound to."""
        return f"{self.device.folder}/cublaslt-{self.library.version}"
