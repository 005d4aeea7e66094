"""Global memory: every pointer parameter is an array of its own, and nobody reads what the launch writes.

Pointers get addresses far apart, so that an address names its parameter and the byte offset from it.  That no two
parameters overlap is an assumption that every answer carries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.contents import Contents, Stored
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.table import Table

_SHIFT = 44
_MIDDLE = 1 << (_SHIFT - 1)
_POISON = "a value that was never written, or came from an inactive lane, is stored"


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction's accesses: a parameter and byte offset each, ``width`` bytes, at step ``time``.

    ``lane`` has as many elements, or a part of that, which then repeats.
    """

    parameter: Ids
    offset: Ids
    width: int
    lane: Ids
    time: int
    ids: Ids


def pointer_address(parameter: int) -> int:
    """The address that stands for the first byte behind a pointer parameter."""
    return ((parameter + 1) << _SHIFT) + _MIDDLE


class GlobalMemory:
    """Loads and stores of all blocks; lanes are numbered through the grid."""

    def __init__(self, table: Table, threads: int, parameters: int, contents: Contents) -> None:
        self._table, self._contents = table, contents
        self._threads = threads
        self._parameters = parameters
        self._loads: list[Access] = []
        self._stores: list[Access] = []

    def load(self, address: npt.NDArray[np.uint64], width: int, lane: Ids, time: int) -> Ids:
        """Nodes of ``width`` bytes at each address; the address has to be aligned to ``width``."""
        parameter, offset = self._split(address, width)
        ids = self._contents.load(parameter, offset, width)
        self._loads.append(Access(parameter, offset, width, lane, time, ids))
        return ids

    def store(self, address: npt.NDArray[np.uint64], width: int, ids: Ids, lane: Ids, time: int) -> None:
        """Nodes of ``width`` bytes to each address.

        Raises:
            RefusalError: one of them is poison.
        """
        if (ids == 0).any():
            raise RefusalError("poison", _POISON)
        parameter, offset = self._split(address, width)
        self._stores.append(Access(parameter, offset, width, lane, time, ids))

    def _split(self, address: npt.NDArray[np.uint64], width: int) -> tuple[Ids, Ids]:
        signed = address.astype(np.int64)
        parameter = (signed >> _SHIFT) - 1
        offset = (signed & ((1 << _SHIFT) - 1)) - _MIDDLE
        if len(address) and (parameter.min() < 0 or parameter.max() >= self._parameters):
            raise RefusalError("global_memory", "an address is not derived from a pointer parameter")
        if (offset % width).any():
            raise RefusalError("global_memory", f"an access of {width} bytes is not aligned to them")
        return parameter, offset

    def finish(self) -> Stored:
        """All bytes stored.

        Raises:
            RefusalError: two blocks write one byte; two threads write different values to it; or a byte is loaded
                that another thread stores, or that its own thread has stored before.
        """
        if not self._stores:
            empty = np.zeros(0, np.int64)
            return Stored(parameter=empty, offset=empty, ids=empty)
        parameter, offset, ids, lane, time = self._bytes(self._stores, True)
        if (ids == 0).any():
            raise RefusalError("poison", _POISON)
        order = np.lexsort((time, offset, parameter))
        parameter, offset, ids, lane, time = (a[order] for a in (parameter, offset, ids, lane, time))
        again = (parameter[1:] == parameter[:-1]) & (offset[1:] == offset[:-1])
        if again.any():
            block = lane // self._threads
            if (again & (block[1:] != block[:-1])).any():
                raise RefusalError("global_memory", "two blocks write one byte")
            if (again & (lane[1:] != lane[:-1]) & (ids[1:] != ids[:-1])).any():
                raise RefusalError("global_memory", "two threads write different values to one byte")
        first = np.concatenate([[True], ~again])
        self._check_loads(parameter, offset, lane, time, first)
        last = np.concatenate([~again, [True]])
        return Stored(parameter=parameter[last], offset=offset[last], ids=ids[last])

    def _check_loads(self, parameter: Ids, offset: Ids, lane: Ids, time: Ids, first: npt.NDArray[np.bool_]) -> None:
        stored = np.zeros(self._parameters, np.bool_)
        stored[parameter] = True
        risky = [load for load in self._loads if stored[load.parameter].any()]
        if not risky:
            return
        group = np.cumsum(first) - 1
        starts = np.flatnonzero(first)
        one_lane = np.minimum.reduceat(lane, starts) == np.maximum.reduceat(lane, starts)
        earliest = np.minimum.reduceat(time, starts)
        keys = _key(parameter, offset)[starts]
        assert int(group[-1]) + 1 == len(keys)
        p, o, _, who, when = self._bytes(risky, False)
        wanted = _key(p, o)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = keys[at] == wanted
        fine = one_lane[at] & (lane[starts][at] == who) & (when < earliest[at])
        if (hit & ~fine).any():
            raise RefusalError("global_memory", "a byte is loaded that this launch stores")

    def _bytes(self, accesses: list[Access], contents: bool) -> tuple[Ids, Ids, Ids, Ids, Ids]:
        rows: list[tuple[Ids, Ids, Ids, Ids, Ids]] = []
        for a in accesses:
            pieces = self._table.pieces(a.ids, 1, a.width) if contents else [a.ids] * a.width
            for i, ids in enumerate(pieces):
                lane, time = np.resize(a.lane, len(ids)), np.full(len(ids), a.time, np.int64)
                rows.append((a.parameter, a.offset + i, ids, lane, time))
        p, o, ids, lane, time = (np.concatenate([row[i] for row in rows]) for i in range(5))
        return p, o, ids, lane, time


def _key(parameter: Ids, offset: Ids) -> Ids:
    return (parameter << (_SHIFT + 1)) + offset
