"""A background operand with one of several small patterns laid over each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands.base import Operand, Rows, check_shape, signed_view, to_device
from gemmdesc.operands.lanes import Lanes, absorb, field, row_words

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Patterns:
    """P patterns of L elements each, read-only: ``k`` int64 (P, L) indices and ``bits`` int64 (P, L) patterns.

    A pattern of fewer elements repeats one of them.

    Raises:
        InvalidInputError: no pattern, shapes differ, or an index is negative.
    """

    k: npt.NDArray[np.int64]
    bits: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        k, bits = np.array(self.k, dtype=np.int64), np.array(self.bits, dtype=np.int64)
        if k.ndim != 2 or k.shape != bits.shape or not k.size:
            raise InvalidInputError(f"k must have two axes, not empty, and bits the same (got {k.shape}, {bits.shape})")
        if k.min() < 0:
            raise InvalidInputError(f"k must be at least 0 (got {k.min()})")
        for name, array in (("k", k), ("bits", bits)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)


@dataclass(frozen=True, kw_only=True, eq=False)
class PatternOperand:
    """``background`` with, in row i, the pattern that a hash of (seed, draw, i) chooses."""

    background: Operand
    patterns: Patterns
    seed: int
    draw: int

    @property
    def dtype(self) -> DType:
        return self.background.dtype

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """See :meth:`gemmdesc.operands.Operand.bits`."""
        chosen = check_shape(outer, k, rows)
        self._check(k)
        out = self.background.bits(outer, k, rows).copy()
        which = self._which(chosen)
        at, values = self.patterns.k[which], self.patterns.bits[which].astype(bits_dtype(self.dtype))
        np.put_along_axis(out, at, values, axis=1)
        return out

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """See :meth:`gemmdesc.operands.Operand.torch_bits`."""
        import torch

        self._check(k)
        out = self.background.torch_bits(outer, k, device)
        which = self._which(torch.arange(outer, dtype=torch.int64, device=device))
        at = to_device(self.patterns.k, device)
        values = to_device(signed_view(self.patterns.bits.astype(bits_dtype(self.dtype))), device)
        return out.scatter_(1, at[which], values[which])

    def _which(self, i: Lanes) -> Lanes:
        words = row_words(absorb(self.seed, self.draw, len(self.patterns.k)), i)
        return (field(words, 20, 31) * len(self.patterns.k)) >> 31

    def _check(self, k: int) -> None:
        largest = int(self.patterns.k.max())
        if largest >= k:
            raise InvalidInputError(f"k must hold every pattern, up to {largest} (got {k})")
