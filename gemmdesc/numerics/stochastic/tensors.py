"""Stochastic torch tensors, on a CPU or a CUDA device, with gradients that pass straight through the roundings."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.run import StochasticRun
from gemmdesc.numerics.stochastic.values import StochasticValue

if TYPE_CHECKING:
    import torch


class StochasticTensor(StochasticValue):
    """s samples of a torch tensor; see :class:`StochasticValue`.

    The backward pass takes every rounding for the identity (the straight-through estimator): a surrogate that is good
    for training, and says nothing about the gradients' own digits.
    """

    @property
    def xp(self) -> Any:
        import torch

        return torch

    @property
    def device(self) -> torch.device:
        device: torch.device = self.samples.device
        return device

    def constant(self, value: Any) -> Any:
        import torch

        try:
            return torch.as_tensor(value, dtype=torch.float64, device=self.samples.device)
        except (TypeError, ValueError, RuntimeError):
            raise InvalidInputError(f"other must be a number or a tensor of numbers (got {value!r})") from None

    def detached(self, lanes: Any) -> Any:
        return lanes.detach()

    def straight(self, value: Any, rounded: Any) -> Any:
        return _straight().apply(value, rounded) if value.requires_grad else rounded


def make_tensor(run: StochasticRun, values: Any) -> StochasticTensor:
    """See :meth:`StochasticRun.tensor`."""
    import torch

    if not isinstance(values, torch.Tensor) or values.layout != torch.strided or not values.is_floating_point():
        got = f"{values.dtype}, {values.layout}" if isinstance(values, torch.Tensor) else type(values).__name__
        raise InvalidInputError(
            "values must be a dense tensor of a floating-point type; convert it with .to_dense() or .double() "
            f"(got {got})"
        )
    lanes = values.to(torch.float64)
    repeated = lanes.expand(run.settings.samples, *lanes.shape)
    rounded, exact = run.close(torch, repeated.detach(), None)
    value = StochasticTensor(rounded, exact, run)
    value.samples = value.straight(repeated, rounded)
    return value


@cache
def _straight() -> Any:
    """An autograd function that gives its second argument the gradient of its first."""
    import torch

    class StraightThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any, rounded: Any) -> Any:
            return rounded.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient, None

    return StraightThrough
