"""Shared memory with happens-before per cell.

A cell is the narrowest access that the kernel makes.  Two accesses to one cell, one of them a write, must be ordered:
by program order within a thread, by a barrier of the block, or by a barrier of the warp that both threads are in.  A
pair that is not refuses, except writes of one and the same expression, which leave the same bytes in any order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.refusal import RefusalError

Counts = npt.NDArray[np.int32]

#: Instead of a thread or a warp: more than one.
MANY = -1
#: Bytes of shared memory that a block may have.
LARGEST = 232_448
_PROBLEMS = (
    "",
    "two threads write one byte of shared memory with no barrier between",
    "a byte of shared memory is overwritten with no barrier after a read by another thread",
    "a byte of shared memory is read with no barrier after a write by another thread",
    "a byte of shared memory is used while an asynchronous copy writes it",
)


class State(NamedTuple):
    """Per cell: content, last writer, readers since then (thread + 1, warp + 1, epochs), and copies in flight."""

    content: Ids
    writer: Counts
    writer_warp: Counts
    writer_block_epoch: Counts
    writer_warp_epoch: Counts
    reader: Counts
    reader_warp: Counts
    reader_block_epoch: Counts
    reader_warp_epoch: Counts
    pending: Counts


@njit(inline="always")
def _ordered(thread: Any, warp: Any, block_epoch: Any, warp_epoch: Any, me: Any, mine: Any, now: Any, turn: Any) -> Any:
    return block_epoch < now or (warp == mine and warp > 0 and warp_epoch < turn) or (thread == me and me > 0)


@njit(nogil=True, cache=True)
def write_cells(s: Any, cells: Any, ids: Any, thread: Any, warp: Any, now: Any, turn: Any, copy: Any) -> Any:
    """Write ``ids`` in order; ``copy``: as the start of an asynchronous copy.  Returns an index of ``_PROBLEMS``."""
    for i in range(len(cells)):
        c, me, mine = cells[i], thread[i], warp[i]
        if s.pending[c]:
            return 4
        written = s.writer[c] == 0 or _ordered(
            s.writer[c], s.writer_warp[c], s.writer_block_epoch[c], s.writer_warp_epoch[c], me, mine, now[i], turn[i]
        )
        read = s.reader[c] == 0 or _ordered(
            s.reader[c], s.reader_warp[c], s.reader_block_epoch[c], s.reader_warp_epoch[c], me, mine, now[i], turn[i]
        )
        if copy:
            if not written:
                return 1
            if not read:
                return 2
            s.pending[c] = 1
        elif written and read:
            s.content[c] = ids[i]
            s.writer[c], s.writer_warp[c] = me, mine
            s.writer_block_epoch[c], s.writer_warp_epoch[c] = now[i], turn[i]
            s.reader[c] = 0
        elif s.content[c] == ids[i] and ids[i] != 0:
            s.writer[c] = MANY
            s.writer_warp[c] = mine if s.writer_warp[c] == mine else MANY
            s.writer_block_epoch[c] = max(now[i], s.writer_block_epoch[c])
            s.writer_warp_epoch[c] = max(turn[i], s.writer_warp_epoch[c])
        else:
            return 1 if not written else 2
    return 0


@njit(nogil=True, cache=True)
def finish_cells(s: Any, cells: Any, ids: Any, thread: Any, warp: Any, now: Any, turn: Any) -> None:
    """Land asynchronous copies: written by their threads, now."""
    for i in range(len(cells)):
        c = cells[i]
        s.pending[c] = 0
        s.content[c] = ids[i]
        s.writer[c], s.writer_warp[c] = thread[i], warp[i]
        s.writer_block_epoch[c], s.writer_warp_epoch[c] = now[i], turn[i]
        s.reader[c] = 0


@njit(nogil=True, cache=True)
def read_cells(s: Any, cells: Any, thread: Any, warp: Any, now: Any, turn: Any, out: Any) -> Any:
    """Contents into ``out`` (0 where nothing was written).  Returns an index of ``_PROBLEMS``."""
    for i in range(len(cells)):
        c, me, mine = cells[i], thread[i], warp[i]
        if s.pending[c]:
            return 4
        if s.writer[c] != 0 and not _ordered(
            s.writer[c], s.writer_warp[c], s.writer_block_epoch[c], s.writer_warp_epoch[c], me, mine, now[i], turn[i]
        ):
            return 3
        out[i] = s.content[c]
        if s.reader[c] == 0 or s.reader_block_epoch[c] < now[i]:
            s.reader[c], s.reader_warp[c] = me, mine
            s.reader_block_epoch[c], s.reader_warp_epoch[c] = now[i], turn[i]
        else:
            s.reader[c] = me if s.reader[c] == me else MANY
            s.reader_warp[c] = mine if s.reader_warp[c] == mine else MANY
            s.reader_warp_epoch[c] = max(turn[i], s.reader_warp_epoch[c])
    return 0


class SharedMemory:
    """The shared memory of several blocks side by side; ``grain`` bytes to a cell."""

    def __init__(self, *, blocks: int, threads: int, grain: int, base: int, size: int = LARGEST) -> None:
        self.grain = grain
        self._base, self._size = base, size
        self._cells = size // grain
        self._threads = threads
        total = blocks * self._cells
        self._state = State(np.zeros(total, np.int64), *(np.zeros(total, np.int32) for _ in range(9)))
        lanes = np.arange(blocks * threads)
        self._block = lanes // threads
        warps = -(-threads // 32)
        self._warp = (self._block * warps + lanes % threads // 32).astype(np.int64)
        self._block_epoch = np.ones(blocks, np.int32)
        self._warp_epoch = np.ones(blocks * warps, np.int32)
        self._open: list[tuple[Ids, Ids, Ids]] = []
        self._groups: list[list[tuple[Ids, Ids, Ids]]] = []

    def sync_blocks(self, lanes: Ids) -> None:
        """A barrier of every block that one of ``lanes`` is in."""
        self._block_epoch[np.unique(self._block[lanes])] += 1

    def sync_warps(self, lanes: Ids) -> None:
        """A barrier of every warp that one of ``lanes`` is in."""
        self._warp_epoch[np.unique(self._warp[lanes])] += 1

    def store(self, address: npt.NDArray[np.uint64], ids: Ids, lanes: Ids, *, together: bool = False) -> None:
        """Cells at ``address`` (one a lane) become ``ids``; ``together``: by their warp, no thread of it alone."""
        cells = self._cells_at(address, lanes)
        self._check(write_cells(self._state, cells, ids, *self._who(lanes, together), False))

    def load(self, address: npt.NDArray[np.uint64], lanes: Ids, *, together: bool = False) -> Ids:
        """The cells at ``address``, one a lane; 0 where nothing was written."""
        out = np.empty(len(lanes), np.int64)
        cells = self._cells_at(address, lanes)
        self._check(read_cells(self._state, cells, *self._who(lanes, together), out))
        return out

    def start_copy(self, address: npt.NDArray[np.uint64], ids: Ids, lanes: Ids) -> None:
        """An asynchronous copy of ``ids`` into cells begins."""
        cells = self._cells_at(address, lanes)
        self._check(write_cells(self._state, cells, ids, *self._who(lanes, False), True))
        self._open.append((cells, ids, lanes))

    def commit_group(self) -> None:
        """Copies begun since the last group form one."""
        self._groups.append(self._open)
        self._open = []

    def wait_groups(self, most: int) -> None:
        """All groups but the last ``most`` land."""
        done = len(self._groups) - most
        for group in self._groups[: max(done, 0)]:
            for cells, ids, lanes in group:
                finish_cells(self._state, cells, ids, *self._who(lanes, False))
        if done > 0:
            self._groups = self._groups[done:]

    def _cells_at(self, address: npt.NDArray[np.uint64], lanes: Ids) -> Ids:
        offset = address.astype(np.int64) - self._base
        if len(offset) and (offset.min() < 0 or offset.max() >= self._size or (offset % self.grain).any()):
            raise RefusalError("shared_memory", "an address lies outside of shared memory or is not aligned")
        return offset // self.grain + self._block[lanes] * self._cells

    def _who(self, lanes: Ids, together: bool) -> tuple[Counts, Counts, Counts, Counts]:
        warp = self._warp[lanes]
        thread = np.full(len(lanes), MANY, np.int32) if together else (lanes + 1).astype(np.int32)
        return (
            thread,
            (warp + 1).astype(np.int32),
            self._block_epoch[self._block[lanes]],
            self._warp_epoch[warp],
        )

    @staticmethod
    def _check(problem: int) -> None:
        if problem:
            raise RefusalError("shared_memory", _PROBLEMS[problem])
