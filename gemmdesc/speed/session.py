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
from gemmdesc.speed.measuring import INDUCTOR, Device, Limits, Row, State, measure
from gemmdesc.speed.sets import control_shapes
from gemmdesc.speed.shapes import SpeedShape

#: How much longer than the first the last control may take.
_CONTROL_MARGIN = 1.3
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
    """The shapes of the plan's shard that lack runs, those with the fewest first, else in a shuffled order.

    The order does not depend on the session, so that one that has little time still meets every group.
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
    return tuple(sorted(lacking, key=lambda s: done[s.name]))


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
    before = device.clock()
    _control(device, limits, journal, random, plan.rounds, "first")
    reserve = _CONTROL_MARGIN * (device.clock() - before)
    done, longest = 0, 0.0
    for shape in todo:
        before = device.clock()
        if before - began + reserve + longest > plan.seconds and done:
            break
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
    least = ", ".join(f"{name} {us:.1f}" for name, us in row.least.items())
    return f"{row.shape.name}: {ratio:.3f} ({times} us; least {least} us)"
