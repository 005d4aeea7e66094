"""Which nodes an expression is made of, and in what order they can be worked out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gemmdesc.equivalence import nodes


@njit(nogil=True, cache=True)
def mark(needed: Any, child: Any) -> None:
    """Mark every node that a marked node is made of; children stand before their parents."""
    for node in range(len(needed) - 1, 0, -1):
        if needed[node]:
            for k in range(4):
                needed[child[node, k]] = True


@njit(nogil=True, cache=True)
def loose(reached: Any, child: Any, op: Any, flags: Any, alone: Any) -> Any:
    """Whether a marked node is loose; first marks every node whose bits, if it is a NaN, show in a marked one."""
    found = False
    for node in range(len(reached) - 1, 0, -1):
        if reached[node]:
            here = flags[op[node]]
            found |= (here & nodes.LOOSE) != 0 or alone[node]
            if not here & nodes.SETTLES or alone[node]:
                for k in range(4):
                    reached[child[node, k]] = True
    return found


@njit(nogil=True, cache=True)
def rank(needed: Any, child: Any, level: Any) -> None:
    """For each marked node one more than the highest level among its children; 1 where it has none."""
    for node in range(1, len(needed)):
        if needed[node]:
            highest = 0
            for k in range(4):
                highest = max(highest, level[child[node, k]])
            level[node] = highest + 1


@njit(nogil=True, cache=True)
def count_steps(needed: Any, child: Any, op: Any, flags: Any) -> Any:
    """How many matrix steps the marked chains have."""
    length = np.zeros(len(needed), np.int64)
    total = 0
    for node in range(1, len(needed)):
        if needed[node]:
            if op[node] == nodes.STEPS:
                length[node] = length[child[node, 0]] + 1
            elif flags[op[node]] & nodes.MATRIX:
                total += length[child[node, 0]]
    return total
