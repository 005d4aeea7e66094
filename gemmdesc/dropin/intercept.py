"""Seeing every product that torch makes below autograd: forward and backward, with the very operands it multiplies.

A ``TorchDispatchMode`` stands below autograd, autocast and torch's composite operators, so that ``matmul``, ``linear``
and their backward formulas arrive as the ``mm``, ``addmm`` and ``bmm`` that a backend would get, folded, expanded and
strided as torch does it.  It holds for the thread that enters it, and for the threads that run its backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from gemmdesc.dropin.parsing import operator_name, parsed
from gemmdesc.dropin.products import Product
from gemmdesc.errors import Declined


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchCall:
    """One call of an operator of torch's that multiplies; ``found``: which product it is, or why it has no route."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    found: Product | Declined

    @property
    def name(self) -> str:
        """The operator's, such as ``addmm``."""
        return operator_name(self.func)

    @property
    def device_type(self) -> str:
        """Where the operands are, ``cuda`` or another."""
        import torch

        given = (*self.args, *self.kwargs.values())
        return next((t.device.type for t in given if isinstance(t, torch.Tensor)), "cpu")

    def run(self) -> Any:
        """What torch itself gives."""
        return self.func(*self.args, **self.kwargs)

    def require_accepted(self) -> None:
        """Raise what torch raises where it refuses the call; the tensors that it would write to are left alone."""
        written = {a.name for a in self.func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        names = [a.name for a in self.func._schema.arguments]
        args = [x.clone() if n in written else x for n, x in zip(names, self.args, strict=False)]
        self.func(*args, **{n: x.clone() if n in written else x for n, x in self.kwargs.items()})


#: What answers for one call of torch's.
Handler = Callable[[TorchCall], Any]


def intercepted(handle: Handler) -> AbstractContextManager[Any]:
    """A context in which ``handle`` answers for each of torch's products; products of nothing stay with torch.

    Inside ``handle`` nothing is intercepted.  Calls on tensor subclasses, such as those of tracing, are left alone.
    """
    mode: AbstractContextManager[Any] = _mode_class()(handle)
    return mode


def is_innermost(context: AbstractContextManager[Any]) -> bool:
    """Whether ``context`` is the dispatch mode that this thread entered last and has not left."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode() is context


def is_intercepted() -> bool:
    """Whether products of this thread are intercepted."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return any(isinstance(mode, _mode_class()) for mode in _get_current_dispatch_mode_stack())


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
            found = None if types else parsed(func, args, named)
            if found is None:
                return self._within(func, types, args, named)
            if isinstance(found, Product):
                if found.is_empty:
                    return func(*args, **named)
                if found.out is not None and found.out.numel() == 0:
                    # torch gives an empty out its shape, without a word.
                    found.out.resize_(found.shape)
            return self._handle(TorchCall(func=func, args=args, kwargs=named, found=found))

        def _within(self, func: Any, types: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            # In inference mode composite operators arrive whole.
            if not types and _is_composite(func):
                with self:
                    return func.decompose(*args, **named)
            return func(*args, **named)

    return ProductMode


@cache
def _is_composite(func: Any) -> bool:
    import torch

    return isinstance(func, torch._ops.OpOverload) and func._can_decompose()
