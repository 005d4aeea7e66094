"""From a call of one of torch's operators, as its kernel gets it, to a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gemmdesc.dropin.products import Family, Product
from gemmdesc.errors import Declined
from gemmdesc.ops.inputs import overlap, overlaps_itself
from gemmdesc.routes import DOT, Activation

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class _Spelling:
    """Under which names an operator takes its tensors; ``in_place``: whether the addend is the result."""

    family: Family
    a: str
    b: str
    addend: str | None = None
    in_place: bool = False


_MATRIX = _Spelling(family=Family.MATRIX, a="mat1", b="mat2", addend="self")
_BATCH = _Spelling(family=Family.BATCH, a="batch1", b="batch2", addend="self")
_VECTOR = _Spelling(family=Family.VECTOR, a="mat", b="vec", addend="self")
#: The products of torch's that have a route, by the operator's name.
SPELLINGS: Mapping[str, _Spelling] = MappingProxyType(
    {
        "mm": _Spelling(family=Family.MATRIX, a="self", b="mat2"),
        "addmm": _MATRIX,
        "addmm_": _Spelling(family=Family.MATRIX, a="mat1", b="mat2", addend="self", in_place=True),
        "_addmm_activation": _MATRIX,
        "bmm": _Spelling(family=Family.BATCH, a="self", b="mat2"),
        "baddbmm": _BATCH,
        "baddbmm_": _Spelling(family=Family.BATCH, a="batch1", b="batch2", addend="self", in_place=True),
        "mv": _Spelling(family=Family.VECTOR, a="self", b="vec"),
        "addmv": _VECTOR,
        "addmv_": _Spelling(family=Family.VECTOR, a="mat", b="vec", addend="self", in_place=True),
        "_scaled_mm": _Spelling(family=Family.SCALED, a="self", b="mat2", addend="bias"),
    }
)
#: Products of torch's that have no route.
UNCOVERED: Mapping[str, Declined] = MappingProxyType(
    {
        "dot": DOT,
        "vdot": DOT,
        **{
            name: Declined(code="out_of_scope", reason=f"torch's {name} has no route")
            for name in ("_int_mm", "_grouped_mm", "_scaled_grouped_mm", "_scaled_mm_v2")
        },
    }
)


def operator_name(func: Any) -> str:
    """``addmm`` for ``torch.ops.aten.addmm.out``; "" for operators of other libraries."""
    space, _, name = str(func._schema.name).partition("::")
    return name if space == "aten" else ""


def parsed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Product | Declined | None:
    """The product that ``func(*args, **kwargs)`` is, why it is none of ours, or None where it multiplies nothing.

    Operands that torch itself refuses decline with ``unsupported_input``: run the call, and torch says why.
    """
    name = operator_name(func)
    if name in UNCOVERED:
        return UNCOVERED[name]
    spelling = SPELLINGS.get(name)
    if spelling is None:
        return None
    given = arguments(func, args, kwargs)
    product = _product(name, spelling, given)
    return product if isinstance(product, Declined) else _fitting(product, given) or product


def arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call of an operator by name, defaults included."""
    names = [a.name for a in func._schema.arguments]
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    return defaults | dict(zip(names, args, strict=False)) | dict(kwargs)


