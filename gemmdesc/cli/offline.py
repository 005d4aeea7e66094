"""Inferring again from a campaign's saved readings: no library, no GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemmdesc.expressions import Expr
    from gemmdesc.probe.outcomes import ClassOutcome
    from gemmdesc.probe.rulebook import RuleBook
    from gemmdesc.rule import Rule

_CLASSES, _SURVEY = "classes.jsonl", "survey.jsonl"


@dataclass(frozen=True, kw_only=True)
class Again:
    """One class inferred again: how many rules its readings allow, and whether one is the ``same`` as the recorded."""

    label: str
    readings: int
    survivors: int
    same: bool
    reason: str


def infer_again(folder: Path, report: Callable[[str, int, int | None], None]) -> list[Again]:
    """Every class of the campaigns in ``folder`` that was solved from readings of its own.

    Raises:
        CampaignError: ``folder`` holds no solved classes.
    """
    from gemmdesc.errors import CampaignError
    from gemmdesc.probe.offline import campaign_folders

    paths = [path for kept in campaign_folders(folder) if (path := kept / _CLASSES).is_file()]
    if not paths:
        raise CampaignError(f"from_observations must hold a probe's {_CLASSES} (got {folder})")
    return [again for path in paths for again in _classes_again(path, report)]


def _classes_again(path: Path, report: Callable[[str, int, int | None], None]) -> list[Again]:
    from gemmdesc.probe.reading import reading_from_plain
    from gemmdesc.probe.records import outcome_from_plain
    from gemmdesc.probe.rulebook import RuleBook

    book = RuleBook()
    survey = path.with_name(_SURVEY)
    for line in survey.read_text().splitlines() if survey.is_file() else ():
        book.observe((reading_from_plain(json.loads(line)),))
    for line in path.read_text().splitlines():
        book.recall(*outcome_from_plain(json.loads(line)))
    own = [o for o in book.outcomes.values() if o.readings and o.rule is not None]
    hints = tuple({e: None for o in own if o.rule is not None for e in o.rule.expressions})
    found = []
    for number, outcome in enumerate(own, 1):
        found.append(_again(outcome, hints, book))
        report("infer", number, len(own))
    return found


def _again(outcome: ClassOutcome, hints: tuple[Expr, ...], book: RuleBook) -> Again:
    from gemmdesc.probe.infer import Unexplained, infer_rules
    from gemmdesc.probe.predicted import scalar_reading
    from gemmdesc.probe.scalar_infer import infer_scalar_rules
    from gemmdesc.probe.scalar_rule import is_scalar
    from gemmdesc.problem import environment
    from gemmdesc.verification.hidden import same_rule

    readings, recorded = outcome.readings, outcome.rule
    assert recorded is not None
    domain = [environment(r.problem, r.answer, r.launch) for r in readings]
    rules: tuple[Rule, ...] | Unexplained
    if is_scalar(recorded):
        trees = [tree for r in readings if (tree := scalar_reading(r)) is not None]
        known = all(t.launch is not None for t in trees)
        rules = infer_scalar_rules(trees, domain, hints, launched=lambda: (trees, domain) if known else None)
    else:
        preferred = book.pool.expressions(readings[0].answer.algo_id)
        rules = infer_rules(readings, domain, hints, preferred, book.zero_exponent())
    if isinstance(rules, Unexplained):
        return Again(label=outcome.label, readings=len(readings), survivors=0, same=False, reason=rules.reason)
    wide = book.calibrated(recorded)
    same = any(all(same_rule(wide, rule, r.problem, r.answer, r.launch) for r in readings) for rule in rules)
    return Again(label=outcome.label, readings=len(readings), survivors=len(rules), same=same, reason="")


def write_recorded(folder: Path, out: Path, command: str) -> Path:
    """Publish under ``out`` what the campaigns of all kinds in ``folder`` verified in full; returns the profile's path.

    Raises:
        CampaignError: ``folder`` holds no campaign that was started.
        ProfileError: one was made on another card or build of the library than the others, or than the profile that
            lies under ``out``; nothing is written.
    """
    from datetime import date
    from functools import reduce

    from gemmdesc.probe.offline import campaign_folders, recorded_findings
    from gemmdesc.probe.publish import make_profile
    from gemmdesc.profiles import merge_profiles, publish

    found = []
    for kept in campaign_folders(folder):
        findings, library, device = recorded_findings(kept)
        found.append(make_profile(findings, device, library, command=command, date=date.today().isoformat()))
    _, path = publish(reduce(merge_profiles, found), out)
    return path
