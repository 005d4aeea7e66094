"""What a library answers to a problem: from what was saved, or asked of a handle, one thread at a time with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock

from gemmdesc.errors import Declined, GemmdescError
from gemmdesc.library.interface import Library
from gemmdesc.plan.saved import SavedAnswers, order_texts
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch, LibraryId, Refused
from gemmdesc.regions import Region


class CaptureError(GemmdescError):
    """A CUDA graph is being captured, and the call needs something that must be made outside of one first."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a problem is asked: whether a graph is captured, which answers need the launch, and one recorded before."""

    captured: bool
    needs_launch: Callable[[AlgoConfig], bool]
    earlier: Callable[[AlgoConfig], Launch | None]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """``orders``: what the answer was found to mean when it was saved, None where it was not or nothing."""

    answer: AlgoConfig
    launch: Launch | None
    orders: tuple[str, ...] | None = None


class Answering:
    """Answers of one library on one device; may be shared by threads.

    Args:
        open_library: gives a handle for the use of one thread at a time.
        identity: the device and the library that it opens; it is called at once where this is not given.

    Raises:
        LibraryError: the library cannot be opened.
    """

    def __init__(self, open_library: Callable[[], Library], identity: tuple[DeviceId, LibraryId] | None) -> None:
        self._open, self._lock = open_library, Lock()
        self._idle: list[Library] = []
        self._made = 0
        self.saved: SavedAnswers | None = None
        if identity is None:
            first = open_library()
            self._idle, self._made, identity = [first], 1, (first.device, first.identity)
        self.device, self.library = identity

    def ask(self, problem: GemmProblem, asked: Asked, *, fresh: bool = False) -> Answered | Declined:
        """The answer to ``problem``, and the library's launch where it is needed; ``fresh``: whatever was saved.

        Declines where the library has no answer (``refused_by_library``).

        Raises:
            CaptureError: ``asked.captured``, and another handle, or a launch that was not recorded, is needed.
        """
        kept = None if fresh or self.saved is None else self.saved.find(problem)
        if kept is not None:
            if isinstance(kept.answer, Refused):
                return self._refused(problem, kept.answer)
            if kept.launch is not None or not asked.needs_launch(kept.answer):
                return Answered(answer=kept.answer, launch=kept.launch, orders=kept.orders)
        with self._borrowed(asked.captured) as library:
            answer = library.answer(problem)
            if isinstance(answer, Refused):
                self.keep(problem, answer, None, None)
                return self._refused(problem, answer)
            launch = self._launch(library, problem, answer, asked) if asked.needs_launch(answer) else None
        return Answered(answer=answer, launch=launch)

    def keep(
        self,
        problem: GemmProblem,
        answer: AlgoConfig | Refused,
        launch: Launch | None,
        regions: Sequence[Region] | None,
    ) -> None:
        """Save an answer for other processes; ``regions``: what it means, None where that is nothing."""
        if self.saved is not None:
            self.saved.add(problem, answer, launch, regions)

    def agrees(self, problem: GemmProblem, answered: Answered, regions: Sequence[Region]) -> bool:
        """Whether a saved answer still means what it did; one that does not is counted."""
        if answered.orders is None or answered.orders == order_texts(regions):
            return True
        if self.saved is not None:
            self.saved.differs(problem)
        return False

    def _refused(self, problem: GemmProblem, refused: Refused) -> Declined:
        reason = f"cuBLASLt {self.library.version} has no answer, {refused.status}, for {problem}"
        return Declined(code="refused_by_library", reason=reason)

    def _launch(self, library: Library, problem: GemmProblem, answer: AlgoConfig, asked: Asked) -> Launch | None:
        if not asked.captured:
            return library.launch(problem, answer)
        # Recording a launch is a capture of its own; take the one that the same call recorded outside of this one.
        earlier = asked.earlier(answer)
        if earlier is not None:
            return earlier
        raise CaptureError(
            "plan must be made once outside the capture, as its rule reads the library's own launch; run this call, or "
            f"gemmdesc.warmup, before the capture (got {problem})"
        )

    @contextmanager
    def _borrowed(self, captured: bool) -> Iterator[Library]:
        with self._lock:
            library = self._idle.pop() if self._idle else None
        if library is None:
            if captured:
                made = "none that is not in use" if self._made else "none"
                raise CaptureError(
                    "planner must have a library handle to spare during a capture, as making one then would break it; "
                    f"make the call once outside, or use gemmdesc.warmup (got {made})"
                )
            library = self._open()
            with self._lock:
                self._made += 1
        try:
            yield library
        finally:
            with self._lock:
                self._idle.append(library)

    def close(self) -> None:
        """Close the handles that are not in use, and save what is not saved."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._made -= len(idle)
        for library in idle:
            if isinstance(library, AbstractContextManager):
                library.__exit__(None, None, None)
        if self.saved is not None:
            self.saved.save()
