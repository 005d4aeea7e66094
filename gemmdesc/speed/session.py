"""A session: the control, as many shapes as there is time for, and the control again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.speed.journal import SUFFIX, Journal, Session
from gemmdesc.speed.layers import MODEL
from gemmdesc.speed.measuring import INDUCTOR, Device, Limits, Row, State, measure
from gemmdesc.speed.sets import control_shapes
from gemmdesc.speed.shapes import SpeedShape

#: How much longer than the first the last control may take.
_CONTROL_MARGIN = 1.3
#: Shapes that are made ready together.
_AHEAD = 24
#: Of these sets two shapes come before one of each other set: a session that has little time is to show them.
_FIRST = ("decode", MODEL, "unrounded")
#: Shapes of every group that torch.compile's code is timed for, evenly spread over it.
COMPILED_SHAPES = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a session is to do.

    ``shard``: (i, n): every n-th shape from the i-th on.  ``runs``: how often each shape is to be timed, in sessions
    that are not dropped.  ``compiled``: of how many shapes a group torch.compile's code is timed, too;
    ``only_compiled``: those alone, as often as ``runs`` with that code, for it takes long to make.

    Raises:
        InvalidInputError: a number out of its range.
    """

    shapes: tuple[SpeedShape, ...]
    seconds: float
    shard: tuple[int, int] = (0, 1)
    runs: int = 1
    rounds: int = 7
    compiled: int = COMPILED_SHAPES
    seed: int = 0
    only_compiled: bool = False

    def __post_init__(self) -> None:
        index, count = self.shard
        if not 0 <= index < count:
            raise InvalidInputError(f"shard must be i/n with 0 <= i < n (got {index}/{count})")
        for name, least in (("runs", 1), ("rounds", 1), ("compiled", 0), ("seconds", 1)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} must be at least {least} (got {getattr(self, name)})")


def remaining(plan: Plan, earlier: Iterable[Session]) -> tuple[SpeedShape, ...]:
    """The shapes of the plan's shard that lack runs, those with the fewest first, else sets in turn.

    The order does not depend on the session, and one that has little time still meets every set, with more shapes of
    decoding steps, of models on either side of 5 GFLOP, and of unrounded sizes.
    """
    rows = [r for s in earlier if not s.dropped for r in s.measured if r.state is not State.FAILED]
    shuffled = list(plan.shapes)
    if plan.only_compiled:
        rows = [r for r in rows if r.state is not State.EQUAL or INDUCTOR in r.sides.calls]
        chosen = with_compiled(plan.shapes, plan.compiled)
        shuffled = [s for s in shuffled if s.name in chosen]
    done = Counter(r.shape.name for r in rows)
    Random(plan.seed).shuffle(shuffled)
    index, count = plan.shard
    lacking = [s for s in shuffled[index::count] if done[s.name] < plan.runs]
    return tuple(sorted(_in_turn(lacking), key=lambda s: done[s.name]))


def _in_turn(shapes: Iterable[SpeedShape]) -> list[SpeedShape]:
    """``shapes`` of each set in their order, and of the sets in turn."""
    lots: dict[tuple[str, bool], list[SpeedShape]] = {}
    for shape in shapes:
        lots.setdefault((shape.part, shape.large and shape.part == MODEL), []).append(shape)
    turns = [
        ((1 + place) / (2 if part in _FIRST else 1), part not in _FIRST, part, large, shape)
        for (part, large), lot in lots.items() for place, shape in enumerate(lot)
    ]  # fmt: skip
    return [turn[-1] for turn in sorted(turns, key=lambda turn: turn[:-1])]


def with_compiled(shapes: Sequence[SpeedShape], count: int) -> frozenset[str]:
    """The names of ``count`` shapes of every group, evenly spread over it, or of all that there are."""
    groups: dict[tuple[str, str], list[str]] = {}
    for shape in shapes:
        groups.setdefault((shape.part, shape.group), []).append(shape.name)
    chosen: set[str] = set()
    for names in groups.values():
        taken = min(count, len(names))
        chosen |= {names[i * len(names) // taken] for i in range(taken)}
    return frozenset(chosen)


def run_session(
    device: Device,
    plan: Plan,
    folder: Path,
    name: str,
    about: Mapping[str, Any],
    earlier: Iterable[Session] = (),
    report: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> int:
    """Time what remains of ``plan`` until its seconds are over, into ``folder/<name>.speed.jsonl``.

    Returns how many shapes were timed.  ``report`` gets a line about each shape, and how many of how many are done.

    Raises:
        InvalidInputError: a session of that name was there before.
    """
    path = folder / f"{name}{SUFFIX}"
    if path.exists():
        raise InvalidInputError(f"name must be a new session's (got {path})")
    began, random = device.clock(), Random(plan.seed)
    todo, compiled = remaining(plan, earlier), with_compiled(plan.shapes, plan.compiled)
    if not todo:
        return 0
    limits = device.limits()
    rates = {name: rate / 1e12 for name, rate in limits.operations_per_second.items()}
    found = {"terabytes_per_second": limits.bytes_per_second / 1e12, "tera_operations_per_second": rates}
    journal = Journal(path, name, {**device.about, **about, "shard": list(plan.shard), "limits": found})
    device.ready(control_shapes())
    before = device.clock()
    _control(device, limits, journal, random, plan.rounds, "first")
    reserve = _CONTROL_MARGIN * (device.clock() - before)
    done, longest = 0, 0.0

    def is_over() -> bool:
        return done > 0 and device.clock() - began + reserve + longest > plan.seconds

    for place, shape in enumerate(todo):
        if place % _AHEAD == 0 and not is_over():
            device.ready(todo[place : place + _AHEAD])
        if is_over():
            break
        before = device.clock()
        row = measure(device, shape, limits, random, rounds=plan.rounds, compiled=shape.name in compiled)
        journal.add(row)
        done += 1
        longest = max(longest, device.clock() - before)
        report(in_words(row), done, len(todo))
    _control(device, limits, journal, random, plan.rounds, "last")
    journal.end()
    return done


def _control(device: Device, limits: Limits, journal: Journal, random: Random, rounds: int, when: str) -> None:
    for shape in control_shapes():
        journal.add(measure(device, shape, limits, random, rounds=rounds, compiled=False, control=when))


def in_words(row: Row) -> str:
    """One line about a row."""
    ratio = row.ratio()
    if ratio is None:
        return f"{row.shape.name}: {row.state.value} {row.reason}".rstrip()
    times = ", ".join(f"{name} {t.median:.1f}" for name, t in row.device.items())
    wrong = [name for name in row.sides.different if name in row.sides.schedules]
    times += f", bytes differ: {' '.join(wrong)}" if wrong else ""
    least = ", ".join(f"{name} {us:.1f}" for name, us in row.least.items())
    return f"{row.shape.name}: {ratio:.3f} ({times} us; least {least} us)"
