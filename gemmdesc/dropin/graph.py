"""torch's products for graphs: composites lowered in Python onto ``torch.ops.gemmdesc``, which a compiler keeps whole.

The functions of :mod:`gemmdesc.dropin.functional` come here while ``torch.compile`` traces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmdesc.dropin.lowering import Products, lowered_linear, lowered_matmul
from gemmdesc.dropin.named import DEFAULT, LIBRARY
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    import torch


def graph_choices(choices: Mapping[str, Any], out: Any = None) -> str:
    """The name that a graph's operators get for what a function was given.

    Raises:
        InvalidInputError: an ``out``, or choices that have no name.
    """
    if out is not None:
        raise InvalidInputError("out must be None in a graph (got a tensor)")
    others = [name for name in choices if name not in ("named", "on_decline")]
    if others:
        raise InvalidInputError(f"choices must have a name in a graph, see register_choices (got {', '.join(others)})")
    named = choices.get("named")
    if named is not None:
        return str(named)
    return LIBRARY if choices.get("on_decline") == "library" else DEFAULT


def matmul(a: torch.Tensor, b: torch.Tensor, choices: str = "") -> torch.Tensor:
    """``torch.matmul(a, b)``; ``choices``: a name of :mod:`gemmdesc.dropin.named`."""
    a, b = _cast(a, b)
    return lowered_matmul(a, b, _products(choices))


def mm(a: torch.Tensor, b: torch.Tensor, choices: str = "") -> torch.Tensor:
    """``torch.mm(a, b)``."""
    import torch

    a, b = _cast(a, b)
    return torch.ops.gemmdesc.mm(a, b, choices)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, choices: str = ""
) -> torch.Tensor:
    """``torch.nn.functional.linear(x, weight, bias)`` of a bias with one axis."""
    if bias is None:
        x, weight = _cast(x, weight)
    else:
        x, weight, bias = _cast(x, weight, bias)
        if bias.dim() != 1:
            raise InvalidInputError(f"bias must have one axis in a graph (got {bias.dim()})")
    return lowered_linear(x, weight, bias, _products(choices))


def addmm(
    addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float = 1, alpha: float = 1, choices: str = ""
) -> torch.Tensor:
    """``torch.addmm(addend, a, b, beta=beta, alpha=alpha)``."""
    import torch

    addend, a, b = _cast(addend, a, b)
    return torch.ops.gemmdesc.addmm(addend, a, b, float(beta), float(alpha), choices)


def bmm(a: torch.Tensor, b: torch.Tensor, choices: str = "") -> torch.Tensor:
    """``torch.bmm(a, b)``."""
    import torch

    a, b = _cast(a, b)
    return torch.ops.gemmdesc.bmm(a, b, choices)


def baddbmm(
    addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float = 1, alpha: float = 1, choices: str = ""
) -> torch.Tensor:
    """``torch.baddbmm(addend, a, b, beta=beta, alpha=alpha)``."""
    import torch

    addend, a, b = _cast(addend, a, b)
    return torch.ops.gemmdesc.baddbmm(addend, a, b, float(beta), float(alpha), choices)


def _products(choices: str) -> Products:
    import torch

    ops = torch.ops.gemmdesc
    return Products(
        mm=lambda a, b: ops.mm(a, b, choices), bmm=lambda a, b: ops.bmm(a, b, choices),
        mv=lambda a, b: ops.mv(a, b, choices), dot=torch.dot,
        addmm=lambda bias, a, b: ops.addmm(bias, a, b, 1.0, 1.0, choices),
    )  # fmt: skip


def _cast(*tensors: Any) -> Any:
    """As autocast does for these products: every floating tensor but float64 ones, on a GPU where it is on."""
    import torch

    if not torch.is_autocast_enabled("cuda"):
        return tensors
    dtype = torch.get_autocast_dtype("cuda")
    fitting = [t.is_cuda and t.is_floating_point() and t.dtype != torch.float64 for t in tensors]
    return tuple(t.to(dtype) if fits else t for t, fits in zip(tensors, fitting, strict=True))
