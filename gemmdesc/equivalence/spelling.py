"""A descriptor spelled out as an expression over one row and one column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmdesc.descriptor import FusedDot, GEMMDesc, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.table import Table
from gemmdesc.errors import InvalidInputError
from gemmdesc.schedule import ROUNDINGS, Op, make_schedule

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


def matrix_k(table: Table, stream: int, column: Column) -> tuple[int, ...] | None:
    """The k of a matrix step's row or column, in order, or None where it holds anything else."""
    words = [stream]
    while table.node(words[0]).name == "tuple":
        words = [child for word in words for child in table.node(word).children]
    size = column.dtype.itemsize
    found = []
    for word in words:
        for at in range(0, 4, size):
            element = table.extract(np.array([word], np.int64), at, size)
            k = column.stored_k(table, int(element[0]))
            if k is None:
                return None
            found.append(k)
    return tuple(found)


class Spelling:
    """Expressions of descriptors over one row and one column; ``matrix``: the name of a matrix step's nodes."""

    def __init__(self, table: Table, a: Column, b: Column, matrix: str = "") -> None:
        self._table, self._a, self._b, self._matrix = table, a, b, matrix

    def node(self, desc: GEMMDesc, k: int) -> int:
        """The node of ``desc`` at inner size ``k``, before the epilogue and the output's rounding; 0: none has it."""
        schedule = make_schedule(desc, k)
        stack: list[Ids] = []
        zero = self._table.constants(np.zeros(1, np.uint64), 4)
        for op, argument in schedule.program.tolist():
            match op:
                case Op.LEAF:
                    begin, end = schedule.leaf_offsets[argument : argument + 2].tolist()
                    stack.append(self._chain(desc, schedule.order[begin:end].tolist(), zero))
                case Op.ROUND:
                    for name, width in zip(_ROUNDING[ROUNDINGS[argument]], (2, 4), strict=True):
                        stack.append(self._table.make(name, width, stack.pop()))
                case Op.ADD:
                    right = stack.pop()
                    stack.append(self._table.make("add.f32", 4, stack.pop(), right))
                case Op.ADD_TO_ZERO:
                    stack.append(self._table.make("add.f32", 4, stack.pop(), zero))
        (root,) = stack
        return int(root[0])

    def _chain(self, desc: GEMMDesc, ks: list[int], zero: Ids) -> Ids:
        step, total = desc.accumulator.step, zero
        if isinstance(step, FusedDot):
            return self._matrix_chain(desc.accumulator.instruction_k, ks, zero)
        for k in ks:
            x, y = self._a.value(self._table, k), self._b.value(self._table, k)
            if isinstance(step, ScalarStep) and step.fused:
                total = self._table.make("fma.rn.f32", 4, x, y, total)
            else:
                total = self._table.make("add.f32", 4, self._table.make("mul.f32", 4, x, y), total)
        return total

    def _matrix_chain(self, instruction_k: int, ks: list[int], zero: Ids) -> Ids:
        """Whole matrix instructions only; each runs its steps of ``instruction_k`` in order."""
        taken = int(self._matrix.split(".")[1].partition("k")[2]) if self._matrix else 0
        if not taken or taken % instruction_k or len(ks) % taken:
            return np.zeros(1, np.int64)
        total = zero
        for begin in range(0, len(ks), taken):
            row, column = (self._stream(c, ks[begin : begin + taken]) for c in (self._a, self._b))
            total = self._table.make(self._matrix, 4, row, column, total)
        return total

    def _stream(self, column: Column, ks: list[int]) -> Ids:
        per_word = 4 // column.dtype.itemsize
        elements = [column.element(self._table, k) for k in ks]
        words = [self._table.concat(elements[i : i + per_word]) for i in range(0, len(ks), per_word)]
        groups = [self._table.make("tuple", 16, *words[i : i + 4]) for i in range(0, len(words), 4)]
        return groups[0] if len(groups) == 1 else self._table.make("tuple", 16 * len(groups), *groups)
