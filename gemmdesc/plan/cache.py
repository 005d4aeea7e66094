"""Bounded maps, safe to use from any thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

from gemmdesc.errors import InvalidInputError
from gemmdesc.plan.values import CacheInfo

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Holds at most ``capacity`` values, and forgets what was used longest ago.

    Raises:
        InvalidInputError: ``capacity`` is less than 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInputError(f"capacity must be at least 1 (got {capacity})")
        self._capacity = capacity
        self._values: OrderedDict[K, V] = OrderedDict()
        self._hits = self._misses = 0
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value of ``key``, now the last to be forgotten; None, counted as a miss, where there is none."""
        with self._lock:
            if key not in self._values:
                self._misses += 1
                return None
            self._hits += 1
            self._values.move_to_end(key)
            return self._values[key]

    def peek(self, key: K) -> V | None:
        """The value of ``key`` or None; counts and moves nothing."""
        with self._lock:
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Hold ``value``, and forget the one used longest ago where there is no room."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._capacity:
                self._values.popitem(last=False)

    def clear(self) -> None:
        """Forget all values; the counts stay."""
        with self._lock:
            self._values.clear()

    def info(self) -> CacheInfo:
        """The counts."""
        with self._lock:
            return CacheInfo(
                hits=self._hits, misses=self._misses, size=len(self._values), capacity=self._capacity
            )


class QuickCache(Generic[K, V]):
    """Holds at most ``capacity`` values, and forgets what came first; finding one takes no lock and moves nothing.

    ``get``: the value of a key, or None.

    Raises:
        InvalidInputError: ``capacity`` is less than 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInputError(f"capacity must be at least 1 (got {capacity})")
        self._capacity = capacity
        self._values: dict[K, V] = {}
        self._lock = Lock()
        self.get = self._values.get

    def put(self, key: K, value: V) -> None:
        """Hold ``value``, and forget the one that came first where there is no room."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._capacity:
                del self._values[next(iter(self._values))]

    def __len__(self) -> int:
        return len(self._values)
