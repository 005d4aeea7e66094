"""Fields of a descriptor's parts: what marks them, and the checks of their values."""

from __future__ import annotations

from gemmdesc.errors import DescriptorError

#: Marks an integer field that a rule may give as an expression in the problem and the answer.
VARIABLE = {"variable": True}
#: Marks a field that the text and JSON forms leave out where it has its default.
OPTIONAL = {"optional": True}


def require_instance(name: str, value: object, *kinds: type) -> None:
    """Raise DescriptorError where ``value`` is of none of ``kinds``."""
    if not isinstance(value, kinds):
        raise DescriptorError(f"{name} must be a {' or a '.join(kind.__name__ for kind in kinds)} (got {value!r})")


def require_integer(name: str, value: object) -> None:
    """Raise DescriptorError where ``value`` is no integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise DescriptorError(f"{name} must be an integer (got {value!r})")


def require_at_least(name: str, value: int, least: int) -> None:
    """Raise DescriptorError where ``value`` is no integer of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DescriptorError(f"{name} must be an integer of at least {least} (got {value!r})")
