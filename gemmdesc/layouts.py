"""Layouts: how consecutive k, or parts of them, are dealt to parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gemmdesc.descriptor_fields import VARIABLE, require_at_least, require_instance


class Short(Enum):
    """Where the short one of otherwise equal contiguous parts falls."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, kw_only=True)
class Contiguous:
    """Parts of ``span`` consecutive k; the short part, if any, falls as ``short`` says.  ``span`` >= 1."""

    span: int = field(metadata=VARIABLE)
    short: Short = Short.LAST

    def __post_init__(self) -> None:
        require_at_least("contiguous.span", self.span, 1)
        require_instance("contiguous.short", self.short, Short)


@dataclass(frozen=True, kw_only=True)
class Strided:
    """``count`` parts; units of ``unit`` consecutive k are dealt to them in turn, the first unit to part 0."""

    count: int = field(metadata=VARIABLE)
    unit: int = field(metadata=VARIABLE)

    def __post_init__(self) -> None:
        require_at_least("strided.count", self.count, 1)
        require_at_least("strided.unit", self.unit, 1)


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """``count`` contiguous parts of whole units of ``unit`` consecutive k (the last unit may be short).

    Of U units every part has U // ``count``, and the last U mod ``count`` parts one more.
    """

    count: int = field(metadata=VARIABLE)
    unit: int = field(metadata=VARIABLE)

    def __post_init__(self) -> None:
        require_at_least("balanced.count", self.count, 1)
        require_at_least("balanced.unit", self.unit, 1)

    def ends(self, length: int) -> tuple[int, ...]:
        """Where the parts of ``length`` k end (exclusive), ascending; a part may be empty."""
        each, more = divmod(-(-length // self.unit), self.count)
        longer = self.count - more
        ends = (each * (i + 1) + max(0, i + 1 - longer) for i in range(self.count))
        return tuple(min(length, end * self.unit) for end in ends)


Layout = Contiguous | Strided | Balanced
