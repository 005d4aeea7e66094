"""Run an expression on real operands, with PTX's arithmetic, bit for bit.

What comes out is what the card has to store if the walk read the kernel right and ptxas kept its roundings.  Functions
that only the hardware defines (``ex2.approx`` and the like) are handed in by the caller, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence import extremes, levels, nodes
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
    chosen: npt.NDArray[np.bool_] | None = None,
    as_extremes: bool = False,
) -> dict[int, tuple[Ids, npt.NDArray[np.uint8]]]:
    """The bytes that a launch stores: by parameter, their offsets (n,) and values (n,), or (draws, n).

    ``memory``: the bytes behind each pointer parameter before the launch, shape (bytes,), or (draws, bytes) for several
    draws at once.  ``functions``: instructions by name, arrays of bit patterns in, patterns out; they come before the
    built-in ones.  ``matrix_step``: what one step of mma.sync does.  ``arguments``: patterns of scalar arguments that
    are data.  ``chosen``: which rows of ``walked.stored`` to work out; all of them if None.  ``as_extremes``:
    selections that ptxas may make maxima or minima (``extremes.py``) are that: of a NaN they give the canonical one.

    Raises:
        InvalidInputError: memory is too short, or a function is not known.
    """
    stored = walked.stored
    kept = np.ones(len(stored.ids), np.bool_) if chosen is None else chosen
    run = _Run(walked.table, memory, {**NAMED, **(functions or {})}, matrix_step, arguments or {}, as_extremes)
    values = run.values(stored.ids[kept]).astype(np.uint8)
    parameters, offsets = stored.parameter[kept], stored.offset[kept]
    single = all(data.ndim == 1 for data in memory.values())
    found = {}
    for parameter in np.unique(parameters).tolist():
        here = parameters == parameter
        found[parameter] = offsets[here], (values[here, 0] if single else np.ascontiguousarray(values[here].T))
    return found


def needed_nodes(walked: Walked, chosen: npt.NDArray[np.bool_] | None = None) -> int:
    """How many nodes and matrix steps :func:`evaluate` works out."""
    ids = walked.stored.ids if chosen is None else walked.stored.ids[chosen]
    needed, s = _needed(walked.table, ids), walked.table.store
    return int(needed.sum()) - 1 + int(levels.count_steps(needed, s.child, s.op, s.op_flags))


def missing_functions(walked: Walked, chosen: npt.NDArray[np.bool_] | None = None) -> tuple[str, ...]:
    """Names of the functions that :func:`evaluate` has to be given, matrix steps not among them."""
    table, ids = walked.table, walked.stored.ids if chosen is None else walked.stored.ids[chosen]
    codes = np.unique(table.store.op[: len(table)][_needed(table, ids)]).tolist()
    names = {table.name(int(code)) for code in codes} - {"tuple", *nodes.BUILT_IN}
    return tuple(sorted(name for name in names if name not in NAMED and not name.startswith("mma.")))


def has_extremes(walked: Walked) -> bool:
    """Whether a stored byte is made of a selection that ptxas may make a maximum or a minimum."""
    needed = np.flatnonzero(needed_mask(walked))
    return bool(extremes.may_be_extreme(walked.table, needed).any())


def needed_mask(walked: Walked) -> npt.NDArray[np.bool_]:
    """Which nodes of the walk's table the stored bytes are made of; node 0 is among them."""
    return _needed(walked.table, walked.stored.ids)


def loaded_bytes(walked: Walked) -> dict[int, int]:
    """How far the launch loads behind each pointer parameter, in bytes; the walk has to have a table of its own."""
    s, total = walked.table.store, len(walked.table)
    leaves = np.flatnonzero(s.op[:total] == nodes.LEAF)
    ends = s.attribute[leaves, 1] + s.width[leaves]
    parameters = s.attribute[leaves, 0]
    return {int(p): int(ends[parameters == p].max()) for p in np.unique(parameters)}


def _needed(table: Table, roots: Ids) -> npt.NDArray[np.bool_]:
    needed = np.zeros(len(table), np.bool_)
    needed[roots] = True
    levels.mark(needed, table.store.child[: len(table)])
    needed[0] = True
    return needed


