"""torch's products for graphs: composites lowered in Python onto ``torch.ops.gemmdesc``, which a compiler keeps whole.

The functions of :mod:`gemmdesc.dropin.composite` and ``functional`` come here while ``torch.compile`` traces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmdesc.dropin.lowering import Products, lowered_linear, lowered_matmul
from gemmdesc.dropin.named import DEFAULT, LIBRARY
from gemmdesc.dropin.operators import register_operators
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    import torch


def graph_choices(choices: Mapping[str, Any], out: Any = None) -> str:
    """The name that a graph's operators get for what a function was given.

    Raises:
        InvalidInputError: an ``out``, or choices that have no name.
    """
    _have_operators()
    if out is not None:
        raise InvalidInputError("out must be None in a graph (got a tensor)")
    others = [name for name in choices if name not in ("named", "on_decline")]
    if others:
        raise InvalidInputError(f"choices must have a name in a graph, see register_choices (got {', '.join(others)})")
    named = choices.get("named")
    if named is not None:
        return str(named)
    return LIBRARY if choices.get("on_decline") == "library" else DEFAULT


def _have_operators() -> bool:
    """Make the operators where they are not there yet; a tracer calls this for its result, and keeps that."""
    register_operators()
    return True


# What torch.compiler.assume_constant_result marks, which may not be imported here.
_have_operators._dynamo_marked_constant = True  # type: ignore[attr-defined]


def matmul(a: torch.Tensor, b: torch.Tensor, choices: str = "") -> torch.Tensor:
    """``torch.matmul(a, b)``; ``choices``: a name of :mod:`gemmdesc.dropin.named`."""
    a, b = _cast(a, b)
    return lowered_matmul(a, b, _products(choices))


def mm(a: torch.Tensor, b: torch.Tensor, choices: str = "", out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.mm(a, b)``, or ``torch.mm(a, b, out_dtype)``, which autocast leaves alone."""
    import torch

    if out_dtype is not None and out_dtype != a.dtype:
        return torch.ops.gemmdesc.mm_dtype(a, b, out_dtype, choices)
    a, b = _cast(a, b)
    return torch.ops.gemmdesc.mm(a, b, choices)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, choices: str = ""
) -> torch.Tensor:
    """``torch.nn.functional.linear(x, weight, bias)``; beside an ``x`` that is no matrix, of a dense bias of one axis.

    Releases of torch do not agree on what becomes of other biases there.
    """
    if bias is None:
        x, weight = _cast(x, weight)
    else:
        x, weight, bias = _cast(x, weight, bias)
        if x.dim() != 2 and (bias.dim() != 1 or not bias.is_contiguous()):
            raise InvalidInputError(
                f"bias must be dense and have one axis beside an x of {x.dim()} axes in a graph (got {bias.dim()} axes)"
            )
    return lowered_linear(x, weight, bias, _products(choices))


def addmm(
    addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float = 1, alpha: float = 1, choices: str = ""
) -> torch.Tensor:
    """``torch.addmm(addend, a, b, beta=beta, alpha=alpha)``."""
    import torch

    addend, a, b = _cast(addend, a, b)
    return torch.ops.gemmdesc.addmm(addend, a, b, float(beta), float(alpha), choices)


def addmm_activation(
    addend: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float = 1,
    alpha: float = 1,
    use_gelu: bool = False,
    choices: str = "",
) -> torch.Tensor:
    """``torch._addmm_activation``, which autocast leaves alone, and which has no gradient."""
    import torch

    return torch.ops.gemmdesc.addmm_activation(addend, a, b, float(beta), float(alpha), use_gelu, choices)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    choices: str = "",
) -> torch.Tensor:
    """``torch._scaled_mm``, which has no gradient."""
    import torch

    return torch.ops.gemmdesc.scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, choices)


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
    """As autocast does for these products: every floating tensor but float64 ones, on devices where it is on."""
    return tuple(_cast_one(t) for t in tensors)


def _cast_one(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    place = tensor.device.type
    if not torch.is_autocast_enabled(place) or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(place))
