"""One product of torch's on tensors, stated alike whatever its spelling, and its route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plan import Following
from gemmdesc.routes import (
    Activation,
    NdMeta,
    Release,
    Route,
    nd_meta,
    route_addmm,
    route_addmv,
    route_baddbmm,
    route_product,
    route_scaled_mm,
)
from gemmdesc.routes.metas import contiguous_strides

if TYPE_CHECKING:
    import torch


class Family(Enum):
    """What a product multiplies: two matrices, two batches, a matrix and a vector, or matrices with scales."""

    MATRIX = "matrix"
    BATCH = "batch"
    VECTOR = "vector"
    SCALED = "scaled"


@dataclass(frozen=True, kw_only=True, eq=False)
class Fused:
    """What is done after a product, with its operands: float32 numbers, and tensors of the product's shape, with stride
    0 where they repeat; ``sources``: of the latter the caller's names."""

    following: Following
    named: Mapping[str, torch.Tensor | float]
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Of the result."""
        import torch

        found: torch.dtype = getattr(torch, self.following.output_dtype.value)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """A call of one of torch's products, its operands fit for one another.

    ``name``: the operator's, such as ``addmm``.  ``a``, ``b``: (m, k) and (k, n), batches of them, or (m, k) and (k,).
    ``addend``: what the result starts from, times ``beta``; of ``SCALED``, the bias.  ``out``: where the result goes, a
    new tensor of ``dtype`` where it is None.  ``scales``: of ``a`` and of ``b``, tensors of one element.
    ``fused``: what follows the product, which is of ``dtype``.  ``witness``: is told how our kernels were launched.
    """

    name: str
    family: Family
    a: torch.Tensor
    b: torch.Tensor
    dtype: torch.dtype
    addend: torch.Tensor | None = None
    out: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0
    activation: Activation = Activation.NONE
    scales: tuple[torch.Tensor, torch.Tensor] | None = None
    fast_accumulation: bool = False
    fused: Fused | None = None
    witness: Callable[[Any], None] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.a.shape[:-1], *self.b.shape[-1:]) if self.family is not Family.VECTOR else (self.a.shape[0],)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to multiply, which torch answers without a library."""
        return not (self.a.numel() and self.b.numel())


def route_of(product: Product, settings: TorchSettings, release: Release) -> Route | Declined:
    """Which problem ``product`` poses under torch's ``settings``; nothing is written or computed.

    A tensor on a CPU stands for one at the same offset into an allocation of a GPU's.
    """
    p = product
    a, b, out = _meta(p.a), _meta(p.b), _result_meta(p)
    for meta in (a, b, out):
        if isinstance(meta, Declined):
            return meta
    assert isinstance(a, NdMeta)
    assert isinstance(b, NdMeta)
    assert isinstance(out, NdMeta)
    addend = None if p.addend is None else _meta(p.addend)
    if isinstance(addend, Declined):
        return addend
    match p.family:
        case Family.BATCH:
            return route_baddbmm(a, b, out, settings, alpha=p.alpha, beta=p.beta)
        case Family.VECTOR:
            return route_addmv(a.matrix, b, out, settings, alpha=p.alpha, beta=p.beta)
        case Family.SCALED:
            return route_scaled_mm(
                a.matrix, b.matrix, out.matrix, settings, bias=addend, fast_accumulation=p.fast_accumulation
            )
        case Family.MATRIX if addend is not None:
            return route_addmm(
                addend, a.matrix, b.matrix, out.matrix, settings, release=release, alpha=p.alpha, beta=p.beta,
                activation=p.activation,
            )  # fmt: skip
        case Family.MATRIX:
            return route_product(a.matrix, b.matrix, out.matrix, settings)


def _meta(tensor: torch.Tensor) -> NdMeta | Declined:
    on_gpu = tensor.device.type == "cuda"
    return nd_meta(tensor, None if on_gpu else tensor.storage_offset() * tensor.element_size())


def _result_meta(product: Product) -> NdMeta | Declined:
    if product.out is not None:
        return _meta(product.out)
    name = str(product.dtype).removeprefix("torch.")
    dtype = next((d for d in DType if d.value == name), None)
    if dtype is None:
        return Declined(code="out_of_scope", reason=f"a result of {product.dtype} is not covered")
    return NdMeta(shape=product.shape, strides=contiguous_strides(product.shape), dtype=dtype)


def new_result(product: Product) -> torch.Tensor:
    """Where the result goes: ``out``, or memory as torch allocates it."""
    import torch

    if product.out is not None:
        return product.out
    dtype = product.dtype if product.fused is None else product.fused.dtype
    return torch.empty(product.shape, dtype=dtype, device=product.a.device)


def space_of(product: Product, route: Route) -> torch.Tensor:
    """Where the library writes: :func:`new_result`, or a copy where torch computes in one of ``out``."""
    import torch

    if "out" not in route.copies or product.out is None:
        return new_result(product)
    shape = product.shape if route.swapped else (*product.shape[:-2], product.shape[-1], product.shape[-2])
    made = torch.empty(shape, dtype=product.out.dtype, device=product.out.device)
    return made if route.swapped else made.mT


def operands_of(product: Product, route: Route) -> tuple[torch.Tensor, torch.Tensor]:
    """``a`` and ``b`` as torch hands them to the library: copied where it copies them."""
    import torch

    def passed(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone(memory_format=torch.contiguous_format) if name in route.copies else tensor

    return passed("a", product.a), passed("b", product.b)


def scales_of(product: Product, route: Route) -> tuple[float, float]:
    """Of the library's A and of its B, 1 where there are none; waits for a GPU that holds them."""
    if product.scales is None:
        return 1.0, 1.0
    of_a, of_b = (float(s.item()) for s in product.scales)
    return (of_b, of_a) if route.swapped else (of_a, of_b)
