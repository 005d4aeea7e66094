"""Between which two patterns an element lies, whatever approximate functions give within the bounds of the manual.

Only for kernels in which a quotient by a square root is the last thing that is not exact, as in norms: its size falls
with the root and grows with what the quotient gives, so that two evaluations bracket it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence import nodes
from gemmdesc.equivalence.draws import FORMATS
from gemmdesc.equivalence.evaluate import evaluate, missing_functions, needed_mask
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.stand_ins import largest, smallest
from gemmdesc.equivalence.walk import Walked

Sizes = npt.NDArray[np.int64]
#: What leaves the order of sizes as it is.
_ROUNDINGS = ("cvt.rn.f16.f32", "cvt.rn.bf16.f32", "neg.f32")


@dataclass(frozen=True, kw_only=True, eq=False)
class Range:
    """Elements behind one parameter.

    ``offset``: (n,); ``low``, ``high``: patterns without their sign, (draws, n); ``negative``: signs; ``known``:
    whether an element is a number on both ends.
    """

    offset: Ids
    low: Sizes
    high: Sizes
    negative: npt.NDArray[np.bool_]
    known: npt.NDArray[np.bool_]

    def apart(self, other: Range) -> npt.NDArray[np.bool_]:
        """Which elements differ, wherever in their ranges they lie, shape (draws, n)."""
        signs = (self.negative != other.negative) & (self.low > 0) & (other.low > 0)
        sizes = (self.high < other.low) | (other.high < self.low)
        found: npt.NDArray[np.bool_] = self.known & other.known & (signs | sizes)
        return found

    def text(self, draw: int, place: int) -> str:
        """The two ends, in hexadecimal."""
        sign = "-" if self.negative[draw, place] else ""
        return f"{sign}{self.low[draw, place]:x} to {sign}{self.high[draw, place]:x}"


def applies(walked: Walked) -> bool:
    """Whether the approximate functions of a kernel are quotients by square roots that only roundings follow.

    Quotients by a literal power of two are exact; those by any other number are not read here.
    """
    table = walked.table
    s, needed = table.store, needed_mask(walked)
    approximate = set(missing_functions(walked))
    inexact: dict[int, str] = {}
    for node in np.flatnonzero(needed)[1:].tolist():
        name = table.name(int(s.op[node]))
        children = [int(c) for c in s.child[node] if c]
        below = [inexact.get(c, "") for c in children]
        if name in approximate:
            if name == "div.full.f32" and not any(below):
                divisor = children[1]
                if int(s.op[divisor]) != nodes.CONSTANT or int(s.attribute[divisor, 0]) & 0x7FFFFF:
                    return False
            elif name.startswith("sqrt.approx.") and not any(below):
                inexact[node] = "root"
            elif name == "div.full.f32" and below == ["", "root"]:
                inexact[node] = "quotient"
            else:
                return False
        elif any(below):
            moves = name in _ROUNDINGS or int(s.op[node]) in (nodes.CONCAT, nodes.EXTRACT)
            if not moves or set(below) - {"", "quotient"}:
                return False
            inexact[node] = "quotient"
    return "root" not in {inexact.get(int(i), "") for i in walked.stored.ids}


def ranges(walked: Walked, memory: Mapping[int, npt.NDArray[np.uint8]], kinds: Sequence[str]) -> dict[int, Range]:
    """The range of every element stored, by parameter; ``memory``: shape (draws, bytes); the kernel :func:`applies`."""
    names = missing_functions(walked)
    ends = []
    for root, quotient in ((largest, smallest), (smallest, largest)):
        functions = {name: (root if name.startswith("sqrt") else quotient)(name) for name in names}
        ends.append(evaluate(walked, memory, functions=functions))
    found = {}
    for parameter, (offsets, _) in ends[0].items():
        layout = FORMATS[kinds[parameter]]
        starts, patterns = np.unique(offsets // layout.bytes) * layout.bytes, []
        order = np.argsort(offsets)
        for end in ends:
            data = np.ascontiguousarray(end[parameter][1][:, order])
            patterns.append(data.view(f"<u{layout.bytes}").astype(np.int64))
        sign = 1 << (8 * layout.bytes - 1)
        top = ((1 << layout.exponent) - 1) << layout.fraction
        low, high = (p & (sign - 1) for p in patterns)
        negative, other = ((p & sign) != 0 for p in patterns)
        known = (low <= top) & (high <= top) & (negative == other)
        found[parameter] = Range(offset=starts, low=low, high=high, negative=negative, known=known)
    return found
