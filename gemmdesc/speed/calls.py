"""The calls of a shape as functions of its tensors: eager torch, ours, and what torch.compile is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmdesc.dropin import Epilogue, linear, matmul, mm, scaled_mm
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.speed.shapes import SpeedShape

if TYPE_CHECKING:
    import torch

#: 8-bit operands are multiplied by these, so that results stay in bfloat16's normal range.
_SCALES = (0.5, 0.25)
#: Exponents of drawn values reach so far on either side of 0 where the order of a sum must show.
_SPREAD = {DType.FLOAT16: 5, DType.BFLOAT16: 10, DType.FLOAT32: 20, DType.FLOAT8_E4M3FN: 3}


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """One input set: a (m, k) and b (k, n) as the shape stores them, ``out`` for plain products, and what is beside.

    ``beside``: the operands of what follows, by the names of its epilogue, and ``bias``; of 8-bit products the scales.
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    beside: Mapping[str, torch.Tensor]


Call = Callable[[Tensors], "torch.Tensor"]


def new_tensors(shape: SpeedShape, place: str) -> Tensors:
    """Memory for one input set; :func:`fill` gives it values."""
    import torch

    p = shape.product
    kinds = {name: getattr(torch, getattr(p, name).value) for name in ("dtype", "out_dtype")}

    def side(rows: int, columns: int, letter: str) -> torch.Tensor:
        stored = (rows, columns) if letter == "n" else (columns, rows)
        tensor = torch.empty(stored, dtype=kinds["dtype"], device=place)
        return tensor if letter == "n" else tensor.T

    def own(*sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=kinds["out_dtype"], device=place)

    whole = (p.m, p.n)
    sizes: dict[str, dict[str, tuple[int, ...]]] = {
        "gelu_bias": {"bias": (p.n,)}, "residual": {"residual": whole}, "sigmoid_gate": {"gate": whole},
        "weighted": {"weight": (p.m, 1)}, "lora_add": {"base": whole},
    }  # fmt: skip
    held = {name: own(*of) for name, of in sizes.get(shape.following, {}).items()}
    if p.dtype is DType.FLOAT8_E4M3FN:
        held |= {
            name: torch.tensor(value, device=place) for name, value in zip(("scale_a", "scale_b"), _SCALES, strict=True)
        }
    return Tensors(a=side(p.m, p.k, p.layout[0]), b=side(p.k, p.n, p.layout[1]), out=own(*whole), beside=held)


def fill(shape: SpeedShape, tensors: Tensors, generator: torch.Generator, *, wide: bool) -> None:
    """Draw every operand: normal, and with ``wide`` exponents that show in which order products are added."""
    import torch

    spread = _SPREAD[shape.product.dtype]
    scales = ("scale_a", "scale_b")
    for tensor in (tensors.a, tensors.b, *(t for name, t in tensors.beside.items() if name not in scales)):
        stored = tensor if tensor.is_contiguous() else tensor.T
        # A gigabyte of weights is drawn in strips, so that its float32 draw never takes several.
        for strip in stored.split(max(1, (1 << 26) // max(1, stored[0].numel()))) if stored.dim() == 2 else (stored,):
            values = torch.randn(strip.shape, device=tensor.device, generator=generator)
            if wide:
                exponents = torch.randint(-spread, spread + 1, strip.shape, device=tensor.device, generator=generator)
                values *= torch.exp2(exponents.float())
            strip.copy_(values)


def epilogue_of(following: str) -> Epilogue | Declined:
    """What our call does after the product, or why there is no such call."""
    e = Epilogue()
    found = {
        "silu": e.silu(), "gelu_bias": e.gelu(), "residual": e.add("residual"), "weighted": e.multiply("weight"),
        "lora_add": e.add("base"), "sigmoid_gate": e.sigmoid().multiply("gate"),
    }  # fmt: skip
    absent = Declined(code="out_of_scope", reason=f"no epilogue for {following}: it has no such function")
    return found.get(following, absent)


def library_call(shape: SpeedShape) -> Call:
    """Eager torch: the library's product and torch's operators after it."""
    import torch

    if shape.product.dtype is DType.FLOAT8_E4M3FN:
        return lambda t: torch._scaled_mm(
            t.a, t.b, t.beside["scale_a"], t.beside["scale_b"], out_dtype=t.out.dtype, use_fast_accum=False, out=t.out
        )
    if not shape.following:
        return lambda t: torch.mm(t.a, t.b, out=t.out)
    function = eager_function(shape)
    return lambda t: function(t.a, t.b, *t.beside.values())


def product_call(shape: SpeedShape) -> Call:
    """The library's product without what follows it."""
    import torch

    return lambda t: torch.mm(t.a, t.b, out=t.out)


def eager_function(shape: SpeedShape) -> Callable[..., torch.Tensor]:
    """The shape as a function of a, b and what is beside, without memory for the result: what torch.compile gets."""
    import torch
    from torch.nn import functional

    if shape.product.dtype is DType.FLOAT8_E4M3FN:
        kind = getattr(torch, shape.product.out_dtype.value)
        return lambda a, b, scale_a, scale_b: torch._scaled_mm(
            a, b, scale_a, scale_b, out_dtype=kind, use_fast_accum=False
        )
    match shape.following:
        case "silu":
            return lambda a, b: functional.silu(functional.linear(a, b.T))
        case "gelu_bias":
            return lambda a, b, bias: functional.gelu(functional.linear(a, b.T, bias))
        case "residual" | "lora_add":
            return lambda a, b, other: functional.linear(a, b.T) + other
        case "sigmoid_gate":
            return lambda a, b, gate: torch.sigmoid(functional.linear(a, b.T)) * gate
        case "weighted":
            return lambda a, b, weight: functional.linear(a, b.T) * weight
        case _:
            return lambda a, b: torch.mm(a, b)


def our_call(shape: SpeedShape) -> Call | Declined:
    """The same function from our kernels; the call itself raises DeclinedError where no promise can be made."""
    if shape.product.dtype is DType.FLOAT8_E4M3FN:
        return lambda t: scaled_mm(
            t.a, t.b, t.beside["scale_a"], t.beside["scale_b"], out_dtype=t.out.dtype
        )
    if not shape.following:
        if shape.product.dtype is DType.FLOAT32:
            return lambda t: mm(t.a, t.b, out=t.out)
        return lambda t: matmul(t.a, t.b, out=t.out)
    epilogue = epilogue_of(shape.following)
    if isinstance(epilogue, Declined):
        return epilogue

    def fused(t: Tensors) -> torch.Tensor:
        operands = {name: tensor for name, tensor in t.beside.items() if name != "bias"}
        return linear(t.a, t.b.T, t.beside.get("bias"), epilogue=epilogue, operands=operands)

    return fused
