"""torch's products as functions of ours: ``matmul``, ``mm``, ``linear``, ``addmm``, ``bmm``, ``baddbmm`` and their kin.

Each has torch's own semantics, since torch itself folds, broadcasts and checks: only the products that it comes down to
are computed by us.  Autograd sees what it sees of torch's function; its backward products are torch's library's, unless
they run inside :func:`gemmdesc.override`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from gemmdesc.dropin import graph
from gemmdesc.dropin.epilogue import Epilogue
from gemmdesc.dropin.fused import fused_linear, fused_matmul, fused_scaled_mm
from gemmdesc.dropin.lowering import Products, lowered_matmul
from gemmdesc.dropin.refusals import as_torch_refuses
from gemmdesc.dropin.repeated import repeated
from gemmdesc.dropin.through import Choices, through
from gemmdesc.errors import InvalidInputError
from gemmdesc.ops import products
from gemmdesc.ops.frequent import frequent_products

if TYPE_CHECKING:
    import torch

#: Choices that leave a frequent call what it is.
_FREQUENT = frozenset(("on_decline", "planner"))


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    epilogue: Epilogue | None = None,
    operands: Mapping[str, torch.Tensor] | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """``torch.matmul(a, b, out=out)`` with the library's bytes: 1-D, 2-D and N-D operands, broadcast and folded.

    Two matrices outside of any graph and of autocast take the short way of :func:`gemmdesc.ops.matmul`, and its checks.
    All others are torch's composite, whose route may depend on strides and on what requires a gradient
    (``docs/torch.md``); under autocast operands are converted as torch does it.

    Args:
        a: of at least one axis; float16 or bfloat16 on a CUDA device, or on a CPU beside ``replay``.
        b: likewise, of ``a``'s type.
        out: where the result goes.
        out_dtype: the result's type, the operands' by default; ``torch.float32`` is the other one.
        epilogue: what follows the product in the same kernel: the result is ``epilogue(torch.matmul(a, b),
            **operands)`` bit for bit, a new tensor.
        operands: the tensors that the epilogue reads, by name; they broadcast to the product.
        choices: ``on_decline``, ``profiles``, ``planner``, ``book``, ``replay``, ``accept``, ``pin``; or ``named``
            alone, a name of :func:`gemmdesc.dropin.register_choices`.  While ``torch.compile`` traces, ``on_decline``
            or ``named``.

    Raises:
        InvalidInputError: operands that torch refuses, as a kind of the very exception that torch raises, or tensors on
            a device that these choices do not cover.
        DeclinedError: no promise can be made for a product inside; nothing of ``out`` is written.
        LibraryError, ProfileError, BookError, CaptureError: as :func:`gemmdesc.ops.matmul`.
    """
    import torch

    if epilogue is not None or operands:
        _require_new(out, out_dtype)
        return fused_matmul(a, b, epilogue, operands, choices)
    if torch.compiler.is_compiling():
        if out_dtype is not None and _axes(a, b) == (2, 2):
            return graph.mm(a, b, graph.graph_choices(choices, out), out_dtype)
        _require_matrices(out_dtype)
        return graph.matmul(a, b, graph.graph_choices(choices, out))

    if not choices or (choices.keys() <= _FREQUENT and choices.get("on_decline", "raise") in ("raise", "library")):
        done = frequent_products().matmul(a, b, out, out_dtype, choices.get("planner"))
        if done is not None:
            return done
    plain = _axes(a, b) == (2, 2) and not _in_graph(a, b) and not torch.is_autocast_enabled("cuda")
    if plain and not any(choices.get(name) is not None for name in ("replay", "named", "pin")):
        return _short(a, b, out, out_dtype, choices)
    if out_dtype is not None:
        if _axes(a, b) == (2, 2):
            return mm(a, b, out=out, out_dtype=out_dtype, **choices)
        _require_matrices(out_dtype)
    if out is not None and _axes(a, b) == (1, 2):
        # torch gives mm an out of one axis here, and so resizes it.
        return _row(a, b, out, choices)
    return through("matmul", lambda: _matmul(a, b, out), (a, b), choices)


def _matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """``torch.matmul`` as it is outside of a dispatch mode, which makes it fold batches of one."""
    import torch

    if min(_axes(a, b)) < 1 or (out is not None and not _broadcasts_one(a, b)):
        return torch.matmul(a, b, out=out)
    if out is None:
        return lowered_matmul(
            a, b, Products(mm=torch.mm, bmm=torch.bmm, mv=torch.mv, dot=torch.dot, addmm=torch.addmm)
        )  # fmt: skip
    batch = max(a.shape[0], b.shape[0])
    left, right = (t.expand(batch, -1, -1).reshape(batch, *t.shape[1:]) for t in (a, b))
    return torch.bmm(left, right, out=out)


def _broadcasts_one(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _axes(a, b) == (3, 3) and a.shape[0] != b.shape[0]


def _row(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, choices: Choices) -> torch.Tensor:
    mm(a.unsqueeze(0), b, out=out.unsqueeze(0), **choices)
    return out


def _short(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None, choices: Choices
) -> torch.Tensor:
    import torch

    given: dict[str, Any] = {name: value for name, value in choices.items() if name not in ("replay", "named", "pin")}
    try:
        return products.matmul(a, b, out=out, out_dtype=out_dtype, **given)
    except InvalidInputError as error:
        raise as_torch_refuses(error, lambda x, y, z: torch.mm(x, y, out=z), (a, b, out)) from None


def _axes(*tensors: Any) -> tuple[int, ...]:
    """How many each tensor has, -1 for what is none."""
    import torch

    return tuple(t.dim() if isinstance(t, torch.Tensor) else -1 for t in tensors)


def _require_matrices(out_dtype: torch.dtype | None) -> None:
    if out_dtype is not None:
        raise InvalidInputError(f"out_dtype must be None unless a and b are matrices (got {out_dtype})")


def _in_graph(*tensors: torch.Tensor) -> bool:
    import torch

    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def mm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """``torch.mm(a, b, out=out)``, (m, k) x (k, n); ``out_dtype`` may be ``torch.float32``.

    Raises:
        as :func:`matmul`.
    """
    import torch

    if torch.compiler.is_compiling():
        return graph.mm(a, b, graph.graph_choices(choices, out), out_dtype)

    def call() -> torch.Tensor:
        if out_dtype is None or out_dtype == a.dtype:
            return torch.mm(a, b, out=out)
        return torch.mm(a, b, out_dtype, out=out)

    if out is None and (out_dtype is None or out_dtype == a.dtype):
        return repeated("mm", call, (a, b), choices)
    return through("mm", call, (a, b), choices)


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


def _require_new(out: torch.Tensor | None, out_dtype: torch.dtype | None) -> None:
    if out is not None or out_dtype is not None:
        raise InvalidInputError("out and out_dtype must be None beside an epilogue, which ends in a type (got others)")
