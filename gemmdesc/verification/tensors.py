"""A case's matrices on a device, stored as the case says; gaps and unwritten outputs hold all-ones bytes, a NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdesc.dtypes import DType
from gemmdesc.operands import Operand, torch_integer
from gemmdesc.verification.cases import Case, Storage

if TYPE_CHECKING:
    import torch

#: 64-bit temporaries that making an operand holds at once, and the elements of one of them.
_TEMPORARIES, _TILE = 8, 1 << 26


def torch_float(dtype: DType) -> torch.dtype:
    """torch's type of the same name."""
    import torch

    found: torch.dtype = getattr(torch, dtype.value)
    return found


def make_a(case: Case, operand: Operand, device: torch.device) -> torch.Tensor:
    """a, (m, k), on ``device``."""
    bits = operand.torch_bits(case.m, case.k, device)
    return _stored(bits, case.a).view(torch_float(case.dtype))


def make_b(case: Case, operand: Operand, device: torch.device) -> torch.Tensor:
    """b, (k, n), from an operand of n rows of k."""
    bits = operand.torch_bits(case.n, case.k, device).T
    return _stored(bits, case.b).view(torch_float(case.dtype))


def empty(storage: Storage, shape: tuple[int, int], dtype: DType, device: torch.device) -> torch.Tensor:
    """A matrix of all-ones bytes, its gaps included."""
    import torch

    rows, columns = shape
    buffer = torch.full((storage.extent(rows, columns),), -1, dtype=torch_integer(dtype), device=device)
    return buffer.as_strided(shape, storage.strides(rows, columns), storage.offset).view(torch_float(dtype))


def empty_out(case: Case, device: torch.device) -> torch.Tensor:
    """An output of the case, (m, n)."""
    return empty(case.out, (case.m, case.n), case.out_dtype, device)


def integers(matrix: torch.Tensor) -> torch.Tensor:
    """The bit patterns of a matrix, as signed integers in place."""
    import torch

    return matrix.view(torch.int16 if matrix.element_size() == 2 else torch.int32)


def _stored(bits: torch.Tensor, storage: Storage) -> torch.Tensor:
    """``bits`` as stored; itself where it lies that way already."""
    import torch

    rows, columns = bits.shape
    dense = storage.strides(rows, columns) == tuple(bits.stride()) and not storage.offset
    if dense:
        return bits
    buffer = torch.full((storage.extent(rows, columns),), -1, dtype=bits.dtype, device=bits.device)
    stored = buffer.as_strided((rows, columns), storage.strides(rows, columns), storage.offset)
    return stored.copy_(bits)


def footprint(case: Case) -> int:
    """Bytes of device memory that comparing the case may take at once, generously."""
    a, b, out = case.operand_bytes
    temporary = 8 * _TEMPORARIES * min(_TILE, max(case.m, case.n) * case.k)
    # Operands as drawn, as stored and as a kernel repacks them; three outputs and what comparing two of them makes.
    return 3 * (a + b) + 5 * out + temporary
