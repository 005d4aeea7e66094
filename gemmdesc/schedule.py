"""A descriptor spelled out for one inner size: which k meet in which step, and which additions follow.

The schedule is a small stack program over *leaves*.  Leaf i sums ``order[leaf_offsets[i]:leaf_offsets[i + 1]]`` with
the descriptor's accumulator, in the steps that ``step_ends`` marks.  The replay executes it; the normal form hashes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import (
    Balanced,
    Contiguous,
    Cut,
    GEMMDesc,
    Layout,
    ResidueFirst,
    ResidueLast,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

Index = npt.NDArray[np.int64]


class Op(IntEnum):
    """Instructions of the stack program; ``LEAF``'s argument is a leaf, ``ROUND``'s an index into ``ROUNDINGS``.

    ``OPEN`` stands where the outermost cut's ``opening`` is done; the stack then holds the first part's sum alone.
    """

    LEAF = 0
    ROUND = 1
    ADD = 2
    ADD_TO_ZERO = 3
    OPEN = 4


#: Storage types that ``Op.ROUND`` may name.
ROUNDINGS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The arrays of one spelled-out descriptor (int64 throughout).

    ``order``: the summed k in the order of the leaves.  ``leaf_offsets``: leaves + 1 offsets into it.  ``step_ends``:
    end offsets into ``order`` of all steps of all leaves, ascending.  ``step_offsets``: leaves + 1 offsets into
    ``step_ends``.  ``program``: rows (Op, argument).  ``levels``: for each row of it the cut it belongs to, counted
    from the outermost; of a leaf, the number of cuts.
    """

    order: Index
    leaf_offsets: Index
    step_ends: Index
    step_offsets: Index
    program: Index
    levels: Index
    stack_depth: int


@lru_cache(maxsize=32)
def make_schedule(desc: GEMMDesc, k: int) -> Schedule:
    """Spell ``desc`` out for an inner size of ``k``; the sum takes in min(k, ``desc.summed_k``) of them.

    The last few are kept; their arrays must not be written to.

    Raises:
        InvalidInputError: ``k`` is negative.
    """
    if k < 0:
        raise InvalidInputError(f"k must be at least 0 (got {k})")
    build = _Builder(desc)
    build.node(np.arange(min(k, desc.summed_k), dtype=np.int64), desc.cuts)
    return build.finish(sum(1 + len(cut.fold) for cut in desc.cuts))


def fold_levels(desc: GEMMDesc, k: int) -> tuple[Index, ...]:
    """For every level of folds, outermost first, where each fold begins among the sums that it folds, and their number.

    A cut has one level for each layout of its ``fold``, outermost first, and then one that folds the parts.  The
    innermost level folds the leaves of :func:`make_schedule`, in their order; every other one what the next folds to.

    Raises:
        InvalidInputError: ``k`` is negative.
    """
    if k < 0:
        raise InvalidInputError(f"k must be at least 0 (got {k})")
    nodes = [np.arange(min(k, desc.summed_k), dtype=np.int64)]
    found: list[Index] = []
    for cut in desc.cuts:
        groups = [list(_parts(node, cut.layout)) for node in nodes]
        for layout in cut.fold:
            dealt = [_grouped(group, layout) for group in groups]
            found.append(_offsets(dealt))
            groups = [group for of in dealt for group in of]
        groups = [group or [_EMPTY] for group in groups]
        found.append(_offsets(groups))
        nodes = [part for group in groups for part in group]
    return tuple(found)


#: The one part of a group that no part falls into.
_EMPTY = np.empty(0, dtype=np.int64)


def _offsets(groups: Sequence[Sequence[object]]) -> Index:
    return np.concatenate([[0], np.cumsum([len(group) for group in groups])]).astype(np.int64)


