"""A descriptor spelled out as an expression over one row and one column."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from gemmdesc.descriptor import GEMMDesc, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.table import Table
from gemmdesc.errors import InvalidInputError
from gemmdesc.schedule import ROUNDINGS, Op, Schedule, make_schedule

_WIDENING = {DType.FLOAT16: "cvt.f32.f16", DType.BFLOAT16: "cvt.f32.bf16"}
_ROUNDING = {
    DType.FLOAT16: ("cvt.rn.f16.f32", "cvt.f32.f16"),
    DType.BFLOAT16: ("cvt.rn.bf16.f32", "cvt.f32.bf16"),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A row of A or a column of B: from ``offset`` bytes behind ``parameter``, ``stride`` bytes from k to k + 1."""

    parameter: int
    offset: int
    stride: int
    dtype: DType

    def element(self, table: Table, k: int) -> Ids:
        """The stored element, as it lies in memory."""
        at = np.array([self.offset + k * self.stride], np.int64)
        return table.leaves(np.array([self.parameter], np.int64), at, self.dtype.itemsize)

    def value(self, table: Table, k: int) -> Ids:
        """The element as float32.

        Raises:
            InvalidInputError: its type is not float32, float16 or bfloat16.
        """
        element = self.element(table, k)
        if self.dtype is DType.FLOAT32:
            return element
        if self.dtype not in _WIDENING:
            raise InvalidInputError(f"dtype must be float32, float16 or bfloat16 (got {self.dtype.value})")
        return table.make(_WIDENING[self.dtype], 4, element)

    def k_of(self, table: Table, node: int) -> int | None:
        """Which k a float32 value is, or None."""
        here = table.node(node)
        if self.dtype is not DType.FLOAT32:
            if here.name != _WIDENING.get(self.dtype):
                return None
            (node,) = here.children
        return self.stored_k(table, node)

    def stored_k(self, table: Table, node: int) -> int | None:
        """Which k a stored element is, or None."""
        here = table.node(node)
        if here.name != "load" or here.width != self.dtype.itemsize or here.attributes[0] != self.parameter:
            return None
        k, rest = divmod(here.attributes[1] - self.offset, self.stride)
        return None if rest or k < 0 else k


def matrix_lanes(table: Table, stream: int, column: Column) -> tuple[int | None, ...]:
    """The k of each lane of a matrix step's row or column, None where the lane is +0.0.

    Raises:
        InvalidInputError: a lane holds anything else.
    """
    words = [stream]
    while table.node(words[0]).name == "tuple":
        words = [child for word in words for child in table.node(word).children]
    size = column.dtype.itemsize
    found: list[int | None] = []
    for word in words:
        for at in range(0, 4, size):
            element = int(table.extract(np.array([word], np.int64), at, size)[0])
            here = table.node(element)
            k = column.stored_k(table, element)
            if k is None and (here.name != "constant" or here.attributes[0] != 0):
                raise InvalidInputError(f"stream must hold elements of one row or column (got {here.name})")
            found.append(k)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Steps over k, in order, from ``start``.  ``fused``: of a scalar step; ``matrix``: the instruction, if any."""

    steps: tuple[tuple[int, ...], ...]
    fused: bool
    matrix: str = ""
    start: Start = Start.ZERO


class Spelling:
    """Expressions over one row and one column.

    A matrix step is a node on the set of k that it takes in: which lanes hold them is not told apart, nor lanes of
    zeros, which the accumulator models do not see.
    """

    def __init__(self, table: Table, a: Column, b: Column) -> None:
        self._table, self._a, self._b = table, a, b

    def node(self, desc: GEMMDesc, k: int, matrix: str) -> int:
        """The node of ``desc`` at inner size ``k``, before the epilogue and the output's rounding.

        ``matrix``: the name of the instruction that takes its matrix steps.
        """
        schedule = make_schedule(desc, k)
        stack: list[Ids] = []
        for op, argument in schedule.program.tolist():
            match op:
                case Op.LEAF:
                    stack.append(self.chain(_leaf(desc, schedule, argument, matrix)))
                case Op.ROUND:
                    stack.append(self.rounded(stack.pop(), ROUNDINGS[argument]))
                case Op.ADD:
                    right = stack.pop()
                    stack.append(self.sum(stack.pop(), right))
                case Op.ADD_TO_ZERO:
                    stack.append(self.sum(stack.pop(), Start.ZERO))
        (root,) = stack
        return int(root[0])

    def chain(self, chain: Chain) -> Ids:
        """A chain of steps."""
        total = self._constant(chain.start)
        for ks in chain.steps:
            if chain.matrix:
                row, column = (self._list(c, ks) for c in (self._a, self._b))
                total = self._table.make(f"one step of {chain.matrix}", 4, row, column, total)
                continue
            (k,) = ks
            x, y = self._a.value(self._table, k), self._b.value(self._table, k)
            if chain.fused:
                total = self._table.make("fma.rn.f32", 4, x, y, total)
            else:
                total = self._table.make("add.f32", 4, self._table.make("mul.f32", 4, x, y), total)
        return total

    def sum(self, first: Ids, second: Ids | Start) -> Ids:
        """One addition; of +0.0 for ``ZERO``, of -0.0 for ``FIRST``."""
        return self._table.make("add.f32", 4, first, self._constant(second) if isinstance(second, Start) else second)

    def rounded(self, inner: Ids, dtype: DType) -> Ids:
        """A value rounded to a narrow type and widened again."""
        for name, width in zip(_ROUNDING[dtype], (2, 4), strict=True):
            inner = self._table.make(name, width, inner)
        return inner

    def _constant(self, start: Start) -> Ids:
        return self._table.constants(np.array([0 if start is Start.ZERO else 1 << 31], np.uint64), 4)

    def _list(self, column: Column, ks: tuple[int, ...]) -> Ids:
        found = None
        for k in sorted(ks):
            found = self._table.longer(found, column.element(self._table, k))
        return np.zeros(1, np.int64) if found is None else found


def _leaf(desc: GEMMDesc, schedule: Schedule, number: int, matrix: str) -> Chain:
    begin = int(schedule.leaf_offsets[number])
    first, last = schedule.step_offsets[number : number + 2].tolist()
    ends = [begin, *schedule.step_ends[first:last].tolist()]
    order = schedule.order.tolist()
    steps = tuple(tuple(order[a:b]) for a, b in itertools.pairwise(ends))
    step = desc.accumulator.step
    if isinstance(step, ScalarStep):
        return Chain(steps=steps, fused=step.fused, start=step.start)
    return Chain(steps=steps, fused=True, matrix=matrix or "no instruction")
