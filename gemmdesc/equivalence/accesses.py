"""Loads and stores, asynchronous copies, and the matrix loads and stores of shared memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.moves import extended
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.refusal import NondeterministicError, RefusalError
from gemmdesc.equivalence.syntax import WIDTHS, Address, Immediate, Instruction, Operand, Register, Symbol, Vector
from gemmdesc.equivalence.values import Mask, Value, as_nodes

Addresses = npt.NDArray[np.uint64]

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


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def load(m: Machine, i: Instruction, act: Mask | None) -> None:
    """ld from global, shared or parameter memory."""
    if i.parts[1] == "param":
        _load_parameter(m, i, act)
        return
    space, count, width = _space(i, ("global", "shared"))
    targets = _items(i.operands[0])
    if len(targets) != count:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    lanes = m.active(act)
    where = addresses(m, i.operands[1], lanes, act, 8 if space == "global" else 4)
    if (where % np.uint64(count * width)).any():
        raise RefusalError(f"{space}_memory", f"{i.opcode} is not aligned")
    for k, target in enumerate(targets):
        at = where + np.uint64(k * width)
        if space == "global":
            loaded = m.memory.load(at, width, lanes + m.first_lane, m.time)
        else:
            loaded = shared_load(m, at, width, lanes)
        ids = np.zeros(m.lanes, np.int64)
        ids[lanes] = loaded
        _write_loaded(m, i, target, ids, width, act)


def _write_loaded(m: Machine, i: Instruction, target: Operand, ids: Ids, width: int, act: Mask | None) -> None:
    value = Value(ids=ids)
    if isinstance(target, Register) and target.width > width:
        if i.parts[-1][0] == "s":
            value = Value(ids=m.table.make(f"cvt.s{8 * target.width}.s{8 * width}", target.width, ids))
        else:
            value = Value(ids=extended(m, value, width, target.width))
    bits, kind = m.table.patterns(value.ids if value.ids is not None else ids)
    if (kind == 1).all():
        value = Value(bits=bits)
    m.write(target, value, act)


def _load_parameter(m: Machine, i: Instruction, act: Mask | None) -> None:
    operand = i.operands[1]
    if not isinstance(operand, Address) or not isinstance(operand.base, Symbol) or operand.offset or len(i.parts) != 3:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    value = m.parameter(operand.base.name)
    width = WIDTHS[i.parts[-1]]
    if value.bits is not None and not value.pointer and width < 8:
        value = Value(bits=value.bits & np.uint64((1 << (8 * width)) - 1))
    m.write(i.operands[0], value, act)


def shared_load(m: Machine, at: Addresses, width: int, lanes: Ids, *, together: bool = False) -> Ids:
    """``width`` bytes of shared memory at each address."""
    grain = m.shared.grain
    pieces = [
        m.shared.load(at + np.uint64(k), lanes, together=together) for k in range(0, width, grain)
    ]
    return m.table.concat(pieces)


def shared_store(m: Machine, at: Addresses, ids: Ids, width: int, lanes: Ids, *, together: bool = False) -> None:
    """Nodes of ``width`` bytes to shared memory at each address."""
    grain = m.shared.grain
    for k in range(0, width, grain):
        m.shared.store(at + np.uint64(k), m.table.extract(ids, k, grain), lanes, together=together)


def store(m: Machine, i: Instruction, act: Mask | None) -> None:
    """st to global or shared memory."""
    space, count, width = _space(i, ("global", "shared"))
    sources = _items(i.operands[1])
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


def asynchronous(m: Machine, i: Instruction, act: Mask | None) -> None:
    """cp.async: copies from global to shared memory, their groups and waits."""
    rest = i.parts[2:]
    if rest == ("commit_group",):
        _everyone(m, i, act)
        m.shared.commit_group()
    elif rest in (("wait_group",), ("wait_all",)):
        _everyone(m, i, act)
        most = 0
        if rest == ("wait_all",):
            m.shared.commit_group()
        elif isinstance(i.operands[0], Immediate):
            most = i.operands[0].bits
        else:
            raise RefusalError("instruction", f"{i.text} is not among the instructions read")
        m.shared.wait_groups(most)
    elif rest[:1] in (("ca",), ("cg",)) and rest[1].removesuffix("_cta") == "shared" and rest[2] == "global":
        _copy(m, i, act)
    else:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")


def _everyone(m: Machine, i: Instruction, act: Mask | None) -> None:
    if act is not None:
        raise RefusalError("divergence", f"{i.opcode} is reached by a part of the threads")


def _copy(m: Machine, i: Instruction, act: Mask | None) -> None:
    size = i.operands[2]
    if not isinstance(size, Immediate) or size.bits not in (4, 8, 16) or len(i.operands) > 4:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    if any(part not in ("ca", "cg", "shared", "shared_cta", "global") and not part.startswith("L2_")
           for part in i.parts[2:]):  # fmt: skip
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    lanes = m.active(act)
    kept = np.full(len(lanes), size.bits, np.int64)
    if len(i.operands) == 4:
        if not isinstance(i.operands[3], Register | Immediate) or getattr(i.operands[3], "width", 4) < 4:
            raise RefusalError("instruction", f"{i.text} is not among the instructions read")
        count = m.integers(i.operands[3], 4, "the size of a copy")
        m.demand_written(count, act, "the size of a copy")
        if count.pointer:
            raise RefusalError("instruction", f"{i.text} is not among the instructions read")
        assert count.bits is not None
        kept = m.spread_bits(count.bits)[lanes].astype(np.int64)
    if not np.isin(kept, (0, size.bits)).all():
        raise RefusalError("instruction", f"{i.text} copies a part")
    target = addresses(m, i.operands[0], lanes, act, 4)
    source = addresses(m, i.operands[1], lanes, act, 8)
    some = kept > 0
    if (target % np.uint64(size.bits)).any() or (source[some] % np.uint64(size.bits)).any():
        raise RefusalError("shared_memory", f"{i.opcode} is not aligned")
    grain = m.shared.grain
    zero = m.table.constants(np.zeros(1, np.uint64), grain)
    for k in range(0, int(size.bits), grain):
        ids = np.full(len(lanes), zero[0], np.int64)
        ids[some] = m.memory.load(source[some] + np.uint64(k), grain, lanes[some] + m.first_lane, m.time)
        m.shared.start_copy(target + np.uint64(k), ids, lanes)


def matrix_load(m: Machine, i: Instruction, act: Mask | None) -> None:
    """ldmatrix of 8 x 8 matrices of 16-bit elements; each row's address comes from one lane."""
    transposed, rows = _matrix(m, i, act, i.operands[1], "ldmatrix")
    lane = m.every % 32
    group = m.every - lane
    for k, target in enumerate(_items(i.operands[0])):
        if transposed:
            pieces = []
            for half in (0, 1):
                at = rows[group + 8 * k + (lane % 4) * 2 + half] + (lane // 4 * 2).astype(np.uint64)
                pieces.append(shared_load(m, at, 2, m.every, together=True))
            ids = m.table.concat(pieces)
        else:
            at = rows[group + 8 * k + lane // 4] + (lane % 4 * 4).astype(np.uint64)
            ids = shared_load(m, at, 4, m.every, together=True)
        m.write(target, Value(ids=ids), None)


def matrix_store(m: Machine, i: Instruction, act: Mask | None) -> None:
    """stmatrix, the counterpart of ldmatrix."""
    transposed, rows = _matrix(m, i, act, i.operands[0], "stmatrix")
    lane = m.every % 32
    group = m.every - lane
    for k, source in enumerate(_items(i.operands[1])):
        ids = m.spread(as_nodes(m.read(source, 4), 4, m.table))
        if transposed:
            for half in (0, 1):
                at = rows[group + 8 * k + (lane % 4) * 2 + half] + (lane // 4 * 2).astype(np.uint64)
                shared_store(m, at, m.table.extract(ids, 2 * half, 2), 2, m.every, together=True)
        else:
            at = rows[group + 8 * k + lane // 4] + (lane % 4 * 4).astype(np.uint64)
            shared_store(m, at, ids, 4, m.every, together=True)


def _matrix(m: Machine, i: Instruction, act: Mask | None, where: Operand, name: str) -> tuple[bool, Addresses]:
    rest = set(i.parts[1:]) - {"sync", "aligned", "m8n8", "shared", "shared_cta", "b16", "x1", "x2", "x4", "trans"}
    if rest or "m8n8" not in i.parts or i.parts[-1] != "b16":
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    if act is not None:
        raise RefusalError("divergence", f"{name} is reached by a part of the threads")
    m.demand_whole_warps(act, name)
    count = next((int(part[1]) for part in i.parts if part in ("x1", "x2", "x4")), 0)
    registers = i.operands[0] if name == "ldmatrix" else i.operands[1]
    if len(_items(registers)) != count:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    rows = addresses(m, where, m.every, act, 4)
    used = (m.every % 32) < 8 * count
    if (rows[used] % np.uint64(16)).any():
        raise RefusalError("shared_memory", f"{name} is not aligned")
    return "trans" in i.parts, rows
