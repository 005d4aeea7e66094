"""Operands on which two rival descriptors give different bytes."""

from gemmdesc.rivals.draws import rival_operands

__all__ = ["rival_operands"]
