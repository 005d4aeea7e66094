"""Which numbers of rows share their bits: a layer's plans over m, grouped by the order that they sum in.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gemmdesc.errors import Declined
from gemmdesc.normal_form import normal_form
from gemmdesc.plan.values import Plan
from gemmdesc.plan.words import regions_in_words
from gemmdesc.problem import DeviceId, LibraryId


@dataclass(frozen=True, kw_only=True)
class SharedOrder:
    """Numbers of rows, ascending, at which a product of the same n and k has one order, or declines for one reason.

    ``outcome``: of the first.  ``by_place``: whether elements of such a product have several orders, by their place:
    rows then share bits only where they share their place too.
    """

    rows: tuple[int, ...]
    outcome: Plan | Declined
    by_place: bool

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """``rows`` as runs of neighbours, both ends included."""
        starts = [self.rows[0], *(b for a, b in pairwise(self.rows) if b != a + 1)]
        ends = [*(a for a, b in pairwise(self.rows) if b != a + 1), self.rows[-1]]
        return tuple(zip(starts, ends, strict=True))


def shared_orders(outcomes: Mapping[int, Plan | Declined]) -> tuple[SharedOrder, ...]:
    """``outcomes``, by number of rows, in groups that owe each other the same bits row by row."""
    groups: dict[Any, list[int]] = {}
    for rows in sorted(outcomes):
        groups.setdefault(_order(outcomes[rows]), []).append(rows)
    return tuple(
        SharedOrder(rows=tuple(rows), outcome=outcomes[rows[0]], by_place=_is_by_place(outcomes[rows[0]]))
        for rows in groups.values()
    )


def _order(outcome: Plan | Declined) -> Any:
    """What two outcomes have in common where they share bits."""
    if isinstance(outcome, Declined):
        return outcome
    forms = [normal_form(region.descriptor, outcome.problem.k) for region in outcome.regions]
    if len(set(forms)) == 1:
        return forms[0]
    return tuple(zip((region.bounds for region in outcome.regions), forms, strict=True))


def _is_by_place(outcome: Plan | Declined) -> bool:
    return isinstance(outcome, Plan) and isinstance(_order(outcome), tuple)


def orders_text(groups: tuple[SharedOrder, ...], n: int, k: int, library: LibraryId, device: DeviceId) -> str:
    """The groups for a person: where each holds, and its order in words."""
    count = sum(len(g.rows) for g in groups)
    place = f"{device.name or device.sm}, cuBLASLt {library.version}"
    lines = [f"(m, {k}) x ({k}, {n}) on {place}: {len(groups)} groups over {count} m"]
    for group in groups:
        lines.append(f"m {', '.join(str(a) if a == b else f'{a}..{b}' for a, b in group.spans)}")
        if isinstance(group.outcome, Declined):
            lines.append(f"  declined ({group.outcome.code}): {group.outcome.reason}")
            continue
        if group.by_place:
            lines.append("  several orders in one product: rows share bits only at the same place")
        lines += [f"  {clause}" for clause in regions_in_words(group.outcome.regions, k)]
    return "\n".join(lines)


def orders_data(groups: tuple[SharedOrder, ...], n: int, k: int) -> dict[str, Any]:
    """The groups as JSON-ready data."""

    def one(group: SharedOrder) -> dict[str, Any]:
        rows = {"m": [list(span) for span in group.spans]}
        if isinstance(group.outcome, Declined):
            return rows | {"declined": {"code": group.outcome.code, "reason": group.outcome.reason}}
        forms = {normal_form(r.descriptor, k).digest for r in group.outcome.regions}
        words = list(regions_in_words(group.outcome.regions, k))
        return rows | {"by_place": group.by_place, "normal_forms": sorted(forms), "order": words}

    return {"n": n, "k": k, "groups": [one(group) for group in groups]}
