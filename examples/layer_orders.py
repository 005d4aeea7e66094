"""Layers that the library sums in another order where the rows are more: found by planning, nothing runs.

A short sum is one chain of products at any number of rows.  Deep ones are split where rows are few, so that the whole
card has work: a width is looked for at which the layer that ends a perceptron does so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

import gemmdesc
from gemmdesc.dropin import LibrarySource
from gemmdesc.dtypes import parse_dtype
from gemmdesc.errors import Declined
from gemmdesc.plan import Plan, Planner, SharedOrder, shared_orders
from gemmdesc.routes import TensorMeta

#: Widths of a perceptron, in hidden sizes.
WIDTHS = (2, 4, 8, 16)


class Width(NamedTuple):
    """A perceptron's width, and the groups of numbers of rows that its last layer sums alike."""

    inner: int
    groups: tuple[SharedOrder, ...]

    def __str__(self) -> str:
        rows = "; ".join(", ".join(map(str, group.rows)) for group in self.groups)
        return f"perceptron of {self.inner}: the library has {len(self.groups)} orders, for rows {rows}"


def planner_of(source: LibrarySource) -> Planner:
    """Plans by the answers of ``source``."""
    return Planner(lambda: source.library, lambda device, identity: source.profile)


def layer_plans(
    k: int, n: int, rows: Sequence[int], dtype: torch.dtype, planner: Planner | None
) -> dict[int, Plan | Declined]:
    """What ``F.linear`` of ``rows`` activations (rows, k) with a weight (n, k) is, for each number of rows."""
    kind = parse_dtype(str(dtype).removeprefix("torch."))
    weight = TensorMeta(shape=(k, n), strides=(1, k), dtype=kind)
    sides = {m: TensorMeta(shape=(m, k), strides=(k, 1), dtype=kind) for m in rows}
    return {m: gemmdesc.plan(x, weight, planner=planner) for m, x in sides.items()}


def width_of_several_orders(
    hidden: int, rows: Sequence[int], reference: int, dtype: torch.dtype, planner: Planner | None = None
) -> Width:
    """The first width at which ``rows`` have several orders, where no layer declines and all can be pinned.

    ``reference``: the number of rows to pin at.  Where there is no such width, the widest one.
    """
    found = Width(WIDTHS[-1] * hidden, ())
    for inner in [width * hidden for width in WIDTHS]:
        layers = [layer_plans(k, n, [*rows, reference], dtype, planner) for k, n in ((hidden, inner), (inner, hidden))]
        declined = any(isinstance(plan, Declined) for plans in layers for plan in plans.values())
        # Rows that have several orders in one product lend none to others.
        by_place = any(group.by_place for plans in layers for group in shared_orders({reference: plans[reference]}))
        found = Width(inner, shared_orders({m: layers[1][m] for m in rows}))
        if len(found.groups) > 1 and not declined and not by_place:
            return found
    return found
