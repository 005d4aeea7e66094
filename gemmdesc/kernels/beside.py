"""What a product takes beside A and B, as tensors: views of the product's own shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside:
    """``c`` and ``bias``: (m, n), of the output's type, any strides, a bias with stride 0 along one axis.

    ``alpha``, ``beta``: float32 values.
    """

    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0

    def part(self, rows: slice, columns: slice) -> Beside:
        """For some rows and columns of the product."""
        return self._viewed(lambda t: t[rows, columns])

    @property
    def transposed(self) -> Beside:
        """For the transposed product."""
        return self._viewed(lambda t: t.T)

    def _viewed(self, view) -> Beside:  # type: ignore[no-untyped-def]
        c, bias = (None if t is None else view(t) for t in (self.c, self.bias))
        return replace(self, c=c, bias=bias)


#: Of products that take nothing.
NOTHING = Beside()
