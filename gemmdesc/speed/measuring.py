"""One product timed on a device: bytes first, then rounds in which the calls take turns.  Pure but for the device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, Protocol

from gemmdesc.dtypes import DType
from gemmdesc.errors import GemmdescError
from gemmdesc.speed.shapes import SpeedShape

#: The calls: the library's (with eager torch's operators after it), ours, the library's product without what follows
#: it, and torch.compile's code for the same function, as it comes and with max-autotune.
LIBRARY, OURS, PRODUCT, INDUCTOR, INDUCTOR_MAX = "library", "ours", "product", "inductor", "inductor_max"
CALLS = (LIBRARY, OURS, PRODUCT, INDUCTOR, INDUCTOR_MAX)
#: What stands for the kernel of a schedule that is ours, whose time is its own, too.
AS_OURS = "as ours"
#: How what stands for a schedule begins that could not be launched.
FAILED = "failed: "
#: Rounds whose times are not kept: the first replays of a graph, and a clock that is not yet up.
_WARM_ROUNDS = 1


class TimingError(GemmdescError):
    """A call has the right bytes, and the device cannot time it."""


class State(Enum):
    """What became of a shape: timed with equal bytes, bytes differ, we decline, or the library or device failed."""

    EQUAL = "equal"
    DIFFERENT = "different"
    DECLINED = "declined"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Measured where the shapes are: bytes moved and operations done in a second, the latter by operand type."""

    bytes_per_second: float
    operations_per_second: Mapping[str, float]

    def least_us(self, shape: SpeedShape) -> dict[str, float]:
        """Microseconds below which no schedule can go: ``bytes`` and ``operations``, the latter where it is known."""
        found = {"bytes": 1e6 * shape.moved_bytes / self.bytes_per_second}
        rate = self.operations_per_second.get(shape.product.dtype.value)
        if rate:
            found["operations"] = 1e6 * shape.operations / rate
        return found


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What a device knows of a shape before timing it.

    ``calls``: some of CALLS.  ``different``: those of them whose bytes are not the library's.  ``kernel``: ours, and
    ``slices``: into how many parts it sums k.  ``tuned``: ``exact`` or ``class`` where ours is a tuned table's pick for
    these sizes or for their class, "" where the model chose; of what ``torch.mm`` computes, neither of fused calls nor
    of 8-bit floats.  ``sets``: input sets that calls rotate over.  ``schedules``: by name, the kernels of other
    schedules that apply, AS_OURS, or why one could not be launched; those that are timed are among ``calls``, and those
    whose bytes differ among ``different`` only.
    """

    calls: tuple[str, ...]
    different: tuple[str, ...] = ()
    declined: str = ""
    failure: str = ""
    kernel: str = ""
    slices: int = 1
    tuned: str = ""
    sets: int = 1
    schedules: Mapping[str, str] = field(default_factory=dict)


class Opened(Protocol):
    """A shape whose operands lie on a device."""

    @property
    def sides(self) -> Sides: ...

    def device_us(self, call: str) -> float:
        """Microseconds of one call on the device, from one replay of a graph of many; TimingError if it cannot be."""
        ...

    def host_us(self, call: str) -> float:
        """Microseconds that one call takes the host, from many in a row that nothing waits for."""
        ...


class Device(Protocol):
    """Where shapes are timed."""

    @property
    def about(self) -> dict[str, Any]:
        """``card`` and ``versions``."""
        ...

    def limits(self) -> Limits: ...

    def open(self, shape: SpeedShape, *, compiled: bool) -> AbstractContextManager[Opened]:
        """``compiled``: with torch.compile's code among the calls."""
        ...

    def ready(self, shapes: Sequence[SpeedShape]) -> None:
        """Make whatever takes long and can be made before shapes are opened, such as compiled kernels."""
        ...

    def clock(self) -> float:
        """Seconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Quartiles in microseconds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape in one session.  ``control``: ``first`` or ``last``, "" for the benchmark's own shapes."""

    shape: SpeedShape
    state: State
    sides: Sides
    reason: str = ""
    device: Mapping[str, Timing] = field(default_factory=dict)
    host: Mapping[str, Timing] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    control: str = ""

    def ratio(self, over: str = LIBRARY, under: str = OURS, *, host: bool = False) -> float | None:
        """Time of ``over`` / time of ``under``; with ``host``, launch and device time together; None if not timed."""
        times = [self._time(name, host) for name in (over, under)]
        return None if times[0] is None or times[1] is None else times[0] / times[1]

    def _time(self, call: str, host: bool) -> float | None:
        call = OURS if self.sides.schedules.get(call) == AS_OURS else call
        device, launch = self.device.get(call), self.host.get(call)
        if device is None or (host and launch is None):
            return None
        return device.median + (launch.median if host and launch else 0.0)


def timing(samples: Iterable[float]) -> Timing:
    """Quartiles of at least one sample."""
    values = sorted(samples)
    if len(values) == 1:
        return Timing(median=values[0], low=values[0], high=values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median=median, low=low, high=high)


def measure(
    device: Device, shape: SpeedShape, limits: Limits, random: Random, *, rounds: int, compiled: bool, control: str = ""
) -> Row:
    """Open ``shape`` on ``device``, and time its calls where ours has the library's bytes.

    In each of ``rounds`` every call is replayed once, in an order drawn anew, so that what warms or cools the card
    meets all alike.  Host times of fused calls are taken in rounds of their own.
    """
    with device.open(shape, compiled=compiled) as opened:
        sides = opened.sides
        least = limits.least_us(shape)
        state, reason = _state(sides)
        if state is not State.EQUAL:
            return Row(shape=shape, state=state, sides=sides, reason=reason, least=least, control=control)
        launched = tuple(c for c in sides.calls if c != PRODUCT) if shape.following else ()
        try:
            times = _turns(sides.calls, opened.device_us, random, rounds)
            host = _turns(launched, opened.host_us, random, rounds) if launched else {}
        except TimingError as error:
            return Row(
                shape=shape, state=State.FAILED, sides=sides, reason=str(error), least=least, control=control
            )
    return Row(
        shape=shape, state=state, sides=sides, least=least, control=control,
        device={name: timing(values) for name, values in times.items()},
        host={name: timing(values) for name, values in host.items()},
    )  # fmt: skip


def _state(sides: Sides) -> tuple[State, str]:
    if sides.failure:
        return State.FAILED, sides.failure
    if sides.declined:
        return State.DECLINED, sides.declined
    if OURS in sides.different:
        return State.DIFFERENT, "bytes differ from the library's"
    return State.EQUAL, ""


def _turns(calls: tuple[str, ...], once: Any, random: Random, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + _WARM_ROUNDS):
        order = list(calls)
        random.shuffle(order)
        for name in order:
            taken = once(name)
            if number >= _WARM_ROUNDS:
                times[name].append(taken)
    return times


def geometric_mean(values: Iterable[float]) -> float | None:
    """None where there are no values."""
    logs = [math.log(v) for v in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


#: The types whose rate of operations a device measures.
RATED = (DType.FLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT32)
