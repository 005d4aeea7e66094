"""Coverage campaigns: many shapes of every family over six regimes of sizes, by shards, resumed from what is on disk.

A shape is one problem in the library's own terms, fixed by (seed, family, regime, index) alone.  What does one shape
is a task of :mod:`gemmdesc.verification.kind_kernels` or :mod:`gemmdesc.verification.kinds`; here it is decided which
shapes there are, in which order they come, and what is written of each.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError, InvalidInputError
from gemmdesc.library.interface import Library
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.sampling import KIND_NAMES, Regime, Scope, scope_named
from gemmdesc.probe.workers import Workers
from gemmdesc.verification.campaign import Report
from gemmdesc.verification.coverage_records import covered_of, covered_to_plain
from gemmdesc.verification.coverage_rows import Rows, bind_records, family_journal, last_records, note_words
from gemmdesc.verification.in_flight import Marking, take_marks
from gemmdesc.verification.kind_campaign import Needs, Verify
from gemmdesc.verification.kind_draws import KindItem

#: Where sizes come from; each holds the same number of a family's shapes.
REGIMES: tuple[Regime, ...] = (
    Regime.ALIGNED, Regime.UNROUNDED, Regime.DEEP, Regime.VECTOR, Regime.SMALL, Regime.LONG,
)  # fmt: skip
#: Plain products of one operand type each; every other family is a kind that the probe can be asked about.
_PLAIN = MappingProxyType({"float16": DType.FLOAT16, "bfloat16": DType.BFLOAT16})
FAMILIES: tuple[str, ...] = (*_PLAIN, *(n for n in KIND_NAMES if n != Kind.PLAIN.value))
#: Shapes of a family unless told otherwise.  The library refuses about three in ten of the 8-bit ones.
_SHAPES = MappingProxyType(
    {"float16": 112_200, "bfloat16": 51_000, "float8": 31_200, "float8_fast": 31_200, "float32": 10_200,
     "tf32": 10_200, "batch": 10_200}
)  # fmt: skip
_OTHER_SHAPES = 1560
_ALL = "all"
#: Shapes that are planned ahead of all others, to see which kernels they need.
_LOOKED_AT = 6000
#: Seconds between notes of how far a session is.
_NOTE_SECONDS = 5.0
#: Kinds of lines in a campaign's own journal: what made the records, and how far each session came.
ABOUT, SESSIONS = "about", "sessions"
_SUSPECTS, _MARKS = "suspects", "marks"


def usual_shapes(family: str) -> int:
    """How many shapes a family has unless told otherwise."""
    return _SHAPES.get(family, _OTHER_SHAPES)


def family_scope(family: str) -> Scope:
    """What is drawn of a family.

    Raises:
        InvalidInputError: there is no such family.
    """
    if family not in FAMILIES:
        raise InvalidInputError(f"family must be of {', '.join(FAMILIES)} (got {family!r})")
    return Scope(dtypes=(_PLAIN[family],)) if family in _PLAIN else scope_named(family)


def chosen_shapes(given: Sequence[str]) -> dict[str, int]:
    """Shapes by family from ``FAMILY`` or ``FAMILY=SHAPES``; ``all`` stands for every family, later ones win.

    Raises:
        InvalidInputError: there is no such family, or a number that is none or less than 1.
    """
    found: dict[str, int] = {}
    for text in given:
        name, _, number = text.partition("=")
        if number and not (number.isdecimal() and int(number)):
            raise InvalidInputError(f"shapes of {name} must be an integer of at least 1 (got {number!r})")
        for family in FAMILIES if name == _ALL else (name,):
            family_scope(family)
            found[family] = int(number) if number else usual_shapes(family)
    return {family: found[family] for family in FAMILIES if family in found}


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Part ``number`` of ``count``: every index is in exactly one.  Two neighbours share a part.

    (Every second shape is computed as its transposed product, so that a part has both.)

    Raises:
        InvalidInputError: there is no such part.
    """

    number: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise InvalidInputError(f"shard must be i/n with 0 <= i < n (got {self})")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``0/2``.

        Raises:
            InvalidInputError: ``text`` is no such thing.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal()):
            raise InvalidInputError(f"shard must be i/n with 0 <= i < n (got {text!r})")
        return cls(number=int(number), count=int(count))

    def __contains__(self, index: int) -> bool:
        return index // 2 % self.count == self.number

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """What one call does.

    ``shapes``: of each family, over all regimes; ``regimes``: those worked on now; ``seconds``: no shape is begun after
    so long, of everything that a call does.

    Raises:
        InvalidInputError: a number is too small, or a regime is none of a coverage campaign.
    """

    shapes: Mapping[str, int]
    regimes: tuple[Regime, ...] = REGIMES
    draws: int = 10
    seed: int = 1
    shard: Shard = field(default_factory=Shard)
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} must be at least {least} (got {getattr(self, name)})")
        for regime in self.regimes:
            if regime not in REGIMES:
                known = ", ".join(r.value for r in REGIMES)
                raise InvalidInputError(f"regime must be of {known} (got {regime.value})")


