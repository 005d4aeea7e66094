"""What lies behind pointer arguments before a launch: data, tables that the launch fixes, or what another one left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.table import Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """What a launch leaves behind, byte by byte: one row per byte, sorted by (parameter, offset)."""

    parameter: Ids
    offset: Ids
    ids: Ids


class Contents:
    """Loads by parameter.  ``tables``: bytes that are known; ``left``: what an earlier walk stored behind a parameter.

    ``left`` is None where there is no earlier launch.  Its expressions are in ``table``, and its leaves are numbered by
    its own parameters, so that no other leaf may be made beside them.
    """

    def __init__(
        self, table: Table, tables: Mapping[int, bytes], left: Mapping[int, tuple[Stored, int]] | None = None
    ) -> None:
        self._table, self._leaves = table, left is None
        self._tables = {p: np.frombuffer(data, np.uint8).astype(np.uint64) for p, data in tables.items()}
        self._left = {p: _behind(stored, source) for p, (stored, source) in (left or {}).items()}

    def load(self, parameter: Ids, offset: Ids, width: int) -> Ids:
        """Nodes of ``width`` bytes at each offset.

        Raises:
            RefusalError: nothing says what lies there, while it is said of another parameter.
        """
        if not self._tables and self._leaves:
            return self._table.leaves(parameter, offset, width)
        out = np.empty(len(offset), np.int64)
        for p in np.unique(parameter).tolist():
            here = parameter == p
            out[here] = self._of(p, offset[here], width)
        return out

    def _of(self, parameter: int, offset: Ids, width: int) -> Ids:
        if parameter in self._tables:
            data = self._tables[parameter]
            if (offset < 0).any() or (offset + width > len(data)).any():
                raise RefusalError("global_memory", f"a load leaves the {len(data)} bytes behind parameter {parameter}")
            bits = np.zeros(len(offset), np.uint64)
            for k in range(width):
                bits |= data[offset + k] << np.uint64(8 * k)
            return self._table.constants(bits, width)
        if parameter in self._left:
            offsets, ids = self._left[parameter]
            pieces = []
            for k in range(width):
                at = np.minimum(np.searchsorted(offsets, offset + k), len(offsets) - 1)
                if (offsets[at] != offset + k).any():
                    raise RefusalError("global_memory", f"a byte behind parameter {parameter} was never stored")
                pieces.append(ids[at])
            return self._table.concat(pieces)
        if not self._leaves:
            raise RefusalError("launch", f"nothing says what lies behind parameter {parameter} after the launch before")
        return self._table.leaves(np.array([parameter], np.int64), offset, width)


def _behind(stored: Stored, parameter: int) -> tuple[Ids, Ids]:
    here = stored.parameter == parameter
    if not here.any():
        raise RefusalError("launch", f"the launch before stores nothing behind its parameter {parameter}")
    return stored.offset[here], stored.ids[here]
