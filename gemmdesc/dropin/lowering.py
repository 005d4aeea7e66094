"""torch's composite products in Python: the ``mm``, ``bmm``, ``mv`` and ``addmm`` of ``matmul`` and ``linear``.

For graphs, in which torch's own composite cannot call other products than torch's.  After ``_matmul_impl`` and
``should_fold`` (aten/src/ATen/native/LinearAlgebra.cpp) and ``linear`` (aten/src/ATen/native/Linear.cpp); a test holds
them against torch's own, call by call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Binary = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Products:
    """What the composites call: ``addmm`` takes (bias, a, b)."""

    mm: Binary
    bmm: Binary
    mv: Binary
    dot: Binary
    addmm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def lowered_matmul(a: torch.Tensor, b: torch.Tensor, products: Products) -> torch.Tensor:
    """``torch.matmul(a, b)`` of tensors of at least one axis, its products by ``products``."""
    if a.dim() == 1 and b.dim() == 1:
        return products.dot(a, b)
    if a.dim() == 2 and b.dim() == 1:
        return products.mv(a, b)
    if a.dim() == 1 and b.dim() == 2:
        return products.mm(a.unsqueeze(0), b).squeeze(0)
    if a.dim() == 2 and b.dim() == 2:
        return products.mm(a, b)
    if _folds(a, b):
        return _folded(a, b, products)
    return _batched(a, b, products)


def _folds(a: torch.Tensor, b: torch.Tensor) -> bool:
    """``should_fold``: whether the larger tensor becomes one matrix."""
    a_larger = a.dim() >= b.dim()
    large, small = (a, b) if a_larger else (b.mT, a)
    if not (large.dim() >= 3 and small.dim() <= 2):
        return False
    if small.requires_grad:
        return True
    if a.dim() == 2:
        return False
    if large.numel() == 0:
        return True
    shape, strides = large.shape, large.stride()
    return all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(large.dim() - 2))


def _folded(a: torch.Tensor, b: torch.Tensor, products: Products) -> torch.Tensor:
    swapped = b.dim() > a.dim()
    large = b.mT if swapped else a
    small = (a.t() if a.dim() == 2 else a) if swapped else b
    outer = list(large.shape[:-1])
    rows = large.reshape(math.prod(outer), large.shape[-1])
    if small.dim() == 1:
        return products.mv(rows, small).view(outer)
    result = products.mm(rows, small).view([*outer, small.shape[1]])
    return result.mT.contiguous() if swapped else result


def _batched(a: torch.Tensor, b: torch.Tensor, products: Products) -> torch.Tensor:
    if a.dim() == 3 and b.dim() == 3 and a.shape[0] != b.shape[0]:
        if a.shape[0] == 1 and a.requires_grad:
            return lowered_matmul(a.squeeze(0), b, products)
        if b.shape[0] == 1 and b.requires_grad:
            return lowered_matmul(a, b.squeeze(0), products)
    rows, inner = (a.shape[-2] if a.dim() > 1 else 1), a.shape[-1]
    batch = list(_broadcast(tuple(a.shape[:-2]), tuple(b.shape[:-2])))
    count = math.prod(batch)
    left = a.expand([*batch, rows, inner]).reshape(count, rows, inner)
    if b.dim() == 1:
        right = b.expand([*batch, b.shape[0]]).reshape(count, b.shape[0]).unsqueeze(2)
        result = products.bmm(left, right).squeeze(-1)
    else:
        right = b.expand([*batch, *b.shape[-2:]]).reshape(count, *b.shape[-2:])
        result = products.bmm(left, right)
    ends = ([rows] if a.dim() > 1 else []) + ([b.shape[-1]] if b.dim() > 1 else [])
    return result.view([*batch, *ends])


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of batches together; those that do not fit are refused by the expansion that follows."""
    length = max(len(one), len(other))
    padded = ((1,) * (length - len(sizes)) + sizes for sizes in (one, other))
    return tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))


def lowered_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, products: Products
) -> torch.Tensor:
    """``torch.nn.functional.linear(x, weight, bias)``, its products by ``products``; ``bias`` has one axis."""
    if bias is None:
        return lowered_matmul(x, weight.t(), products)
    if x.dim() == 2:
        return products.addmm(bias, x, weight.t())
    if x.is_contiguous():
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return products.addmm(bias, rows, weight.t()).view([*x.shape[:-1], weight.shape[0]])
    return lowered_matmul(x, weight.t(), products) + bias
