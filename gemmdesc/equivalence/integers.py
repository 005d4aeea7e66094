"""Integer instructions: concrete arithmetic where the launch fixes the operands, named functions where data enter.

A number derived from a pointer may be moved, and added to or subtracted from by another number; everything else that
takes one in refuses, so that no result can depend on where memory happens to lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.nodes import Bits64, Ids
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import WIDTHS, Instruction, Pair, Register
from gemmdesc.equivalence.values import Mask, Value, as_nodes, both_written, concrete, signed

Integers = tuple[Bits64, ...]

#: Modes of ``Table.bitwise``.
_MOVES = {"or": 0, "and": 1, "shl": 2, "shr": 3}
#: How many operands an instruction takes, where that is not two.
_OPERANDS = {"mad": 3, "bfe": 3, "bfi": 4, **dict.fromkeys(("not", "neg", "abs", "popc", "clz"), 1)}
_COMPARE: dict[str, Callable[[Any, Any], Mask]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
}


def _is_integer(kind: str) -> bool:
    return kind[0] in "bsu" and kind[1:].isdecimal() and kind in WIDTHS


def alu(m: Machine, i: Instruction, act: Mask | None) -> None:
    """add, sub, mul, mad, and, or, xor, not, shl, shr, min, max, abs, neg, div, rem, bfe, bfi, popc, clz, brev."""
    kind = i.parts[-1]
    modes = {"relu"} if i.parts[0] in ("min", "max") and kind == "s32" else {"lo", "hi", "wide"}
    if not (_is_integer(kind) or kind == "pred") or set(i.parts[1:-1]) - modes:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    width = WIDTHS[kind]
    wide = "wide" in i.parts
    sources = i.operands[1:]
    if len(sources) != _OPERANDS.get(i.parts[0], 2):
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    values = []
    for at, operand in enumerate(sources):
        narrow = width
        if wide and at == 2:
            narrow = 2 * width
        elif (i.parts[0] in ("shl", "shr", "bfe") and at > 0) or (i.parts[0] == "bfi" and at > 1):
            narrow = 4
        values.append(m.read(operand, narrow))
    result = 2 * width if wide else 4 if i.parts[0] in ("popc", "clz") else width
    m.write(i.operands[0], _evaluate(m, i, values, width, result), act)


def _evaluate(m: Machine, i: Instruction, values: list[Value], width: int, result: int) -> Value:
    pointer = _pointer(i, values)
    if any(v.ids is not None for v in values):
        if pointer:
            raise RefusalError("data_dependent", "an address depends on loaded data")
        if "relu" in i.parts:
            raise RefusalError("instruction", f"{i.opcode} of data is not among the instructions read")
        widths = [width] * len(values)
        if "wide" in i.parts and len(values) == 3:
            widths[2] = 2 * width
        if i.parts[0] in ("shl", "shr", "bfe", "bfi"):
            widths = [width if at == 0 or (i.parts[0] == "bfi" and at == 1) else 4 for at in range(len(values))]
        ids = [as_nodes(v, w, m.table) for v, w in zip(values, widths, strict=True)]
        mode = _MOVES.get(i.parts[0])
        if mode is not None and i.parts[-1] != "pred" and not (mode == 3 and i.parts[-1][0] == "s"):
            made = m.table.bitwise(i.opcode, mode, width, ids[0], ids[1])
        elif i.parts[0] == "add" and len(i.parts) == 2:
            made = _sum(m, i.opcode, width, ids[0], ids[1])
        else:
            made = m.table.make(i.opcode, result, *ids)
        # ptxas sees through integer instructions that change nothing.
        return Value(ids=made, product=max(v.product for v in values))
    function = _FUNCTIONS.get(i.parts[0])
    if function is None:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    bits = function(i, tuple(v.bits for v in values if v.bits is not None), width)
    written = None
    for v in values:
        written = both_written(Value(written=written), v)
    return concrete(bits, result, written, pointer)


def _sum(m: Machine, name: str, width: int, one: Ids, other: Ids) -> Ids:
    """Integers added, a constant 0 to nothing: the other one keeps every bit."""
    made = m.table.make(name, width, one, other)
    for zero, kept in ((one, other), (other, one)):
        bits, kind = m.table.patterns(zero)
        made = np.where((kind == 1) & (bits == 0), kept, made)
    return made


def _pointer(i: Instruction, values: list[Value]) -> bool:
    which = [at for at, v in enumerate(values) if v.pointer]
    if not which:
        return False
    base = i.parts[0]
    fine = (base == "add" and len(which) == 1) or (base == "sub" and which == [0])
    if not (fine or (base == "mad" and which == [2])):
        raise RefusalError("pointer", f"{i.opcode} makes something other than an address of a pointer")
    return True


def _signed(i: Instruction) -> bool:
    return i.parts[-1][0] == "s"


def _extend(bits: Bits64, i: Instruction, width: int) -> Bits64:
    return signed(bits, width).view(np.uint64) if _signed(i) else bits


def _mul(i: Instruction, v: Integers, width: int) -> Bits64:
    a, b = _extend(v[0], i, width), _extend(v[1], i, width)
    if "hi" in i.parts:
        if width > 4:
            raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
        return (a * b) >> np.uint64(8 * width)
    if "lo" in i.parts or ("wide" in i.parts and width <= 4):
        return a * b
    raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")


def _shift(i: Instruction, v: Integers, width: int) -> Bits64:
    limit = 8 * width
    amount = np.minimum(v[1], np.uint64(63))
    beyond = v[1] >= np.uint64(limit)
    if i.parts[0] == "shl":
        return np.where(beyond, np.uint64(0), v[0] << amount)
    if not _signed(i):
        return np.where(beyond, np.uint64(0), v[0] >> amount)
    return (signed(v[0], width) >> np.minimum(amount, np.uint64(limit - 1)).view(np.int64)).view(np.uint64)


def _order(i: Instruction, v: Integers, width: int) -> Bits64:
    a, b = (signed(x, width) if _signed(i) else x for x in v)
    smaller = a < b
    picked = np.where(smaller if i.parts[0] == "min" else ~smaller, v[0], v[1])
    return np.where(signed(picked, width) < 0, np.uint64(0), picked) if "relu" in i.parts else picked


def _divide(i: Instruction, v: Integers, width: int) -> Bits64:
    if (v[1] == 0).any():
        raise RefusalError("instruction", "a division by zero")
    if not _signed(i):
        return v[0] // v[1] if i.parts[0] == "div" else v[0] % v[1]
    a, b = signed(v[0], width), signed(v[1], width)
    quotient = np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)
    return (quotient if i.parts[0] == "div" else a - quotient * b).view(np.uint64)


def _field(i: Instruction, v: Integers, width: int) -> Bits64:
    """bfe with positions and lengths inside the register."""
    position, length = v[1] & np.uint64(255), v[2] & np.uint64(255)
    if ((position + length) > np.uint64(8 * width)).any() or (length == 0).any():
        raise RefusalError("instruction", f"{i.opcode} with a field that leaves the register")
    taken: Bits64 = (v[0] >> position) & _ones(length)
    if not _signed(i):
        return taken
    up: Bits64 = np.uint64(64) - length
    moved: Bits64 = taken << up
    left: Ids = moved.view(np.int64) >> up.view(np.int64)
    return left.view(np.uint64)


def _insert(i: Instruction, v: Integers, width: int) -> Bits64:
    """bfi with a field inside the register."""
    position, length = v[2] & np.uint64(255), v[3] & np.uint64(255)
    if ((position + length) > np.uint64(8 * width)).any():
        raise RefusalError("instruction", f"{i.opcode} with a field that leaves the register")
    mask = _ones(length) << np.minimum(position, np.uint64(63))
    result: Bits64 = (v[1] & ~mask) | ((v[0] << np.minimum(position, np.uint64(63))) & mask)
    return result


def _ones(length: Bits64) -> Bits64:
    some = np.minimum(length, np.uint64(63))
    ones: Bits64 = np.where(length >= np.uint64(64), ~np.uint64(0), (np.uint64(1) << some) - np.uint64(1))
    return ones


def _count(i: Instruction, v: Integers, width: int) -> Bits64:
    ones = np.array([[x >> np.uint64(b) & np.uint64(1) for b in range(8 * width)] for x in v[0]], np.uint64)
    if i.parts[0] == "clz":
        ones = np.cumprod(np.uint64(1) - ones[:, ::-1], axis=1)
    total: Bits64 = ones.sum(axis=1).astype(np.uint64)
    return total


_FUNCTIONS: dict[str, Callable[[Instruction, Integers, int], Bits64]] = {
    "add": lambda i, v, w: v[0] + v[1],
    "sub": lambda i, v, w: v[0] - v[1],
    "mul": _mul,
    "mad": lambda i, v, w: _mul(i, v[:2], w) + v[2],
    "and": lambda i, v, w: v[0] & v[1],
    "or": lambda i, v, w: v[0] | v[1],
    "xor": lambda i, v, w: v[0] ^ v[1],
    "not": lambda i, v, w: v[0] ^ np.uint64(1) if i.parts[-1] == "pred" else ~v[0],
    "neg": lambda i, v, w: np.uint64(0) - v[0],
    "abs": lambda i, v, w: np.abs(signed(v[0], w)).view(np.uint64),
    "shl": _shift,
    "shr": _shift,
    "min": _order,
    "max": _order,
    "div": _divide,
    "rem": _divide,
    "bfe": _field,
    "bfi": _insert,
    "popc": _count,
    "clz": _count,
}


def setp(m: Machine, i: Instruction, act: Mask | None) -> None:
    """A comparison; on data it is a node, which may select but not guard."""
    if len(i.parts) != 3 and not (len(i.parts) == 4 and i.parts[2] == "ftz"):
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    kind = i.parts[-1]
    if kind in ("f16x2", "bf16x2"):
        _setp_pair(m, i, act)
        return
    if len(i.operands) != 3 or not isinstance(i.operands[0], Register):
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    width = WIDTHS[kind]
    values = [m.read(operand, width) for operand in i.operands[1:]]
    if any(v.pointer for v in values):
        raise RefusalError("pointer", f"{i.opcode} compares a pointer")
    if not _is_integer(kind) or any(v.ids is not None for v in values):
        ids = [as_nodes(v, width, m.table) for v in values]
        m.write(i.operands[0], Value(ids=m.table.make(i.opcode, 1, *ids)), act)
        return
    compare = _COMPARE.get(i.parts[1])
    if compare is None:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    a, b = (v.bits for v in values)
    assert a is not None
    assert b is not None
    answer = compare(signed(a, width), signed(b, width)) if _signed(i) else compare(a, b)
    m.write(i.operands[0], Value(bits=answer.astype(np.uint64), written=both_written(*values)), act)


def _setp_pair(m: Machine, i: Instruction, act: Mask | None) -> None:
    """A comparison of packed halves: the first predicate is that of the lower ones."""
    if len(i.operands) != 3 or not isinstance(i.operands[0], Pair):
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    values = [m.read(operand, 4) for operand in i.operands[1:]]
    if any(v.pointer for v in values):
        raise RefusalError("pointer", f"{i.opcode} compares a pointer")
    ids = [as_nodes(v, 4, m.table) for v in values]
    name = i.opcode.removesuffix("x2")
    for place, target in enumerate((i.operands[0].first, i.operands[0].second)):
        halves = [m.table.extract(x, 2 * place, 2) for x in ids]
        m.write(target, Value(ids=m.table.make(name, 1, *halves)), act)


_REDUCED: dict[str, Callable[..., Any]] = {"max": np.max, "min": np.min, "add": np.sum}


def reduce_warp(m: Machine, i: Instruction, act: Mask | None) -> None:
    """redux.sync over whole warps: of integers that the launch fixes, and sums of any, which no order changes."""
    known = len(i.parts) == 4 and i.parts[1] == "sync" and i.parts[2] in _REDUCED and i.parts[3] in ("s32", "u32")
    if not known or len(i.operands) != 3:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    m.demand_whole_warps(act, i.opcode)
    members = m.integers(i.operands[2], 4, "a member mask")
    assert members.bits is not None
    if (members.bits != 0xFFFFFFFF).any():
        raise RefusalError("divergence", f"{i.opcode} names a part of a warp")
    value = m.read(i.operands[1], 4)
    if value.ids is not None and i.parts[2] == "add":
        ids = m.spread(value.ids).reshape(-1, 32)
        total = ids[:, 0].copy()
        for lane in range(1, 32):
            total = _sum(m, f"add.{i.parts[3]}", 4, total, ids[:, lane].copy())
        m.write(i.operands[0], Value(ids=total.repeat(32), product=value.product), act)
        return
    value = m.integers(i.operands[1], 4, i.opcode)
    m.demand_written(value, act, i.opcode)
    assert value.bits is not None
    if value.pointer:
        raise RefusalError("pointer", f"{i.opcode} makes something other than an address of a pointer")
    bits = m.spread_bits(value.bits).reshape(-1, 32)
    made = _REDUCED[i.parts[2]](signed(bits, 4) if i.parts[3] == "s32" else bits, axis=1)
    m.write(i.operands[0], concrete(made.view(np.uint64).repeat(32), 4), act)