class _Builder:
    def __init__(self, desc: GEMMDesc) -> None:
        self._accumulator = desc.accumulator
        self._order: list[Index] = []
        self._ends: list[Index] = []
        self._program: list[tuple[int, int]] = []
        self._levels: list[int] = []
        self._cuts = len(desc.cuts)
        self._opened = False
        self._steps: dict[int, Index] = {}

    def node(self, ks: Index, cuts: tuple[Cut, ...]) -> None:
        if not cuts:
            self._emit(Op.LEAF, len(self._order), cuts)
            self._order.append(ks)
            self._ends.append(self._stepped(len(ks)))
            return
        self._folded(list(_parts(ks, cuts[0].layout)), cuts[0].fold, cuts, open_end=cuts[0].open_end)

    def _stepped(self, length: int) -> Index:
        """Where the steps of a leaf end, which depends on its length alone."""
        known = self._steps.get(length)
        if known is None:
            leaf = self._accumulator
            known = self._steps[length] = step_ends(length, leaf.instruction_k, leaf.residue)
        return known

    def _folded(
        self, parts: list[Index], fold: tuple[Layout, ...], cuts: tuple[Cut, ...], *, open_end: bool
    ) -> None:
        """The fold of some parts of the first of ``cuts``, what is left of its own ``fold`` dealing them to groups.

        ``open_end``: the last running sum is not rounded.
        """
        cut = cuts[0]
        if fold:
            groups = _grouped(parts, fold[0])
            for j, group in enumerate(groups):
                self._folded(group, fold[1:], cuts, open_end=False)
                self._add(cuts, j, rounded=not (open_end and j == len(groups) - 1))
            return
        present = parts or [_EMPTY]
        for j, part in enumerate(present):
            self.node(part, cuts[1:])
            self._round(cut.partial_dtype, cuts)
            self._add(cuts, j, rounded=not (open_end and j == len(present) - 1))

    def _add(self, cuts: tuple[Cut, ...], place: int, *, rounded: bool) -> None:
        """Add the sum just made to the running one, the first of which it may be."""
        cut = cuts[0]
        if place:
            self._emit(Op.ADD, 0, cuts)
        elif cut.start is Start.ZERO:
            self._emit(Op.ADD_TO_ZERO, 0, cuts)
        if cut.opening and not self._opened:
            self._emit(Op.OPEN, 0, cuts)
            self._opened = True
        if rounded:
            self._round(cut.merge_dtype, cuts)

    def _round(self, dtype: DType, cuts: tuple[Cut, ...]) -> None:
        if dtype is not DType.FLOAT32:
            self._emit(Op.ROUND, ROUNDINGS.index(dtype), cuts)

    def _emit(self, op: Op, argument: int, cuts: tuple[Cut, ...]) -> None:
        """One row, of the first of ``cuts``."""
        self._program.append((op, argument))
        self._levels.append(self._cuts - len(cuts))

    def finish(self, depth: int) -> Schedule:
        lengths = np.array([len(x) for x in self._order], dtype=np.int64)
        leaf_offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        counts = np.array([len(x) for x in self._ends], dtype=np.int64)
        ends = [e + o for e, o in zip(self._ends, leaf_offsets[:-1], strict=True)]
        return Schedule(
            order=np.concatenate(self._order),
            leaf_offsets=leaf_offsets,
            step_ends=np.concatenate(ends).astype(np.int64),
            step_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            program=np.array(self._program, dtype=np.int64).reshape(-1, 2),
            levels=np.array(self._levels, dtype=np.int64),
            stack_depth=depth + 1,
        )


def _grouped(parts: Sequence[Index], layout: Layout) -> list[list[Index]]:
    """``parts`` dealt to groups."""
    return [[parts[i] for i in group] for group in _parts(np.arange(len(parts), dtype=np.int64), layout)]


def _parts(ks: Index, layout: Layout) -> Iterator[Index]:
    """The parts of ``ks`` in fold order.  Contiguous parts of an empty axis are one, others always ``count``."""
    match layout:
        case Contiguous(span=span, short=short):
            if len(ks) == 0:
                yield ks
                return
            first = len(ks) % span if short is Short.FIRST else 0
            if first:
                yield ks[:first]
            for begin in range(first, len(ks), span):
                yield ks[begin : begin + span]
        case Strided(count=count, unit=unit):
            owner = (np.arange(len(ks), dtype=np.int64) // unit) % count
            for j in range(count):
                yield ks[owner == j]
        case Balanced():
            ends = layout.ends(len(ks))
            for begin, end in zip((0, *ends), ends, strict=False):
                yield ks[begin:end]


def step_ends(length: int, instruction_k: int, residue: ResidueLast | ResidueFirst) -> Index:
    """End offsets (exclusive, ascending) of the steps over a leaf of ``length`` products.

    With ``ResidueFirst`` the leading ``length % k_loop_step`` products are stepped on their own, their short step last;
    the same stepping restarts at each turn of the loop, so a ``k_loop_step`` that is no multiple of ``instruction_k``
    ends every turn with a short step.
    """
    if not isinstance(residue, ResidueFirst):
        return _ends(0, length, instruction_k)
    turn = residue.k_loop_step
    lead = length % turn
    if turn % instruction_k == 0:
        return np.concatenate([_ends(0, lead, instruction_k), _ends(lead, length, instruction_k)])
    turns = [_ends(0, lead, instruction_k)]
    turns += [_ends(t, t + turn, instruction_k) for t in range(lead, length, turn)]
    return np.concatenate(turns)


def _ends(begin: int, end: int, step: int) -> Index:
    ends = np.arange(begin + step, end + step, step, dtype=np.int64)
    return np.minimum(ends, end)
