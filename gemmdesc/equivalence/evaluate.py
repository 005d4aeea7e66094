"""Run an expression on real operands, with PTX's arithmetic, bit for bit.

What comes out is what the card has to store if the walk read the kernel right and ptxas kept its roundings.  Functions
that only the hardware defines (``ex2.approx`` and the like) are handed in by the caller, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence import levels, nodes
from gemmdesc.equivalence.functions import NAMED, Bits, Function
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.table import Table
from gemmdesc.equivalence.walk import Walked
from gemmdesc.errors import InvalidInputError

#: Product step of ``mma.sync``: name, rows of A, columns of B (n, words of 4 bytes), accumulators -> results.
MatrixStep = Callable[[str, npt.NDArray[np.uint32], npt.NDArray[np.uint32], Bits], Bits]


def evaluate(
    walked: Walked,
    memory: Mapping[int, npt.NDArray[np.uint8]],
    *,
    functions: Mapping[str, Function] | None = None,
    matrix_step: MatrixStep | None = None,
    arguments: Mapping[int, int] | None = None,
) -> dict[int, tuple[Ids, npt.NDArray[np.uint8]]]:
    """The bytes that a launch stores: by parameter, their offsets and values.

    ``memory``: the bytes behind each pointer parameter before the launch.  ``functions``: instructions by name, arrays
    of bit patterns in, patterns out; they come before the built-in ones.  ``matrix_step``: what one step of mma.sync
    does.  ``arguments``: patterns of scalar arguments that are data.

    Raises:
        InvalidInputError: memory is too short, or a function is not known.
    """
    roots = walked.stored.ids
    run = _Run(walked.table, memory, {**NAMED, **(functions or {})}, matrix_step, arguments or {})
    values = run.values(roots)
    found = {}
    for parameter in np.unique(walked.stored.parameter).tolist():
        here = walked.stored.parameter == parameter
        found[parameter] = walked.stored.offset[here], values[here].astype(np.uint8)
    return found


class _Run:
    """Nodes are worked out level by level, all nodes of one operation and width together."""

    def __init__(
        self,
        table: Table,
        memory: Mapping[int, npt.NDArray[np.uint8]],
        functions: Mapping[str, Function],
        matrix_step: MatrixStep | None,
        arguments: Mapping[int, int],
    ) -> None:
        self._table, self._memory, self._functions = table, memory, functions
        self._matrix_step, self._arguments = matrix_step, arguments
        self._value = np.zeros(len(table), np.uint64)

    def values(self, roots: Ids) -> Bits:
        """Patterns of the given nodes."""
        s = self._table.store
        total = len(self._table)
        needed = np.zeros(total, np.bool_)
        needed[roots] = True
        level = np.zeros(total, np.int32)
        _reach(needed, s.child[:total], level)
        wanted = np.flatnonzero(needed)
        wanted = wanted[wanted != 0]
        op, width = s.op[wanted], s.width[wanted]
        order = np.lexsort((width, op, level[wanted]))
        wanted = wanted[order]
        keys = np.stack([level[wanted], s.op[wanted], s.width[wanted]])
        breaks = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
        for group in np.split(wanted, breaks):
            if len(group):
                self._group(group)
        return self._value[roots]

    def _group(self, group: Ids) -> None:
        s = self._table.store
        code, width = int(s.op[group[0]]), int(s.width[group[0]])
        child = [s.child[group, k] for k in range(4)]
        first = s.attribute[group, 0]
        match code:
            case nodes.CONSTANT:
                out = first.view(np.uint64)
            case nodes.LEAF:
                out = self._load(first, s.attribute[group, 1], width)
            case nodes.CONCAT:
                out = self._value[child[0]] | (self._value[child[1]] << np.uint64(4 * width))
            case nodes.EXTRACT:
                out = self._value[child[0]] >> (np.uint64(8) * first.view(np.uint64))
            case nodes.SCALAR:
                out = np.array([self._arguments[int(p)] for p in first], np.uint64)
            case _:
                out = self._named(self._table.name(code), child)
        mask = np.uint64(2 ** (8 * min(width, 8)) - 1)
        self._value[group] = out & mask

    def _load(self, parameter: Ids, offset: Ids, width: int) -> Bits:
        out = np.zeros(len(parameter), np.uint64)
        for p in np.unique(parameter).tolist():
            here = parameter == p
            data = self._memory.get(p)
            if data is None or offset[here].min() < 0 or offset[here].max() + width > len(data):
                raise InvalidInputError(f"memory must hold what the kernel loads behind parameter {p}")
            for k in range(width):
                out[here] |= data[offset[here] + k].astype(np.uint64) << np.uint64(8 * k)
        return out

    def _named(self, name: str, child: list[Ids]) -> Bits:
        if name == "tuple":
            return np.zeros(len(child[0]), np.uint64)
        if name.startswith("mma."):
            if self._matrix_step is None:
                raise InvalidInputError(f"matrix_step must be given for {name} (got None)")
            row, column = (self._words(c) for c in child[:2])
            return self._matrix_step(name, row, column, self._value[child[2]])
        function = self._functions.get(name)
        if function is None:
            raise InvalidInputError(f"functions must have {name} (got {', '.join(sorted(self._functions))})")
        arguments = [c for c in child if c.any()]
        return function(*(self._value[c] for c in arguments))

    def _words(self, streams: Ids) -> npt.NDArray[np.uint32]:
        """Words of 4 bytes of rows or columns, ascending in k."""
        s = self._table.store
        code = self._table.code("tuple")
        level = streams.reshape(-1, 1)
        while s.op[level[0, 0]] == code:
            count = int((s.child[level[0, 0]] != 0).sum())
            level = s.child[level][:, :, :count].reshape(len(streams), -1)
        return self._value[level].astype(np.uint32)


def _reach(needed: npt.NDArray[np.bool_], child: Ids, level: npt.NDArray[np.int32]) -> None:
    """Mark what the marked nodes need, and how far each stands above its furthest leaf."""
    levels.mark(needed, child)
    levels.rank(needed, child, level)
