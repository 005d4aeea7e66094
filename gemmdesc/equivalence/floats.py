"""Floating-point instructions: every one a function named by its opcode, with all of its modifiers.

Two spellings are one function: a written ``.rn`` where rounding to nearest is the default, and a packed operation and
its lanes.  A product without a written rounding that an addition without one takes in may be fused by ptxas, also the
last product of a quotient that it expands; such a sum is noted, and the walk's result is void unless contraction is
off or shown not to have happened.
"""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.ptxas import (
    ROUNDINGS,
    UNARY,
    known_name,
    note_fusions,
    note_rectified,
    note_taken,
    product_of,
)
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import WIDTHS, Instruction, Pair
from gemmdesc.equivalence.values import NO_PRODUCT, Mask, Value, as_nodes

#: Packed types and their lanes.
PACKED = {"f32x2": "f32", "f16x2": "f16", "bf16x2": "bf16"}
_KINDS = ("f16", "bf16", "f32", "f64", *PACKED)
_ROUNDED_BY_DEFAULT = ("add", "sub", "mul")
_MODIFIERS = ROUNDINGS | {"ftz", "sat", "approx", "full", "NaN", "xorsign", "abs", "relu"}
_CONVERSIONS = ("e4m3", "e5m2", "tf32", "f16", "bf16", "f32", "f64")


def is_float(i: Instruction) -> bool:
    """Whether an opcode such as ``add`` names the floating-point form."""
    return i.parts[-1] in _KINDS


def arithmetic(m: Machine, i: Instruction, act: Mask | None) -> None:
    """One floating-point operation on every lane."""
    if "f32" in i.parts[1:-1]:
        _mixed(m, i, act)
        return
    kind = i.parts[-1]
    base = i.parts[0]
    modifiers = i.parts[1:-1]
    if not _MODIFIERS.issuperset(modifiers):
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    if base in _ROUNDED_BY_DEFAULT:
        modifiers = tuple(x for x in modifiers if x != "rn")
    name = ".".join((base, *modifiers, PACKED.get(kind, kind)))
    width = WIDTHS[kind]
    values = [m.read(operand, width) for operand in i.operands[1:]]
    if base in ("max", "min") and len(values) == 3:
        name = f"three-way {name}"
    elif len(values) != (1 if base in UNARY else 3 if base in ("fma", "mad") else 2):
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    lanes = 2 if kind in PACKED else 1
    ids = _split(m, [as_nodes(v, width, m.table) for v in values], width, lanes)
    product = product_of(m, i, ids)
    note_fusions(m, i, PACKED.get(kind, kind), values, ids, act)
    name = known_name(m, i, name, PACKED.get(kind, kind), ids, act)
    if base == "neg":
        product = values[0].product
    elif base in ("max", "min") and len(values) == 2 and (ids[0][0] == ids[0][1]).any():
        # ptxas takes the maximum of a value and itself for the value.
        product = max(v.product for v in values)
    made = m.table.concat([m.table.make(name, width // lanes, *lane) for lane in ids])
    m.write(i.operands[0], Value(ids=made, product=product), act)


def _mixed(m: Machine, i: Instruction, act: Mask | None) -> None:
    """add, sub and fma in float32 whose first operand, or two for fma, are half precision: widened, then combined."""
    base, modifiers, narrow = i.parts[0], i.parts[1:-2], i.parts[-1]
    known = base in ("add", "sub", "fma") and narrow in ("f16", "bf16") and i.parts[-2] == "f32"
    if not known or len(i.operands) != (4 if base == "fma" else 3) or set(modifiers) - {"rn"}:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    last = m.read(i.operands[-1], 4)
    wide = [m.table.make(f"cvt.f32.{narrow}", 4, m.nodes(operand, 2)) for operand in i.operands[1:-1]]
    if base != "fma" and not modifiers:
        note_taken(m, i, last.product)
    name = "fma.rn.f32" if base == "fma" else f"{base}.f32"
    m.write(i.operands[0], Value(ids=m.table.make(name, 4, *wide, as_nodes(last, 4, m.table))), act)


def _split(m: Machine, ids: list[Ids], width: int, lanes: int) -> list[list[Ids]]:
    """The operands of each packed lane."""
    if lanes == 1:
        return [ids]
    part = width // lanes
    return [[m.table.extract(x, k * part, part) for x in ids] for k in range(lanes)]


def convert(m: Machine, i: Instruction, act: Mask | None) -> None:
    """cvt with a floating-point type on either side."""
    target, source = i.parts[-2], i.parts[-1]
    if target.endswith("x2"):
        _convert_pair(m, i, act)
        return
    register = i.operands[0]
    width = WIDTHS.get(target)
    if width is None or source not in WIDTHS or not hasattr(register, "width") or len(i.operands) != 2:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    value = m.read(i.operands[1], WIDTHS[source])
    given = as_nodes(value, WIDTHS[source], m.table)
    note_rectified(m, target, given)
    ids = m.table.make(i.opcode, width, given)
    # ptxas drops a conversion to the type that is there.
    m.write(register, Value(ids=ids, product=value.product if target == source else NO_PRODUCT), act)


def _convert_pair(m: Machine, i: Instruction, act: Mask | None) -> None:
    """Conversions to a packed pair: from two values, the first of which lands above, or lane by lane from a pair."""
    target, source = i.parts[-2][:-2], i.parts[-1]
    each = source[:-2] if source.endswith("x2") else source
    if target not in _CONVERSIONS or each not in _CONVERSIONS or "relu" in i.parts:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    name = ".".join((*i.parts[:-2], target, each))
    sizes = {"e4m3": 1, "e5m2": 1}
    width, narrow = sizes.get(target, WIDTHS.get(target, 0)), sizes.get(each, WIDTHS.get(each, 0))
    if source.endswith("x2"):
        pair = m.nodes(i.operands[1], 2 * narrow)
        halves = list(m.table.pieces(pair, narrow, 2))
    else:
        if len(i.operands) != 3:
            raise RefusalError("instruction", f"{i.text} is not among the instructions read")
        halves = [m.nodes(i.operands[2], narrow), m.nodes(i.operands[1], narrow)]
    for half in halves:
        note_rectified(m, target, half)
    made = m.table.make(name, width, np.concatenate(halves))
    m.write(i.operands[0], Value(ids=m.table.concat(np.split(made, [len(halves[0])]))), act)


def reduce_warp(m: Machine, i: Instruction, act: Mask | None) -> None:
    """redux.sync of a floating-point maximum or minimum over whole warps: a function of the set of its arguments."""
    if i.parts[-1] != "f32" or isinstance(i.operands[0], Pair):
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    m.demand_whole_warps(act, i.opcode)
    members = m.integers(i.operands[2], 4, "a member mask")
    assert members.bits is not None
    if (members.bits != 0xFFFFFFFF).any():
        raise RefusalError("divergence", f"{i.opcode} names a part of a warp")
    ids = m.spread(m.nodes(i.operands[1], 4)).reshape(-1, 32)
    total = ids[:, 0].copy()
    for lane in range(1, 32):
        total = m.table.make(i.opcode, 4, total, ids[:, lane].copy())
    m.write(i.operands[0], Value(ids=total.repeat(32)), act)
