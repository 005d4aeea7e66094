"""Campaigns that verify kinds of problems: shapes of several kinds in turn, recorded in a folder, resumed by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdesc.errors import CampaignError, InvalidInputError
from gemmdesc.library.interface import Library
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.sampling import Scope
from gemmdesc.probe.workers import Workers
from gemmdesc.verification.campaign import Report
from gemmdesc.verification.kind_draws import KindItem
from gemmdesc.verification.kind_records import KindRecord, kind_record_from_plain, kind_record_to_plain
from gemmdesc.verification.kinds import verify_kind

_SHAPES = "shapes"
#: Shapes that are planned ahead of all others, to see which kernels they need.
_LOOKED_AT = 2000


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """``shapes`` of each kind, and ``draws`` of each shape; ``seconds``: none is begun after so long.

    Raises:
        InvalidInputError: a number is too small.
    """

    shapes: int = 1000
    draws: int = 10
    seed: int = 1
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("shapes", 1), ("draws", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} must be at least {least} (got {getattr(self, name)})")


#: What a worker does with one shape.
Verify = Callable[[Library, KindItem], KindRecord | None]
#: Names of the compiled kernels that one shape needs.
Needs = Callable[[Library, KindItem], tuple[str, ...]]


def run_kinds(
    workers: Workers, scopes: Mapping[str, Scope], options: KindOptions, folder: Path, identity: dict[str, Any],
    report: Report, verify: Verify = verify_kind, needs: Needs | None = None,
) -> dict[str, tuple[KindRecord, ...]]:  # fmt: skip
    """Verify every shape of every kind that is not in ``folder`` yet; all records there, by kind, in their order.

    ``scopes``: by the kind's name.  ``verify``: does one shape, with the workers' library.  Kinds take turns, so that a
    session cut short has some of each; with ``needs``, shapes that need a kernel which no other one before them does
    come first, so that processes do not compile the same one.

    Raises:
        CampaignError: ``folder`` holds another campaign, or a process lost its device; what was done is on disk.
    """
    about = {**identity, "seed": options.seed, "draws": options.draws}
    journals = {n: Journal(folder / n, {**about, "kind": n, "dtypes": _types(s)}) for n, s in scopes.items()}
    done = {n: {r.key: r for r in map(kind_record_from_plain, j.read(_SHAPES))} for n, j in journals.items()}
    until = None if options.seconds is None else time.time() + options.seconds
    items = [
        KindItem(name=n, scope=s, seed=options.seed, index=i, draws=options.draws, until=until)
        for i in range(options.shapes)
        for n, s in scopes.items()
    ]
    left = [i for i in items if i.key not in done[i.name]]
    if needs is not None:
        left = _compile_first(workers, left, needs, report)
    for at, (item, record) in enumerate(workers.run(verify, left), 1):
        report("verify", at, len(left))
        if record is None:
            continue
        journals[item.name].append(_SHAPES, kind_record_to_plain(record))
        done[item.name][record.key] = record
        if record.fatal:
            raise CampaignError(
                f"device must stay usable; {record.key} is recorded, run again to go on (got {record.failure})"
            )
    return {n: tuple(done[n][i.key] for i in items if i.name == n and i.key in done[n]) for n in scopes}


def _compile_first(workers: Workers, items: list[KindItem], needs: Needs, report: Report) -> list[KindItem]:
    """``items`` in their order, but that of the first ones those with a kernel that none before them needs lead."""
    looked, needed = items[:_LOOKED_AT], dict[str, tuple[str, ...]]()
    for at, (item, names) in enumerate(workers.run(needs, looked), 1):
        needed[item.key] = names
        report("plan", at, len(looked))
    seen: set[str] = set()
    first: list[KindItem] = []
    rest: list[KindItem] = []
    for item in looked:
        fresh = set(needed[item.key]) - seen
        seen |= fresh
        (first if fresh else rest).append(item)
    return [*first, *rest, *items[_LOOKED_AT:]]


def _types(scope: Scope) -> list[str]:
    return [d.value for d in scope.dtypes]
