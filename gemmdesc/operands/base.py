"""What every operand can do, and the shape checks that they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import Bits
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

Rows = npt.NDArray[np.int64]

#: Largest array that travels to a CUDA device through page-locked memory, which torch keeps for the next one.
PINNED_BYTES = 1 << 26


class Operand(Protocol):
    """One side of a matrix product, seen as ``outer`` rows (rows of op(A), columns of op(B)) of ``k`` elements.

    Element (i, kk) depends on (i, kk, k) and the operand's own fields only, never on ``outer`` or on storage, so that
    chosen rows can be made alone.
    """

    @property
    def dtype(self) -> DType: ...

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """Bit patterns, shape (outer, k), or (len(rows), k) for the given rows, each in [0, outer).

        Raises:
            InvalidInputError: a size is negative, a row is out of range, or the operand cannot have this shape.
        """
        ...

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """The same bit patterns, shape (outer, k), as signed integers of the element's size on ``device``.

        Raises:
            InvalidInputError: as for :meth:`bits`.
        """
        ...


def torch_integer(dtype: DType) -> torch.dtype:
    """The signed torch integer that holds one element of ``dtype``."""
    return _torch_integer(dtype.itemsize)


def _torch_integer(itemsize: int) -> torch.dtype:
    import torch

    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[itemsize]


def to_device(array: npt.NDArray[np.signedinteger], device: torch.device | str) -> torch.Tensor:
    """A copy of ``array`` on ``device``.

    On a CUDA device it is enqueued on torch's current stream, and up to ``PINNED_BYTES`` nothing waits for it.
    """
    import torch

    place = torch.device(device)
    if place.type != "cuda" or array.nbytes > PINNED_BYTES:
        return torch.from_numpy(array.copy()).to(place)
    staged = torch.empty(array.shape, dtype=_torch_integer(array.itemsize), pin_memory=True)
    np.copyto(staged.numpy(), array)
    return staged.to(place, non_blocking=True)


def signed_view(bits: Bits) -> npt.NDArray[np.signedinteger]:
    """The same bytes as signed integers of the same size."""
    view: npt.NDArray[np.signedinteger] = bits.view(f"i{bits.itemsize}")
    return view


def signed(value: int, dtype: DType) -> int:
    """An element's bit pattern as the signed integer of its size."""
    top = 1 << (dtype.format.storage_bits - 1)
    return (value ^ top) - top


def check_shape(outer: int, k: int, rows: Rows | None) -> Rows:
    """The row numbers asked for, int64.

    Raises:
        InvalidInputError: a size is negative, or a row is out of range.
    """
    for name, size in (("outer", outer), ("k", k)):
        if size < 0:
            raise InvalidInputError(f"{name} must be at least 0 (got {size})")
    if rows is None:
        return np.arange(outer, dtype=np.int64)
    chosen = np.asarray(rows, dtype=np.int64)
    if chosen.ndim != 1 or (chosen.size and (chosen.min() < 0 or chosen.max() >= outer)):
        raise InvalidInputError(f"rows must be one axis of indices in [0, {outer}) (got {rows!r})")
    return chosen


def check_bits(name: str, value: int, dtype: DType) -> None:
    """Raise InvalidInputError where ``value`` is no bit pattern of ``dtype``."""
    if not 0 <= value < 1 << dtype.format.storage_bits:
        raise InvalidInputError(f"{name} must be a bit pattern of {dtype.value} (got {value})")


def tiles(rows: int, k: int, elements: int) -> Iterator[tuple[slice, slice]]:
    """(rows, k) slices that cover an array in tiles of at most ``elements`` elements, whole rows where they fit."""
    width = max(1, min(k, elements))
    height = max(1, elements // width)
    for top in range(0, rows, height):
        for left in range(0, k, width):
            yield slice(top, min(rows, top + height)), slice(left, min(k, left + width))
