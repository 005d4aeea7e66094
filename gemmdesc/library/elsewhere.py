"""A library that asks in this process and multiplies in another one.

Processes take turns on a card, and every turn costs far more than a small product: products of many processes are
faster where few processes run them all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

from gemmdesc.bits import Bits
from gemmdesc.errors import LibraryError
from gemmdesc.library.interface import NO_INPUTS, Inputs, Library, Window
from gemmdesc.operands import Operand
from gemmdesc.problem import AlgoConfig, DeviceId, Failed, GemmProblem, Launch, LibraryId, Refused

#: With what a process ends whose card is lost to it; another one may take its place.
BROKEN = 75


class Line(Protocol):
    """One end of a queue between processes, such as :class:`multiprocessing.SimpleQueue`."""

    def put(self, message: Any, /) -> None: ...

    def get(self) -> Any: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One product, asked for by the process number ``place``."""

    place: int
    problem: GemmProblem
    answer: AlgoConfig
    a: Operand
    b: Operand
    window: Window | None
    inputs: Inputs


class RunElsewhere:
    """``here`` for questions; products go to whoever reads ``requests`` and come back on ``replies``, one at a time."""

    def __init__(self, here: Library, place: int, requests: Line, replies: Line) -> None:
        self._here, self._place, self._requests, self._replies = here, place, requests, replies
        self._turn = Lock()

    @property
    def here(self) -> Library:
        """The library of this process."""
        return self._here

    @property
    def identity(self) -> LibraryId:
        return self._here.identity

    @property
    def device(self) -> DeviceId:
        return self._here.device

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        """See :class:`~gemmdesc.library.interface.Library`."""
        return self._here.answer(problem)

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        """See :class:`~gemmdesc.library.interface.Library`."""
        return self._here.check(problem, answer)

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        """See :class:`~gemmdesc.library.interface.Library`; captured in this process, where nothing is executed."""
        return self._here.launch(problem, answer)

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
        """See :class:`~gemmdesc.library.interface.Library`.

        Raises:
            LibraryError: what the other process raised, by its name.
        """
        request = Request(
            place=self._place, problem=problem, answer=answer, a=a, b=b, window=window, inputs=inputs
        )  # fmt: skip
        with self._turn:
            self._requests.put(request)
            found: Bits | Failed | str = self._replies.get()
        if isinstance(found, str):
            raise LibraryError(f"the process that multiplies must not fail (got {found})")
        return found


def in_this_process(library: Library) -> Library:
    """A library that multiplies in this process: to see what else this process does to its products."""
    return library.here if isinstance(library, RunElsewhere) else library


def serve_products(factory: Callable[[], Library], requests: Line, replies: list[Line]) -> None:
    """Multiply what ``requests`` hold until a None among them; for a process of its own.

    Ends it with the exit code :data:`BROKEN` where a product has left a library that says so (``is_broken``, as that of
    :class:`~gemmdesc.library.cublaslt.CublasLt`) without its card.
    """
    library = factory()
    while (request := requests.get()) is not None:
        try:
            found: Bits | Failed | str = library.run(
                request.problem, request.answer, request.a, request.b, request.window, inputs=request.inputs
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - whatever is raised, who asked raises it
            found = f"{type(error).__name__}: {error}"
        replies[request.place].put(found)
        if isinstance(found, Failed) and getattr(library, "is_broken", False):
            sys.exit(BROKEN)
