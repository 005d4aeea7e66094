"""Classes of CUDA-core kernels: the order in which they are solved and served, and what one says of the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe import chains, scan, verification
from gemmdesc.probe.answers import AnswerKey, answer_key
from gemmdesc.probe.campaign import Campaign, Options
from gemmdesc.probe.chains import Kin, kin_of, row_alone, steps, without
from gemmdesc.probe.outcomes import ClassTask
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Row, Solved
from gemmdesc.probe.sampling import Regime, Scope, draw_problem
from gemmdesc.probe.scan import Example
from gemmdesc.probe.solve import solve_class
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, GemmProblem, Transpose, dense_problem
from gemmdesc.rule import Rule, parse_rule
from tests.probe_samples import BF16, DEVICE, FP16, FP32, IDENTITY, library_of, sample_answer

SCOPE = Scope(dtypes=(FP16,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.0)
OFTEN, SELDOM = 19, 20


def rule_of(cut: str, dtype: str = "float16", output: str = "float16") -> Rule:
    return parse_rule(
        f"gemm(a_dtype={dtype}, b_dtype={dtype}, output_dtype={output}, summed_k=k, "
        f"cuts=[cut(layout={cut}, partial_dtype=float32, merge_dtype=float32, start=first)], accumulator=accumulator("
        "instruction_k=1, residue=residue_last(), step=scalar_step(fused=True, start=zero)), epilogue=[])"
    )


LANES, PARTS = "strided(count=4, unit=1)", "contiguous(span=16, short=last)"


def key_of(option: int, types: tuple[Any, Any, Any] = (FP16, FP16, FP16), algo_id: int = 13) -> AnswerKey:
    made = answer_key(draw_problem(SCOPE, 5, 0), sample_answer(algo_id=algo_id, custom_option=option))
    return replace(made, types=types).only(CLASS_ATTRIBUTES)


def test_frequent_answers_come_first_and_their_other_types_a_step_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "_TOGETHER", (1, 2))
    wide = (BF16, BF16, FP32)
    counts = {key_of(1): 5, key_of(2): 4, key_of(2, wide): 9, key_of(3): 3, key_of(4): 2}
    assert steps(counts, counts) == [
        [key_of(2, wide)],
        [key_of(1), key_of(2), key_of(3)],
        [key_of(4)],
    ]


def test_the_last_step_is_that_of_types_left_over() -> None:
    counts = {key_of(1): 5, key_of(1, (BF16, BF16, BF16)): 2}
    assert steps(counts, counts) == [[key_of(1)], [key_of(1, (BF16, BF16, BF16))]]


def test_rules_of_the_same_answer_are_twins_and_those_of_other_kernels_no_kin() -> None:
    own, other, elsewhere = rule_of(LANES, "bfloat16"), rule_of(PARTS), rule_of("strided(count=8, unit=1)")
    solved = {
        key_of(1, (BF16, BF16, BF16)): own, key_of(2): other, key_of(1, algo_id=7): elsewhere,
    }  # fmt: skip
    moved = {own: rule_of(LANES)}
    found = kin_of(key_of(1), solved, lambda rule: moved.get(rule, rule))
    assert found == Kin(twins=(rule_of(LANES),), others=(other,))


def test_a_class_leaves_its_row_for_one_of_its_own() -> None:
    met = [key_of(1), key_of(2), key_of(2, algo_id=7)]
    old = Row(key=met[0].only(("algo_id",)), classes=tuple(met[:2]), named=("algo_id",), solved=Solved(rule=None))
    alone = row_alone(met[0], met, Solved(rule=rule_of(LANES)))
    assert alone.named == ("algo_id", "custom_option")
    assert [r.classes for r in without([old], alone.classes)] == [(met[1],)]
    assert without([alone], alone.classes) == []


def examples(count: int) -> tuple[Example, ...]:
    lying = [(transa, transb) for transa in Transpose for transb in Transpose]
    sizes = [
        dense_problem(90 + i, 8, 3 + 2 ** (i + 1), FP16, d_dtype=FP32, transa=lying[i % 4][0], transb=lying[i % 4][1])
        for i in range(count)
    ]
    return tuple(Example(problem=p, answer=sample_answer()) for p in sizes)


@pytest.mark.parametrize(("hidden", "kin", "fewer"), [(LANES, LANES, True), (PARTS, LANES, False)])
def test_a_twin_is_read_less_and_a_wrong_one_not_believed(hidden: str, kin: str, fewer: bool) -> None:
    rule, twin = (rule_of(cut, output="float32") for cut in (hidden, kin))
    task = ClassTask(label="one", examples=examples(12), known=(), hints=(), seed=1)
    plain = solve_class(library_of(rule), task)
    told = solve_class(library_of(rule), replace(task, kin=Kin(twins=(twin,))))
    assert plain.rule is not None
    assert told.rule is not None
    assert told.rule.text == rule.text
    assert (len(told.readings) < len(plain.readings)) is fewer


def hidden_rule(problem: GemmProblem, answer: AlgoConfig) -> Rule:
    return rule_of(LANES if answer.algo_id == OFTEN else PARTS)


def answer_of(problem: GemmProblem) -> AlgoConfig:
    return sample_answer(algo_id=SELDOM if problem.n % 4 == 0 else OFTEN)


class Stopped(Exception):
    """The lease is over."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_QUERIES", 100)
    monkeypatch.setattr(verification, "ROW_PROBLEMS", 8)
    monkeypatch.setattr(chains, "_TOGETHER", (1,))


@pytest.mark.usefixtures("small")
def test_the_frequent_class_is_served_before_the_other_is_read_and_a_new_start_goes_on(tmp_path: Path) -> None:
    library = SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=hidden_rule)
    options = Options(scope=SCOPE, seed=3, first_blocks=1, target_unseen=1.0)
    phases: list[str] = []

    def stop(phase: str, done: int, total: int | None) -> None:
        phases.append(phase)
        if phase == "verify, made problems" and done == total:
            raise Stopped

    one = Campaign(InProcess(library), options, tmp_path, stop)
    with pytest.raises(Stopped):
        one.run()
    ruled = {r.key.attribute("algo_id"): r.solved.rule for r in one.findings().rows}
    assert ruled[OFTEN] is not None
    assert ruled[SELDOM] is None
    equal = Counter(v.key.attribute("algo_id") for v in one.findings().comparisons.all())
    assert set(equal) == {OFTEN}
    assert equal[OFTEN] >= 8

    solved: list[int] = []
    again = Campaign(InProcess(library), options, tmp_path, lambda phase, *_: solved.append(phase == "solve"))
    assert again.missing() > 0.1
    found = again.run()
    assert sum(solved) == 1
    assert {r.key.attribute("algo_id"): r.solved.rule for r in found.rows}[SELDOM] == rule_of(PARTS)
    assert again.missing() < 0.1
