"""Bytes and addresses of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.dtypes import DType
from gemmdesc.problem import MAX_ALIGNMENT_BYTES
from gemmdesc.routes import address_alignment

if TYPE_CHECKING:
    import torch


def host_bits(tensor: torch.Tensor, dtype: DType) -> Bits:
    """The bit patterns of a tensor of ``dtype``, on the host."""
    bits: Bits = signed_bits(tensor).cpu().numpy().view(bits_dtype(dtype))
    return bits


def signed_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy or view of a tensor as signed integers of its element size."""
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(kinds[tensor.element_size()])


def differing(one: torch.Tensor, other: torch.Tensor) -> int:
    """How many elements have other bytes."""
    return int((signed_bits(one) != signed_bits(other)).sum().item())


def alignment_of(tensor: torch.Tensor) -> int:
    """Of the tensor's address, up to 256 bytes; off a GPU, of the same offset into an allocation of a GPU's."""
    on_gpu = tensor.device.type == "cuda"
    return address_alignment(tensor.data_ptr() if on_gpu else tensor.storage_offset() * tensor.element_size())


def space_like(
    like: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Memory of all-ones bytes, a NaN in every format, with the strides and the alignment of ``like``.

    Row-major and aligned to 256 bytes where ``like`` is None.
    """
    import torch

    strides = torch.empty(shape, device="meta").stride() if like is None else like.stride()
    alignment = MAX_ALIGNMENT_BYTES if like is None else alignment_of(like)
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    size = dtype.itemsize
    spare = 2 * MAX_ALIGNMENT_BYTES // size
    buffer = torch.full(((extent + spare) * size,), 255, dtype=torch.uint8, device=device).view(dtype)
    step = -buffer.data_ptr() % MAX_ALIGNMENT_BYTES
    if alignment < MAX_ALIGNMENT_BYTES:
        step = (alignment - buffer.data_ptr()) % (2 * alignment)
    return buffer.as_strided(shape, strides, step // size)
