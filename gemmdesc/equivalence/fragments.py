"""Matrix steps over whole fragments: what the registers of a warp hold together before anyone asks for an element.

With the fragments of ``mma.sync``, lane (g, t) of a warp holds rows g and g + 8 of A and column g of B, and elements
(g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1) of the product in registers 0 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.table import Table
from gemmdesc.equivalence.values import Value

#: Fragments that are remembered at most.
_MOST = 1024


class Fragments:
    """Rows and columns of registers that were met before: a fragment of A meets several of B.

    Arrays are told apart by identity.  Those of an entry live as long as the entry, so that no other can be taken for
    one of them.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._streams: dict[tuple[int, ...], tuple[list[Ids], Ids | None]] = {}
        self._lists: dict[tuple[int, int], tuple[Ids | None, Ids, Ids]] = {}

    def stream(self, registers: list[Ids]) -> Ids | None:
        """:meth:`Table.streams`, or None where any is poison."""
        key = tuple(map(id, registers))
        found = self._streams.get(key)
        if found is None:
            made = self._table.streams(registers)
            if len(self._streams) >= _MOST:
                self._streams.clear()
            found = self._streams[key] = registers, made if made.all() else None
        return found[1]

    def longer(self, steps: Ids | None, streams: Ids) -> Ids:
        """Lists of rows or columns, each with one more."""
        key = id(steps), id(streams)
        found = self._lists.get(key)
        if found is None:
            if len(self._lists) >= _MOST:
                self._lists.clear()
            found = self._lists[key] = steps, streams, self._table.longer(steps, streams)
        return found[2]


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """The 16 x 8 elements of every warp after a chain of steps called ``name``.

    ``rows``: lists of the steps' rows, of the lower and the upper eight rows; ``columns``: lists of their columns, all
    of shape (warps * 8,); ``start``: what registers 0 to 3 held before the first step.
    """

    table: Table
    name: str
    rows: tuple[Ids, Ids]
    columns: Ids
    start: tuple[Ids, ...]

    def register(self, index: int) -> Ids:
        """The elements in register ``index``, one a lane."""
        half, side = divmod(index, 2)
        lane = np.arange(len(self.start[index]))
        columns = lane // 32 * 8 + lane % 4 * 2 + side
        return self.table.chains(
            self.name, 4, self.rows[half][lane // 4], self.columns[columns], self.start[index]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """One register of a product, as long as nothing but the next step reads it."""

    product: Product
    index: int

    def value(self) -> Value:
        """The elements as expressions, one a lane."""
        return Value(ids=self.product.register(self.index))
