"""Seeing every product that torch makes below autograd: forward and backward, with the very operands it multiplies.

A ``TorchDispatchMode`` stands below autograd, autocast and torch's composite operators, so that ``matmul``, ``linear``
and their backward formulas arrive as the ``mm``, ``addmm`` and ``bmm`` that a backend would get, folded, expanded and
strided as torch does it.  It holds for the thread that enters it, and for the threads that run its backward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from gemmdesc.dropin.parsing import parsed
from gemmdesc.dropin.products import Product
from gemmdesc.errors import Declined

#: What becomes of one product: called with its operator's name, the product or why there is none, and torch's own call.
Handler = Callable[[str, Product | Declined, Callable[[], Any]], Any]


def intercepted(handle: Handler) -> AbstractContextManager[Any]:
    """A context in which ``handle`` answers for each of torch's products; products of nothing stay with torch.

    Inside ``handle`` nothing is intercepted.  Calls on tensor subclasses, such as those of tracing, are left alone.
    """
    mode: AbstractContextManager[Any] = _mode_class()(handle)
    return mode


@cache
def _mode_class() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class ProductMode(TorchDispatchMode):
        def __init__(self, handle: Handler) -> None:
            super().__init__()
            self._handle = handle

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            named = kwargs or {}
            if types:
                return func(*args, **named)
            found = parsed(func, args, named)
            if found is None:
                return self._within(func, args, named)
            if isinstance(found, Product) and found.is_empty:
                return func(*args, **named)
            name = found.name if isinstance(found, Product) else str(func._schema.name).partition("::")[2]
            return self._handle(name, found, lambda: func(*args, **named))

        def _within(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            # In inference mode composite operators arrive whole.
            if _is_composite(func):
                with self:
                    return func.decompose(*args, **named)
            return func(*args, **named)

    return ProductMode


@cache
def _is_composite(func: Any) -> bool:
    import torch

    return isinstance(func, torch._ops.OpOverload) and func._can_decompose()
