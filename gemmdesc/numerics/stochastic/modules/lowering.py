"""Torch's operators out of rounded operations: the formulas, each operation of which rounds once.

A formula that does not cover its arguments gives ``NotImplemented``; the operator is then rounded at its output only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic.modules import pieces
from gemmdesc.numerics.stochastic.modules.attention import multi_head_attention, scaled_dot_product_attention
from gemmdesc.numerics.stochastic.modules.pieces import Context
from gemmdesc.numerics.stochastic.modules.recurrent import recurrent
from gemmdesc.numerics.stochastic.run import StochasticRun


@dataclass(frozen=True, kw_only=True)
class Lowering:
    """``products``, ``order``, ``descriptor``: as in ``ModuleSettings``, the first as its text."""

    run: StochasticRun
    products: str
    order: str
    descriptor: Callable[[int, int, int], GEMMDesc] | None

    def lower(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The operator ``name`` of ``LOWERED``, or ``NotImplemented``."""
        context = Context(run=self.run, products=self.products, order=self.order, descriptor=self.descriptor)
        return LOWERED[name](context, *arguments, **keywords)


def linear(c: Context, input: Any, weight: Any, bias: Any = None) -> Any:
    x = c.stochastic(input)
    rows = x.reshape(-1, x.shape[-1])
    product = c.product(rows, weight.t() if not hasattr(weight, "samples") else weight.T)
    product = product.reshape(*x.shape[:-1], product.shape[-1])
    return product if bias is None else product + bias


def matmul(c: Context, input: Any, other: Any, **keywords: Any) -> Any:
    if keywords or input.ndim < 2 or other.ndim < 2:
        return NotImplemented
    return c.product(input, other)


def rmatmul(c: Context, input: Any, other: Any) -> Any:
    return matmul(c, other, input)


