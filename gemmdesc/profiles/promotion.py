"""Rows held against a card: what comparisons there bear out becomes verified, what they refute declines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gemmdesc.errors import Declined
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, LibraryId
from gemmdesc.profiles.evidence import Evidence, Example, Level, Range
from gemmdesc.profiles.keys import RowKey
from gemmdesc.profiles.lookup import index_profile, matching_rows
from gemmdesc.profiles.schema import DeclineOutcome, Profile, ProfileRow, RuleOutcome

#: Fewer distinct problems do not verify a row, and a problem with fewer draws is none of them: results of 16 bits hide
#: most of what a wrong grouping changes.
FEWEST_PROBLEMS = 8
FEWEST_DRAWS = 10


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One problem on which a rule's bytes were held against the library's: draws that were equal, and that were not."""

    problem: GemmProblem
    answer: AlgoConfig
    launch_names: tuple[str, ...]
    equal: int
    different: int


def promoted(
    profile: Profile,
    compared: Iterable[Compared],
    device: DeviceId,
    library: LibraryId,
    *,
    command: str,
    date: str,
    fewest: int = FEWEST_PROBLEMS,
) -> Profile:
    """``profile`` as it stands after comparisons on ``device`` with ``library``, to which it then belongs.

    A row below ``verified`` that was equal on all draws, ``FEWEST_DRAWS`` or more on each of ``fewest`` problems,
    becomes verified, with these as its evidence; one that differed on any draw declines (``no_rule``) and names the
    problem.  Every other row stays as it is.
    """
    index, met = index_profile(profile), dict[RowKey, list[Compared]]()
    for one in compared:
        for row in matching_rows(index, one.problem, one.answer):
            met.setdefault(row.key, []).append(one)
    rows = tuple(_held(row, met.get(row.key, []), fewest) for row in profile.rows)
    metadata = replace(profile.metadata, command=f"{command}; before: {profile.metadata.command}", date=date)
    return replace(profile, device=device, library=library, metadata=metadata, rows=rows)


def _held(row: ProfileRow, compared: list[Compared], fewest: int) -> ProfileRow:
    if not compared or not isinstance(row.outcome, RuleOutcome) or row.evidence.level is Level.VERIFIED:
        return row
    refuting = [one for one in compared if one.different]
    if refuting:
        p = refuting[0].problem
        reason = (
            f"the {row.evidence.level.value} rule was refuted: {len(refuting)} of {len(compared)} problems differ, "
            f"the first {p.m} x {p.n} x {p.k} {p.transa.value}{p.transb.value}"
        )
        outcome = DeclineOutcome(declined=Declined(code="no_rule", reason=reason))
        # The example of a refuted row is one that refutes it: a campaign learns from it.
        first = Example(problem=p, answer=refuting[0].answer)
        evidence = replace(_evidence(compared), level=Level.OBSERVED, example=first)
        return replace(row, outcome=outcome, evidence=evidence)
    problems = {one.problem for one in compared if one.equal >= FEWEST_DRAWS}
    if len(problems) < fewest:
        return row
    return replace(row, evidence=_evidence(compared))


def _evidence(compared: list[Compared]) -> Evidence:
    def spread(values: Iterable[int]) -> Range:
        listed = list(values)
        return Range(low=min(listed), high=max(listed))

    problems = [one.problem for one in compared]
    names = sorted({name for one in compared for name in one.launch_names})
    return Evidence(
        level=Level.VERIFIED,
        shapes=len(set(problems)),
        draws=sum(one.equal + one.different for one in compared),
        mismatches=sum(one.different for one in compared),
        excluded_rivals=0,
        nondeterministic=0,
        m=spread(p.m for p in problems),
        n=spread(p.n for p in problems),
        k=spread(p.k for p in problems),
        splitk=spread(max(1, one.answer.splitk_num) for one in compared),
        launch_names=tuple(names),
        example=Example(problem=compared[0].problem, answer=compared[0].answer),
    )
