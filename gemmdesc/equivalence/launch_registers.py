"""What the launch fixes before the first instruction: special registers, and where shared variables lie."""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.launch import Dim3
from gemmdesc.equivalence.nodes import Bits64
from gemmdesc.equivalence.syntax import SharedVariable

#: Where the shared window begins; only differences between its addresses can matter, since they are pointers.
SHARED_BASE = 1024


def place_variables(variables: tuple[SharedVariable, ...]) -> dict[str, int]:
    """Addresses of shared variables: fixed ones first, then those whose size the launch gives, all at one place."""
    at, placed = SHARED_BASE, {}
    for variable in sorted(variables, key=lambda v: v.size is None):
        at = -(-at // variable.align) * variable.align
        placed[variable.name] = at
        at += variable.size or 0
    return placed


def special_registers(block: Dim3, grid: Dim3, blocks: range) -> dict[str, Bits64]:
    """Read-only registers that the launch fixes, one element or one a lane."""
    threads = block[0] * block[1] * block[2]
    thread = np.tile(np.arange(threads, dtype=np.uint64), len(blocks))
    number = np.repeat(np.arange(blocks.start, blocks.stop, dtype=np.uint64), threads)
    found: dict[str, Bits64] = {"%laneid": thread % np.uint64(32)}
    for prefix, linear, extents in (("tid", thread, block), ("ctaid", number, grid)):
        x, y = np.uint64(extents[0]), np.uint64(extents[1])
        for axis, value in zip("xyz", (linear % x, linear // x % y, linear // (x * y)), strict=True):
            found[f"%{prefix}.{axis}"] = value if len(blocks) > 1 or prefix == "tid" else value[:1]
    for prefix, extents in (("ntid", block), ("nctaid", grid)):
        for axis, extent in zip("xyz", extents, strict=True):
            found[f"%{prefix}.{axis}"] = np.array([extent], np.uint64)
    return found
