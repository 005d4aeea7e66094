"""A diff names each kind of change once, and tells numbers from names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gemmdesc.descriptor import ResidueFirst, Start, Strided
from gemmdesc.dtypes import DType
from gemmdesc.expressions import Const
from gemmdesc.profiles import (
    NUMERIC_KINDS,
    Change,
    ChangeKind,
    Outcome,
    ProfileRow,
    RuleOutcome,
    changes_json,
    changes_text,
    diff_profiles,
    has_numeric_change,
)
from gemmdesc.rule import Rule, make_rule
from tests.profile_samples import DECLINE, sample_answer, sample_profile, sample_row, sample_rule


def _diff(old: tuple[ProfileRow, ...], new: tuple[ProfileRow, ...]) -> tuple[Change, ...]:
    return diff_profiles(sample_profile(*old), sample_profile(*new))


def _kinds(old: Outcome, new: Outcome) -> list[ChangeKind]:
    return [change.kind for change in _diff((sample_row(old),), (sample_row(new),))]


def _with_cut(**changes: object) -> Rule:
    structure = sample_rule().structure
    cut = replace(structure.cuts[0], **changes)  # type: ignore[arg-type]
    desc = replace(structure, cuts=(cut,))
    sizes = dict(sample_rule().integers)
    kept = {} if "layout" in changes else {"cuts.0.layout.span": sizes["cuts.0.layout.span"]}
    return make_rule(desc, {"summed_k": sizes["summed_k"], "accumulator.instruction_k": Const(16), **kept})


def _with_residue() -> Rule:
    structure = sample_rule().structure
    accumulator = replace(structure.accumulator, residue=ResidueFirst(k_loop_step=1))
    desc = replace(structure, accumulator=accumulator)
    return make_rule(desc, {**dict(sample_rule().integers), "accumulator.residue.k_loop_step": Const(64)})


def test_identical_profiles_have_no_changes() -> None:
    changes = diff_profiles(sample_profile(), sample_profile())
    assert changes == ()
    assert changes_text(changes) == ""
    assert json.loads(changes_json(changes)) == []
    assert not has_numeric_change(changes)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (sample_rule(span=Const(64)), ChangeKind.SPLIT_CHANGED),
        (sample_rule(merge=DType.FLOAT16), ChangeKind.MERGE_TYPE_CHANGED),
        (sample_rule(step_k=8), ChangeKind.ACCUMULATOR_CHANGED),
        (sample_rule(cuts=2), ChangeKind.ORDER_CHANGED),
        (_with_cut(layout=Strided(count=1, unit=1)), ChangeKind.ORDER_CHANGED),
        (_with_cut(start=Start.ZERO), ChangeKind.ORDER_CHANGED),
        (_with_residue(), ChangeKind.ORDER_CHANGED),
    ],
)
def test_each_numeric_kind(rule: Rule, kind: ChangeKind) -> None:
    changes = _diff((sample_row(),), (sample_row(RuleOutcome(rule=rule)),))
    assert [change.kind for change in changes] in ([kind], [kind, kind])
    assert kind in NUMERIC_KINDS
    assert has_numeric_change(changes)
    assert not has_numeric_change(changes, frozenset({ChangeKind.DROPPED}))
    assert changes[0].old != changes[0].new


def test_two_kinds_of_one_row_are_two_changes() -> None:
    new = RuleOutcome(rule=sample_rule(span=Const(64), step_k=8))
    kinds = _kinds(RuleOutcome(rule=sample_rule()), new)
    assert kinds == [ChangeKind.SPLIT_CHANGED, ChangeKind.ACCUMULATOR_CHANGED]


def test_renamed_kernels_are_not_numeric() -> None:
    changes = _diff((sample_row(),), (sample_row(names=("nvjet_b", "splitKreduce")),))
    assert [change.kind for change in changes] == [ChangeKind.RENAMED_SAME_ORDER]
    assert changes[0].new == "nvjet_b, splitKreduce"
    assert not has_numeric_change(changes)


def test_better_evidence_is_no_change() -> None:
    row = sample_row()
    assert _diff((row,), (replace(row, evidence=replace(row.evidence, shapes=41, excluded_rivals=0)),)) == ()


def test_support_gained_and_lost() -> None:
    rule = RuleOutcome(rule=sample_rule())
    assert _kinds(DECLINE, rule) == [ChangeKind.NEWLY_SUPPORTED]
    assert _kinds(rule, DECLINE) == [ChangeKind.DROPPED]
    assert _kinds(DECLINE, DECLINE) == []
    more = sample_row(answer=sample_answer(algo_id=7))
    assert [c.kind for c in _diff((sample_row(),), (sample_row(), more))] == [ChangeKind.NEWLY_SUPPORTED]
    assert [c.kind for c in _diff((sample_row(), more), (sample_row(),))] == [ChangeKind.DROPPED]


def test_what_one_side_never_measured() -> None:
    more = sample_row(dtype=DType.BFLOAT16)
    for old, new in (((sample_row(),), (sample_row(), more)), ((sample_row(), more), (sample_row(),))):
        changes = _diff(old, new)
        assert [c.kind for c in changes] == [ChangeKind.NOT_MEASURED]
        assert not has_numeric_change(changes)
    declining = sample_row(DECLINE, answer=sample_answer(algo_id=7))
    assert [c.kind for c in _diff((sample_row(),), (sample_row(), declining))] == [ChangeKind.NOT_MEASURED]


def test_keys_on_other_attributes_are_compared_where_they_meet() -> None:
    coarse = sample_row(projection=("algo_id",))
    assert _diff((sample_row(),), (coarse,)) == ()
    changed = sample_row(RuleOutcome(rule=sample_rule(span=Const(64))), projection=("algo_id",))
    assert {c.kind for c in _diff((sample_row(),), (changed,))} == {ChangeKind.SPLIT_CHANGED}


def test_renderings() -> None:
    changes = _diff((sample_row(),), (sample_row(RuleOutcome(rule=sample_rule(span=Const(64)))),))
    text = changes_text(changes)
    assert text.startswith("split_changed: 1\n\nsplit_changed: a_dtype=float16")
    assert "  old: cuts.0.layout.span=round_up(floordiv(k, splitk_num), 64)\n" in text
    (entry,) = json.loads(changes_json(changes))
    assert entry["kind"] == "split_changed"
    assert entry["numeric"] is True
    assert entry["answer"] == {"algo_id": 66, "custom_option": 1}
    assert entry["new"] == "cuts.0.layout.span=64"
