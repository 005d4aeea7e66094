"""Operands whose elements are an integer hash of (seed, draw, role, i, kk)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gemmdesc import nvrtc
from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands import cuda_fill
from gemmdesc.operands.base import Rows, check_shape, tiles, torch_integer
from gemmdesc.operands.families import Family, extent, hashed_bits
from gemmdesc.operands.lanes import Lanes, absorb

if TYPE_CHECKING:
    import torch

#: Elements whose 64-bit temporaries exist at once.
NUMPY_TILE = 1 << 17
TORCH_TILE = {"cpu": 1 << 20}
TORCH_DEFAULT_TILE = 1 << 26


@dataclass(frozen=True, kw_only=True)
class HashOperand:
    """Pseudo-random values of one family; a new ``draw`` or ``seed`` gives unrelated values, ``role`` tells a from b.

    The bytes are part of the interface: they do not change between versions of gemmdesc, NumPy or torch.

    Raises:
        InvalidInputError: ``seed`` or ``draw`` is outside [0, 2^63), or ``role`` is neither "a" nor "b".
    """

    dtype: DType
    family: Family
    seed: int
    draw: int
    role: Literal["a", "b"]

    def __post_init__(self) -> None:
        for name, value in (("seed", self.seed), ("draw", self.draw)):
            if not 0 <= value < 1 << 63:
                raise InvalidInputError(f"{name} must be in [0, 2^63) (got {value})")
        if self.role not in ("a", "b"):
            raise InvalidInputError(f"role must be 'a' or 'b' (got {self.role!r})")

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """See :meth:`gemmdesc.operands.Operand.bits`."""
        chosen = check_shape(outer, k, rows)
        out = np.empty((len(chosen), k), dtype=bits_dtype(self.dtype))
        for down, across in tiles(len(chosen), k, NUMPY_TILE):
            kk = np.arange(across.start, across.stop, dtype=np.int64)[None, :]
            out[down, across] = self._tile(chosen[down, None], kk, k).astype(out.dtype)
        return out

    def elements(self, outer: int, k: int, rows: Rows, columns: Rows) -> Bits:
        """``bits(outer, k, rows)[:, columns]``, without making the other columns."""
        down, across = check_shape(outer, k, rows), check_shape(k, outer, columns)
        out = np.empty((len(down), len(across)), dtype=bits_dtype(self.dtype))
        out[:] = self._tile(down[:, None], across[None, :], k)
        return out

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """See :meth:`gemmdesc.operands.Operand.torch_bits`; on a CUDA device one kernel, on torch's current stream.

        Raises:
            LibraryError: NVRTC or the driver refuses that kernel.
        """
        import torch

        check_shape(outer, k, np.empty(0, dtype=np.int64))
        place = torch.device(device)
        out = torch.empty((outer, k), dtype=torch_integer(self.dtype), device=place)
        if place.type == "cuda" and nvrtc.available():
            cuda_fill.fill(out, family=self.family, dtype=self.dtype, role=self.role, base=self._base)
        else:
            self._fill_in_tiles(out)
        return out

    def write(self, out: torch.Tensor) -> None:
        """Write :meth:`torch_bits` to ``out``, (outer, k) or (matrices, rows, k) with outer = matrices x rows.

        ``out``: signed integers of the element's size, with any strides that give every element a place of its own.
        On a CUDA device one kernel, on torch's current stream, that writes them where they lie.

        Raises:
            InvalidInputError: ``out`` is not such a tensor.
            LibraryError: NVRTC or the driver refuses that kernel.
        """
        if out.dtype != torch_integer(self.dtype):
            raise InvalidInputError(f"out must be of {torch_integer(self.dtype)} (got {out.dtype})")
        if out.is_cuda and nvrtc.available():
            cuda_fill.fill(out, family=self.family, dtype=self.dtype, role=self.role, base=self._base)
        else:
            k = out.shape[-1]
            out.copy_(self.torch_bits(out.numel() // max(1, k), k, out.device).view(out.shape))

    def _fill_in_tiles(self, out: torch.Tensor) -> None:
        import torch

        outer, k = out.shape
        top = 1 << (self.dtype.format.storage_bits - 1)
        for down, across in tiles(outer, k, TORCH_TILE.get(out.device.type, TORCH_DEFAULT_TILE)):
            i = torch.arange(down.start, down.stop, dtype=torch.int64, device=out.device)[:, None]
            kk = torch.arange(across.start, across.stop, dtype=torch.int64, device=out.device)[None, :]
            tile = self._tile(i, kk, k)
            out[down, across] = tile if out.dtype == torch.int64 else (tile ^ top) - top

    @property
    def _base(self) -> int:
        return absorb(self.seed, self.draw, ord(self.role))

    def _tile(self, i: Lanes, kk: Lanes, k: int) -> Lanes:
        length, levels = extent(k)
        return hashed_bits(
            self.family, self.dtype, self.role, base=self._base, i=i, kk=kk, length=length, levels=levels
        )
