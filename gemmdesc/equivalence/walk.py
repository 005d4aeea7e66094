"""From PTX and a launch to what every stored byte is computed from.

``walk`` executes every thread of every block with concrete integers and expressions for data.  What comes out holds
for this block, this grid and these arguments, and under the assumptions that it lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gemmdesc.equivalence import (
    accesses,
    copies,
    extremes,
    floats,
    integers,
    levels,
    matrix,
    matrix_accesses,
    moves,
    nodes,
)
from gemmdesc.equivalence.contents import Contents, Stored
from gemmdesc.equivalence.contraction import counts_agree
from gemmdesc.equivalence.global_memory import GlobalMemory
from gemmdesc.equivalence.launch import Dim3, Launch
from gemmdesc.equivalence.machine import BRANCHES, Handler, Machine
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.ptx import parse_ptx
from gemmdesc.equivalence.ptxas import UNARY
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.shared_memory import LARGEST
from gemmdesc.equivalence.syntax import WIDTHS, Entry, Instruction
from gemmdesc.equivalence.table import Table
from gemmdesc.equivalence.values import Mask

#: Lanes and shared cells of one batch of blocks, and blocks of one launch, at most.
_LANES, _CELLS, _BLOCKS = 1 << 16, 1 << 25, 1 << 16

#: What every answer rests on.
DISJOINT = "the memory behind different pointer arguments does not overlap"
FOLLOWS = "a launch begins after the one before it has ended, and nobody else writes to what it left"
SAME_COMPILER = "both texts are assembled by one ptxas with the same flags, which keeps every rounding that PTX writes"

#: Of a NaN that nothing else touches.
PAYLOADS = "a NaN that only neg, abs, selections, a widening of bfloat16 or one value's maximum touch gets one payload"
EXTREMES = "ptxas makes the same selections by a comparison with a constant maxima, which give the canonical NaN"


def _float_or_integer(m: Machine, i: Instruction, act: Mask | None) -> None:
    (floats.arithmetic if floats.is_float(i) else integers.alu)(m, i, act)


def _reduce_warp(m: Machine, i: Instruction, act: Mask | None) -> None:
    (floats if i.parts[-1] == "f32" else integers).reduce_warp(m, i, act)


def _convert(m: Machine, i: Instruction, act: Mask | None) -> None:
    whole = all(part[0] in "bsu" and part in WIDTHS for part in i.parts[-2:])
    (moves.convert_integers if whole else floats.convert)(m, i, act)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("add", "sub", "mul", "mad", "min", "max", "neg", "abs", "div"), _float_or_integer),
    **dict.fromkeys(("and", "or", "xor", "not", "shl", "shr", "rem", "bfe", "bfi", "popc", "clz"), integers.alu),
    **dict.fromkeys(("fma", *(name for name in UNARY if name not in ("neg", "abs"))), floats.arithmetic),
    **dict.fromkeys(("fence", "membar"), moves.nothing),
    **dict.fromkeys(("mov", "cvta"), moves.move),
    **dict.fromkeys(("bar", "barrier"), moves.barrier),
    **dict.fromkeys(("atom", "red"), accesses.atomic),
    "setp": integers.setp,
    "cvt": _convert,
    "selp": moves.select,
    "prmt": moves.permute,
    "shfl": moves.shuffle,
    "redux": _reduce_warp,
    "createpolicy": moves.policy,
    "ld": accesses.load,
    "st": accesses.store,
    "cp": copies.asynchronous,
    "ldmatrix": matrix_accesses.matrix_load,
    "stmatrix": matrix_accesses.matrix_store,
    "mma": matrix.multiply,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Walked:
    """What a launch stores: ``stored`` holds node ids of ``table``, one per byte."""

    entry: Entry
    launch: Launch
    table: Table
    stored: Stored
    assuming: tuple[str, ...]

    @property
    def chip(self) -> str:
        """The chip that the text is for, ``sm_90`` for both ``sm_90`` and ``sm_90a``."""
        return chip_of(self.entry)


def chip_of(entry: Entry) -> str:
    """The chip of an entry's target, without the letter that stands for its own features."""
    return entry.target.split(",")[0].strip().rstrip("af")


