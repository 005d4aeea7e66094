"""``torch.matmul``, which is a composite of torch's, and ``torch.mm``, which it comes down to for two matrices.

Which way a call takes is decided here: traced, found again, the short one of two plain matrices, or torch's own.  What
``gemmdesc.dropin.functional`` says of semantics and autograd holds here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from gemmdesc.dropin import graph
from gemmdesc.dropin.epilogue import Epilogue
from gemmdesc.dropin.fused import fused_matmul
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


def _require_new(out: torch.Tensor | None, out_dtype: torch.dtype | None) -> None:
    if out is not None or out_dtype is not None:
        raise InvalidInputError("out and out_dtype must be None beside an epilogue, which ends in a type (got others)")
