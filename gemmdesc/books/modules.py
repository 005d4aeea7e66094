"""The products of a torch module's Linear layers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gemmdesc.books.shapes import Shape
from gemmdesc.dtypes import DType, parse_dtype
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    import torch


def module_shapes(
    spec: str, tokens: Sequence[int], *, dtype: DType | None = None, out_dtype: DType | None = None
) -> tuple[Shape, ...]:
    """For each of ``tokens`` rows of input, the product of every ``torch.nn.Linear`` in a module: ``x @ weight.T``.

    ``spec``: ``package.module:function``; the function is called without arguments and returns the module.  The
    current folder is importable.  ``dtype``: instead of the weights' own.

    Raises:
        InvalidInputError: no such function, it raises or returns no module, the module has no Linear layer, a weight's
            type has no name here, or ``tokens`` is empty.
    """
    if not tokens:
        raise InvalidInputError("tokens must name the batch sizes of a module's layers (got none)")
    module = _made(spec)
    import torch

    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
    if not layers:
        raise InvalidInputError(f"module must have a torch.nn.Linear layer (got none in {type(module).__name__})")
    found = [_shape(name, layer, m, dtype, out_dtype) for name, layer in layers for m in tokens]
    return tuple(dict.fromkeys(found))


def _shape(name: str, layer: torch.nn.Linear, m: int, dtype: DType | None, out_dtype: DType | None) -> Shape:
    own = dtype or parse_dtype(str(layer.weight.dtype).removeprefix("torch."))
    return Shape(
        m=m, n=layer.out_features, k=layer.in_features, dtype=own, out_dtype=out_dtype or own, layout="nt",
        bias=layer.bias is not None, label=name or type(layer).__name__,
    )  # fmt: skip


def _made(spec: str) -> torch.nn.Module:
    import torch

    place, colon, name = spec.partition(":")
    if not (place and colon and name):
        raise InvalidInputError(f"module must be package.module:function (got {spec!r})")
    with _current_folder():
        try:
            function: Any = import_module(place)
            for part in name.split("."):
                function = getattr(function, part)
        except (ImportError, AttributeError) as error:
            raise InvalidInputError(f"module must be importable ({error}) (got {spec!r})") from error
        if not callable(function):
            raise InvalidInputError(f"module must name a function (got {spec!r}, which is {type(function).__name__})")
        try:
            made = function()
        except Exception as error:  # the user's code: whatever it raises is the message
            problem = f"{type(error).__name__}: {error}"
            raise InvalidInputError(f"module must be made by calling {name}() ({problem}) (got {spec!r})") from error
    if not isinstance(made, torch.nn.Module):
        raise InvalidInputError(f"module must be a torch.nn.Module (got {type(made).__name__} from {spec!r})")
    return made


@contextmanager
def _current_folder() -> Iterator[None]:
    """The current folder is on the path, as with ``python -m``."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
