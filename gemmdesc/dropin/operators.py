"""``torch.ops.gemmdesc``: our products as operators that a graph holds whole, with shapes for tracing and gradients.

Each is opaque to a compiler: no decomposition, no fusion, no other kernel, and the plan is chosen from the sizes at run
time.  Gradients are those of derivatives.yaml (tools/autograd), by these very operators, so that backward's products
are those of eager's backward.  ``choices`` is a name of :mod:`gemmdesc.dropin.named`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from gemmdesc.dropin.intercept import TorchCall
from gemmdesc.dropin.ledger import process_ledger
from gemmdesc.dropin.named import named_choices
from gemmdesc.dropin.overriding import answer
from gemmdesc.dropin.parsing import parsed
from gemmdesc.dropin.products import Product
from gemmdesc.dropin.through import require_place
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

NAMESPACE = "gemmdesc"


def _computed(func: Any, choices: str, *args: Any, **kwargs: Any) -> Any:
    """``func`` of aten's, its product by the executor that ``choices`` names."""
    executor, on_decline = named_choices(choices)
    found = parsed(func, args, kwargs)
    assert found is not None
    if isinstance(found, Product) and found.is_empty:
        return func(*args, **kwargs)
    call = TorchCall(func=func, args=args, kwargs=kwargs, found=found, run=lambda: func(*args, **kwargs))
    require_place(call, executor)
    return answer(call, executor, on_decline, (process_ledger(),))


#: An operator's arguments, ``choices`` apart, as those of aten's.
Arguments = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
Gradient = Callable[..., tuple[Any, ...]]


@cache
def register_operators() -> None:
    """Put the operators into ``torch.ops.gemmdesc``, once in a process."""
    import torch

    aten = torch.ops.aten
    two, three = "Tensor a, Tensor b, ", "Tensor addend, Tensor a, Tensor b, float beta, float alpha, "
    _define("mm", two, aten.mm.default, _plain, _mm_gradient)
    _define("bmm", two, aten.bmm.default, _plain, _bmm_gradient)
    _define("mv", two, aten.mv.default, _plain, _mv_gradient)
    _define("addmm", three, aten.addmm.default, _added, _addmm_gradient)
    _define("baddbmm", three, aten.baddbmm.default, _added, _baddbmm_gradient)
    _define("addmm_activation", f"{three}bool use_gelu, ", aten._addmm_activation.default, _activated, None)
    _define("mm_dtype", f"{two}ScalarType out_dtype, ", aten.mm.dtype, _plain, None)
    _define(
        "scaled_mm", f"{two}Tensor scale_a, Tensor scale_b, Tensor? bias, ScalarType? out_dtype, bool use_fast_accum, ",
        aten._scaled_mm.default, _scaled, None,
    )  # fmt: skip


