"""Campaigns about several kinds within one limit of time, which goes to those that most queries still decline of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from gemmdesc.errors import CampaignError

#: Called with a phase's name, how much of it is done, and of how much.
Report = Callable[[str, int, int | None], None]
#: Seconds that a campaign may go on once it is its turn: what is left half-way is begun again with its next one.
_LEAST_TURN = 60.0


_ENDED = object()


class Turning(Protocol):
    """What is asked of a campaign here: see :class:`gemmdesc.probe.campaign.Campaign`."""

    def turns(self) -> Iterator[None]: ...

    def missing(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Came:
    """What one kind came to: whether its campaign ended, and the share of queries that it has no verified row for yet.

    ``seconds`` went to it; ``error``: why it was given up, if it was.
    """

    ended: bool
    missing: float
    seconds: float
    error: str = ""


class _TimeOver(CampaignError):
    """The turn is over; all that was reported is on disk."""


class _Turn:
    """The report of all campaigns: it ends the turn of the one whose turn it is."""

    def __init__(self, report: Report, clock: Callable[[], float]) -> None:
        self._report, self._clock = report, clock
        self.end = float("inf")

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        self._report(phase, done, total)
        if self._clock() > self.end:
            raise _TimeOver(f"time must suffice; the same command goes on (got to {phase} {done} of {total})")


def run_several(
    campaigns: Mapping[str, Callable[[Report], Turning]], seconds: float, report: Report,
    clock: Callable[[], float] = monotonic, least_turn: float = _LEAST_TURN,
) -> dict[str, Came]:  # fmt: skip
    """Run campaigns by turns, for about so many ``seconds``; each is made, given its report, when its first turn comes.

    A turn is one part of a campaign, or as much of it as its share of the time allows.  All have a first turn, in the
    order given; from then on, turns go to the campaign that misses the largest share of its queries.
    """
    turn, end = _Turn(report, clock), clock() + seconds
    made: dict[str, Turning] = {}
    parts: dict[str, Iterator[None]] = {}
    came = {name: Came(ended=False, missing=1.0, seconds=0.0) for name in campaigns}
    while (left := end - clock()) > 0:
        name = _next(came, made)
        if name is None:
            break
        begun = clock()
        waiting = len(campaigns) - len(made) or sum(_goes_on(c) for c in came.values())
        turn.end = min(end, begun + max(least_turn, left / waiting))
        ended, error = False, ""
        try:
            if name not in made:
                made[name] = campaigns[name](turn)
            ended = next(parts.setdefault(name, made[name].turns()), _ENDED) is _ENDED
        except _TimeOver:
            # An iterator that raised is at its end; a new one goes on from what is on disk.
            parts.pop(name)
        except CampaignError as failed:
            error = str(failed)
        missing = made[name].missing() if name in made else 1.0
        came[name] = Came(ended=ended, missing=missing, seconds=came[name].seconds + clock() - begun, error=error)
    return came


def _goes_on(came: Came) -> bool:
    return not came.ended and not came.error


def _next(came: Mapping[str, Came], made: Mapping[str, Turning]) -> str | None:
    """The first that had no turn yet, then the one that misses most; None where all have ended."""
    going = [name for name, c in came.items() if _goes_on(c)]
    first = next((name for name in going if name not in made), None)
    return first or max(going, key=lambda name: came[name].missing, default=None)
