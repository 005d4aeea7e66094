"""The values that a reading leaves open for one integer of a descriptor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

_LARGEST = 2**62


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """The integers that one reading leaves open: ``low`` .. ``high``, both included.

    ``table``: where it is not empty, of the integers from 1 on only those with a byte that is not 0, and all beyond it.
    """

    low: int
    high: int
    table: bytes = b""

    @classmethod
    def exactly(cls, value: int) -> Allowed:
        return cls(low=value, high=value)

    @classmethod
    def at_least(cls, value: int) -> Allowed:
        return cls(low=value, high=_LARGEST)

    @classmethod
    def among(cls, mask: npt.NDArray[np.bool_]) -> Allowed:
        """The integers from 1 on where the mask holds, and all beyond its end."""
        low = int(np.append(mask, True).argmax()) + 1
        return cls(low=low, high=_LARGEST, table=mask.tobytes())

    def holds(self, value: int) -> bool:
        """Whether ``value`` is allowed."""
        listed = 0 < value <= len(self.table)
        return self.low <= value <= self.high and (not listed or bool(self.table[value - 1]))

    @property
    def closed(self) -> Allowed:
        """Without the integers beyond the table."""
        return replace(self, high=len(self.table))

    @property
    def room(self) -> int:
        """How many integers are allowed, those beyond a table left out."""
        return self.table.count(1) if self.table else self.high - self.low

    @property
    def open(self) -> bool:
        """Whether any larger integer is allowed, too."""
        return self.high == _LARGEST

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def sole(self) -> int | None:
        """The one integer allowed, integers beyond a table left out; None where there are several."""
        alone = self.exact or self.table.count(1) == 1
        return self.low if alone else None
