"""Operands as frozen descriptions from which NumPy and torch make identical bytes."""

from gemmdesc.operands.base import Operand, torch_integer
from gemmdesc.operands.explicit import ConstantOperand, DenseOperand, Entries, SparseOperand
from gemmdesc.operands.families import Family
from gemmdesc.operands.hashed import HashOperand
from gemmdesc.operands.patterned import PatternOperand, Patterns

__all__ = [
    "ConstantOperand",
    "DenseOperand",
    "Entries",
    "Family",
    "HashOperand",
    "Operand",
    "PatternOperand",
    "Patterns",
    "SparseOperand",
    "torch_integer",
]