class _Run:
    """Nodes are worked out level by level, all nodes of one operation and width together; a row of values a node."""

    def __init__(
        self,
        table: Table,
        memory: Mapping[int, npt.NDArray[np.uint8]],
        functions: Mapping[str, Function],
        matrix_step: MatrixStep | None,
        arguments: Mapping[int, int],
        as_extremes: bool,
    ) -> None:
        self._table, self._functions = table, functions
        self._memory = {p: np.ascontiguousarray(np.atleast_2d(data).T) for p, data in memory.items()}
        self._draws = max((data.shape[1] for data in self._memory.values()), default=1)
        self._matrix_step, self._arguments, self._as_extremes = matrix_step, arguments, as_extremes
        self._row = np.zeros(0, np.int64)
        self._value = np.zeros((0, 0), np.uint64)

    def values(self, roots: Ids) -> Bits:
        """Patterns of the given nodes, shape (nodes, draws)."""
        s = self._table.store
        total = len(self._table)
        needed = _needed(self._table, roots)
        level = np.zeros(total, np.int32)
        levels.rank(needed, s.child[:total], level)
        self._row = np.cumsum(needed) - 1
        self._value = np.zeros((int(self._row[-1]) + 1, self._draws), np.uint64)
        wanted = np.flatnonzero(needed)[1:]
        wanted = wanted[np.lexsort((s.width[wanted], s.op[wanted], level[wanted]))]
        keys = np.stack([level[wanted], s.op[wanted], s.width[wanted]])
        breaks = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
        for group in np.split(wanted, breaks):
            if len(group):
                self._group(group)
        return self._of(roots)

    def _of(self, nodes_: Ids) -> Bits:
        return self._value[self._row[nodes_]]

    def _group(self, group: Ids) -> None:
        s = self._table.store
        code, width = int(s.op[group[0]]), int(s.width[group[0]])
        child = [s.child[group, k] for k in range(4)]
        first = s.attribute[group, 0]
        match code:
            case nodes.CONSTANT:
                out = first.view(np.uint64)[:, None]
            case nodes.LEAF:
                out = self._load(first, s.attribute[group, 1], width)
            case nodes.CONCAT:
                out = self._of(child[0]) | (self._of(child[1]) << np.uint64(4 * width))
            case nodes.EXTRACT:
                out = self._of(child[0]) >> (np.uint64(8) * first.view(np.uint64))[:, None]
            case nodes.SCALAR:
                out = np.array([[self._arguments[int(p)]] for p in first], np.uint64)
            case _:
                name = self._table.name(code)
                out = self._named(name, child)
                if self._as_extremes and name == extremes.SELECTION:
                    out = extremes.canonical(out, extremes.may_be_extreme(self._table, group))
        mask = np.uint64(2 ** (8 * min(width, 8)) - 1)
        self._value[self._row[group]] = out & mask

    def _load(self, parameter: Ids, offset: Ids, width: int) -> Bits:
        out = np.zeros((len(parameter), self._draws), np.uint64)
        for p in np.unique(parameter).tolist():
            here = parameter == p
            data = self._memory.get(p)
            if data is None or offset[here].min() < 0 or offset[here].max() + width > len(data):
                raise InvalidInputError(f"memory must hold what the kernel loads behind parameter {p}")
            for k in range(width):
                out[here] |= data[offset[here] + k].astype(np.uint64) << np.uint64(8 * k)
        return out

    def _named(self, name: str, child: list[Ids]) -> Bits:
        if name in ("tuple", "steps"):
            return np.zeros((len(child[0]), 1), np.uint64)
        if name.startswith("mma."):
            if self._matrix_step is None:
                raise InvalidInputError(f"matrix_step must be given for {name} (got None)")
            return self._chains(name, child[0], child[1], child[2], self._matrix_step)
        function = self._functions.get(name)
        if function is None:
            raise InvalidInputError(f"functions must have {name} (got {', '.join(sorted(self._functions))})")
        return function(*(self._of(c) for c in child if c.any()))

    def _chains(self, name: str, rows: Ids, columns: Ids, start: Ids, matrix_step: MatrixStep) -> Bits:
        """Chains of matrix steps, one step of all of them at a time; the shorter ones begin later."""
        child = self._table.store.child
        steps = []
        while rows.any():
            steps.append((child[rows, 1], child[columns, 1]))
            rows, columns = child[rows, 0], child[columns, 0]
        total = self._of(start)
        for row, column in reversed(steps):
            here = row != 0
            words = self._words(row[here]), self._words(column[here])
            total[here] = matrix_step(name, words[0], words[1], total[here].ravel()).reshape(-1, self._draws)
        return total

    def _words(self, streams: Ids) -> npt.NDArray[np.uint32]:
        """Words of 4 bytes of rows or columns, ascending in k, shape (streams x draws, words)."""
        s = self._table.store
        code = self._table.code("tuple")
        level = streams.reshape(-1, 1)
        while s.op[level[0, 0]] == code:
            count = int((s.child[level[0, 0]] != 0).sum())
            level = s.child[level][:, :, :count].reshape(len(streams), -1)
        words = self._of(level).astype(np.uint32)
        return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, words.shape[1])
