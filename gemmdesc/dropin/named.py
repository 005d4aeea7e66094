"""Choices by name, for graphs and operators, whose arguments are tensors, numbers and text alone."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

from gemmdesc.dropin.executors import Executor
from gemmdesc.dropin.overriding import executor_of, require_policy
from gemmdesc.errors import InvalidInputError

#: The default planner of a device, which raises for what it declines, or lets torch's own library run it.
DEFAULT, LIBRARY = "", "library"


class _Named:
    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[str, tuple[Executor, str]] = {}

    def put(self, name: str, executor: Executor, on_decline: str) -> None:
        with self._lock:
            self._held[name] = (executor, on_decline)

    def get(self, name: str) -> tuple[Executor, str] | None:
        with self._lock:
            return self._held.get(name)


@cache
def _named() -> _Named:
    named = _Named()
    named.put(DEFAULT, executor_of(), "raise")
    named.put(LIBRARY, executor_of(), "library")
    return named


def register_choices(name: str, *, on_decline: str = "raise", **choices: Any) -> None:
    """Let graphs and operators use these choices, those of :func:`gemmdesc.override`, under ``name``.

    Raises:
        InvalidInputError: as :func:`gemmdesc.override`, or a name that is taken from the start.
    """
    require_policy(on_decline)
    if name in (DEFAULT, LIBRARY):
        raise InvalidInputError(f"name must not be one that stands for the default planner (got {name!r})")
    _named().put(name, executor_of(**choices), on_decline)


def named_choices(name: str) -> tuple[Executor, str]:
    """The executor and the policy that ``name`` stands for.

    Raises:
        InvalidInputError: there is no such name.
    """
    found = _named().get(name)
    if found is None:
        raise InvalidInputError(f"named must be a name given to register_choices (got {name!r})")
    return found
