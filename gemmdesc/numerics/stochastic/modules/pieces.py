"""What the formulas share: products of matrices, reductions over axes, windows of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.numerics.stochastic import functions as F
from gemmdesc.numerics.stochastic import reductions
from gemmdesc.numerics.stochastic.modules.inside import product_inside
from gemmdesc.numerics.stochastic.rounding import round_nearest
from gemmdesc.numerics.stochastic.run import StochasticRun
from gemmdesc.numerics.stochastic.tensors import StochasticTensor


@dataclass(frozen=True, kw_only=True)
class Context:
    """How products and sums are done; see ``ModuleSettings``."""

    run: StochasticRun
    products: str
    order: str
    descriptor: Callable[[int, int, int], GEMMDesc] | None

    def stochastic(self, value: Any) -> StochasticTensor:
        """``value``, or a plain tensor as a constant: rounded to nearest in the format, and exact."""
        import torch

        if isinstance(value, StochasticTensor):
            return value
        lanes = value.to(torch.float64)
        nearest = round_nearest(torch, lanes.detach(), self.run.settings.format)
        samples = nearest.expand(self.run.settings.samples, *nearest.shape)
        constant = StochasticTensor(samples, torch.ones_like(nearest, dtype=torch.bool), self.run)
        constant.samples = constant.straight(lanes.expand(samples.shape), samples)
        return constant

    def product(self, left: Any, right: Any) -> StochasticTensor:
        """(..., m, k) times (..., k, n), batches broadcast; either operand may be plain."""
        if self.products == "inside" and self.descriptor is not None:
            return product_inside(self.run, self.stochastic(left), self.stochastic(right), self.descriptor)
        if self.products == "steps":
            x, y = self.stochastic(left), self.stochastic(right)
            running: StochasticTensor = _column(x, 0) * _row(y, 0)
            for k in range(1, x.shape[-1]):
                running = running + _column(x, k) * _row(y, k)
            return running
        if not isinstance(left, StochasticTensor):
            turned = self.product(_transposed(right), left.transpose(-1, -2))
            return turned.made(turned.samples.transpose(-1, -2), turned.exact.transpose(-1, -2))
        product: StochasticTensor = reductions.perturbed_matmul(left, right)
        return product

    def total(self, x: Any, axes: int | tuple[int, ...]) -> Any:
        """The sum over ``axes``, which stay as axes of length 1."""
        for axis in (axes,) if isinstance(axes, int) else axes:
            x = kept(reductions.total(x, axis, order=self.order), axis, x.ndim)
        return x

    def average(self, x: Any, axes: int | tuple[int, ...]) -> Any:
        """The sum over ``axes`` by the number of elements in it."""
        every = (axes,) if isinstance(axes, int) else axes
        return self.total(x, every) / float(math.prod(x.shape[axis] for axis in every))


def _column(x: Any, k: int) -> Any:
    return x.made(x.samples[..., k : k + 1], x.exact[..., k : k + 1])


def _row(x: Any, k: int) -> Any:
    return x.made(x.samples[..., k : k + 1, :], x.exact[..., k : k + 1, :])


def _transposed(x: Any) -> Any:
    return x.made(x.samples.transpose(-1, -2), x.exact.transpose(-1, -2))


def kept(x: Any, axis: int, axes: int) -> Any:
    """``x`` with an axis of length 1 put back at ``axis`` of ``axes``."""
    place = axis % axes
    return x.made(x.samples.unsqueeze(place + 1), x.exact.unsqueeze(place))


def dropped(x: Any, axes: tuple[int, ...]) -> Any:
    """``x`` without the axes of length 1 at ``axes``."""
    shape = [n for i, n in enumerate(x.shape) if i not in {a % x.ndim for a in axes}]
    return x.reshape(*shape)


def largest(x: Any, axis: int) -> Any:
    """The largest element along ``axis``, sample by sample, kept as an axis of length 1."""
    place = axis % x.ndim
    samples, chosen = x.samples.max(place + 1, keepdim=True)
    picked = [x.exact.gather(place, c) for c in chosen]
    exact = picked[0]
    for mask in picked[1:]:
        exact = exact & mask
    return x.made(samples, exact)


def two(value: Any, dimensions: int, fill: int) -> tuple[int, int]:
    """A size for both axes of an image; of a signal, ``fill`` for the first."""
    if dimensions == 1:
        return fill, value if isinstance(value, int) else value[0]
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def windows(
    x: Any,
    kernel: Any,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    *,
    dimensions: int,
) -> tuple[Any, tuple[int, ...]]:
    """The windows of an image (N, C, H, W) or signal (N, C, L) as rows, and the output's height and width."""
    import torch

    def unfold(lanes: Any) -> Any:
        image = lanes if dimensions == 2 else lanes.unsqueeze(-2)
        columns = torch.nn.functional.unfold(image, tuple(kernel), dilation, padding, stride)
        return columns.transpose(1, 2).reshape(-1, columns.shape[1])

    samples = torch.stack([unfold(s) for s in x.samples])
    sizes = [x.shape[-2], x.shape[-1]] if dimensions == 2 else [1, x.shape[-1]]
    place = tuple(
        (n + 2 * p - d * (w - 1) - 1) // s + 1
        for n, p, d, w, s in zip(sizes, padding, dilation, kernel, stride, strict=True)
    )
    # Padding is exact: it is counted as 1 by unfolding what is not exact.
    exact = unfold(1.0 - x.exact.to(torch.float64)) == 0
    return x.made(samples, exact), place if dimensions == 2 else place[1:]


def images(product: Any, batch: int, place: tuple[int, ...]) -> Any:
    """Rows (N H W, O) as images (N, O, H, W)."""
    channels = product.shape[-1]
    axes = (0, len(place) + 1, *range(1, len(place) + 1))
    samples = product.samples.reshape(-1, batch, *place, channels).permute(0, *(a + 1 for a in axes))
    return product.made(samples, product.exact.reshape(batch, *place, channels).permute(*axes))


def joined(values: list[Any], axis: int) -> Any:
    """Stochastic values after one another along ``axis``."""
    import torch

    first = values[0]
    place = axis % first.ndim
    return first.made(
        torch.cat([v.samples for v in values], place + 1), torch.cat([v.exact for v in values], place)
    )


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)): four roundings."""
    return 1.0 / (F.exp(-x) + 1.0)
