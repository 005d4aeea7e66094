"""Instructions that move values: between registers, between lanes, and through barriers."""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.ptxas import refuse_selected_clamp
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import WIDTHS, Immediate, Instruction, Pair, Register, Vector
from gemmdesc.equivalence.values import Mask, Value, as_nodes, both_written, concrete, signed

_WARP = 32


def move(m: Machine, i: Instruction, act: Mask | None) -> None:
    """mov, with packing and unpacking; cvta, which keeps an address."""
    width = WIDTHS[i.parts[-1]]
    target, source = i.operands
    if isinstance(source, Vector):
        part = width // len(source.items)
        values = [m.read(item, part) for item in source.items]
        ids = m.table.concat([as_nodes(v, part, m.table) for v in values])
        m.write(target, _settled(m, Value(ids=ids, product=max(v.product for v in values))), act)
    elif isinstance(target, Vector):
        value = m.read(source, width)
        ids = as_nodes(value, width, m.table)
        part = width // len(target.items)
        for k, item in enumerate(target.items):
            piece = Value(ids=m.table.extract(ids, k * part, part), product=value.product)
            m.write(item, _settled(m, piece), act)
    elif act is None and width == 4 and (held := m.deferred(source)) is not None:
        m.defer(target, held)
    else:
        m.write(target, m.read(source, width), act)


def _settled(m: Machine, value: Value) -> Value:
    """Constants as integers again."""
    assert value.ids is not None
    bits = m.table.constant_patterns(value.ids)
    return value if bits is None else Value(bits=bits)


def convert_integers(m: Machine, i: Instruction, act: Mask | None) -> None:
    """cvt between integers: extended or cut by the source's sign."""
    target, source = i.parts[-2], i.parts[-1]
    if len(i.parts) != 3 or len(i.operands) != 2:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    wide, narrow = WIDTHS[target], WIDTHS[source]
    value = m.read(i.operands[1], narrow)
    if value.pointer:
        if wide != narrow:
            raise RefusalError("pointer", f"{i.opcode} cuts or extends a pointer")
        m.write(i.operands[0], value, act)
    elif value.ids is not None:
        if wide <= narrow:
            ids = m.table.extract(value.ids, 0, wide)
        elif source[0] == "s":
            ids = m.table.make(i.opcode, wide, value.ids)
        else:
            ids = extended(m, value, narrow, wide)
        m.write(i.operands[0], Value(ids=ids, product=value.product), act)
    else:
        assert value.bits is not None
        bits = signed(value.bits, narrow).view(np.uint64) if source[0] == "s" else value.bits
        m.write(i.operands[0], concrete(bits, wide, value.written), act)


