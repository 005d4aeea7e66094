"""Running library work in several processes, each with its own library, or in this one.

A task is a module-level function called as ``task(library, item)``.  Results come back as they finish.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Protocol, Self

from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import Library

LibraryFactory = Callable[[], Library]
Task = Callable[[Library, Any], Any]
#: Seconds between looks at whether the workers are still alive.
_LOOK_SECONDS = 5.0


class Workers(Protocol):
    """Whoever runs tasks; ``library`` is one for this process's own questions."""

    @property
    def library(self) -> Library: ...

    def run(self, task: Task, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """(item, result) pairs in the order in which they finish.

        Raises:
            CampaignError: a task raised, or a worker died; the message holds what is known.
        """
        ...


class InProcess(AbstractContextManager["InProcess"]):
    """All tasks one after the other, on one library."""

    def __init__(self, library: Library) -> None:
        self._library = library

    @property
    def library(self) -> Library:
        return self._library

    def run(self, task: Task, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """See :class:`Workers`."""
        for item in items:
            yield item, task(self._library, item)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class ProcessPool(AbstractContextManager["ProcessPool"]):
    """``count`` spawned processes, each with a library of its own made by ``factory`` (picklable).

    Raises:
        CampaignError: ``count`` is less than 1.
    """

    def __init__(self, factory: LibraryFactory, count: int) -> None:
        if count < 1:
            raise CampaignError(f"count must be at least 1 (got {count})")
        self._library = factory()
        context = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // count)
        self._results: Any = context.Queue()
        self._tasks: list[Any] = [context.Queue() for _ in range(count)]
        self._processes: list[SpawnProcess] = [
            context.Process(target=_serve, args=(factory, threads, place, tasks, self._results), daemon=True)
            for place, tasks in enumerate(self._tasks)
        ]
        self._runs = 0
        for process in self._processes:
            process.start()

    @property
    def library(self) -> Library:
        return self._library

    def run(self, task: Task, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """See :class:`Workers`.  What an earlier run that was left half-way still works on is dropped."""
        self._runs += 1
        waiting = iter(enumerate(items))
        for place in [p for _ in range(2) for p in range(len(self._tasks))]:
            self._hand(place, task, next(waiting, None))
        for _ in range(len(items)):
            place, index, result, error = self._next()
            self._hand(place, task, next(waiting, None))
            if error is not None:
                raise CampaignError(f"task must not fail on {str(items[index])[:300]} (got {error})")
            yield items[index], result

    def _hand(self, place: int, task: Task, work: tuple[int, Any] | None) -> None:
        if work is not None:
            self._tasks[place].put((self._runs, work[0], task, work[1]))

    def _next(self) -> tuple[int, int, Any, str | None]:
        while True:
            try:
                run, place, index, result, error = self._results.get(timeout=_LOOK_SECONDS)
                if run == self._runs:
                    return place, index, result, error
            except queue.Empty:
                dead = [p.exitcode for p in self._processes if not p.is_alive()]
                if dead:
                    raise CampaignError(f"workers must stay alive (got exit codes {dead})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, tasks in zip(self._processes, self._tasks, strict=True):
            if kind is None:
                tasks.put(None)
            else:
                # Whatever waits there must not keep this process from ending: nobody may be left to read it.
                tasks.cancel_join_thread()
                process.terminate()
        deadline = time.monotonic() + _LOOK_SECONDS
        for process in self._processes:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()


def _serve(factory: LibraryFactory, threads: int, place: int, tasks: Any, results: Any) -> None:
    # Read when Numba is first imported, which the library does not do.
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    library = factory()
    while (received := tasks.get()) is not None:
        run, index, task, item = received
        try:
            results.put((run, place, index, task(library, item), None))
        except Exception as error:  # noqa: BLE001 - whatever a task raises, the parent raises it, with the item
            results.put((run, place, index, None, f"{type(error).__name__}: {error}"))
