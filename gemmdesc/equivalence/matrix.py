"""mma.sync: an element of the product is a function of rows of A, columns of B and the accumulator before.

Rows and columns are nodes shared by all elements that meet in them, and so are the lists of them that a chain of steps
takes in; an element costs one node, made when something other than the next step asks for it.  The fragments are those
of the PTX manual's m16n8 shapes, which all follow one rule: with p elements in a register, register r of lane (g, t)
holds row g + 8 (r mod 2) of A from k = t p + 4 p (r div 2), and register r of B holds column g from k = t p + 4 p r.
"""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.fragments import Element, Product
from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.merges import PADDED, SWAPPED, halved
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.ptxas import note_taken
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import Instruction, Operand, Vector
from gemmdesc.equivalence.values import Mask, Value

#: Element types, and the shapes that they have with the rule above, by k.
_SHAPES = {
    "f16": (8, 16),
    "bf16": (8, 16),
    "tf32": (4, 8),
    "e4m3": (16, 32),
    "e5m2": (16, 32),
}
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}


def multiply(m: Machine, i: Instruction, act: Mask | None) -> None:
    """One matrix step of every warp."""
    shape, types = i.parts[3], i.parts[-4:]
    if i.parts[:3] != ("mma", "sync", "aligned") or i.parts[4:-4] != ("row", "col") or not shape.startswith("m16n8k"):
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    k = int(shape.removeprefix("m16n8k"))
    d, a, b, c = types
    sized = a in _SHAPES and b in _SHAPES and k in _SHAPES[a] and k in _SHAPES[b]
    if not sized or d != c or d not in ("f32", "f16"):
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    if act is not None:
        raise RefusalError("divergence", f"{i.opcode} is reached by a part of the threads")
    m.demand_whole_warps(act, i.opcode)
    chunks = k * _BYTES[a] // 16
    left = _registers(m, i.operands[1], 2 * chunks)
    right = _registers(m, i.operands[2], chunks)
    rows = [[left[2 * chunk + half] for chunk in range(chunks)] for half in (0, 1)]
    count = 2 if d == "f16" else 4
    for operand in (i.operands[0], i.operands[3]):
        if not isinstance(operand, Vector) or len(operand.items) != count:
            raise RefusalError("instruction", "a matrix step with another number of registers")
    name = ".".join(("mma", i.parts[3], *i.parts[-4:]))
    if a in ("e4m3", "e5m2"):
        _note_emulated(m, i)
    if d == "f16" or not _continue(m, i, name, rows, right):
        _accumulate(m, i, name, rows, right, packed=d == "f16")


def _continue(m: Machine, i: Instruction, name: str, rows: list[list[Ids]], columns: list[Ids]) -> bool:
    """One step more of every warp's product; False where elements have to be looked at one by one."""
    targets, items = i.operands[0], i.operands[3]
    assert isinstance(targets, Vector)
    assert isinstance(items, Vector)
    lower, upper, right = (m.fragments.stream(registers) for registers in (*rows, columns))
    if lower is None or upper is None or right is None or any(m.table.merges(x, name) for x in (SWAPPED, PADDED)):
        return False
    held = [m.deferred(item) for item in items.items]
    first = held[0]
    before: list[Ids | None]
    if isinstance(first, Element) and first.product.name == name and all(
        isinstance(x, Element) and x.product is first.product and x.index == k for k, x in enumerate(held)
    ):
        before, start = [*first.product.rows, first.product.columns], first.product.start
    else:
        before, start = [None, None, None], tuple(m.spread(m.nodes(item, 4)) for item in items.items)
        if not all(m.table.begins_chain(name, ids) for ids in start):
            return False
    longer = [m.fragments.longer(*pair) for pair in zip(before, (lower, upper, right), strict=True)]
    product = Product(m.table, name, (longer[0], longer[1]), longer[2], start)
    for index, target in enumerate(targets.items):
        m.defer(target, Element(product, index))
    return True


def _note_emulated(m: Machine, i: Instruction) -> None:
    """Where ptxas has no such instruction it widens to float16, and adds the accumulator in a sum that it may fuse."""
    assert isinstance(i.operands[3], Vector)
    read = [m.read(item, 4).product for item in i.operands[3].items if m.deferred(item) is None]
    note_taken(m, i, max(read, default=0))


def _registers(m: Machine, operand: Operand, count: int) -> list[Ids]:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise RefusalError("instruction", "a matrix step with another number of registers")
    return [m.spread(m.nodes(item, 4)) for item in operand.items]


class _Step:
    """Products of rows and columns, given as registers, by what the table's merges make of them."""

    def __init__(self, m: Machine, name: str, rows: list[list[Ids]], columns: list[Ids], width: int) -> None:
        self._table, self._name, self._width = m.table, name, width
        self._rows, self._columns = [m.table.streams(r) for r in rows], m.table.streams(columns)
        self._short = ""
        if len(columns) == 2 and m.table.merges(PADDED, name):
            parts = name.split(".")
            self._short = ".".join((parts[0], halved(parts[1]), *parts[2:]))
            zero = m.table.constants(np.zeros(1, np.uint64), 4)
            nothing = m.table.make("tuple", 16, zero, zero, zero, zero)[0]
            low = [[m.table.streams([r[k]]) for r in rows] for k in (0, 1)]
            high = [m.table.streams([c]) for c in columns]
            self._low_rows, self._low_columns = low[0], high[0]
            self._padded_rows, self._padded_columns = [x == nothing for x in low[1]], high[1] == nothing

    def make(self, half: int, row: Ids, column: Ids, before: Ids) -> Ids:
        """Elements of rows ``row`` (of half ``half``) and columns ``column``."""
        made = self._table.make(self._name, self._width, self._rows[half][row], self._columns[column], before)
        if not self._short:
            return made
        padded = self._padded_rows[half][row] & self._padded_columns[column]
        short = self._table.make(
            self._short, self._width, self._low_rows[half][row], self._low_columns[column], before
        )
        return np.where(padded, short, made)


def _accumulate(
    m: Machine, i: Instruction, name: str, rows: list[list[Ids]], columns: list[Ids], *, packed: bool
) -> None:
    """One step of every element by itself."""
    lane = m.every % 32
    warp = m.every // 32
    group, thread = lane // 4, lane % 4
    targets, before = i.operands[0], i.operands[3]
    assert isinstance(targets, Vector)
    sums = _registers(m, before, 2 if packed else 4)
    step = _Step(m, name, rows, columns, 2 if packed else 4)
    made = []
    for half in (0, 1):
        for side in (0, 1):
            add = m.table.extract(sums[half], 2 * side, 2) if packed else sums[2 * half + side]
            made.append(step.make(half, warp * 8 + group, warp * 8 + 2 * thread + side, add))
    if packed:
        made = [m.table.concat(made[:2]), m.table.concat(made[2:])]
    for target, ids in zip(targets.items, made, strict=True):
        m.write(target, Value(ids=ids), None)
