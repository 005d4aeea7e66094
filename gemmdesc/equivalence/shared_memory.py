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
Addresses = npt.NDArray[np.uint64]

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
    "an address lies outside of shared memory or is not aligned",
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


class Place(NamedTuple):
    """Block and warp of every lane, their barriers so far, and how an address becomes a cell."""

    block: Ids
    warp: Ids
    block_epoch: Counts
    warp_epoch: Counts
    base: int
    size: int
    grain: int
    cells: int


@njit(inline="always")
def _cell(p: Any, address: Any, lane: Any) -> Any:
    """The cell at an address in the shared memory of a lane's block; -1 where there is none."""
    offset = np.int64(address) - p.base
    if offset < 0 or offset >= p.size or offset % p.grain != 0:
        return -1
    return offset // p.grain + p.block[lane] * p.cells


@njit(inline="always")
def _ordered(thread: Any, warp: Any, block_epoch: Any, warp_epoch: Any, me: Any, mine: Any, now: Any, turn: Any) -> Any:
    return block_epoch < now or (warp == mine and warp > 0 and warp_epoch < turn) or (thread == me and me > 0)


@njit(nogil=True, cache=True)
def write_cells(s: Any, p: Any, address: Any, ids: Any, lanes: Any, together: Any, copy: Any) -> Any:
    """Write ``ids`` in order; ``copy``: as the start of an asynchronous copy.  Returns an index of ``_PROBLEMS``.

    The lanes take turns: there are as many addresses as lanes, or several times as many.
    """
    for i in range(len(address)):
        lane = lanes[i % len(lanes)]
        c, me, mine = _cell(p, address[i], lane), MANY if together else lane + 1, p.warp[lane] + 1
        now, turn = p.block_epoch[p.block[lane]], p.warp_epoch[p.warp[lane]]
        if c < 0:
            return 5
        if s.pending[c]:
            return 4
        written = s.writer[c] == 0 or _ordered(
            s.writer[c], s.writer_warp[c], s.writer_block_epoch[c], s.writer_warp_epoch[c], me, mine, now, turn
        )
        read = s.reader[c] == 0 or _ordered(
            s.reader[c], s.reader_warp[c], s.reader_block_epoch[c], s.reader_warp_epoch[c], me, mine, now, turn
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
            s.writer_block_epoch[c], s.writer_warp_epoch[c] = now, turn
            s.reader[c] = 0
        elif s.content[c] == ids[i] and ids[i] != 0:
            s.writer[c] = MANY
            s.writer_warp[c] = mine if s.writer_warp[c] == mine else MANY
            s.writer_block_epoch[c] = max(now, s.writer_block_epoch[c])
            s.writer_warp_epoch[c] = max(turn, s.writer_warp_epoch[c])
        else:
            return 1 if not written else 2
    return 0


@njit(nogil=True, cache=True)
def finish_cells(s: Any, p: Any, address: Any, ids: Any, lanes: Any) -> None:
    """Land asynchronous copies: written by their threads, now."""
    for i in range(len(address)):
        lane = lanes[i % len(lanes)]
        c = _cell(p, address[i], lane)
        s.pending[c] = 0
        s.content[c] = ids[i]
        s.writer[c], s.writer_warp[c] = lane + 1, p.warp[lane] + 1
        s.writer_block_epoch[c] = p.block_epoch[p.block[lane]]
        s.writer_warp_epoch[c] = p.warp_epoch[p.warp[lane]]
        s.reader[c] = 0


@njit(nogil=True, cache=True)
def read_cells(s: Any, p: Any, address: Any, lanes: Any, together: Any, out: Any) -> Any:
    """Contents into ``out`` (0 where nothing was written).  Returns an index of ``_PROBLEMS``."""
    for i in range(len(address)):
        lane = lanes[i % len(lanes)]
        c, me, mine = _cell(p, address[i], lane), MANY if together else lane + 1, p.warp[lane] + 1
        now, turn = p.block_epoch[p.block[lane]], p.warp_epoch[p.warp[lane]]
        if c < 0:
            return 5
        if s.pending[c]:
            return 4
        if s.writer[c] != 0 and not _ordered(
            s.writer[c], s.writer_warp[c], s.writer_block_epoch[c], s.writer_warp_epoch[c], me, mine, now, turn
        ):
            return 3
        out[i] = s.content[c]
        if s.reader[c] == 0 or s.reader_block_epoch[c] < now:
            s.reader[c], s.reader_warp[c] = me, mine
            s.reader_block_epoch[c], s.reader_warp_epoch[c] = now, turn
        else:
            s.reader[c] = me if s.reader[c] == me else MANY
            s.reader_warp[c] = mine if s.reader_warp[c] == mine else MANY
            s.reader_warp_epoch[c] = max(turn, s.reader_warp_epoch[c])
    return 0


class SharedMemory:
    """The shared memory of several blocks side by side; ``grain`` bytes to a cell."""

    def __init__(self, *, blocks: int, threads: int, grain: int, base: int, size: int = LARGEST) -> None:
        self.grain = grain
        total = blocks * (size // grain)
        self._state = State(np.zeros(total, np.int64), *(np.zeros(total, np.int32) for _ in range(9)))
        lanes = np.arange(blocks * threads)
        block, warps = lanes // threads, -(-threads // 32)
        self._place = Place(
            block=block,
            warp=(block * warps + lanes % threads // 32).astype(np.int64),
            block_epoch=np.ones(blocks, np.int32),
            warp_epoch=np.ones(blocks * warps, np.int32),
            base=base,
            size=size,
            grain=grain,
            cells=size // grain,
        )
        self._open: list[tuple[Addresses, Ids, Ids]] = []
        self._groups: list[list[tuple[Addresses, Ids, Ids]]] = []

    def sync_blocks(self, lanes: Ids) -> None:
        """A barrier of every block that one of ``lanes`` is in."""
        self._place.block_epoch[np.unique(self._place.block[lanes])] += 1

    def sync_warps(self, lanes: Ids) -> None:
        """A barrier of every warp that one of ``lanes`` is in."""
        self._place.warp_epoch[np.unique(self._place.warp[lanes])] += 1

    def store(self, address: Addresses, ids: Ids, lanes: Ids, *, together: bool = False) -> None:
        """Cells at ``address`` become ``ids``; ``together``: by their warp, no thread of it alone.

        ``address`` (n,), ``lanes`` (n,) or a part of that, which then repeats.
        """
        self._check(write_cells(self._state, self._place, address, ids, lanes, together, False))

    def load(self, address: Addresses, lanes: Ids, *, together: bool = False) -> Ids:
        """The cells at ``address``; 0 where nothing was written; shapes as for :meth:`store`."""
        out = np.empty(len(address), np.int64)
        self._check(read_cells(self._state, self._place, address, lanes, together, out))
        return out

    def start_copy(self, address: Addresses, ids: Ids, lanes: Ids) -> None:
        """An asynchronous copy of ``ids`` into cells begins; shapes as for :meth:`store`."""
        self._check(write_cells(self._state, self._place, address, ids, lanes, False, True))
        self._open.append((address, ids, lanes))

    def commit_group(self) -> None:
        """Copies begun since the last group form one."""
        self._groups.append(self._open)
        self._open = []

    def wait_groups(self, most: int) -> None:
        """All groups but the last ``most`` land."""
        done = len(self._groups) - most
        for group in self._groups[: max(done, 0)]:
            for address, ids, lanes in group:
                finish_cells(self._state, self._place, address, ids, lanes)
        if done > 0:
            self._groups = self._groups[done:]

    @staticmethod
    def _check(problem: int) -> None:
        if problem:
            raise RefusalError("shared_memory", _PROBLEMS[problem])