@dataclass(frozen=True, kw_only=True)
class CoverageTasks:
    """What workers do with one shape, to see which kernels it needs, and to compile them (None: there are none)."""

    verify: Verify
    needs: Needs | None = None
    compile: Callable[[Library, KindItem], None] | None = None


def coverage_item(
    family: str, scope: Scope, regime: Regime, index: int, *, seed: int, draws: int, until: float | None = None
) -> KindItem:
    """One shape as workers take it; its sizes and operands come from a seed of its family and regime."""
    words = np.random.SeedSequence([seed, *family.encode(), *regime.value.encode()]).generate_state(1)
    return KindItem(
        name=f"{family}/{regime.value}", scope=replace(scope, regimes=(regime,)), seed=int(words[0]), index=index,
        draws=draws, until=until,
    )  # fmt: skip


def run_coverage(
    workers: Workers, scopes: Mapping[str, Scope], options: CoverageOptions, folder: Path, identity: Mapping[str, Any],
    report: Report, tasks: CoverageTasks, about: Mapping[str, Any] = MappingProxyType({}), rows: Rows | None = None,
) -> int:  # fmt: skip
    """Do the shapes of the options' shard that are not in ``folder`` yet, until time is over; returns how many.

    ``scopes``: by family, those of ``options.shapes``; of their regimes, those of a coverage campaign are drawn.
    Families and regimes progress in proportion, so that a session cut short has some of each; what one was working on
    that was killed, or lost a worker, comes last.  Every record is handed
    to the operating system as soon as it is known.  ``about``: what made the records (command, card, versions, date),
    kept beside them.  ``rows``: of the profile; a record is bound to the row that decided its shape, and a shape whose
    row has changed since is done again.  None: records are bound to nothing.

    Raises:
        CampaignError: ``folder`` holds another campaign, or a process lost its device; what was done is on disk, and
            the next call goes on from there.
    """
    until = None if options.seconds is None else time.time() + options.seconds
    log = Journal(folder, {**identity, "seed": options.seed, "draws": options.draws})
    journals = {f: family_journal(folder / f, {**identity, "family": f}) for f in scopes}
    log.append(ABOUT, dict(about))
    if rows is not None:
        bind_records(workers, rows, folder, journals, list(_first(scopes, options, until)), report)
        note_words(log, rows)
    items = _suspects_last(list(_left(scopes, options, journals, until, rows)), log, folder / _MARKS)
    began = time.monotonic()
    if tasks.needs is not None and tasks.compile is not None:
        _compile(workers, items[:_LOOKED_AT], tasks.needs, tasks.compile, report)
    session = _Session(log, options, compiling=time.monotonic() - began)
    for item, record in workers.run(Marking(verify=tasks.verify, folder=folder / _MARKS), items):
        if record is None:
            break
        family, regime = item.name.split("/")
        row = "" if rows is None else rows.word(record)
        journals[family].append(regime, covered_to_plain(covered_of(record, item.index, row)))
        session.count(item.name)
        report("coverage", session.done, len(items))
        if record.fatal:
            session.note()
            raise CampaignError(
                f"device must stay usable; {record.key} is recorded, run again to go on (got {record.failure})"
            )
    session.note()
    # What other workers were about when time was over is not suspected of anything.
    list(take_marks(folder / _MARKS))
    return session.done


