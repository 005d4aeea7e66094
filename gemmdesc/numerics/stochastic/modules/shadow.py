"""A stochastic shadow of a model in training, which sees its parameters and touches nothing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gemmdesc.numerics.stochastic.modules.analysis import Analysis, ModuleSettings
from gemmdesc.numerics.stochastic.modules.reports import OperatorReport, Phase
from gemmdesc.numerics.stochastic.run import StochasticRun

if TYPE_CHECKING:
    import torch


class ShadowModel:
    """A copy of ``model`` that takes over its parameters and buffers before every pass (arXiv 2607.25494, eq. 27).

    Passes are made without gradients, in the training or evaluation mode that the model is in.
    """

    def __init__(self, model: torch.nn.Module, run: StochasticRun, settings: ModuleSettings | None = None) -> None:
        self._model = model
        self._copy = copy.deepcopy(model)
        self.analysis = Analysis(self._copy, run, settings)

    def __call__(
        self, *inputs: Any, phase: Phase = Phase.TRAINING, epoch: int = 0, iteration: int = 0, **keywords: Any
    ) -> Any:
        """The stochastic output of the model as it is now."""
        import torch

        self._copy.load_state_dict(self._model.state_dict())
        self._copy.train(self._model.training)
        with torch.no_grad():
            return self.analysis(*inputs, phase=phase, epoch=epoch, iteration=iteration, **keywords)

    @property
    def reports(self) -> list[OperatorReport]:
        """Of all passes so far."""
        return self.analysis.reports


def agreement(logits: Any, axis: int = -1) -> float:
    """The share of rows for which all samples choose the same class (arXiv 2607.25494, eq. 63).

    ``logits``: a stochastic tensor whose largest element along ``axis`` is the choice.
    """
    place = axis % logits.ndim + 1
    choices = logits.samples.argmax(place)
    return float((choices == choices[0]).all(0).double().mean())
