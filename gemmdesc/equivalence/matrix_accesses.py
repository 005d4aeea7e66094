"""ldmatrix and stmatrix: 8 x 8 matrices of 16-bit elements between shared memory and the registers of a warp."""

from __future__ import annotations

import numpy as np

from gemmdesc.equivalence.accesses import addresses, items, shared_load, shared_store
from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.shared_memory import Addresses
from gemmdesc.equivalence.syntax import Instruction, Operand
from gemmdesc.equivalence.values import Mask, Value, as_nodes


def matrix_load(m: Machine, i: Instruction, act: Mask | None) -> None:
    """ldmatrix of 8 x 8 matrices of 16-bit elements; each row's address comes from one lane."""
    transposed, rows = _matrix(m, i, act, i.operands[1], "ldmatrix")
    targets = items(i.operands[0])
    at = _places(m, rows, len(targets), transposed)
    loaded = shared_load(m, at, 2 if transposed else 4, m.every, together=True)
    if transposed:
        loaded = m.table.concat([half.ravel() for half in loaded.reshape(2, -1)])
    for target, ids in zip(targets, loaded.reshape(-1, m.lanes), strict=True):
        m.write(target, Value(ids=ids), None)


def _places(m: Machine, rows: Addresses, count: int, transposed: bool) -> Addresses:
    """Where the elements of ``count`` matrices lie, matrix by matrix; where transposed, all first elements come first.

    A lane holds two neighbours of a row, or one element each of two rows.
    """
    lane = m.every % 32
    group, matrix = m.every - lane, 8 * np.arange(count)[:, None]
    if transposed:
        first = group + lane % 4 * 2 + matrix
        places = np.concatenate([rows[first + half] for half in (0, 1)]) + (lane // 4 * 2).astype(np.uint64)
    else:
        places = rows[group + lane // 4 + matrix] + (lane % 4 * 4).astype(np.uint64)
    return places.ravel()


def matrix_store(m: Machine, i: Instruction, act: Mask | None) -> None:
    """stmatrix, the counterpart of ldmatrix."""
    transposed, rows = _matrix(m, i, act, i.operands[0], "stmatrix")
    sources = items(i.operands[1])
    ids = np.concatenate([m.spread(as_nodes(m.read(source, 4), 4, m.table)) for source in sources])
    if transposed:
        ids = m.table.pieces(ids, 2, 2).ravel()
    at = _places(m, rows, len(sources), transposed)
    shared_store(m, at, ids, 2 if transposed else 4, m.every, together=True)


def _matrix(m: Machine, i: Instruction, act: Mask | None, where: Operand, name: str) -> tuple[bool, Addresses]:
    rest = set(i.parts[1:]) - {"sync", "aligned", "m8n8", "shared", "shared_cta", "b16", "x1", "x2", "x4", "trans"}
    if rest or "m8n8" not in i.parts or i.parts[-1] != "b16":
        raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")
    if act is not None:
        raise RefusalError("divergence", f"{name} is reached by a part of the threads")
    m.demand_whole_warps(act, name)
    count = next((int(part[1]) for part in i.parts if part in ("x1", "x2", "x4")), 0)
    registers = i.operands[0] if name == "ldmatrix" else i.operands[1]
    if len(items(registers)) != count:
        raise RefusalError("instruction", f"{i.text} is not among the instructions read")
    rows = addresses(m, where, m.every, act, 4)
    used = (m.every % 32) < 8 * count
    if (rows[used] % np.uint64(16)).any():
        raise RefusalError("shared_memory", f"{name} is not aligned")
    return "trans" in i.parts, rows