def _suspects_last(items: list[KindItem], log: Journal, marks: Path) -> list[KindItem]:
    """``items`` in their order, but those last that a session which did not end by itself was working on."""
    for key in take_marks(marks):
        log.append(_SUSPECTS, {"key": key})
    suspects = {line["key"] for line in log.read(_SUSPECTS)}
    return sorted(items, key=lambda item: item.key in suspects)


def _first(scopes: Mapping[str, Scope], options: CoverageOptions, until: float | None) -> Iterator[KindItem]:
    """Shape 0 of every family and regime."""
    for family, scope in scopes.items():
        for regime in (r for r in REGIMES if r in scope.regimes):
            yield coverage_item(family, scope, regime, 0, seed=options.seed, draws=options.draws, until=until)


def _left(
    scopes: Mapping[str, Scope], options: CoverageOptions, journals: Mapping[str, Journal], until: float | None,
    rows: Rows | None,
) -> Iterator[KindItem]:  # fmt: skip
    """The shapes of the shard of which no journal holds a record that is not stale, families and regimes in proportion.
    """
    places: list[tuple[float, int, KindItem]] = []
    for first in _first(scopes, options, until):
        family, regime = first.name.split("/")
        if Regime(regime) not in options.regimes:
            continue
        count = math.ceil(options.shapes[family] / sum(r in scopes[family].regimes for r in REGIMES))
        known = last_records(journals[family], regime)
        done = {i for i, record in known.items() if rows is None or record.row in rows.words}
        places += [
            ((i + 0.5) / count, len(places), replace(first, index=i))
            for i in range(count)
            if i in options.shard and i not in done
        ]
    return (item for _, _, item in sorted(places, key=lambda place: place[:2]))


def _compile(
    workers: Workers, items: Sequence[KindItem], needs: Needs, compile_one: Callable[[Library, KindItem], None],
    report: Report,
) -> None:  # fmt: skip
    """Have every kernel that ``items`` need compiled by one process, for all to find on disk."""
    needed: dict[str, tuple[str, ...]] = {}
    for at, (item, names) in enumerate(workers.run(needs, items), 1):
        needed[item.key] = names
        report("plan", at, len(items))
    seen: set[str] = set()
    first = []
    for item in items:
        if not seen.issuperset(needed[item.key]):
            seen.update(needed[item.key])
            first.append(item)
    for at, _ in enumerate(workers.run(compile_one, first), 1):
        report("compile", at, len(first))


class _Session:
    """What one call has done so far, noted on disk now and then; the last note of a session counts."""

    def __init__(self, log: Journal, options: CoverageOptions, *, compiling: float) -> None:
        self._log, self._compiling, self._shard = log, compiling, str(options.shard)
        self._number = 1 + max((note["session"] for note in log.read(SESSIONS)), default=0)
        self._began = self._noted = time.monotonic()
        self._shapes: Counter[str] = Counter()

    @property
    def done(self) -> int:
        return self._shapes.total()

    def count(self, name: str) -> None:
        self._shapes[name] += 1
        if time.monotonic() - self._noted >= _NOTE_SECONDS:
            self.note()

    def note(self) -> None:
        self._noted = time.monotonic()
        if self._shapes:
            note = {"session": self._number, "shard": self._shard, "seconds": round(self._noted - self._began, 2)}
            note |= {"compiling": round(self._compiling, 2), "shapes": dict(self._shapes)}
            self._log.append(SESSIONS, note)
