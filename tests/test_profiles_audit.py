"""An audit finds each thing that can be wrong, and nothing in a sound profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.expressions import Const, Var
from gemmdesc.profiles import (
    FindingKind,
    Profile,
    ProfileRow,
    Range,
    RuleOutcome,
    audit,
    profile_digest,
    profile_text,
)
from tests.profile_samples import LIBRARY, sample_answer, sample_profile, sample_row, sample_rule


def _kinds(*rows: ProfileRow) -> list[FindingKind]:
    return [finding.kind for finding in audit(sample_profile(*rows))]


def _evidence(**changes: object) -> ProfileRow:
    row = sample_row()
    return replace(row, evidence=replace(row.evidence, **changes))  # type: ignore[arg-type]


def test_a_sound_profile_has_no_findings() -> None:
    assert audit(sample_profile()) == ()


def test_duplicate_keys() -> None:
    assert _kinds(sample_row(), sample_row(mismatches=0)) == [FindingKind.DUPLICATE_KEY]


def test_overlapping_keys() -> None:
    rows = sample_row(), sample_row(projection=("algo_id",))
    assert _kinds(*rows) == [FindingKind.OVERLAPPING_KEYS]
    apart = sample_row(answer=sample_answer(algo_id=1), projection=("algo_id",))
    assert _kinds(sample_row(), apart) == []


@pytest.mark.parametrize("name", ["mismatches", "nondeterministic"])
def test_rules_with_refutations(name: str) -> None:
    assert _kinds(_evidence(**{name: 1})) == [FindingKind.EVIDENCE]


def test_examples_that_are_not_the_rows_own() -> None:
    row = sample_row()
    example = row.evidence.example
    assert _kinds(_evidence(example=replace(example, answer=sample_answer(algo_id=9)))) == [FindingKind.EXAMPLE]
    assert _kinds(_evidence(k=Range(low=1, high=2))) == [FindingKind.EXAMPLE]
    assert _kinds(_evidence(launch_names=("other",))) == [FindingKind.EXAMPLE]


def test_rules_that_fail_on_their_example() -> None:
    unknown = sample_rule(span=Var("grid_w"))
    assert _kinds(sample_row(RuleOutcome(rule=unknown))) == [FindingKind.EXAMPLE]
    assert _kinds(sample_row(RuleOutcome(rule=sample_rule(span=Var("grid_z"))))) == []
    assert _kinds(sample_row(RuleOutcome(rule=sample_rule(span=Const(-1))))) == [FindingKind.EXAMPLE]


def test_rules_for_other_types() -> None:
    assert _kinds(sample_row(RuleOutcome(rule=sample_rule(dtype=DType.BFLOAT16)))) == [FindingKind.RULE_TEXT]


def test_incomplete_metadata() -> None:
    profile = sample_profile()
    bare = replace(
        profile,
        library=replace(LIBRARY, wheel=""),
        metadata=replace(profile.metadata, command="", excluded_attributes=(("tile_id", 1),)),
    )
    findings = audit(bare)
    assert [f.where for f in findings] == ["wheel", "command", "excluded_attributes.tile_id"]
    assert {f.kind for f in findings} == {FindingKind.METADATA}
    assert str(findings[0]) == "metadata: wheel: is empty"


def test_text_is_stable_and_shows_every_row() -> None:
    profile = sample_profile()
    text = profile_text(profile)
    assert text == profile_text(Profile(**{**profile.__dict__, "rows": profile.rows[::-1]}))
    assert text.count("\nrow: ") == len(profile.rows)
    assert f"digest: {profile_digest(profile)}\n" in text
    assert "  rule: gemm(a_dtype=float16" in text
    assert "  declined: nondeterministic: bytes varied from run to run\n" in text
    assert "excluded: tile_id seen at 7 values under one rule\n" in text
