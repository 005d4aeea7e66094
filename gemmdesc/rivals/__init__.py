"""Operands on which rival descriptors give different bytes."""

from gemmdesc.rivals.draws import rival_operands, rival_set_operands

__all__ = ["rival_operands", "rival_set_operands"]