def walk(
    ptx: str,
    launch: Launch,
    *,
    table: Table | None = None,
    sass: str | None = None,
    after: Walked | None = None,
    taking: Mapping[int, int] | None = None,
) -> Walked:
    """Execute every thread of ``ptx`` under ``launch``.

    ``sass``: the assembled text, which can confirm that no product was fused into a sum.  ``table``: where expressions
    go; walks that share one share their nodes.  ``after``: the launch before this one, of which ``taking`` says what
    lies behind this one's pointer parameters: {parameter here: parameter there}.  Leaves are then those of the launch
    before, and everything that is loaded has to come from there, or from the contents that ``launch`` gives.

    Raises:
        RefusalError: the kernel cannot be decided; the message says why.
        NondeterministicError: its bytes may vary from run to run.
    """
    entry = parse_ptx(ptx)
    _demand_known(entry)
    block = _block(entry, launch)
    if after is not None and chip_of(entry) != after.chip:
        raise RefusalError("launch", f"the launch before is for another chip ({after.chip})")
    table = (Table() if table is None else table) if after is None else after.table
    left = None if after is None else {here: (after.stored, there) for here, there in (taking or {}).items()}
    threads = block[0] * block[1] * block[2]
    total = launch.grid[0] * launch.grid[1] * launch.grid[2]
    if total > _BLOCKS:
        raise RefusalError("budget", f"the grid has more than {_BLOCKS} blocks")
    grain = _grain(entry)
    together = max(1, min(_LANES // threads, _CELLS // (LARGEST // grain)))
    contents = Contents(table, launch.contents, left)
    try:
        ran = _run(entry, launch, block, table, contents, grain, together)
    except RefusalError as error:
        if error.code != "divergence" or together == 1 or total == 1:
            raise
        # Blocks that run side by side may part where each of them stays whole.
        ran = _run(entry, launch, block, table, contents, grain, 1)
    memory, contractible, assumed = ran
    stored = memory.finish()
    payloads = payloads_of(table, stored.ids)
    before = [] if after is None else [*after.assuming, FOLLOWS]
    assuming = [*dict.fromkeys((DISJOINT, SAME_COMPILER, *before, *sorted(assumed), *payloads))]
    if contractible:
        if sass is None or not counts_agree(entry, sass):
            raise RefusalError(
                "contraction",
                f"ptxas may fuse or drop a product in {len(contractible)} places, such as `{next(iter(contractible))}`",
            )
        assuming.append("no product was fused into a sum: the assembled text has as many of each as PTX")
    return Walked(entry=entry, launch=launch, table=table, stored=stored, assuming=tuple(assuming))


def _run(
    entry: Entry, launch: Launch, block: Dim3, table: Table, contents: Contents, grain: int, together: int
) -> tuple[GlobalMemory, dict[str, None], dict[str, None]]:
    """Every block, ``together`` at a time: memory, what ptxas may fuse or drop, and what is taken for granted of it."""
    threads = block[0] * block[1] * block[2]
    total = launch.grid[0] * launch.grid[1] * launch.grid[2]
    memory = GlobalMemory(table, threads, len(entry.parameters), contents)
    contractible: dict[str, None] = {}
    assumed: dict[str, None] = {}
    for first in range(0, total, together):
        blocks = range(first, min(first + together, total))
        machine = Machine(entry, launch, block, blocks=blocks, table=table, memory=memory, grain=grain)
        machine.run(HANDLERS)
        contractible |= machine.contractible
        assumed |= machine.assumed
    return memory, contractible, assumed


def payloads_of(table: Table, roots: Ids) -> list[str]:
    """What is taken for granted where a stored value may be a NaN, or made of a NaN's bits, that no document fixes."""
    s = table.store
    reached = np.zeros(len(table), np.bool_)
    reached[roots] = True
    alone = (s.child[: len(table), 0] == s.child[: len(table), 1]) & (s.op_flags[s.op[: len(table)]] & nodes.SET != 0)
    loose = bool(levels.loose(reached, s.child, s.op, s.op_flags, alone))
    maxima = loose and bool(extremes.may_be_extreme(table, np.flatnonzero(reached)).any())
    return [PAYLOADS] * loose + [EXTREMES] * maxima


def _demand_known(entry: Entry) -> None:
    """Refuses by name what no handler reads, before a walk that would end there."""
    for i in entry.instructions:
        if i.parts[0] not in HANDLERS and i.parts[0] not in BRANCHES:
            raise RefusalError("instruction", f"{i.opcode} is not among the instructions read")


def _block(entry: Entry, launch: Launch) -> Dim3:
    if launch.block is None:
        if entry.threads is None:
            raise RefusalError("launch", "the launch must give a block, since the text demands none")
        return entry.threads
    if entry.threads is not None and entry.threads != launch.block:
        raise RefusalError("launch", f"the text demands a block of {entry.threads} (got {launch.block})")
    return launch.block


def _grain(entry: Entry) -> int:
    """The narrowest access to shared memory, in bytes."""
    widths = [16]
    for i in entry.instructions:
        if i.parts[0] in ("ld", "st") and i.parts[1].startswith("shared"):
            widths.append(WIDTHS.get(i.parts[-1], 1))
        elif i.parts[0] in ("ldmatrix", "stmatrix"):
            widths.append(2 if "trans" in i.parts else 4)
        elif i.parts[0] == "cp":
            widths.append(4)
    return min(min(widths), 4)


def output_digests(walked: Walked) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    """Rows (parameter, offset, high, low) of every stored byte, sorted; equal rows mean equal bytes."""
    s, store = walked.stored, walked.table.store
    columns = (s.parameter.view(np.uint64), s.offset.view(np.uint64), store.high[s.ids], store.low[s.ids])
    return np.stack(columns, axis=1) if len(s.ids) else np.zeros((0, 4), np.uint64)
