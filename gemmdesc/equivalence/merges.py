"""Forms of a matrix step that may be merged, each an assumption about hardware with the test that would establish it.

None is applied unless it is asked for by name, and an answer that rests on one says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources

from gemmdesc.errors import InvalidInputError

SWAPPED, PADDED = "swapped operands", "zero padding"


@dataclass(frozen=True, kw_only=True)
class Merge:
    """``types``: those of ``mma.sync``, result first, that it is stated for; ``established``: cards that it held on."""

    name: str
    says: str
    types: tuple[str, ...]
    test: str
    established: tuple[str, ...]

    def __str__(self) -> str:
        cards = ", ".join(self.established) or "no card yet"
        return f"{self.name}: {self.says} (held on {cards}; `{self.test}`)"


def load_merges(names: Collection[str] | None = None) -> tuple[Merge, ...]:
    """The packaged rows, or those called ``names``.

    Raises:
        InvalidInputError: there is no row of that name.
    """
    text = resources.files("gemmdesc.equivalence").joinpath("merges.json").read_text(encoding="utf-8")
    rows = tuple(
        Merge(**{**row, "types": tuple(row["types"]), "established": tuple(row["established"])})
        for row in json.loads(text)
    )
    if names is None:
        return rows
    known = [row.name for row in rows]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InvalidInputError(f"merges must be of {', '.join(known)} (got {', '.join(unknown)})")
    return tuple(row for row in rows if row.name in names)


def halved(shape: str) -> str:
    """``m16n8k8`` for ``m16n8k16``."""
    stem, _, k = shape.rpartition("k")
    return f"{stem}k{int(k) // 2}"
