"""Running library work in several processes, each with its own library, or in this one.

A task is a module-level function called as ``task(library, item)``.  Results come back as they finish.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Protocol, Self

from gemmdesc.errors import CampaignError
from gemmdesc.library.elsewhere import BROKEN, Line, RunElsewhere, serve_products
from gemmdesc.library.interface import Library

LibraryFactory = Callable[[], Library]
Task = Callable[[Library, Any], Any]
#: Seconds between looks at whether the workers are still alive.
_LOOK_SECONDS = 5.0
#: Runners that faults on the card may end before something else is thought to be wrong.
_MOST_REPLACED = 32


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

    ``runners``: further processes that run the products of all of them (see :mod:`gemmdesc.library.elsewhere`); with
    0 each process runs its own.

    Raises:
        CampaignError: ``count`` is less than 1, or ``runners`` negative.
    """

    def __init__(self, factory: LibraryFactory, count: int, runners: int = 0) -> None:
        if count < 1:
            raise CampaignError(f"count must be at least 1 (got {count})")
        if runners < 0:
            raise CampaignError(f"runners must be at least 0 (got {runners})")
        self._library = factory()
        context = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // count)
        self._results: Any = context.Queue()
        self._tasks: list[Any] = [context.Queue() for _ in range(count)]
        self._requests: Any = context.SimpleQueue()
        # Held on to: a queue that the parent drops is gone before a child has opened it.
        self._replies: list[Any] = [context.SimpleQueue() for _ in range(count)]
        self._factory, self._context = factory, context
        self._replaced = 0
        self._runners = [self._runner() for _ in range(runners)]
        lines = [(self._requests, line) if runners else None for line in self._replies]
        self._processes: list[SpawnProcess] = [
            context.Process(target=_serve, args=(factory, threads, place, tasks, self._results, line), daemon=True)
            for place, (tasks, line) in enumerate(zip(self._tasks, lines, strict=True))
        ]
        self._runs = 0
        for process in (*self._runners, *self._processes):
            process.start()

    def _runner(self) -> SpawnProcess:
        arguments = (self._factory, self._requests, self._replies)
        return self._context.Process(target=serve_products, args=arguments, daemon=True)

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
            self._replace_broken()
            try:
                run, *found = self._results.get(timeout=_LOOK_SECONDS)
                if run == self._runs:
                    place, index, result, error = found
                    return place, index, result, error
            except queue.Empty:
                dead = [p.exitcode for p in (*self._processes, *self._runners) if p.exitcode not in (None, BROKEN)]
                if dead or self._replaced == _MOST_REPLACED:
                    raise CampaignError(f"workers must stay alive (got exit codes {dead})") from None

    def _replace_broken(self) -> None:
        """Start a runner for each one that a fault on the card has ended, which is part of seeing what answers do."""
        for place, runner in enumerate(self._runners):
            if runner.exitcode == BROKEN and self._replaced < _MOST_REPLACED:
                self._replaced += 1
                self._runners[place] = self._runner()
                self._runners[place].start()

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
        _end(self._processes)
        for process in self._runners:
            process.terminate()
        _end(self._runners)


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        process.join(timeout=_LOOK_SECONDS)
        if process.is_alive():
            process.kill()


def _serve(
    factory: LibraryFactory, threads: int, place: int, tasks: Any, results: Any, lines: tuple[Line, Line] | None
) -> None:
    # Read when Numba is first imported, which the library does not do.
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    library = factory()
    if lines is not None:
        library = RunElsewhere(library, place, *lines)
    while (received := tasks.get()) is not None:
        run, index, task, item = received
        try:
            results.put((run, place, index, task(library, item), None))
        except Exception as error:  # noqa: BLE001 - whatever a task raises, the parent raises it, with the item
            results.put((run, place, index, None, f"{type(error).__name__}: {error}"))
