"""Which registers hold what the text says, so that ptxas knows it too.

An approximate function of a constant is worked out by ptxas, and a quotient by one becomes a product with its rounded
reciprocal: other bits than the same function gives of a register.  Between a literal, which ptxas knows, and data,
which it cannot know, lie constants that a walk sees and ptxas may see or not: through shuffles it does, through shared
memory it does not.
"""

from __future__ import annotations

from collections import Counter

from gemmdesc.equivalence.syntax import Entry, Immediate, Instruction, Operand, Pair, Register, Vector


def literal_registers(entry: Entry) -> frozenset[str]:
    """Names of registers that one unguarded ``mov`` of a literal writes, and nothing else."""
    written = Counter(name for i in entry.instructions for name in _targets(i))
    return frozenset(
        i.operands[0].name
        for i in entry.instructions
        if i.parts[0] == "mov"
        and i.guard is None
        and isinstance(i.operands[0], Register)
        and isinstance(i.operands[1], Immediate)
        and written[i.operands[0].name] == 1
    )


def is_literal(operand: Operand, literals: frozenset[str]) -> bool:
    """Whether ptxas knows an operand from the text."""
    return isinstance(operand, Immediate) or (isinstance(operand, Register) and operand.name in literals)


def _targets(i: Instruction) -> list[str]:
    if not i.operands:
        return []
    first = i.operands[0]
    match first:
        case Register(name=name):
            return [name]
        case Vector(items=items):
            return [item.name for item in items if isinstance(item, Register)]
        case Pair():
            return [item.name for item in (first.first, first.second) if item is not None]
    return []
