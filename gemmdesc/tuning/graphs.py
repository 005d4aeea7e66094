"""Timing on a CUDA card: graphs of many calls that rotate over input sets, replayed between two events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

#: Input sets take so many bytes together, three times the L2 of an H200, so that what a call reads is not there.
ROTATED_BYTES = 160 << 20
#: More sets than this cost more to make than they show: what they hold then lies in the L2 for every call alike.
MOST_SETS = 48
#: A graph's replay takes about so long, or so many calls.
_REPLAY_US = 3000.0
_MOST_CALLS = 384


def set_count(moved_bytes: int) -> int:
    """How many input sets a call that moves so many bytes rotates over."""
    return min(MOST_SETS, max(1, math.ceil(ROTATED_BYTES / moved_bytes)))


def events_us(call: Callable[[], Any]) -> float:
    """Microseconds on the current stream between an event before ``call`` and one after; waits for it."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000


def captured(call: Callable[[T], Any], sets: Sequence[T]) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of as many calls as take a few milliseconds, which rotate over ``sets``, and how many they are."""
    import torch

    for one in sets:
        call(one)
    torch.cuda.synchronize()
    once = min(events_us(lambda: call(sets[0])) for _ in range(3))
    rounds = max(1, round(min(_MOST_CALLS, _REPLAY_US / max(once, 2.0)) / len(sets)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for one in sets:
                call(one)
    return graph, rounds * len(sets)