def _plain(*given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return given, {}


def _added(addend: Any, a: Any, b: Any, beta: float, alpha: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (addend, a, b), {"beta": beta, "alpha": alpha}


def _activated(
    addend: Any, a: Any, b: Any, beta: float, alpha: float, use_gelu: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (addend, a, b), {"beta": beta, "alpha": alpha, "use_gelu": use_gelu}


def _scaled(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out_dtype: Any, use_fast_accum: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (a, b, scale_a, scale_b), {"bias": bias, "out_dtype": out_dtype, "use_fast_accum": use_fast_accum}


def _define(name: str, schema: str, func: Any, arguments: Arguments, gradient: Gradient | None) -> None:
    """``func`` of aten's as an operator; ``gradient``: None where torch has none either."""
    import torch

    def kernel(*given: Any) -> Any:
        args, named = arguments(*given[:-1])
        return _computed(func, given[-1], *args, **named)

    def fake(*given: Any) -> Any:
        # The shapes, strides and refusals of torch's own.
        args, named = arguments(*given[:-1])
        return func(*args, **named)

    def mapped(info: Any, in_dims: Any, *given: Any) -> Any:
        # torch's own rule makes another product of it; a loop of single ones would have other bytes.
        raise InvalidInputError(
            f"{name} must not be mapped by vmap; map torch's own product inside an override (got in_dims {in_dims})"
        )

    operator = torch.library.custom_op(
        f"{NAMESPACE}::{name}", kernel, mutates_args=(), schema=f"({schema}str choices) -> Tensor"
    )
    operator.register_fake(fake)
    operator.register_vmap(mapped)
    if gradient is not None:
        _give_gradient(operator, arguments, gradient)


def _give_gradient(operator: Any, arguments: Arguments, gradient: Gradient) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, ctx.scalars = arguments(*inputs[:-1])
        ctx.save_for_backward(*tensors)
        ctx.choices = inputs[-1]

    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        found = gradient(ctx, grad, *ctx.saved_tensors)
        return (*found, *([None] * len(ctx.scalars)), None)

    operator.register_autograd(backward, setup_context=keep)


def _times(tensor: torch.Tensor, scalar: float) -> torch.Tensor:
    return tensor if scalar == 1 else tensor * scalar


def _left(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, choices: str) -> torch.Tensor:
    """``mm_mat1_grad``: by columns where ``a`` is stored so."""
    import torch

    mm = torch.ops.gemmdesc.mm
    if a.stride(0) == 1 and a.stride(1) == a.shape[0]:
        return mm(b, grad.t(), choices).t()
    return mm(grad, b.t(), choices)


def _right(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, choices: str) -> torch.Tensor:
    """``mm_mat2_grad``: by columns where ``b`` is stored so."""
    import torch

    mm = torch.ops.gemmdesc.mm
    if b.stride(0) == 1 and b.stride(1) == b.shape[0]:
        return mm(grad.t(), a, choices).t()
    return mm(a.t(), grad, choices)


def _mm_gradient(ctx: Any, grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    left = _left(grad, a, b, ctx.choices) if needs[0] else None
    return left, _right(grad, a, b, ctx.choices) if needs[1] else None


def _addmm_gradient(
    ctx: Any, grad: torch.Tensor, addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[Any, ...]:
    needs, alpha = ctx.needs_input_grad, ctx.scalars["alpha"]
    added = _reduced(_times(grad, ctx.scalars["beta"]), addend) if needs[0] else None
    left = _times(_left(grad, a, b, ctx.choices), alpha) if needs[1] else None
    return added, left, _times(_right(grad, a, b, ctx.choices), alpha) if needs[2] else None


def _bmm_gradient(ctx: Any, grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
    import torch

    needs, bmm = ctx.needs_input_grad, torch.ops.gemmdesc.bmm
    left = bmm(grad, b.transpose(1, 2), ctx.choices) if needs[0] else None
    return left, bmm(a.transpose(1, 2), grad, ctx.choices) if needs[1] else None


def _baddbmm_gradient(
    ctx: Any, grad: torch.Tensor, addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[Any, ...]:
    import torch

    needs, alpha, bmm = ctx.needs_input_grad, ctx.scalars["alpha"], torch.ops.gemmdesc.bmm
    added = _reduced(_times(grad, ctx.scalars["beta"]), addend) if needs[0] else None
    left = _times(bmm(grad, b.transpose(1, 2), ctx.choices), alpha) if needs[1] else None
    return added, left, _times(bmm(a.transpose(1, 2), grad, ctx.choices), alpha) if needs[2] else None


def _mv_gradient(ctx: Any, grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
    import torch

    needs = ctx.needs_input_grad
    left = torch.outer(grad, b) if needs[0] else None
    return left, torch.ops.gemmdesc.mv(a.t(), grad, ctx.choices) if needs[1] else None


def _reduced(grad: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """``grad`` summed over the axes in which ``addend`` was broadcast, as autograd does it."""
    return grad.sum_to_size(addend.shape)
