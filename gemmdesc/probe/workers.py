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
    """``count`` spawned processes, each with a library of its own made by ``factory`` (picklable)."""

    def __init__(self, factory: LibraryFactory, count: int) -> None:
        if count < 1:
            raise CampaignError(f"count must be at least 1 (got {count})")
        self._library = factory()
        context = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // count)
        self._tasks: Any = context.Queue()
        self._results: Any = context.Queue()
        self._processes: list[SpawnProcess] = [
            context.Process(target=_serve, args=(factory, threads, self._tasks, self._results), daemon=True)
            for _ in range(count)
        ]
        for process in self._processes:
            process.start()

    @property
    def library(self) -> Library:
        return self._library

    def run(self, task: Task, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """See :class:`Workers`."""
        for index, item in enumerate(items):
            self._tasks.put((index, task, item))
        for _ in range(len(items)):
            index, result, error = self._next()
            if error is not None:
                raise CampaignError(f"task must not fail on {str(items[index])[:300]} (got {error})")
            yield items[index], result

    def _next(self) -> tuple[int, Any, str | None]:
        while True:
            try:
                found: tuple[int, Any, str | None] = self._results.get(timeout=_LOOK_SECONDS)
                return found
            except queue.Empty:
                if not any(p.is_alive() for p in self._processes):
                    raise CampaignError("workers must stay alive (got none left)") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._processes:
            self._tasks.put(None)
        for process in self._processes:
            process.join(timeout=_LOOK_SECONDS)
            if process.is_alive():
                process.terminate()


def _serve(factory: LibraryFactory, threads: int, tasks: Any, results: Any) -> None:
    # Read when Numba is first imported, which the library does not do.
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    library = factory()
    while (received := tasks.get()) is not None:
        index, task, item = received
        try:
            results.put((index, task(library, item), None))
        except Exception as error:  # noqa: BLE001 - the parent raises it, with the item
            results.put((index, None, f"{type(error).__name__}: {error}"))
