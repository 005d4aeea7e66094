"""Forms of a matrix step that may be merged, each an assumption about hardware with the test that would establish it.

None is applied unless it is asked for by name, and an answer that rests on one says so, and on which cards the test
held.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any

from gemmdesc.errors import InvalidInputError

SWAPPED, PADDED = "swapped operands", "zero padding"
#: Equal elements, of every type that a row is stated for, that establish it on a card.
ENOUGH = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A card on which both forms gave the same bytes.

    ``elements``: compared of the type that had fewest of them; ``versions``: by name, of what ran the test.
    """

    card: str
    elements: int
    versions: Mapping[str, str]
    date: str

    def __str__(self) -> str:
        return f"{self.card}, {self.elements:,} elements a type"


@dataclass(frozen=True, kw_only=True)
class Merge:
    """``types``: those of ``mma.sync``, result first, that it is stated for; ``established``: where its test held."""

    name: str
    says: str
    types: tuple[str, ...]
    test: str
    established: tuple[Evidence, ...]

    def __str__(self) -> str:
        cards = "; ".join(map(str, self.established))
        state = f"established on {cards}" if cards else "an assumption, not established on any card"
        return f"{self.name}: {self.says} ({state}; `{self.test}`)"

    def claim(self, types: str) -> str:
        """What a test of one type claims."""
        return statement(self.name, self.says, types)


def statement(name: str, says: str, types: str) -> str:
    """The claim of a test on ``mma.sync`` of ``types``."""
    return f"mma.sync, {types}, {name}: {says}"


def load_merges(names: Collection[str] | None = None) -> tuple[Merge, ...]:
    """The packaged rows, or those called ``names``.

    Raises:
        InvalidInputError: there is no row of that name.
    """
    text = resources.files("gemmdesc.equivalence").joinpath("merges.json").read_text(encoding="utf-8")
    rows = tuple(
        Merge(
            **{
                **row,
                "types": tuple(row["types"]),
                "established": tuple(Evidence(**found) for found in row["established"]),
            }
        )
        for row in json.loads(text)
    )
    if names is None:
        return rows
    known = [row.name for row in rows]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InvalidInputError(f"merges must be of {', '.join(known)} (got {', '.join(unknown)})")
    return tuple(row for row in rows if row.name in names)


def with_evidence(merge: Merge, claims: Iterable[Mapping[str, Any]]) -> Merge:
    """The row with what the claims of ``scripts/check_merges.py`` say of it.

    A card is entered, in place of what was known of it, where every type had :data:`ENOUGH` equal elements and no other
    one; it is taken out where a type had an element that differs.  Claims of other rows say nothing.
    """
    tried: dict[str, dict[str, Mapping[str, Any]]] = {}
    for claim in claims:
        for types in merge.types:
            if claim["claim"] == merge.claim(types):
                tried.setdefault(claim["card"], {})[types] = claim
    found = {evidence.card: evidence for evidence in merge.established}
    for card, by_type in tried.items():
        if any(claim["counts"]["different"] for claim in by_type.values()):
            found.pop(card, None)
            continue
        elements = min(by_type[t]["counts"]["equal"] if t in by_type else 0 for t in merge.types)
        if elements >= ENOUGH:
            last = max(by_type.values(), key=lambda claim: str(claim["date"]))
            found[card] = Evidence(card=card, elements=elements, versions=last["versions"], date=last["date"])
    return replace(merge, established=tuple(found[card] for card in sorted(found)))


def rows_text(merges: Iterable[Merge]) -> str:
    """The file of rows, as it is packaged."""
    return json.dumps([asdict(merge) for merge in merges], indent=1) + "\n"


def halved(shape: str) -> str:
    """``m16n8k8`` for ``m16n8k16``."""
    stem, _, k = shape.rpartition("k")
    return f"{stem}k{int(k) // 2}"
