"""Rows held against many shapes: those with a shape that differs decline, whatever they rested on before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gemmdesc.errors import Declined
from gemmdesc.profiles.evidence import Evidence, Example, Level, Range
from gemmdesc.profiles.keys import RowKey
from gemmdesc.profiles.promotion import Compared
from gemmdesc.profiles.schema import DeclineOutcome, Profile, ProfileRow, RuleOutcome


@dataclass(frozen=True, kw_only=True)
class RowTested:
    """What a campaign came to on the shapes that one row decides.

    ``equal``: (m, n, k) of every shape that was equal on all of its draws; ``draws``: how many these are in all.
    ``differing``: the shapes that were not, each with its draws by outcome.
    """

    equal: tuple[tuple[int, int, int], ...]
    draws: int
    differing: tuple[Compared, ...] = ()

    @property
    def shapes(self) -> int:
        """How many shapes were compared."""
        return len(self.equal) + len(self.differing)


def refuted(profile: Profile, tested: Mapping[RowKey, RowTested], *, command: str, date: str) -> Profile:
    """``profile`` as a campaign on its card with its library leaves it; the same again where nothing changes.

    A row with a rule and a shape that differs declines (``no_rule``) and says on how many of how many; its evidence
    becomes these comparisons, its example the first shape that differs.  A verified row that was equal on more shapes
    than its evidence counts has these as its counts, so that applying one campaign twice counts it once.  Every other
    row stays as it is: no row is divided here, and none promoted.
    """
    rows = tuple(_held(row, tested[row.key]) if row.key in tested else row for row in profile.rows)
    if rows == profile.rows:
        return profile
    metadata = replace(profile.metadata, command=f"{command}; before: {profile.metadata.command}", date=date)
    return replace(profile, metadata=metadata, rows=rows)


def refuted_examples(profile: Profile) -> tuple[Example, ...]:
    """One problem of every row that was refuted, on which the rule that it had gave other bytes than the library."""
    return tuple(
        row.evidence.example
        for row in profile.rows
        if isinstance(row.outcome, DeclineOutcome) and row.evidence.mismatches
    )


def _held(row: ProfileRow, tested: RowTested) -> ProfileRow:
    if not isinstance(row.outcome, RuleOutcome):
        return row
    if tested.differing:
        return _declining(row, tested)
    old = row.evidence
    if old.level is not Level.VERIFIED or len(tested.equal) <= old.shapes:
        return row
    return replace(row, evidence=_widened(replace(old, shapes=len(tested.equal), draws=tested.draws), tested.equal))


def _declining(row: ProfileRow, tested: RowTested) -> ProfileRow:
    first = tested.differing[0]
    p = first.problem
    reason = (
        f"the {row.evidence.level.value} rule was refuted: {len(tested.differing)} of {tested.shapes} shapes differ, "
        f"the first {p.m} x {p.n} x {p.k} {p.transa.value}{p.transb.value}"
    )
    sizes = [*tested.equal, *((one.problem.m, one.problem.n, one.problem.k) for one in tested.differing)]
    different = sum(one.different for one in tested.differing)
    evidence = replace(
        row.evidence, level=Level.OBSERVED, shapes=tested.shapes, mismatches=different,
        draws=tested.draws + different + sum(one.equal for one in tested.differing),
        example=Example(problem=p, answer=first.answer),
    )  # fmt: skip
    outcome = DeclineOutcome(declined=Declined(code="no_rule", reason=reason))
    return replace(row, outcome=outcome, evidence=_widened(evidence, sizes))


def _widened(evidence: Evidence, sizes: Iterable[tuple[int, int, int]]) -> Evidence:
    """The evidence with ranges that hold ``sizes`` too."""
    m, n, k = zip(*sizes, strict=True)
    return replace(evidence, m=_with(evidence.m, m), n=_with(evidence.n, n), k=_with(evidence.k, k))


def _with(known: Range, values: Iterable[int]) -> Range:
    listed = (known.low, known.high, *values)
    return Range(low=min(listed), high=max(listed))
