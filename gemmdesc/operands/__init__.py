"""Operands as frozen descriptions from which NumPy and torch make identical bytes."""

from gemmdesc.operands.base import Operand, torch_integer
from gemmdesc.operands.explicit import ConstantOperand, DenseOperand, Entries, SparseOperand
from gemmdesc.operands.families import Family
from gemmdesc.operands.hashed import HashOperand
from gemmdesc.operands.patterned import PatternOperand, Patterns
from gemmdesc.operands.retyped import MaskedOperand, RetypedOperand
from gemmdesc.operands.writing import write_bits

__all__ = [
    "ConstantOperand",
    "DenseOperand",
    "Entries",
    "Family",
    "HashOperand",
    "MaskedOperand",
    "Operand",
    "PatternOperand",
    "Patterns",
    "RetypedOperand",
    "SparseOperand",
    "torch_integer",
    "write_bits",
]
