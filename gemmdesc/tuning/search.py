"""Timing the configs that compete for one descriptor, and what several products of one class come to.  Pure.

Bytes come first: a config whose bytes are not the default's is never timed, and counts as a fault of the kernels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.competing import TunableChoice, competing, key_of, pick_of
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tuned import TunedKey, TunedPick, TunedTable, tuned_table

#: A pick takes the default's place where it is faster by more than this in both halves of the rounds: differences
#: between program starts are as large.
LEAST_GAIN = 0.02
#: Configs slower than the fastest by more than this after a few rounds are timed no longer.
_HOPELESS = 1.25
_FIRST_ROUNDS = 2


class Trial(Protocol):
    """Runs choices for one product, on its operands."""

    def output(self, choice: TunableChoice) -> Any:
        """The result's bytes, as something that equals itself alone; None where the choice cannot be launched."""
        ...

    def microseconds(self, choice: TunableChoice) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One product: medians in microseconds of each half of the rounds, by pick; the first is the default.

    ``different``: picks whose bytes were not the default's; ``unusable``: those that could not be launched.
    """

    key: TunedKey
    sizes: tuple[int, int, int]
    default: TunedPick
    halves: Mapping[TunedPick, tuple[float, float]]
    different: tuple[TunedPick, ...] = ()
    unusable: tuple[TunedPick, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TunedRow:
    """A pick for a class of products, and what it rests on.

    ``gain``: the default's time over the pick's, the geometric mean over ``products``, of which one is ``example``.
    """

    key: TunedKey
    pick: TunedPick
    gain: float
    products: int
    example: tuple[int, int, int]


def measure(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, trial: Trial, random: Random, *, rounds: int,
    choices: tuple[TunableChoice, ...] = (),
) -> Measured | Declined:  # fmt: skip
    """Time what competes for ``desc`` in ``rounds`` of turns, those without hope for two rounds only.

    ``choices``: some of these instead of all, the default first.

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
    return Measured(
        key=key_of(choices[0], meta), sizes=(meta.m, meta.n, meta.k), default=default, different=different,
        unusable=unusable, halves=_race(racing, default, trial, random, max(2, rounds)),
    )  # fmt: skip


def _race(
    racing: dict[TunedPick, TunableChoice], default: TunedPick, trial: Trial, random: Random, rounds: int
) -> dict[TunedPick, tuple[float, float]]:
    times: dict[TunedPick, list[float]] = {pick: [] for pick in racing}
    order = list(racing)
    for pick in order:
        trial.microseconds(racing[pick])  # the first replay warms caches and clocks
    for number in range(_FIRST_ROUNDS + rounds):
        if number == _FIRST_ROUNDS:
            best = min(min(values) for values in times.values())
            order = [p for p in order if min(times[p]) <= _HOPELESS * best or p == default]
        random.shuffle(order)
        for pick in order:
            times[pick].append(trial.microseconds(racing[pick]))
    later = {pick: times[pick][_FIRST_ROUNDS:] for pick in order}
    return {p: (statistics.median(v[: rounds // 2]), statistics.median(v[rounds // 2 :])) for p, v in later.items()}


def settle(measured: Iterable[Measured], least_gain: float = LEAST_GAIN) -> tuple[TunedRow, ...]:
    """A row for every class whose products are faster with another pick than the default, in both halves.

    What a class of several products gets is the pick of the greatest mean gain among those that were timed on all.
    """
    classes: dict[TunedKey, list[Measured]] = {}
    for one in measured:
        classes.setdefault(one.key, []).append(one)
    rows = (_row(key, members, least_gain) for key, members in classes.items())
    return tuple(row for row in rows if row is not None)


def _row(key: TunedKey, members: Sequence[Measured], least_gain: float) -> TunedRow | None:
    shared = [p for p in members[0].halves if all(p in m.halves and p not in m.different for m in members)]
    gains = {pick: tuple(_gain(members, pick, half) for half in (0, 1)) for pick in shared}
    # Never by the better half: noise must not win.
    best = max(shared, key=lambda pick: min(gains[pick]), default=None)
    if best is None or min(gains[best]) <= 1 + least_gain:
        return None
    return TunedRow(
        key=key, pick=best, gain=math.sqrt(math.prod(gains[best])), products=len(members), example=members[0].sizes
    )


def _gain(members: Sequence[Measured], pick: TunedPick, half: int) -> float:
    logs = [math.log(m.halves[m.default][half] / m.halves[pick][half]) for m in members]
    return math.exp(math.fsum(logs) / len(logs))


def table_of(rows: Iterable[TunedRow]) -> TunedTable:
    """What the chooser reads.

    Raises:
        InvalidInputError: a class has two rows.
    """
    return tuned_table((row.key, row.pick) for row in rows)
