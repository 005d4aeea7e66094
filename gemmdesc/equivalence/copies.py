"""cp.async: copies from global to shared memory, their groups and waits."""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.accesses import addresses, side_by_side
from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import Immediate, Instruction, Register
from gemmdesc.equivalence.values import Mask


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
    if not ((kept == 0) | (kept == size.bits)).all():
        raise RefusalError("instruction", f"{i.text} copies a part")
    target = addresses(m, i.operands[0], lanes, act, 4)
    source = addresses(m, i.operands[1], lanes, act, 8)
    some = kept > 0
    if (target % np.uint64(size.bits)).any() or (source[some] % np.uint64(size.bits)).any():
        raise RefusalError("shared_memory", f"{i.opcode} is not aligned")
    grain = m.shared.grain
    pieces = int(size.bits) // grain
    ids = np.full((pieces, len(lanes)), m.table.constants(np.zeros(1, np.uint64), grain)[0], np.int64)
    taken = side_by_side(source[some], pieces, grain)
    ids[:, some] = m.memory.load(taken, grain, lanes[some] + m.first_lane, m.time).reshape(pieces, -1)
    m.shared.start_copy(side_by_side(target, pieces, grain), ids.ravel(), lanes)
