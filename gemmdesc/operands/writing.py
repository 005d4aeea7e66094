"""Operands written where they belong: into memory that is there already, in whatever order it holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdesc.operands.base import Operand, signed
from gemmdesc.operands.explicit import ConstantOperand
from gemmdesc.operands.hashed import HashOperand
from gemmdesc.operands.retyped import MaskedOperand, RetypedOperand

if TYPE_CHECKING:
    import torch


def write_bits(operand: Operand, out: torch.Tensor) -> None:
    """Write ``operand``'s bit patterns to ``out``, (outer, k) or (matrices, rows, k) with outer = matrices x rows.

    ``out``: signed integers of the element's size on any device, with any strides that give every element a place of
    its own.  What the operands of campaigns need is enqueued without a copy; others are made aside first.

    Raises:
        InvalidInputError: ``out`` is not such a tensor, or the operand cannot have this shape.
    """
    match operand:
        case HashOperand():
            operand.write(out)
        case ConstantOperand():
            out.fill_(signed(operand.value_bits, operand.dtype))
        case MaskedOperand():
            write_bits(operand.source, out)
            out.bitwise_and_(signed(operand.mask, operand.dtype))
        case RetypedOperand():
            write_bits(operand.source, out)
        case _:
            k = out.shape[-1]
            out.copy_(operand.torch_bits(out.numel() // max(1, k), k, out.device).view(out.shape))
