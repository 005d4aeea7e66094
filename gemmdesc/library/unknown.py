"""Saying once that kernel names cannot be had here: what would record them is taken, missing, or refused."""

from __future__ import annotations

import warnings
from functools import cache
from threading import Lock


class KernelNamesUnknownWarning(UserWarning):
    """Launches, or the names of kernels that ran, are recorded as unknown from now on; everything else goes on."""


class _Said:
    def __init__(self) -> None:
        self._lock = Lock()
        self._sources: set[str] = set()

    def is_new(self, source: str) -> bool:
        with self._lock:
            if source in self._sources:
                return False
            self._sources.add(source)
            return True


@cache
def _said() -> _Said:
    return _Said()


def names_unknown(source: str, why: str) -> None:
    """Warn that ``source`` gives no kernel names, the first time in a process that it does not."""
    if _said().is_new(source):
        warnings.warn(
            f"kernel names are unknown: {source} gives none ({why}); all else goes on", KernelNamesUnknownWarning,
            stacklevel=3,
        )  # fmt: skip
