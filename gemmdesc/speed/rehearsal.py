"""A card that is none: times follow from sizes and a hash, and a clock of its own runs while they are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from gemmdesc.speed.measuring import AS_OURS, INDUCTOR, INDUCTOR_MAX, LIBRARY, OURS, PRODUCT, Limits, Sides
from gemmdesc.speed.schedules import TWO_LAUNCHES
from gemmdesc.speed.shapes import SpeedShape

_LIMITS = Limits(
    bytes_per_second=4.0e12, operations_per_second={"float16": 8.0e14, "float8_e4m3fn": 1.5e15, "float32": 5.0e13}
)
#: What one launch takes beside the work, and the host's share of a call, in microseconds.
_LAUNCH_US = {LIBRARY: 3.0, OURS: 2.5, PRODUCT: 3.0, INDUCTOR: 3.5, INDUCTOR_MAX: 3.0}
_HOST_US = {LIBRARY: 20.0, OURS: 12.0, INDUCTOR: 30.0, INDUCTOR_MAX: 30.0}
#: Seconds that opening a shape takes, without and with torch.compile.
_OPENING = (0.2, 20.0)


@dataclass
class RehearsalDevice:
    """``drift``: how much slower ours becomes with every 1,000 s of its clock, as a share.

    ``different``, ``declined``, ``failing``: names of shapes whose bytes differ, that we decline, that fail.
    ``schedules``: those that every plain product is timed with; of these ``wrong`` have other bytes.  ``tuned``: what
    of a table the pick of a shape is, by name.
    """

    drift: float = 0.0
    noise: float = 0.01
    different: frozenset[str] = frozenset()
    declined: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    schedules: tuple[str, ...] = ()
    wrong: frozenset[str] = frozenset()
    tuned: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0
    log: list[str] = field(default_factory=list)
    replays: int = 0

    @property
    def about(self) -> dict[str, Any]:
        return {"card": "none (rehearsal)", "versions": {"torch": "none"}}

    def limits(self) -> Limits:
        self.now += 1.0
        return _LIMITS

    def ready(self, shapes: Sequence[SpeedShape]) -> None:
        self.now += 1e-3 * len(shapes)

    def close(self) -> None:
        """Nothing is open."""

    def clock(self) -> float:
        return self.now

    @contextmanager
    def open(self, shape: SpeedShape, *, compiled: bool) -> Iterator[RehearsedShape]:
        self.now += _OPENING[compiled]
        self.log.append(shape.name)
        yield RehearsedShape(device=self, shape=shape, compiled=compiled)


@dataclass
class RehearsedShape:
    """A shape on a :class:`RehearsalDevice`."""

    device: RehearsalDevice
    shape: SpeedShape
    compiled: bool

    @property
    def sides(self) -> Sides:
        name = self.shape.name
        calls = [LIBRARY, OURS, *([PRODUCT] if self.shape.following else [])]
        calls += [INDUCTOR, INDUCTOR_MAX] if self.compiled else []
        plain = self.shape.plain_half
        others = {s: AS_OURS if s == TWO_LAUNCHES else s for s in self.device.schedules if plain}
        wrong = [s for s in others if s in self.device.wrong]
        calls += [s for s, kernel in others.items() if kernel != AS_OURS and s not in wrong]
        return Sides(
            calls=tuple(calls), different=(*((OURS,) if name in self.device.different else ()), *wrong),
            schedules=others,
            declined="kernel: none" if name in self.device.declined else "",
            failure="out of memory" if name in self.device.failing else "", kernel="rehearsed",
            slices=1 + _hash(name) % 2, tuned=self.device.tuned.get(name, ""),
        )  # fmt: skip

    def device_us(self, call: str) -> float:
        least = max(_LIMITS.least_us(self.shape).values())
        self.device.replays += 1
        wobble = 1 + self.device.noise * (_hash(f"{self.shape.name} {call} {self.device.replays}") % 1000 / 1000 - 0.5)
        slower = 1 + self.device.drift * self.device.now / 1000 if call == OURS else 1.0
        following = 1.1 if self.shape.following and call in (LIBRARY, INDUCTOR) else 1.0
        taken = (1.25 * least * following + _LAUNCH_US.get(call, 2.0)) * wobble * slower
        self.device.now += max(2e-3, 1e-6 * taken)
        return taken

    def host_us(self, call: str) -> float:
        self.device.now += 2e-3
        return _HOST_US[call]


def _hash(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:4], "little")
