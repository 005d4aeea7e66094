"""What a product takes beside A and B, as tensors: views of the product's own shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside:
    """``c`` and ``bias``: (m, n), of the output's type, any strides, a bias with stride 0 along one axis.

    ``alpha``, ``beta``: float32 values.  ``named``: the operands of a fused epilogue, each a float32 value or (m, n) of
    float16, bfloat16 or float32, stride 0 where it broadcasts.
    """

    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0
    named: Mapping[str, torch.Tensor | float] = field(default_factory=dict)

    def part(self, rows: slice, columns: slice) -> Beside:
        """For some rows and columns of the product."""
        return self._viewed(lambda t: t[rows, columns])

    @property
    def transposed(self) -> Beside:
        """For the transposed product."""
        return self._viewed(lambda t: t.T)

    def _viewed(self, view) -> Beside:  # type: ignore[no-untyped-def]
        c, bias = (None if t is None else view(t) for t in (self.c, self.bias))
        named = {name: view(x) if isinstance(x, torch.Tensor) else x for name, x in self.named.items()}
        return replace(self, c=c, bias=bias, named=named)


#: Of products that take nothing.
NOTHING = Beside()
