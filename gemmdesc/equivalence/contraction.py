"""Did ptxas fuse a product into a sum?  The counts of float instructions in the assembled text can tell.

A fusion removes one product and one sum and adds one fused operation.  Where the PTX has nothing else that ptxas
expands into such instructions, and all three counts are those of the PTX, none took place.
"""

from __future__ import annotations

import re

from gemmdesc.equivalence.syntax import Entry

#: Opcodes whose expansion contains products, sums or fused operations of its own.
_EXPANDED = ("div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
#: Assembled opcodes by what they count as; packed and half-precision forms included.
_SASS = re.compile(r"\b(FFMA|FMUL|FADD|HFMA2|HMUL2|HADD2|FFMA2|FMUL2|FADD2)(?![A-Z0-9])")
#: Results scaled or saturated within an instruction, which PTX would do in another.
_SCALED = re.compile(r"\b(?:FFMA|FMUL|FADD)2?[\w.]*\.(?:[DM][248]|SAT)\b")
_COUNTED = {"fma": "FFMA", "mul": "FMUL", "add": "FADD", "sub": "FADD"}


def counts_agree(entry: Entry, sass: str) -> bool:
    """Whether the assembled text has exactly the float products, sums and fused operations of the PTX.

    False wherever the counts cannot show it: an instruction that ptxas expands, a branch (loops may be unrolled), or a
    half-precision form, whose products and sums may be assembled as fused operations with a neutral operand.
    """
    expected: dict[str, int] = {"FFMA": 0, "FMUL": 0, "FADD": 0}
    for i in entry.instructions:
        if i.parts[0] in _EXPANDED or i.parts[0] == "bra":
            return False
        if i.parts[0] in _COUNTED and i.parts[-1] in ("f16", "bf16", "f16x2", "bf16x2", "f32x2", "f64"):
            return False
        if i.parts[0] in _COUNTED and i.parts[-1] == "f32":
            expected[_COUNTED[i.parts[0]]] += 1
    if _SCALED.search(sass):
        return False
    found = _SASS.findall(sass)
    return set(found) <= set(expected) and all(found.count(name) == count for name, count in expected.items())
