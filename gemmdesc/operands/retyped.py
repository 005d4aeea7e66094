"""An operand's bytes under another format of the same size, or without some of their bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands.base import Operand, Rows, check_bits, signed

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class RetypedOperand:
    """The bit patterns of ``source``, read as ``dtype``: a tfloat32 pattern is a float32 pattern too.

    Raises:
        InvalidInputError: elements of the two formats differ in size.
    """

    source: Operand
    dtype: DType

    def __post_init__(self) -> None:
        if self.source.dtype.itemsize != self.dtype.itemsize:
            raise InvalidInputError(
                f"dtype must be as wide as the source's {self.source.dtype.value} (got {self.dtype.value})"
            )

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """See :meth:`gemmdesc.operands.Operand.bits`."""
        return self.source.bits(outer, k, rows)

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """See :meth:`gemmdesc.operands.Operand.torch_bits`."""
        return self.source.torch_bits(outer, k, device)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedOperand:
    """``source`` with only the bits of ``mask`` kept: values with trailing zeros, which lie on ties of narrower types.

    Raises:
        InvalidInputError: ``mask`` is no bit pattern of the source's type.
    """

    source: Operand
    mask: int

    def __post_init__(self) -> None:
        check_bits("mask", self.mask, self.dtype)

    @property
    def dtype(self) -> DType:
        return self.source.dtype

    def bits(self, outer: int, k: int, rows: Rows | None = None) -> Bits:
        """See :meth:`gemmdesc.operands.Operand.bits`."""
        kept: Bits = self.source.bits(outer, k, rows) & bits_dtype(self.dtype).type(self.mask)
        return kept

    def torch_bits(self, outer: int, k: int, device: torch.device | str) -> torch.Tensor:
        """See :meth:`gemmdesc.operands.Operand.torch_bits`."""
        return self.source.torch_bits(outer, k, device).bitwise_and_(signed(self.mask, self.dtype))
