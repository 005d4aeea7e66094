"""A profile against the comparisons of another campaign: where it is borne out, where contradicted, what to withdraw.

Two campaigns draw other problems and generalise on their own.  A verdict on one's rule is a verdict on the other's
wherever their normal forms agree, and a doubt wherever they do not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmdesc.errors import CampaignError, Declined
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.examples import Draws
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.offline import recorded_scope
from gemmdesc.probe.records import session_from_plain, verified_from_plain
from gemmdesc.probe.refutations import refutation_from_plain
from gemmdesc.problem import AlgoConfig, GemmProblem, environment
from gemmdesc.profiles import (
    DeclineOutcome,
    Evidence,
    Level,
    Profile,
    ProfileRow,
    RowKey,
    RuleOutcome,
    index_profile,
    matching_rows,
)
from gemmdesc.regions import evaluate_regions, same_regions
from gemmdesc.rule import Rule, parse_rule


@dataclass(frozen=True, kw_only=True)
class Crosscheck:
    """Comparisons of the other campaign, counted.

    ``agreeing``: of the served rows' normal form, and equal.  ``not_served``: the profile declines there.
    ``not_judged``: equal under another rule, where one of both declines or needs the launch, which no record holds.
    ``against``: by row, those of its normal form that were not equal, and those of another one that were;
    ``examples``: one problem for each.
    """

    agreeing: int
    not_served: int
    not_judged: int
    against: Mapping[RowKey, int]
    examples: Mapping[RowKey, GemmProblem]


def crosscheck(profile: Profile, folder: Path) -> Crosscheck:
    """``profile`` against the comparisons on natural problems that the campaign in ``folder`` recorded.

    Raises:
        CampaignError: ``folder`` holds no campaign on the profile's card and library.
    """
    about = _about(profile, folder)
    index, given = index_profile(profile), Journal(folder, about).read("given")
    source = Draws(
        scope=recorded_scope(about), seed=int(about["seed"]), given=tuple(map(refutation_from_plain, given))
    )
    agreeing = not_served = not_judged = 0
    against: Counter[RowKey] = Counter()
    examples: dict[RowKey, GemmProblem] = {}
    parsed: dict[str, Rule] = {}
    for data in Journal(folder, about).read("verified"):
        verified = verified_from_plain(data)
        if not verified.variant.natural:
            continue
        problem, answer = source.problem(verified.variant.number), verified.key.answer
        served = [r for r in matching_rows(index, problem, answer) if isinstance(r.outcome, RuleOutcome)]
        if len(served) != 1:
            not_served += 1
            continue
        other = parsed.setdefault(verified.rule, parse_rule(verified.rule))
        alike = _alike(served[0], other, problem, answer)
        doubt = _speaks_against(alike, verified.verdict)
        agreeing += doubt is False
        not_judged += alike is None and verified.verdict is Verdict.EQUAL
        if doubt:
            against[served[0].key] += 1
            examples.setdefault(served[0].key, problem)
    return Crosscheck(
        agreeing=agreeing, not_served=not_served, not_judged=not_judged, against=against, examples=examples
    )


def withdrawn(profile: Profile, found: Crosscheck, campaign: str) -> Profile:
    """``profile`` with the rows that comparisons speak against declining, and saying so; ``campaign`` names it."""
    rows = tuple(_withdraw(r, found.against[r.key], campaign) if r.key in found.against else r for r in profile.rows)
    note = f"{profile.metadata.command}; rows that {campaign} contradicts withdrawn"
    old = profile.metadata
    measured = tuple(replace(m, command=note) if m.command == old.command else m for m in old.measured)
    return replace(profile, rows=rows, metadata=replace(old, command=note, measured=measured))


def _withdraw(row: ProfileRow, count: int, campaign: str) -> ProfileRow:
    reason = f"withdrawn: {count} comparisons of {campaign} speak against the rule that was found"
    evidence: Evidence = replace(row.evidence, level=Level.OBSERVED, shapes=0, draws=0)
    return replace(row, outcome=DeclineOutcome(declined=Declined(code="no_rule", reason=reason)), evidence=evidence)


def _alike(row: ProfileRow, other: Rule, problem: GemmProblem, answer: AlgoConfig) -> bool | None:
    """Whether the row's rule and the ``other`` owe each other the same bits; None where that cannot be told."""
    assert isinstance(row.outcome, RuleOutcome)
    if row.outcome.rule == other:
        return True
    values = environment(problem, answer, None)
    own, theirs = evaluate_regions(row.outcome.rule, values), evaluate_regions(other, values)
    if isinstance(own, Declined) or isinstance(theirs, Declined):
        return None
    return same_regions(own, theirs, problem.k)


def _speaks_against(alike: bool | None, verdict: Verdict) -> bool | None:
    """Whether a verdict on another rule puts the row's in doubt; None where it says nothing."""
    if verdict is Verdict.EQUAL:
        return None if alike is None else not alike
    return True if alike and verdict in (Verdict.DIFFERENT, Verdict.NONDETERMINISTIC) else None


def _about(profile: Profile, folder: Path) -> dict[str, Any]:
    stamp = folder / "campaign.json"
    if not stamp.is_file():
        raise CampaignError(f"folder must hold a campaign (got {folder})")
    about: dict[str, Any] = json.loads(stamp.read_text())
    sessions = list(Journal(folder, about).read("sessions"))
    if not sessions:
        raise CampaignError(f"folder must hold a campaign that was started (got {folder})")
    library, device = session_from_plain(sessions[-1])
    if (library.build_id, device.folder) != (profile.library.build_id, profile.device.folder):
        raise CampaignError(
            f"folder must hold a campaign on {profile.device.folder}, build-id {profile.library.build_id} "
            f"(got {device.folder}, {library.build_id})"
        )
    return about
