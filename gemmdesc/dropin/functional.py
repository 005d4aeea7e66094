"""torch's products as functions of ours: ``linear``, ``addmm``, ``bmm``, ``baddbmm`` and their kin.

``matmul`` and ``mm`` are in :mod:`gemmdesc.dropin.composite`.

Each has torch's own semantics, since torch itself folds, broadcasts and checks: only the products that it comes down to
are computed by us.  Autograd sees what it sees of torch's function; its backward products are torch's library's, unless
they run inside :func:`gemmdesc.override`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from gemmdesc.dropin import graph
from gemmdesc.dropin.composite import matmul
from gemmdesc.dropin.epilogue import Epilogue
from gemmdesc.dropin.fused import fused_linear, fused_scaled_mm
from gemmdesc.dropin.repeated import repeated
from gemmdesc.dropin.through import Choices, through
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    import torch


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epilogue: Epilogue | None = None,
    operands: Mapping[str, torch.Tensor] | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """``torch.nn.functional.linear``: ``x @ weight.T + bias``, with one rounding where torch fuses the bias.

    Args:
        x: (..., k).
        weight: (n, k), or (k,).
        bias: (n,).
        epilogue, operands: as :func:`matmul`; what follows meets the product with its bias.
        choices: as :func:`matmul`.

    Raises:
        as :func:`matmul`.
    """
    if epilogue is not None or operands:
        return fused_linear(x, weight, bias, epilogue, operands, choices)
    import torch

    if torch.compiler.is_compiling():
        return graph.linear(x, weight, bias, graph.graph_choices(choices))

    return repeated("linear", lambda: torch.nn.functional.linear(x, weight, bias), (x, weight, bias), choices)


def addmm(
    addend: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """``torch.addmm(addend, a, b, beta=beta, alpha=alpha, out=out)``; beta = 0 never reads ``addend``.

    Raises:
        as :func:`matmul`.
    """
    import torch

    if torch.compiler.is_compiling():
        return graph.addmm(addend, a, b, beta, alpha, graph.graph_choices(choices, out))

    call = lambda: torch.addmm(addend, a, b, beta=beta, alpha=alpha, out=out)  # noqa: E731
    return through("addmm", call, (addend, a, b), choices)


def addmm_activation(
    addend: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    use_gelu: bool = False,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """``torch._addmm_activation``: relu of :func:`addmm`, or its tanh gelu, in the library's epilogue where it can be.

    Not ``relu(addmm(...))`` or ``gelu(linear(...))``: those round before the function, and this mostly after it.

    Raises:
        as :func:`matmul`.
    """
    import torch

    if torch.compiler.is_compiling():
        return graph.addmm_activation(addend, a, b, beta, alpha, use_gelu, graph.graph_choices(choices))

    call = lambda: torch._addmm_activation(addend, a, b, beta=beta, alpha=alpha, use_gelu=use_gelu)  # noqa: E731
    return through("_addmm_activation", call, (addend, a, b), choices)


def bmm(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, **choices: Unpack[Choices]
) -> torch.Tensor:
    """``torch.bmm(a, b, out=out)``, (batch, m, k) x (batch, k, n): one strided-batched product, not a loop of ``mm``.

    Raises:
        as :func:`matmul`.
    """
    import torch

    if torch.compiler.is_compiling():
        return graph.bmm(a, b, graph.graph_choices(choices, out))

    return through("bmm", lambda: torch.bmm(a, b, out=out), (a, b), choices)


def baddbmm(
    addend: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """``torch.baddbmm(addend, a, b, beta=beta, alpha=alpha, out=out)``; beta = 0 never reads ``addend``.

    Raises:
        as :func:`matmul`.
    """
    import torch

    if torch.compiler.is_compiling():
        return graph.baddbmm(addend, a, b, beta, alpha, graph.graph_choices(choices, out))

    call = lambda: torch.baddbmm(addend, a, b, beta=beta, alpha=alpha, out=out)  # noqa: E731
    return through("baddbmm", call, (addend, a, b), choices)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    epilogue: Epilogue | None = None,
    operands: Mapping[str, torch.Tensor] | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """``torch._scaled_mm`` of 8-bit operands, ``a`` by rows and ``b`` by columns, with one scale for each.

    A scale is one float32 on the operands' device, read when the kernels run.  The product of both, rounded to float32,
    is multiplied by the sum, in float32, before the bias and the rounding to ``out_dtype``.  Row-wise and block-wise
    scales, and a scale of the result, decline.

    Raises:
        as :func:`matmul`.
    """
    import torch

    if torch.compiler.is_compiling():
        return graph.scaled_mm(
            a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, graph.graph_choices(choices)
        )  # fmt: skip

    def call() -> torch.Tensor:
        return torch._scaled_mm(
            a, b, scale_a, scale_b, bias=bias, out_dtype=out_dtype, use_fast_accum=use_fast_accum
        )  # fmt: skip

    if epilogue is not None or operands:
        return fused_scaled_mm(a, b, call, epilogue, operands, choices)
    return through("_scaled_mm", call, (a, b), choices)


def gated(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str = "silu", **choices: Unpack[Choices]
) -> torch.Tensor:
    """``act(x @ gate) * (x @ up)`` with every rounding of eager torch's: the gate of a feed-forward layer.

    The second product is computed first; the first one's kernel ends with the function and the multiplication.

    Args:
        x: (..., k).
        gate: (k, n).
        up: (k, n).
        activation: ``"silu"``, ``"gelu"``, ``"gelu_tanh"``, ``"relu"`` or ``"sigmoid"``.
        choices: as :func:`matmul`.

    Raises:
        InvalidInputError: an unknown activation, or as :func:`matmul`.
        DeclinedError, and others: as :func:`matmul`.
    """
    known = {
        "silu": Epilogue().silu(), "gelu": Epilogue().gelu(), "gelu_tanh": Epilogue().gelu("tanh"),
        "relu": Epilogue().relu(), "sigmoid": Epilogue().sigmoid(),
    }  # fmt: skip
    if activation not in known:
        raise InvalidInputError(f"activation must be one of {', '.join(known)} (got {activation!r})")
    operands = {"up": matmul(x, up, **choices)}
    return matmul(x, gate, epilogue=known[activation].multiply("up"), operands=operands, **choices)
