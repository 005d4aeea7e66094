"""The integers of a descriptor that a rule gives as expressions: by path, read and replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import DescriptorError


def variable_fields(desc: GEMMDesc) -> dict[str, int]:
    """The integers of ``desc`` that may depend on the problem, by path (``cuts.0.layout.span``), in field order."""
    found: dict[str, int] = {}

    def visit(value: Any, path: str) -> None:
        if isinstance(value, tuple):
            for i, item in enumerate(value):
                visit(item, f"{path}.{i}")
            return
        for name, variable in _fields(value.__class__):
            child, inner = f"{path}.{name}" if path else name, getattr(value, name)
            if variable:
                found[child.lstrip(".")] = inner
            elif _is_nested(inner.__class__):
                visit(inner, child)

    visit(desc, "")
    return found


@lru_cache
def _is_nested(kind: type) -> bool:
    """Whether values of the type may hold variable integers."""
    return issubclass(kind, tuple) or hasattr(kind, "__dataclass_fields__")


@lru_cache
def _fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The names of a dataclass's fields, and whether each is a variable integer."""
    return tuple((f.name, bool(f.metadata.get("variable"))) for f in fields(kind))


def with_variables(desc: GEMMDesc, values: Mapping[str, int]) -> GEMMDesc:
    """``desc`` with the integers at the given paths replaced; the last ones made are kept.

    Raises:
        DescriptorError: a path names no variable field of ``desc``, or a value is out of range.
    """
    return _made(desc, tuple(values.items()))


@lru_cache(maxsize=4096)
def _made(desc: GEMMDesc, items: tuple[tuple[str, int], ...]) -> GEMMDesc:
    values = dict(items)
    unknown = set(values) - set(variable_fields(desc))
    if unknown:
        raise DescriptorError(f"path must name a variable field of the descriptor (got {sorted(unknown)})")

    def rebuild(value: Any, path: str) -> Any:
        """``value`` itself where nothing in it changes."""
        if isinstance(value, tuple):
            items = tuple(rebuild(item, f"{path}.{i}") for i, item in enumerate(value))
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        changed = {}
        for name, variable in _fields(value.__class__):
            old = getattr(value, name)
            if not variable and not _is_nested(old.__class__):
                continue
            child = f"{path}.{name}" if path else name
            new = values.get(child, old) if variable else rebuild(old, child)
            if new is not old:
                changed[name] = new
        return replace(value, **changed) if changed else value

    rebuilt: GEMMDesc = rebuild(desc, "")
    return rebuilt


def map_variables(desc: GEMMDesc, change: Callable[[str, int], int]) -> GEMMDesc:
    """``desc`` with every variable integer passed through ``change(path, value)``."""
    return with_variables(desc, {p: change(p, v) for p, v in variable_fields(desc).items()})
