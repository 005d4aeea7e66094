"""What routing needs to know of tensors: sizes, strides, types and the alignment of addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.problem import MAX_ALIGNMENT_BYTES

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class TensorMeta:
    """What routing needs to know of a 2-D tensor: strides in elements, ``alignment_bytes`` of the address up to 256."""

    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: DType
    alignment_bytes: int = MAX_ALIGNMENT_BYTES

    @property
    def is_contiguous(self) -> bool:
        """Row-major and dense; the stride of an axis of one element does not count."""
        rows, columns = self.shape
        return (columns == 1 or self.strides[1] == 1) and (rows == 1 or self.strides[0] == columns)

    @property
    def is_dense(self) -> bool:
        """torch's ``is_non_overlapping_and_dense``: row-major or column-major without gaps."""
        rows, columns = self.shape
        return self.is_contiguous or ((rows == 1 or self.strides[0] == 1) and (columns == 1 or self.strides[1] == rows))

    @property
    def copied(self) -> TensorMeta:
        """Of the row-major copy that torch makes: new memory, which every alignment divides."""
        return replace(self, strides=(self.shape[1], 1), alignment_bytes=MAX_ALIGNMENT_BYTES)


@dataclass(frozen=True, kw_only=True)
class NdMeta:
    """:class:`TensorMeta` of any number of axes.

    Raises:
        InvalidInputError: not one stride for each size.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    alignment_bytes: int = MAX_ALIGNMENT_BYTES

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.shape):
            raise InvalidInputError(f"strides must be one for each size of {self.shape} (got {self.strides})")

    @property
    def is_contiguous(self) -> bool:
        """Row-major and dense; strides of axes of one element, and all of an empty tensor, do not count."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True

    @property
    def copied(self) -> NdMeta:
        """Of the row-major copy that torch makes: new memory, which every alignment divides."""
        return replace(self, strides=contiguous_strides(self.shape), alignment_bytes=MAX_ALIGNMENT_BYTES)

    @property
    def matrix(self) -> TensorMeta:
        """The same of a 2-D tensor.

        Raises:
            InvalidInputError: it has not two axes.
        """
        if len(self.shape) != 2:
            raise InvalidInputError(f"shape must have two axes (got {self.shape})")
        (rows, columns), (across, along) = self.shape, self.strides
        return TensorMeta(
            shape=(rows, columns), strides=(across, along), dtype=self.dtype, alignment_bytes=self.alignment_bytes
        )


def has_own_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two elements lie at one place, as far as lines that do not interlace show it."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a new tensor of ``shape``, in which torch counts an empty axis as one element."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides[: len(shape)]))


def tensor_meta(tensor: torch.Tensor) -> TensorMeta | Declined:
    """The :class:`TensorMeta` of a 2-D tensor; declines types without a format here, and lazily conjugated values."""
    if tensor.dim() != 2:
        reason = f"torch.mm takes 2-D tensors, this one has {tensor.dim()} axes"
        return Declined(code="unsupported_input", reason=reason)
    meta = nd_meta(tensor)
    return meta if isinstance(meta, Declined) else meta.matrix


def nd_meta(tensor: torch.Tensor, address: int | None = None) -> NdMeta | Declined:
    """The :class:`NdMeta` of a tensor; declines types without a format here, and lazily conjugated values.

    ``address``: where to take its first element to be, in bytes; where it is by default.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = next((d for d in DType if d.value == name), None)
    if dtype is None:
        return Declined(code="out_of_scope", reason=f"elements of {tensor.dtype} are not covered")
    if tensor.is_conj() or tensor.is_neg():
        return Declined(code="out_of_scope", reason="lazily conjugated or negated elements are not covered")
    return NdMeta(
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=dtype,
        alignment_bytes=address_alignment(tensor.data_ptr() if address is None else address),
    )


def address_alignment(address: int) -> int:
    """The largest power of two, up to 256, that divides ``address``."""
    return min(address & -address, MAX_ALIGNMENT_BYTES) or MAX_ALIGNMENT_BYTES
