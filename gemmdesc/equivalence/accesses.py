"""Loads from and stores to global and shared memory."""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.moves import extended
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.refusal import NondeterministicError, RefusalError
from gemmdesc.equivalence.shared_memory import Addresses
from gemmdesc.equivalence.syntax import WIDTHS, Address, Immediate, Instruction, Operand, Register, Symbol, Vector
from gemmdesc.equivalence.values import Mask, Value, concrete, signed

#: Modifiers that choose caches and nothing else.
_HINTS = ("nc", "ca", "cg", "cs", "lu", "wb", "wt", "weak", "level_eviction_priority")


def _space(i: Instruction, kinds: tuple[str, ...]) -> tuple[str, int, int]:
    """Memory space, number of elements and bytes of one; refuses modifiers that are not hints."""
    space, count = i.parts[1].removesuffix("_cta"), 1
    if space not in kinds:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    for part in i.parts[2:-1]:
        if part in ("v2", "v4", "v8"):
            count = int(part[1])
        elif part in ("volatile", "cv") or part in ("relaxed", "acquire", "release", "mmio"):
            raise RefusalError("volatile", f"{i.opcode} may see what other threads do meanwhile")
        elif part not in _HINTS and not part.startswith(("L1_", "L2_")):
            raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    if i.parts[-1] not in WIDTHS:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    return space, count, WIDTHS[i.parts[-1]]


def addresses(m: Machine, operand: Operand, lanes: Ids, act: Mask | None, width: int) -> Addresses:
    """Where the active lanes point; ``width``: bytes of the address register."""
    if not isinstance(operand, Address):
        raise RefusalError("instruction", f"{operand} is no address")
    if isinstance(operand.base, Immediate):
        raise RefusalError("instruction", "a literal address")
    if isinstance(operand.base, Register):
        width = operand.base.width
    value = m.integers(operand.base, width, "an address")
    m.demand_written(value, act, "an address")
    if not value.pointer:
        raise RefusalError("pointer", "an address is not derived from a pointer")
    assert value.bits is not None
    return m.spread_bits(value.bits)[lanes] + np.uint64(operand.offset & (2**64 - 1))


def items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def load(m: Machine, i: Instruction, act: Mask | None) -> None:
    """ld from global, shared or parameter memory."""
    if i.parts[1] == "param":
        _load_parameter(m, i, act)
        return
    space, count, width = _space(i, ("global", "shared"))
    targets = items(i.operands[0])
    if len(targets) != count:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    lanes = m.active(act)
    where = addresses(m, i.operands[1], lanes, act, 8 if space == "global" else 4)
    if (where % np.uint64(count * width)).any():
        raise RefusalError(f"{space}_memory", f"{i.opcode} is not aligned")
    at = side_by_side(where, count, width)
    if space == "global":
        loaded = m.memory.load(at, width, lanes + m.first_lane, m.time)
    else:
        loaded = shared_load(m, at, width, lanes)
    for target, part in zip(targets, loaded.reshape(count, -1), strict=True):
        m.write(target, _loaded(m, i, target, part, lanes, width), act)


def _loaded(m: Machine, i: Instruction, target: Operand, part: Ids, lanes: Ids, width: int) -> Value:
    """What a register gets in ``lanes``; constants are integers again."""
    wide = target.width if isinstance(target, Register) else width
    negative = i.parts[-1][0] == "s" and wide > width
    bits = m.table.constant_patterns(part)
    if bits is not None:
        found = np.zeros(m.lanes, np.uint64)
        found[lanes] = signed(bits, width).view(np.uint64) if negative else bits
        return concrete(found, wide)
    ids = part
    if len(part) != m.lanes:
        ids = np.zeros(m.lanes, np.int64)
        ids[lanes] = part
    if negative:
        return Value(ids=m.table.make(f"cvt.s{8 * wide}.s{8 * width}", wide, ids))
    return Value(ids=extended(m, Value(ids=ids), width, wide))


def _load_parameter(m: Machine, i: Instruction, act: Mask | None) -> None:
    operand = i.operands[1]
    if not isinstance(operand, Address) or not isinstance(operand.base, Symbol) or operand.offset or len(i.parts) != 3:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    value = m.parameter(operand.base.name)
    width = WIDTHS[i.parts[-1]]
    if value.bits is not None and not value.pointer and width < 8:
        value = Value(bits=value.bits & np.uint64((1 << (8 * width)) - 1))
    m.write(i.operands[0], value, act)


def side_by_side(at: Addresses, count: int, width: int) -> Addresses:
    """``count`` places of ``width`` bytes from each address on, shape (count * addresses,)."""
    if count == 1:
        return at
    steps = np.arange(0, count * width, width, dtype=np.uint64)
    return (at + steps[:, None]).ravel()


def shared_load(m: Machine, at: Addresses, width: int, lanes: Ids, *, together: bool = False) -> Ids:
    """``width`` bytes of shared memory at each address, by the lanes in turn."""
    count = width // m.shared.grain
    cells = side_by_side(at, count, m.shared.grain)
    loaded = m.shared.load(cells, lanes, together=together)
    return m.table.concat(list(loaded.reshape(count, -1)))


def shared_store(m: Machine, at: Addresses, ids: Ids, width: int, lanes: Ids, *, together: bool = False) -> None:
    """Nodes of ``width`` bytes to shared memory at each address."""
    count = width // m.shared.grain
    cells = side_by_side(at, count, m.shared.grain)
    pieces = m.table.pieces(ids, m.shared.grain, count)
    m.shared.store(cells, pieces.ravel(), lanes, together=together)


def store(m: Machine, i: Instruction, act: Mask | None) -> None:
    """st to global or shared memory."""
    space, count, width = _space(i, ("global", "shared"))
    sources = items(i.operands[1])
    if len(sources) != count:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    lanes = m.active(act)
    where = addresses(m, i.operands[0], lanes, act, 8 if space == "global" else 4)
    if (where % np.uint64(count * width)).any():
        raise RefusalError(f"{space}_memory", f"{i.opcode} is not aligned")
    for k, source in enumerate(sources):
        ids = m.spread(m.nodes(source, width))[lanes]
        if space == "global":
            m.memory.store(where + np.uint64(k * width), width, ids, lanes + m.first_lane, m.time)
        else:
            shared_store(m, where + np.uint64(k * width), ids, width, lanes)


def atomic(m: Machine, i: Instruction, act: Mask | None) -> None:
    """atom and red: the order of several is not fixed, so that float sums are nondeterministic."""
    if i.parts[-1] in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2"):
        raise NondeterministicError(f"{i.opcode} adds in an order that varies from run to run")
    raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
