"""A first look at every kind on a simulated library, and the same conclusions from the raw experiments alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gemmdesc.descriptor import ScalarStep
from gemmdesc.errors import InvalidInputError
from gemmdesc.plain import answer_from_plain, problem_from_plain
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.kinds import ReadItem, ScanItem, equal_verdicts, in_turn, merged, read_kind, rules_of, scan_kind
from gemmdesc.probe.raw import RawReader, RecordingReader
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import reading_from_plain
from gemmdesc.probe.recorded import hold_against
from gemmdesc.probe.sampling import Regime, Scope, draw_problem, scope_of_kind
from gemmdesc.rule import parse_rule
from tests.kind_samples import answer_of, library_of_kinds
from tests.probe_samples import FP32, Order, library_of, sample_answer, sample_problem

#: Kinds and their scopes; problems small enough for the replay.
SCOPES = {kind.value: replace(scope_of_kind(kind), regimes=(Regime.SMALL,)) for kind in Kind}
SCOPES["float32"] = Scope(dtypes=(FP32,), regimes=(Regime.SMALL,))


def worth_reading(scope: Scope, count: int) -> list[int]:
    """Numbers of problems whose order can be told from one reading."""
    found = []
    for number in range(400):
        p = draw_problem(scope, 20, number)
        if p.k >= 200 and max(p.m, p.n) >= 16 and not hasattr(answer_of(p), "status"):
            found.append(number)
    return found[:count]


@pytest.mark.parametrize("name", [n for n in SCOPES if not n.startswith("gelu")])
def test_one_reading_gives_a_rule_with_the_library_s_bytes(name: str) -> None:
    library, scope = library_of_kinds(), SCOPES[name]
    for number in worth_reading(scope, 4):
        record = json.loads(json.dumps(read_kind(library, ReadItem(scope=scope, seed=20, number=number))))
        assert record.get("verdict") == "equal", (record.get("reason"), record.get("failure"), record["problem"])
        reading = reading_from_plain(record["reading"])
        problem, answer = problem_from_plain(record["problem"]), answer_from_plain(record["answer"])
        again = read_answer(RawReader(record["raw"]), problem, answer)
        assert repr(replace(again, launches=reading.launches, experiments=reading.experiments)) == repr(reading)
        rules = rules_of([again])
        assert not isinstance(rules, Unexplained)
        assert rules[0].text == record["rule"]


def test_a_rule_is_held_against_what_was_recorded() -> None:
    library = library_of_kinds()
    for name in ("relu_bias", "float8", "batch", "float32"):
        scope = SCOPES[name]
        (number,) = worth_reading(scope, 1)
        record = read_kind(library, ReadItem(scope=scope, seed=20, number=number))
        problem, answer = problem_from_plain(record["problem"]), answer_from_plain(record["answer"])
        rule, raw = parse_rule(record["rule"]), RawReader(record["raw"])
        found = hold_against(rule, problem, answer, raw)
        assert found.whole
        assert found.experiments > 100
        leaf = rule.structure.accumulator
        changed = {"fused": False} if isinstance(leaf.step, ScalarStep) else {"fraction_bits": 12}
        leaf = replace(leaf, step=replace(leaf.step, **changed))
        wrong = replace(rule, structure=replace(rule.structure, accumulator=leaf))
        assert not hold_against(wrong, problem, answer, raw).whole


def test_gelu_is_read_but_not_explained() -> None:
    record = read_kind(library_of_kinds(), ReadItem(scope=SCOPES["gelu_bias"], seed=20, number=81))
    assert "rule" not in record
    assert equal_verdicts([record, {"failure": "x"}]) == {"unexplained": 1, "failed": 1}


def test_a_scan_finds_the_groups_in_any_blocks() -> None:
    library, scope = library_of_kinds(), SCOPES["tf32"]
    whole = scan_kind(library, ScanItem(scope=scope, seed=20, first=0, count=120))
    parts = [scan_kind(library, ScanItem(scope=scope, seed=20, first=f, count=40)) for f in (0, 40, 80)]
    assert merged(parts) == whole
    assert sum(whole.counts.values()) == 120
    queue = in_turn(whole, 2)
    assert {g for g, _ in queue} == set(whole.counts)
    assert len(set(queue)) == len(queue)
    refusing = scan_kind(library, ScanItem(scope=SCOPES["float8"], seed=20, first=0, count=60))
    assert refusing.refused["CUBLAS_STATUS_NOT_SUPPORTED"] + sum(refusing.counts.values()) == 60


def test_what_was_not_recorded_cannot_be_asked() -> None:
    problem, answer = sample_problem(40), sample_answer()
    recording = RecordingReader(LibraryReader(library_of(Order().rule()), problem, answer))
    assert recording.values([((0, 1.0),), ((1, -0.0),)]).tolist() == [1.0, 0.0]
    raw = RawReader(recording.packed())
    assert (raw.k, raw.width, raw.along_m) == (40, recording.width, True)
    assert raw.values([((1, -0.0),)]).tolist() == [0.0]
    for missing in ([((1, 0.0),)], [((0, 2.0),)]):
        with pytest.raises(ReferenceFailed, match="must have been recorded"):
            raw.values(missing)
    with pytest.raises(InvalidInputError, match=r"^packed must be recorded"):
        RawReader("nonsense")
