"""Which records of a coverage campaign still hold: each is bound to the profile's row that decided its shape.

A campaign goes on after its profile changed: records of rows that are as they were stay, those of others are stale and
their shapes come again.  Folders of before records had a row name one digest of all rows; where a profile of that
digest is at hand, the library is asked for the answers again, and their rows are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gemmdesc.library.interface import Library
from gemmdesc.plain import answer_from_plain, problem_from_plain
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.probe.workers import Workers
from gemmdesc.problem import AlgoConfig, Refused
from gemmdesc.profiles import Deciding, Level, Profile, family_of
from gemmdesc.profiles.columns import rows_digest
from gemmdesc.verification.campaign import Report
from gemmdesc.verification.coverage_records import Covered, covered_from_plain, covered_to_plain
from gemmdesc.verification.kind_draws import KindItem, problem_of
from gemmdesc.verification.kind_records import REFUSED, KindRecord

#: The kind of a campaign's lines that say which words hold; the last one counts.
ROWS = "rows"
STAMP = "campaign.json"
#: Problems of a scope that are drawn to see of which types and kinds they are.
_PROBLEMS = 200


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A profile that records are, or were, taken on; ``digests``: of the rows that each family's shapes may meet."""

    deciding: Deciding
    digests: Mapping[str, str]

    @classmethod
    def on(cls, profile: Profile, accept: Level, scopes: Mapping[str, Scope]) -> Taken:
        """``scopes``: of the campaign's families, by name."""
        digests = {family: _digest(profile, scope) for family, scope in scopes.items()}
        return cls(deciding=Deciding(profile, accept), digests=digests)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The profile that decides shapes ``now``, and those of ``former`` sessions, as far as they are at hand."""

    now: Taken
    former: tuple[Taken, ...] = ()

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of records that hold."""
        return self.now.deciding.words | {REFUSED}

    def word(self, record: KindRecord) -> str:
        """What a record is bound to: the row that decides it now."""
        return _word(self.now.deciding, record.problem, record.answer)

    def taken(self, family: str, digest: str) -> Taken | None:
        """The profile of which the family's rows have this digest."""
        return next((t for t in (self.now, *self.former) if t.digests.get(family) == digest), None)


def _digest(profile: Profile, scope: Scope) -> str:
    families = {family_of(draw_problem(scope, 0, number)) for number in range(_PROBLEMS)}
    return rows_digest(sorted((r for r in profile.rows if r.key.family in families), key=lambda r: str(r.key)))


def _word(deciding: Deciding, problem: Mapping[str, Any], answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return REFUSED
    return deciding.word(problem_from_plain(dict(problem)), answer_from_plain(dict(answer)))


def family_journal(folder: Path, identity: Mapping[str, Any]) -> Journal:
    """The journal of one family; a folder of before records had rows keeps the digest that it names.

    Raises:
        CampaignError: ``folder`` is of another campaign.
    """
    return Journal(folder, {**identity, **_named_digest(folder)})


def _named_digest(folder: Path) -> dict[str, str]:
    stamp = folder / STAMP
    data = json.loads(stamp.read_text()) if stamp.is_file() else {}
    return {ROWS: data[ROWS]} if ROWS in data else {}


def holding(log: Journal) -> frozenset[str] | None:
    """The words that hold by the campaign's last session; None where no session bound records to rows."""
    last: list[str] | None = None
    for line in log.read(ROWS):
        last = line["words"]
    return None if last is None else frozenset(last)


def note_words(log: Journal, rows: Rows) -> None:
    """Say on disk which words hold from now on."""
    if holding(log) != rows.words:
        log.append(ROWS, {"words": sorted(rows.words)})


def last_records(journal: Journal, regime: str) -> dict[int, Covered]:
    """What is known last of every shape, by its index."""
    return {c.index: c for c in map(covered_from_plain, journal.read(regime))}


@dataclass(frozen=True, kw_only=True)
class Unbound:
    """One record without a row, and its shape; ``taken``: on which profile."""

    item: KindItem
    record: Covered
    taken: Taken
    journal: Journal


def ask_answer(library: Library, item: KindItem) -> AlgoConfig | None:
    """The library's answer to one shape; None where it refuses."""
    answer = library.answer(problem_of(item))
    return None if isinstance(answer, Refused) else answer


def bind_records(
    workers: Workers, rows: Rows, folder: Path, journals: Mapping[str, Journal], first: Sequence[KindItem],
    report: Report,
) -> int:  # fmt: skip
    """Find the rows of records that have none, asking for their answers; returns how many records have none still.

    ``first``: shape 0 of every family and regime.  A record is written again with its row.  Those of a profile that is
    not at hand stay as they are.
    """
    left = 0
    due: dict[str, Unbound] = {}
    for one in _unbound(rows, folder, journals, first):
        if one is None:
            left += 1
        elif one.record.outcome == REFUSED:
            _bind(one, REFUSED)
        elif one.record.detail is not None:
            _bind(one, _word(one.taken.deciding, one.record.detail["problem"], one.record.detail["answer"]))
        else:
            due[one.item.key] = one
    items = [one.item for one in due.values()]
    for at, (item, answer) in enumerate(workers.run(ask_answer, items), 1):
        one = due[item.key]
        _bind(one, REFUSED if answer is None else one.taken.deciding.word(problem_of(item), answer))
        report("bind", at, len(items))
    return left


def _bind(one: Unbound, word: str) -> None:
    regime = one.item.name.split("/")[1]
    one.journal.append(regime, covered_to_plain(replace(one.record, row=word)))


def _unbound(
    rows: Rows, folder: Path, journals: Mapping[str, Journal], first: Sequence[KindItem]
) -> Iterator[Unbound | None]:
    """Every record without a row; None for one whose profile is not at hand."""
    for item in first:
        family, regime = item.name.split("/")
        digest = _named_digest(folder / family).get(ROWS)
        taken = None if digest is None else rows.taken(family, digest)
        for record in last_records(journals[family], regime).values():
            if not record.row:
                at = replace(item, index=record.index)
                journal = journals[family]
                yield Unbound(item=at, record=record, taken=taken, journal=journal) if taken is not None else None
