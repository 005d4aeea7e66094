"""One product of a comparison, and the replays of it: made by the library's device where it can, else on the CPU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from gemmdesc.arithmetic.pointwise import TanhApprox
from gemmdesc.bits import Bits, bitwise_equal
from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import Inputs, Library, Replaying, Window
from gemmdesc.library.replayed import replay_problem
from gemmdesc.normal_form import normal_form
from gemmdesc.operands import Operand
from gemmdesc.probe.scan import Example
from gemmdesc.problem import Failed, GemmProblem
from gemmdesc.regions import Region

#: One in about so many replays on a device is made on the CPU as well.
_CROSSCHECK_EVERY = 64


@dataclass(frozen=True, eq=False)
class Asked:
    """One product, and what is to be replayed of it: ``orders`` without repeats, and where each asked for stands.

    ``tanh_approx``: that of the library's card, if any.
    """

    example: Example
    operands: tuple[Operand, Operand]
    window: Window
    inputs: Inputs
    distinct: tuple[tuple[tuple[Region, ...], ...], tuple[int, ...]]
    tanh_approx: TanhApprox | None = None

    @property
    def orders(self) -> tuple[tuple[Region, ...], ...]:
        return self.distinct[0]

    @property
    def places(self) -> tuple[int, ...]:
        return self.distinct[1]


def product_and_replays(library: Library, asked: Asked) -> tuple[Bits, tuple[Bits, ...]] | Failed:
    """The library's window, and the replays of it where the library makes them."""
    example, (a, b) = asked.example, asked.operands
    if isinstance(library, Replaying):
        return library.run_and_replay(
            example.problem, example.answer, a, b, asked.window, asked.orders, inputs=asked.inputs
        )
    got = library.run(example.problem, example.answer, a, b, asked.window, inputs=asked.inputs)
    return got if isinstance(got, Failed) else (got, ())


def replays(asked: Asked) -> tuple[Bits, ...]:
    problem = asked.example.problem
    return tuple(
        replay_problem(x, problem, *asked.operands, asked.window, inputs=asked.inputs, tanh_approx=asked.tanh_approx)
        for x in asked.orders
    )


def crosscheck(asked: Asked, found: Sequence[Bits], draw: int) -> None:
    """Hold some of a device's replays against those of the CPU, which define what a descriptor means.

    Raises:
        CampaignError: they differ.
    """
    p = asked.example.problem
    if (draw + p.m + p.n + p.k) % _CROSSCHECK_EVERY:
        return
    for mine, theirs, order in zip(replays(asked), found, asked.orders, strict=True):
        if not bitwise_equal(mine, theirs):
            raise CampaignError(f"a replay on the device must give the CPU's bytes (other ones for {p} under {order})")


def distinct_orders(
    descs: Sequence[tuple[Region, ...] | None], problem: GemmProblem
) -> tuple[tuple[tuple[Region, ...], ...], tuple[int, ...]]:
    """The orders without those that owe an earlier one the same bits, and the place among them of each given."""
    if len(descs) == 1:
        assert descs[0] is not None
        return (descs[0],), (0,)
    found: dict[Hashable, int] = {}
    orders: list[tuple[Region, ...]] = []
    places: list[int] = []
    for desc in descs:
        assert desc is not None
        same = tuple((r.bounds, normal_form(r.descriptor, problem.k).digest) for r in desc)
        if same not in found:
            found[same] = len(orders)
            orders.append(desc)
        places.append(found[same])
    return tuple(orders), tuple(places)
