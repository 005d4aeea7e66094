"""Operands whose elements are written down: a constant, a background with entries, or a whole array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands.base import Rows, check_bits, check_shape, signed, signed_view, to_device, torch_integer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class ConstantOperand:
    """Every element is ``value_bits``."""

    dtype: DType
    value_bits: int

    def __post_init__(self) -> None:
        check_bits("value_bits", self.value_bits, self.dtype)

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """See :meth:`gemmdesc.operands.Operand.bits`."""
        return np.full((len(check_shape(outer, k, rows)), k), self.value_bits, dtype=bits_dtype(self.dtype))

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """See :meth:`gemmdesc.operands.Operand.torch_bits`."""
        import torch

        check_shape(outer, k, np.empty(0, dtype=np.int64))
        value = signed(self.value_bits, self.dtype)
        return torch.full((outer, k), value, dtype=torch_integer(self.dtype), device=device)


@dataclass(frozen=True, kw_only=True, eq=False)
class Entries:
    """Elements by position: three parallel arrays (outer index, k index, bit pattern), kept sorted and read-only.

    Raises:
        InvalidInputError: lengths differ, an index is negative, or a position occurs twice.
    """

    outer: npt.NDArray[np.int64]
    k: npt.NDArray[np.int64]
    bits: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        arrays = [np.array(x, dtype=np.int64).reshape(-1) for x in (self.outer, self.k, self.bits)]
        if len({len(x) for x in arrays}) != 1:
            raise InvalidInputError(f"outer, k and bits must have one length (got {[len(x) for x in arrays]})")
        order = np.lexsort((arrays[1], arrays[0]))
        outer, k, bits = (x[order] for x in arrays)
        if len(outer) and (outer[0] < 0 or k.min() < 0):
            raise InvalidInputError(f"outer must be at least 0, and so must k (got {outer[0]}, {k.min()})")
        twice = (np.diff(outer) == 0) & (np.diff(k) == 0)
        if twice.any():
            at = int(np.argmax(twice))
            raise InvalidInputError(f"outer must name each position once with k (got {outer[at]}, {k[at]} twice)")
        for name, array in (("outer", outer), ("k", k), ("bits", bits)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseOperand:
    """Every element is ``background_bits``, except the entries.

    Raises:
        InvalidInputError: a bit pattern is none of ``dtype``; on use, an entry lies outside the shape asked for.
    """

    dtype: DType
    background_bits: int
    entries: Entries

    def __post_init__(self) -> None:
        check_bits("background_bits", self.background_bits, self.dtype)
        for value in (self.entries.bits.min(initial=0), self.entries.bits.max(initial=0)):
            check_bits("entries", int(value), self.dtype)

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """See :meth:`gemmdesc.operands.Operand.bits`."""
        chosen = check_shape(outer, k, rows)
        self._check_entries(outer, k)
        out = np.full((len(chosen), k), self.background_bits, dtype=bits_dtype(self.dtype))
        first = np.searchsorted(self.entries.outer, chosen, side="left")
        counts = np.searchsorted(self.entries.outer, chosen, side="right") - first
        row = np.repeat(np.arange(len(chosen)), counts)
        entry = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        out[row, self.entries.k[entry]] = self.entries.bits[entry].astype(out.dtype)
        return out

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """See :meth:`gemmdesc.operands.Operand.torch_bits`."""
        import torch

        check_shape(outer, k, np.empty(0, dtype=np.int64))
        self._check_entries(outer, k)
        kind = torch_integer(self.dtype)
        out = torch.full((outer, k), signed(self.background_bits, self.dtype), dtype=kind, device=device)
        if len(self.entries.outer):
            at = to_device(self.entries.outer * k + self.entries.k, device)
            values = to_device(signed_view(self.entries.bits.astype(bits_dtype(self.dtype))), device)
            out.view(-1).scatter_(0, at, values)
        return out

    def _check_entries(self, outer: int, k: int) -> None:
        rows, columns = self.entries.outer, self.entries.k
        if len(rows) and (rows[-1] >= outer or columns.max() >= k):
            raise InvalidInputError(
                f"outer and k must hold every entry, up to ({rows[-1]}, {columns.max()}) (got {outer}, {k})"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseOperand:
    """An explicit array of bit patterns, shape (outer, k), kept as a read-only copy.

    Raises:
        InvalidInputError: the array is no two-dimensional array of ``dtype``'s element size; on use, another shape is
            asked for.
    """

    dtype: DType
    array: Bits = field(repr=False)

    def __post_init__(self) -> None:
        array = np.array(self.array, order="C")
        if array.ndim != 2 or array.dtype.itemsize != self.dtype.itemsize:
            raise InvalidInputError(
                f"array must have two axes and {self.dtype.itemsize}-byte elements (got {array.shape}, {array.dtype})"
            )
        array = array.view(bits_dtype(self.dtype))
        array.setflags(write=False)
        object.__setattr__(self, "array", array)

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """See :meth:`gemmdesc.operands.Operand.bits`."""
        chosen = check_shape(outer, k, rows)
        self._check(outer, k)
        return self.array.copy() if rows is None else self.array[chosen]

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """See :meth:`gemmdesc.operands.Operand.torch_bits`."""
        self._check(outer, k)
        return to_device(signed_view(self.array), device)

    def _check(self, outer: int, k: int) -> None:
        if self.array.shape != (outer, k):
            raise InvalidInputError(f"outer and k must be the array's shape {self.array.shape} (got {outer}, {k})")