def _product(name: str, spelling: _Spelling, given: Mapping[str, Any]) -> Product | Declined:
    a, b = given[spelling.a], given[spelling.b]
    addend = None if spelling.addend is None else given[spelling.addend]
    out = addend if spelling.in_place else given.get("out")
    alpha, beta = given.get("alpha", 1), given.get("beta", 0 if addend is None else 1)
    if any(isinstance(x, complex) for x in (alpha, beta)):
        return Declined(code="unsupported_input", reason="a complex alpha or beta")
    dtype = given.get("out_dtype") or (a.dtype if out is None else out.dtype)
    scales = None
    if spelling.family is Family.SCALED:
        scales, beta = (given["scale_a"], given["scale_b"]), 0
        if given.get("scale_result") is not None or any(s.numel() != 1 for s in scales):
            return Declined(code="out_of_scope", reason="scales other than one for each operand")
        if any(str(s.dtype) != "torch.float32" for s in scales):
            return Declined(code="unsupported_input", reason=f"scales of {scales[0].dtype} and {scales[1].dtype}")
    activation = Activation.NONE
    if name == "_addmm_activation":
        activation = Activation.GELU if given["use_gelu"] else Activation.RELU
    return Product(
        name=name, family=spelling.family, a=a, b=b, dtype=dtype, addend=addend, out=out, alpha=float(alpha),
        beta=float(beta), activation=activation, scales=scales,
        fast_accumulation=bool(given.get("use_fast_accum", False)),
    )  # fmt: skip


def _fitting(product: Product, given: Mapping[str, Any]) -> Declined | None:
    """A decline of operands that no such product has, or that torch treats apart."""
    p = product
    axes = {Family.BATCH: (3, 3), Family.VECTOR: (2, 1)}.get(p.family, (2, 2))
    tensors = [t for t in (p.a, p.b, p.addend, p.out) if t is not None]
    if (p.a.dim(), p.b.dim()) != axes or p.a.shape[-1] != p.b.shape[p.b.dim() - min(2, p.b.dim())]:
        reason = f"operands of shapes {tuple(p.a.shape)} and {tuple(p.b.shape)}"
    elif p.family is Family.BATCH and p.a.shape[0] != p.b.shape[0]:
        reason = f"batches of {p.a.shape[0]} and {p.b.shape[0]} matrices"
    elif any(t.device != p.a.device for t in tensors):
        reason = f"tensors on several devices, {', '.join(sorted({str(t.device) for t in tensors}))}"
    elif p.family is not Family.SCALED and p.b.dtype != p.a.dtype:
        reason = f"operands of {p.a.dtype} and {p.b.dtype}"
    elif not (p.a.is_floating_point() or p.a.is_complex()):
        reason = f"operands of {p.a.dtype}"
    elif not all(_is_plain(t) for t in tensors):
        reason = "a tensor that is sparse, quantised, nested, or lazily conjugated or negated"
    elif p.out is not None and p.out.numel() and tuple(p.out.shape) != p.shape:
        reason = f"an out of shape {tuple(p.out.shape)}, which torch resizes to {p.shape}"
    elif p.out is not None and p.family is not Family.SCALED and p.out.dtype != (given.get("out_dtype") or p.a.dtype):
        reason = f"an out of {p.out.dtype}"
    elif _shares_memory(p):
        reason = "an out whose elements share memory with one another, or with an operand"
    elif not _addend_fits(p):
        assert p.addend is not None
        reason = f"an addend of shape {tuple(p.addend.shape)} and {p.addend.dtype} for a result of shape {p.shape}"
    else:
        return None
    return Declined(code="unsupported_input", reason=reason)


def _is_plain(tensor: torch.Tensor) -> bool:
    import torch

    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return plain and not tensor.is_conj() and not tensor.is_neg()


def _shares_memory(product: Product) -> bool:
    """Whether ``out`` has no memory of its own; an addend may be ``out`` itself."""
    p = product
    if p.out is None:
        return False
    others = (p.a, p.b, None if p.addend is p.out else p.addend)
    return overlaps_itself(p.out) or any(x is not None and overlap(p.out, x) for x in others)


def _addend_fits(product: Product) -> bool:
    addend, shape = product.addend, product.shape
    if addend is None:
        return True
    if product.family is Family.SCALED:
        return tuple(addend.shape) == shape[-1:]
    aligned = zip(reversed(addend.shape), reversed(shape), strict=False)
    return addend.dtype == product.dtype and addend.dim() <= len(shape) and all(n in (1, size) for n, size in aligned)
