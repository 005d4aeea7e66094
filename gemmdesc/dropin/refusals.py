"""What torch refuses, as errors of ours that are of torch's own kind as well."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gemmdesc.errors import InvalidInputError, RefusedByTorchError, RefusedIndexError, RefusedTypeError

if TYPE_CHECKING:
    import torch

#: What torch's functions raise for operands that they do not take.
REFUSALS = (RuntimeError, TypeError, IndexError, ValueError)
_KINDS = ((TypeError, RefusedTypeError), (IndexError, RefusedIndexError), (RuntimeError, RefusedByTorchError))


def refused(name: str, operands: Sequence[Any], error: Exception) -> InvalidInputError:
    """torch's refusal of ``torch.<name>(*operands)`` in our words."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    got = ", ".join(_words(t) for t in operands if t is not None)
    return _kind(error)(f"operands must be what torch.{name} takes: {said} (got {got})")


def is_refusal(error: Exception) -> bool:
    """Whether it is no failure of the device or of its memory."""
    import torch

    failures = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
    return not isinstance(error, failures)


def as_torch_refuses(error: InvalidInputError, call: Callable[..., Any], tensors: Sequence[Any]) -> InvalidInputError:
    """``error``, as a kind of what ``call`` raises for such tensors; ``error`` itself where it takes them.

    ``call`` is made on small tensors on the host, whose sizes are equal where those of ``tensors`` are.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            call(*_in_miniature(tensors))
    except REFUSALS as theirs:
        return _kind(theirs)(str(error))
    return error


def _kind(error: Exception) -> type[InvalidInputError]:
    return next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), InvalidInputError)


def _words(operand: Any) -> str:
    import torch

    if not isinstance(operand, torch.Tensor):
        return type(operand).__name__
    return f"{tuple(operand.shape)} {str(operand.dtype).removeprefix('torch.')}"


def _in_miniature(tensors: Sequence[Any]) -> list[Any]:
    """Tensors of few zeros on the host: 0 and 1 stay, other sizes become 2, 3, ... in their order."""
    import torch

    given = [t for t in tensors if isinstance(t, torch.Tensor)]
    sizes = sorted({n for t in given for n in t.shape if n > 1})
    small = {n: i + 2 for i, n in enumerate(sizes)} | {0: 0, 1: 1}

    def mini(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros([small[n] for n in tensor.shape], dtype=tensor.dtype, requires_grad=False)

    return [mini(t) if isinstance(t, torch.Tensor) else t for t in tensors]
