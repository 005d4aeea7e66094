"""Timing the configs that compete for one descriptor, and what several products of one class come to.  Pure.

Bytes come first: a config whose bytes are not the default's is never timed, and counts as a fault of the kernels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.competing import TunableChoice, competing, key_of, pick_of, sizes_of
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tuned import Sizes, TunedKey, TunedPick, TunedTable, tuned_table

#: A pick takes the default's place where it is faster by more than this in both halves of the rounds: differences
#: between program starts are as large.
LEAST_GAIN = 0.01
#: Configs slower than the fastest by more than this after a few rounds are timed no longer.
HOPELESS = 1.25
_FIRST_ROUNDS = 2


class Trial(Protocol):
    """Runs choices for one product, on its operands."""

    def output(self, choice: TunableChoice) -> Any:
        """The result's bytes, as something that equals itself alone; None where the choice cannot be launched."""
        ...

    def microseconds(self, choice: TunableChoice) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One product: medians in microseconds of each half of the rounds, by pick; ``default`` is among them.

    ``sizes``: as the kernel computes it.  ``hopeless``: of picks that were given up, the least time of the first
    rounds.  ``different``: picks whose bytes were not the default's; ``unusable``: those that could not be launched.
    """

    key: TunedKey
    sizes: Sizes
    default: TunedPick
    halves: Mapping[TunedPick, tuple[float, float]]
    hopeless: Mapping[TunedPick, float] = field(default_factory=dict)
    different: tuple[TunedPick, ...] = ()
    unusable: tuple[TunedPick, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TunedRow:
    """A pick for a class of products, or with ``exact`` for those of the sizes ``example``, and what it rests on.

    ``gain``: the default's time over the pick's, the geometric mean over ``products``, of which one is ``example``.
    """

    key: TunedKey
    pick: TunedPick
    gain: float
    products: int
    example: Sizes
    exact: bool = False

    @property
    def place(self) -> TunedKey | tuple[TunedKey, Sizes]:
        """What a table finds it by."""
        return (self.key, self.example) if self.exact else self.key


def measure(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, trial: Trial, random: Random, *, rounds: int,
    choices: tuple[TunableChoice, ...] = (), hopeless: float = HOPELESS,
) -> Measured | Declined:  # fmt: skip
    """Time what competes for ``desc`` in ``rounds`` of turns, those without hope for two rounds only.

    ``choices``: some of these instead of all, the default first.  ``hopeless``: a factor of the fastest's time.

    Declines as :func:`gemmdesc.kernels.competing.competing` does, and where the default itself cannot be launched.
    """
    found = choices or competing(desc, meta, card)
    if isinstance(found, Declined):
        return found
    choices = found
    expected = trial.output(choices[0])
    if expected is None:
        return Declined(code="kernel", reason=f"the default cannot be launched (got {pick_of(choices[0])})")
    outputs = {pick_of(choice): trial.output(choice) for choice in choices[1:]}
    unusable = tuple(pick for pick, output in outputs.items() if output is None)
    different = tuple(p for p, output in outputs.items() if output is not None and output != expected)
    racing = {pick_of(c): c for c in choices if pick_of(c) not in (*unusable, *different)}
    default = pick_of(choices[0])
    halves, given_up = _race(racing, default, trial, random, max(2, rounds), hopeless)
    return Measured(
        key=key_of(choices[0], meta), sizes=sizes_of(choices[0], meta), default=default, different=different,
        unusable=unusable, halves=halves, hopeless=given_up,
    )  # fmt: skip


def _race(
    racing: dict[TunedPick, TunableChoice], default: TunedPick, trial: Trial, random: Random, rounds: int,
    hopeless: float,
) -> tuple[dict[TunedPick, tuple[float, float]], dict[TunedPick, float]]:  # fmt: skip
    """Medians of each half of the rounds, and of those that were given up after the first rounds their least time."""
    times: dict[TunedPick, list[float]] = {pick: [] for pick in racing}
    order = list(racing)
    for pick in order:
        trial.microseconds(racing[pick])  # the first replay warms caches and clocks
    for number in range(_FIRST_ROUNDS + rounds):
        if number == _FIRST_ROUNDS:
            best = min(min(values) for values in times.values())
            order = [p for p in order if min(times[p]) <= hopeless * best or p == default]
        random.shuffle(order)
        for pick in order:
            times[pick].append(trial.microseconds(racing[pick]))
    later = {pick: times[pick][_FIRST_ROUNDS:] for pick in order}
    half = rounds // 2
    halves = {p: (statistics.median(v[:half]), statistics.median(v[half:])) for p, v in later.items()}
    return halves, {pick: min(values) for pick, values in times.items() if pick not in later}


def beside(measured: Measured, default: TunedPick) -> Measured:
    """What was timed, with ``default`` as what the model chooses; as it was where that was not timed."""
    if default in measured.halves:
        return replace(measured, default=default)
    if default not in measured.hopeless:
        return measured
    us = measured.hopeless[default]
    given_up = {pick: least for pick, least in measured.hopeless.items() if pick != default}
    return replace(measured, default=default, halves={**measured.halves, default: (us, us)}, hopeless=given_up)


def settle(measured: Iterable[Measured], least_gain: float = LEAST_GAIN) -> tuple[TunedRow, ...]:
    """Rows of classes whose products are faster with one pick than with the default, and of products that want another.

    A class of products of several sizes gets the pick of the greatest mean gain among those that were timed on all; one
    product says nothing of its neighbours, whose tiles fill other waves.  A product has a row of its own where its
    fastest pick beats the default and is not its class's, or with the default where its class's would make it slower.
    Faster and slower: by more than ``least_gain`` in both halves.
    """
    classes: dict[TunedKey, list[Measured]] = {}
    for one in measured:
        classes.setdefault(one.key, []).append(one)
    return tuple(row for members in classes.values() for row in _rows(members, least_gain))


def _rows(members: Sequence[Measured], least_gain: float) -> Iterator[TunedRow]:
    """Of one class."""
    # A pick of other bytes on one product is a fault of the kernel: it is none for the others either.
    faulty = {pick for m in members for pick in m.different}
    same: dict[Sizes, list[Measured]] = {}
    for one in members:
        same.setdefault(one.sizes, []).append(one)
    shared = _fastest(members, faulty, least_gain) if len(same) > 1 else None
    if shared is not None:
        yield shared
    for alike in same.values():
        own = _fastest(alike, faulty, least_gain)
        if own is not None:
            if shared is None or own.pick != shared.pick:
                yield replace(own, exact=True)
        elif shared is not None and max(_gains(alike, shared.pick)) < 1 / (1 + least_gain):
            default = alike[0].default
            yield TunedRow(
                key=shared.key, pick=default, gain=1.0, products=len(alike), example=alike[0].sizes, exact=True
            )


def _fastest(members: Sequence[Measured], faulty: Collection[TunedPick], least_gain: float) -> TunedRow | None:
    """The pick of the greatest mean gain over ``members``; None where that is not above ``least_gain``."""
    shared = [p for p in members[0].halves if p not in faulty and all(p in m.halves for m in members)]
    gains = {pick: _gains(members, pick) for pick in shared}
    # Never by the better half: noise must not win.
    best = max(shared, key=lambda pick: min(gains[pick]), default=None)
    if best is None or min(gains[best]) <= 1 + least_gain:
        return None
    return TunedRow(
        key=members[0].key, pick=best, gain=math.sqrt(math.prod(gains[best])), products=len(members),
        example=members[0].sizes,
    )  # fmt: skip


def _gains(members: Sequence[Measured], pick: TunedPick) -> tuple[float, float]:
    """Of each half, the geometric mean of the default's time over the pick's."""
    halves = ([math.log(m.halves[m.default][half] / m.halves[pick][half]) for m in members] for half in (0, 1))
    first, second = (math.exp(math.fsum(logs) / len(members)) for logs in halves)
    return first, second


def table_of(rows: Iterable[TunedRow]) -> TunedTable:
    """What the chooser reads.

    Raises:
        InvalidInputError: a class or a product has two rows, or a product's sizes are not of its class.
    """
    listed = tuple(rows)
    return tuned_table(
        ((row.key, row.pick) for row in listed if not row.exact),
        (((row.key, row.example), row.pick) for row in listed if row.exact),
    )