def extended(m: Machine, value: Value, narrow: int, wide: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Data of ``narrow`` bytes with zero bytes above, ``wide`` bytes in all."""
    ids = as_nodes(value, narrow, m.table)
    while narrow < wide:
        ids = m.table.concat([ids, m.table.constants(np.zeros(1, np.uint64), narrow)])
        narrow *= 2
    return ids


def select(m: Machine, i: Instruction, act: Mask | None) -> None:
    """selp: a choice of lanes where the predicate is concrete, a node where it is data."""
    width = WIDTHS[i.parts[-1]]
    yes, no = (m.read(operand, width) for operand in i.operands[1:3])
    chooser = m.read(i.operands[3], 1)
    if chooser.ids is not None:
        bits, kind = m.table.patterns(chooser.ids)
        if not (kind == 2).any():
            chooser = Value(bits=bits, written=kind == 1)
    product = max(yes.product, no.product)
    if chooser.ids is not None:
        made = _chosen(m, width, as_nodes(yes, width, m.table), as_nodes(no, width, m.table), chooser.ids)
        if width == 4:
            refuse_selected_clamp(m, i, made, act)
        m.write(i.operands[0], Value(ids=made, product=product), act)
        return
    assert chooser.bits is not None
    first = chooser.bits != 0
    if yes.bits is not None and no.bits is not None:
        shown = [np.ones(1, np.bool_) if v.written is None else v.written for v in (yes, no)]
        written = both_written(Value(written=np.where(first, *shown)), chooser)
        value = Value(bits=np.where(first, yes.bits, no.bits), written=written, pointer=yes.pointer or no.pointer)
    else:
        ids_or = np.where(first, as_nodes(yes, width, m.table), as_nodes(no, width, m.table))
        if chooser.written is not None:
            ids_or = np.where(chooser.written, ids_or, 0)
        value = Value(ids=ids_or, product=product)
    m.write(i.operands[0], value, act)


def _chosen(m: Machine, width: int, yes: Ids, no: Ids, chooser: Ids) -> Ids:
    """One of two by data: x if p, or else x if q, or else y, is x if p or q, or else y."""
    name = f"selp.b{8 * width}"
    code = m.table.code(name)
    yes, no, chooser = (np.array(x) for x in np.broadcast_arrays(yes, no, chooser))
    while True:
        s = m.table.store
        again = np.flatnonzero((s.op[no] == code) & (s.child[no, 0] == yes))
        if not len(again):
            break
        _, other, also, _ = s.child[no[again]].T
        no[again] = other
        chooser[again] = m.table.make("or.pred", 1, chooser[again], np.ascontiguousarray(also))
    made = m.table.make(name, width, yes, no, chooser)
    return np.where((yes == no) & (chooser != 0), yes, made)


def permute(m: Machine, i: Instruction, act: Mask | None) -> None:
    """prmt.b32 with a literal selector that replicates no sign."""
    selector = i.operands[3]
    if i.opcode != "prmt.b32" or not isinstance(selector, Immediate) or selector.bits & 0x8888:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    values = [m.read(operand, 4) for operand in i.operands[1:3]]
    sources = [as_nodes(value, 4, m.table) for value in values]
    pieces = []
    for k in range(4):
        at = selector.bits >> (4 * k) & 7
        pieces.append(m.table.extract(sources[at // 4], at % 4, 1))
    product = max(value.product for value in values)
    m.write(i.operands[0], _settled(m, Value(ids=m.table.concat(pieces), product=product)), act)


def shuffle(m: Machine, i: Instruction, act: Mask | None) -> None:
    """shfl.sync: values of other lanes; poison where the source lane is not a member."""
    if i.parts[1] != "sync" or i.parts[2] not in ("up", "down", "bfly", "idx") or len(i.operands) != 5:
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    if m.threads % _WARP:
        raise RefusalError("divergence", f"{i.opcode} is used in a block of {m.threads} threads")
    value = m.read(i.operands[1], 4)
    steps, clamps, members = (_numbers(m, operand, act) for operand in i.operands[2:])
    lane = m.every % _WARP
    clamp, segment = clamps & 31, clamps >> 8 & 31
    least = lane & segment
    most = least | (clamp & ~segment & 31)
    match i.parts[2]:
        case "up":
            source = lane - (steps & 31)
            inside = source >= most
        case "down":
            source = lane + (steps & 31)
            inside = source <= most
        case "bfly":
            source = lane ^ (steps & 31)
            inside = source <= most
        case _:
            source = least | (steps & ~segment & 31)
            inside = source <= most
    source = np.where(inside, source, lane)
    _demand_members(m, members, act)
    from_lane = m.every - lane + source
    poison = (members >> source & 1) == 0
    if act is not None:
        poison |= ~act[from_lane]
    target = i.operands[0]
    if isinstance(target, Pair):
        m.write(target.second, Value(bits=inside.astype(np.uint64)), act)
        target = target.first
    m.write(target, _gathered(m, value, from_lane, poison), act)


def _numbers(m: Machine, operand: object, act: Mask | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    value = m.integers(operand, 4, "a shuffle")  # type: ignore[arg-type]
    m.demand_written(value, act, "a shuffle")
    if value.pointer:
        raise RefusalError("pointer", "a shuffle is steered by a pointer")
    assert value.bits is not None
    return m.spread_bits(value.bits).view(np.int64)


def _demand_members(m: Machine, members: np.ndarray[tuple[int], np.dtype[np.int64]], act: Mask | None) -> None:
    """Every lane that a mask names takes part with the same mask, and every lane that takes part is named."""
    here = np.ones(m.lanes, np.bool_) if act is None else act
    lane = m.every % _WARP
    named = members >> lane & 1 == 1
    if (here & ~named).any():
        raise RefusalError("divergence", "a lane takes part in a shuffle whose member mask leaves it out")
    if act is None and (members == 0xFFFFFFFF).all():
        return
    bits = here.reshape(-1, _WARP) @ (1 << np.arange(_WARP, dtype=np.int64))
    wanted = np.where(here, members, 0).reshape(-1, _WARP)
    some = here.reshape(-1, _WARP)
    if (some & (wanted & ~bits[:, None] != 0)).any():
        raise RefusalError("divergence", "a shuffle's member mask names an inactive lane")


def _gathered(
    m: Machine, value: Value, source: np.ndarray[tuple[int], np.dtype[np.int64]], poison: Mask
) -> Value:
    if value.pointer:
        raise RefusalError("pointer", "a pointer goes through a shuffle")
    if value.ids is not None:
        # ptxas drops the shuffle of a value that it sees to be one in all lanes, and then fuses through it.
        return Value(ids=np.where(poison, 0, m.spread(value.ids)[source]), product=value.product)
    assert value.bits is not None
    written = ~poison
    if value.written is not None:
        written &= (value.written if len(value.written) == m.lanes else value.written.repeat(m.lanes))[source]
    return Value(bits=m.spread_bits(value.bits)[source], written=written)


def barrier(m: Machine, i: Instruction, act: Mask | None) -> None:
    """bar.sync and barrier.sync over all threads of a block; bar.warp.sync over whole warps."""
    if i.parts[1] == "warp":
        members = m.integers(i.operands[0], 4, "a member mask")
        assert members.bits is not None
        if (members.bits != 0xFFFFFFFF).any():
            raise RefusalError("divergence", f"{i.text} names a part of a warp")
        m.shared.sync_warps(m.demand_whole_warps(act, i.opcode))
        return
    if i.opcode.replace(".cta", "") not in ("bar.sync", "barrier.sync", "barrier.sync.aligned"):
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    for operand in i.operands[1:]:
        count = m.integers(operand, 4, "a barrier")
        if count.bits is None or (count.bits != m.threads).any():
            raise RefusalError("divergence", f"{i.text} waits for a part of the block")
    if not isinstance(i.operands[0], Immediate | Register):
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    if isinstance(i.operands[0], Register):
        number = m.integers(i.operands[0], 4, "a barrier")
        if number.bits is None or len(np.unique(number.bits)) != 1:
            raise RefusalError("divergence", f"{i.text} is not one barrier for all")
    m.shared.sync_blocks(m.demand_whole_blocks(act, i.opcode))


def nothing(m: Machine, i: Instruction, act: Mask | None) -> None:
    """Fences: they order what the walk already refuses to see unordered."""


def policy(m: Machine, i: Instruction, act: Mask | None) -> None:
    """createpolicy: a hint for the caches; it may only be handed to loads and stores."""
    m.write(i.operands[0], Value(bits=np.zeros(1, np.uint64), pointer=True), act)