def addmm(c: Context, bias: Any, first: Any, second: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    return c.product(first, second) + bias


def convolution(dimensions: int) -> Callable[..., Any]:
    """One- and two-dimensional convolutions as products, over windows laid out by ``unfold``."""

    def convolve(
        c: Context, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Any:  # fmt: skip
        if groups != 1 or isinstance(padding, str) or input.ndim != dimensions + 2 or hasattr(weight, "samples"):
            return NotImplemented
        sizes = [pieces.two(v, dimensions, fill) for v, fill in ((stride, 1), (padding, 0), (dilation, 1))]
        kernel = weight if dimensions == 2 else weight.unsqueeze(2)
        x = c.stochastic(input)
        columns, place = pieces.windows(x, kernel.shape[2:], *sizes, dimensions=dimensions)
        flat = kernel.reshape(kernel.shape[0], -1)
        product = c.product(columns, flat.t())
        out = pieces.images(product, x.shape[0], place)
        return out if bias is None else out + bias.reshape(-1, *(1,) * dimensions)

    return convolve


def softmax(c: Context, input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if dim is None or dtype is not None:
        return NotImplemented
    x = c.stochastic(input)
    powers = F.exp(x - pieces.largest(x, dim))
    return powers / c.total(powers, dim)


def log_softmax(c: Context, input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if dim is None or dtype is not None:
        return NotImplemented
    x = c.stochastic(input)
    moved = x - pieces.largest(x, dim)
    return moved - F.log(c.total(F.exp(moved), dim))


def _normalised(c: Context, x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    """(x - mean) / sqrt(mean square of that + epsilon) over ``axes``."""
    centred = x - c.average(x, axes)
    return centred / F.sqrt(c.average(centred * centred, axes) + epsilon)


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def layer_norm(
    c: Context, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    axes = tuple(range(-len(normalized_shape), 0))
    return _scaled(_normalised(c, c.stochastic(input), axes, eps), weight, bias)


def rms_norm(c: Context, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    x = c.stochastic(input)
    least = 2.0**-c.run.settings.format.fraction_bits if eps is None else eps
    axes = tuple(range(-len(normalized_shape), 0))
    return _scaled(x / F.sqrt(c.average(x * x, axes) + least), weight, None)


def group_norm(
    c: Context, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    x = c.stochastic(input)
    grouped = x.reshape(x.shape[0], num_groups, -1)
    shape = (-1, *(1,) * (x.ndim - 2))
    parts = [None if v is None else v.reshape(shape) for v in (weight, bias)]
    return _scaled(_normalised(c, grouped, (-1,), eps).reshape(*x.shape), *parts)


def batch_norm(
    c: Context, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    """Of the batch's own statistics in training, else the running ones; running statistics are not updated."""
    x = c.stochastic(input)
    shape = (-1, *(1,) * (x.ndim - 2))
    parts = [None if v is None else v.reshape(shape) for v in (weight, bias)]
    if training or running_mean is None:
        axes = (0, *range(2, x.ndim))
        return _scaled(_normalised(c, x, axes, eps), *parts)
    mean, variance = running_mean.reshape(shape), c.stochastic(running_var.reshape(shape))
    return _scaled((x - mean) / F.sqrt(variance + eps), *parts)


def sigmoid(c: Context, input: Any) -> Any:
    return 1.0 / (F.exp(-c.stochastic(input)) + 1.0)


def silu(c: Context, input: Any, inplace: bool = False) -> Any:
    return c.stochastic(input) * sigmoid(c, input)


def gelu(c: Context, input: Any, approximate: str = "none") -> Any:
    x = c.stochastic(input)
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (F.tanh(inner) + 1.0)
    return x * 0.5 * (F.apply("erf", x * math.sqrt(0.5)) + 1.0)


def elu(c: Context, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    x = c.stochastic(input)
    return F.where(x.value > 0, x, F.expm1(x) * alpha)


def leaky_relu(c: Context, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    x = c.stochastic(input)
    return F.where(x.value >= 0, x, x * negative_slope)


def prelu(c: Context, input: Any, weight: Any) -> Any:
    x = c.stochastic(input)
    shape = (1, -1, *(1,) * (x.ndim - 2)) if weight.numel() > 1 else (1,) * x.ndim
    return F.where(x.value >= 0, x, x * weight.reshape(shape))


def dropout(c: Context, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """One mask for all samples; the kept elements are scaled, one rounding."""
    import torch

    x = c.stochastic(input)
    if not training or p == 0:
        return x
    kept = torch.rand(x.shape, device=x.device) >= p
    return F.where(kept, x * (1.0 / (1.0 - p)), 0.0)


def total(c: Context, input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    return _reduced(c.total, c.stochastic(input), dim if axis is None else axis, keepdim)


def average(c: Context, input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    return _reduced(c.average, c.stochastic(input), dim if axis is None else axis, keepdim)


def _reduced(reduce: Callable[[Any, Any], Any], x: Any, dim: Any, keepdim: bool) -> Any:
    axes = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    return reduce(x, axes) if keepdim else pieces.dropped(reduce(x, axes), axes)


def mse_loss(
    c: Context, input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Any = None,
) -> Any:  # fmt: skip
    if weight is not None or size_average is not None or reduce is not None:
        return NotImplemented
    apart = c.stochastic(input) - target
    return _loss(c, apart * apart, reduction)


def cross_entropy(
    c: Context, input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Of class indices: the log-softmax at the target, averaged."""
    if weight is not None or label_smoothing or input.ndim != 2 or target.is_floating_point():
        return NotImplemented
    return nll_loss(c, log_softmax(c, input, 1), target, ignore_index=ignore_index, reduction=reduction)


def nll_loss(
    c: Context, input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    import torch

    if weight is not None or input.ndim != 2 or bool((target == ignore_index).any()):
        return NotImplemented
    picked = c.stochastic(input)[torch.arange(len(target), device=target.device), target]
    return _loss(c, -picked, reduction)


def _loss(c: Context, x: Any, reduction: str) -> Any:
    if reduction == "none":
        return x
    reduce = {"sum": c.total, "mean": c.average}.get(reduction)
    if reduce is None:
        raise InvalidInputError(f"reduction must be none, sum or mean (got {reduction!r})")
    return _reduced(reduce, x, None, False)


def binary(operation: str) -> Callable[..., Any]:
    """A Python operator, whichever operand is stochastic."""

    def apply(c: Context, input: Any, other: Any, *, alpha: float = 1, rounding_mode: Any = None) -> Any:
        if alpha != 1 or rounding_mode is not None:
            return NotImplemented
        return getattr(c.stochastic(input), operation)(other)

    return apply


def unary(name: str) -> Callable[..., Any]:
    """A function of ``functions``."""
    return lambda c, input: F.apply(name, c.stochastic(input))


#: Torch's name -> formula.
LOWERED: dict[str, Callable[..., Any]] = {
    "linear": linear, "matmul": matmul, "mm": matmul, "bmm": matmul, "rmatmul": rmatmul, "addmm": addmm,
    "conv1d": convolution(1), "conv2d": convolution(2), "softmax": softmax, "log_softmax": log_softmax,
    "layer_norm": layer_norm, "rms_norm": rms_norm, "group_norm": group_norm, "batch_norm": batch_norm,
    "sigmoid": sigmoid, "silu": silu, "gelu": gelu, "elu": elu, "leaky_relu": leaky_relu, "prelu": prelu,
    "dropout": dropout, "sum": total, "mean": average, "mse_loss": mse_loss, "cross_entropy": cross_entropy,
    "nll_loss": nll_loss, "scaled_dot_product_attention": scaled_dot_product_attention,
    "multi_head_attention_forward": multi_head_attention, "lstm": recurrent("lstm"), "gru": recurrent("gru"),
    "rnn_tanh": recurrent("rnn_tanh"), "rnn_relu": recurrent("rnn_relu"),
    "add": binary("__add__"), "radd": binary("__radd__"), "sub": binary("__sub__"), "subtract": binary("__sub__"),
    "rsub": binary("__rsub__"), "mul": binary("__mul__"), "multiply": binary("__mul__"), "rmul": binary("__rmul__"),
    "div": binary("__truediv__"), "divide": binary("__truediv__"), "true_divide": binary("__truediv__"),
    "truediv": binary("__truediv__"), "rtruediv": binary("__rtruediv__"), "rdiv": binary("__rtruediv__"),
    "pow": binary("__pow__"), "rpow": binary("__rpow__"),
    **{name: unary(name) for name in ("sqrt", *F.EXACT_AT)},
}  # fmt: skip
