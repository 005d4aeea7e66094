"""What an analysis says of one operator in one pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from gemmdesc.numerics.stochastic.digits import DigitSummary


class Phase(Enum):
    """What the pass was for."""

    TRAINING = "training"
    VALIDATION = "validation"
    INFERENCE = "inference"


@dataclass(frozen=True, kw_only=True)
class OperatorReport:
    """One call of one operator.

    ``module``: the name of the innermost module that called it, empty for the model itself.  ``operator``: torch's
    function name; ``call``: how many calls of this operator in this module came before, in this pass.  ``rounded``: how
    it was done (``Rounded``).  ``stable``: no element is NaN or infinite, and the least digits of the inexact elements
    reach the threshold.  Digits are those of the inexact, non-zero elements; the shares of the others stand apart.
    """

    module: str
    operator: str
    call: int
    phase: Phase
    epoch: int
    iteration: int
    rounded: str
    shape: tuple[int, ...]
    stable: bool
    digits: DigitSummary

    @property
    def name(self) -> str:
        """Module, operator and number of the call."""
        place = f"{self.module}." if self.module else ""
        return f"{place}{self.operator}" + (f"[{self.call}]" if self.call else "")

    def row(self) -> dict[str, Any]:
        """Flat and plain, for a table or a line of JSON."""
        plain = {"name": self.name, "module": self.module, "operator": self.operator, "call": self.call}
        plain |= {"phase": self.phase.value, "epoch": self.epoch, "iteration": self.iteration}
        plain |= {"rounded": self.rounded, "shape": list(self.shape), "stable": self.stable}
        return plain | asdict(self.digits)
