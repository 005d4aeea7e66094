"""A verification campaign: cases in, one JSON line each out, resumed by leaving out what is already written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gemmdesc.errors import CampaignError, InvalidInputError
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.workers import Workers
from gemmdesc.verification.cases import Case, Regime, draw_case, named_layers
from gemmdesc.verification.records import Record, record_from_plain, record_to_plain
from gemmdesc.verification.tasks import Item, loses_tail_task, variants_task, verify_task
from gemmdesc.verification.tensors import footprint

#: Called with a phase's name, how much of it is done, and of how much (None: not known).
Report = Callable[[str, int, int | None], None]
#: Opens this many workers at most.
OpenWorkers = Callable[[int], AbstractContextManager[Workers]]
_KIND = "shapes"
#: Indices of one look for lost tails, and looks before giving up: in all, and without having found any.
_LOOK_CASES = 200
_LOOKS = 100
_FRUITLESS_LOOKS = 10


@dataclass(frozen=True, kw_only=True)
class Options:
    """How many cases of each regime, and draws of each case; ``named`` None means the whole list.

    Raises:
        InvalidInputError: a count is negative, or draws are less than 1.
    """

    seed: int = 1
    draws: int = 10
    named_draws: int = 1
    unrounded: int = 3000
    aligned: int = 1000
    deep: int = 500
    named: int | None = None
    lost_tail: int = 100

    def __post_init__(self) -> None:
        for name in ("seed", "unrounded", "aligned", "deep", "lost_tail", "named"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidInputError(f"{name} must be at least 0 (got {value})")
        for name in ("draws", "named_draws"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1 (got {getattr(self, name)})")

    def draws_in(self, regime: Regime) -> int:
        return self.named_draws if regime is Regime.NAMED else self.draws


def options_of_size(shapes: int, draws: int, seed: int, named: int = 0) -> Options:
    """Options for about ``shapes`` cases in the proportions of the full campaign."""
    return Options(
        seed=seed, draws=draws, unrounded=shapes * 30 // 46, aligned=shapes * 10 // 46, deep=shapes * 5 // 46,
        lost_tail=shapes // 46, named=named,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Processes to use, and the device memory that they share (0: nothing to share)."""

    workers: int = 1
    memory_bytes: int = 0

    def workers_for(self, largest: int) -> int:
        """How many processes may work on cases of ``largest`` bytes at once."""
        if not self.memory_bytes:
            return self.workers
        return max(1, min(self.workers, self.memory_bytes // max(1, largest)))


def cases_of(options: Options) -> list[Case]:
    """The campaign's cases, but for lost tails, which have to be looked for."""
    named = len(named_layers())
    counts = {
        Regime.UNROUNDED: options.unrounded,
        Regime.ALIGNED: options.aligned,
        Regime.DEEP: options.deep,
        Regime.NAMED: named if options.named is None else min(named, options.named),
    }
    return [draw_case(regime, options.seed, i) for regime, number in counts.items() for i in range(number)]


def run_campaign(
    open_workers: OpenWorkers, options: Options, machine: Machine, folder: Path, identity: dict[str, object],
    report: Report,
) -> tuple[Record, ...]:  # fmt: skip
    """Verify every case not yet in ``folder``, and hand back all records there, in the order of the cases.

    Cases that need a kernel not compiled yet come first, one for each, so that processes do not compile the same one;
    those too large for all processes at once come last, in fewer.

    Raises:
        CampaignError: ``folder`` holds another campaign, or a process lost its device; what was done is on disk, and
            the next call goes on from there.
    """
    journal = Journal(folder, identity)
    done = {r.key: r for r in map(record_from_plain, journal.read(_KIND))}
    cases = cases_of(options)
    small_limit = machine.memory_bytes // machine.workers if machine.memory_bytes else 0
    with open_workers(machine.workers) as workers:
        cases += lost_tails(workers, journal, options, report)
        items = [Item(case=c, draws=options.draws_in(c.regime)) for c in cases if c.key not in done]
        small = [i for i in items if not small_limit or footprint(i.case) <= small_limit]
        first, rest = _compile_first(workers, small, report)
        _work(workers, first + rest, journal, done, "verify", report)
    large = [i for i in items if i not in small]
    if large:
        large.sort(key=lambda i: footprint(i.case))
        with open_workers(machine.workers_for(footprint(large[-1].case))) as workers:
            _work(workers, large, journal, done, "verify, large", report)
    return tuple(done[c.key] for c in cases if c.key in done)


def _compile_first(workers: Workers, items: list[Item], report: Report) -> tuple[list[Item], list[Item]]:
    """Split into cases that need a kernel which no case before them needs, and all others; smallest first in both."""
    needed: dict[str, tuple[str, ...]] = {}
    for done, (item, variants) in enumerate(workers.run(variants_task, items), 1):
        needed[item.case.key] = variants
        report("plan", done, len(items))
    seen: set[str] = set()
    first: list[Item] = []
    rest: list[Item] = []
    for item in sorted(items, key=lambda i: footprint(i.case)):
        fresh = set(needed[item.case.key]) - seen
        seen |= fresh
        (first if fresh else rest).append(item)
    # The largest of what is left go first, so that no process ends the campaign alone.
    return first, rest[::-1]


def _work(
    workers: Workers, items: Sequence[Item], journal: Journal, done: dict[str, Record], phase: str, report: Report
) -> None:
    for at, (_, record) in enumerate(workers.run(verify_task, items), 1):
        journal.append(_KIND, record_to_plain(record))
        done[record.key] = record
        report(phase, at, len(items))
        if record.fatal:
            raise CampaignError(
                f"device must stay usable; case {record.key} is recorded, run again to go on (got {record.failure})"
            )


def lost_tails(workers: Workers, journal: Journal, options: Options, report: Report) -> list[Case]:
    """The first ``options.lost_tail`` skinny and deep cases of the seed whose descriptor sums fewer than k.

    What was found is kept in the journal.  Fewer come back where looks run out.
    """
    looks = list(journal.read("lost_tails"))
    found = [int(i) for look in looks for i in look["indices"]]
    for number in range(len(looks), _LOOKS):
        if len(found) >= options.lost_tail or (number >= _FRUITLESS_LOOKS and not found):
            break
        indices = range(number * _LOOK_CASES, (number + 1) * _LOOK_CASES)
        items = [Item(case=draw_case(Regime.LOST_TAIL, options.seed, i), draws=1) for i in indices]
        hits = sorted(item.case.index for item, lost in workers.run(loses_tail_task, items) if lost)
        journal.append("lost_tails", {"look": number, "indices": hits})
        found += hits
        report("lost tails", min(len(found), options.lost_tail), options.lost_tail)
    return [draw_case(Regime.LOST_TAIL, options.seed, i) for i in found[: options.lost_tail]]


def read_records(folder: Path) -> Iterator[Record]:
    """The records of a campaign's folder.

    Raises:
        CampaignError: there is no campaign.
    """
    path = folder / f"{_KIND}.jsonl"
    if not path.is_file():
        raise CampaignError(f"folder must hold a campaign of verify (got {folder})")
    for line in path.read_text().splitlines():
        yield record_from_plain(json.loads(line))
