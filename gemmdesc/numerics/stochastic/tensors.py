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

    Torch's functions take it: those that only move or select values do so for each sample, others are computed for each
    sample in float64 and rounded once, unless an :class:`~.modules.Analysis` does them otherwise.  Methods of torch's
    tensors are found as such; what modules ask of a tensor (sizes, device, a type) is answered.

    The backward pass takes every rounding for the identity (the straight-through estimator): a surrogate that is good
    for training, and says nothing about the gradients' own digits.
    """

    @property
    def xp(self) -> Any:
        import torch

        return torch

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from gemmdesc.numerics.stochastic.modules.samplewise import apply_plainly

        return apply_plainly(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        import torch
        from torch.overrides import handle_torch_function

        function = None if name.startswith("__") else getattr(torch.Tensor, name, None)
        if not callable(function):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return lambda *arguments, **keywords: handle_torch_function(function, (self,), self, *arguments, **keywords)

    @property
    def dtype(self) -> torch.dtype:
        """What modules are told: the type that the run declares, default float32.  Samples are float64."""
        import torch

        declared: torch.dtype = self.run.declared_dtype or torch.float32
        return declared

    @property
    def requires_grad(self) -> bool:
        return bool(self.samples.requires_grad)

    @property
    def is_cuda(self) -> bool:
        return bool(self.samples.is_cuda)

    @property
    def is_nested(self) -> bool:
        return False

    @property
    def is_sparse(self) -> bool:
        return False

    def dim(self) -> int:
        return self.ndim

    def size(self, axis: int | None = None) -> Any:
        return self.samples.shape[1:] if axis is None else self.shape[axis]

    def numel(self) -> int:
        return int(self.exact.numel())

    def is_floating_point(self) -> bool:
        return True

    def is_complex(self) -> bool:
        return False

    def reshape(self, *shape: Any) -> StochasticTensor:
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        exact = self.exact.reshape(tuple(sizes))
        return self.made(self.samples.reshape(self.samples.shape[0], *exact.shape), exact)

    def sum(self, *arguments: Any, **keywords: Any) -> Any:
        """As torch's, or with ``order`` as :func:`~.reductions.total`."""
        return self._reduced("sum", arguments, keywords)

    def mean(self, *arguments: Any, **keywords: Any) -> Any:
        """As torch's, or with ``order`` as :func:`~.reductions.average`."""
        return self._reduced("mean", arguments, keywords)

    def _reduced(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """In torch's own sense under an analysis or with its keywords, else a fold of one axis or of all elements."""
        axis = arguments[0] if arguments else keywords.get("axis")
        if keywords.keys() - {"axis", "order"} or not isinstance(axis, int | None) or self.run.observe is not None:
            return self.__getattr__(name)(*arguments, **keywords)
        return getattr(StochasticValue, name)(self, *arguments, **keywords)

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
