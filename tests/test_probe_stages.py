"""A campaign seeks tensor-core orders first; the same folder goes on with those of CUDA-core kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmdesc.cli.offline import infer_again
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.normal_form import same_bits
from gemmdesc.probe import scan, verification
from gemmdesc.probe.campaign import Campaign, Findings, Options
from gemmdesc.probe.publish import make_profile
from gemmdesc.probe.sampling import Regime, Scope, draw_problem
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, GemmProblem, environment
from gemmdesc.profiles import DeclineOutcome, ProfileRow, RuleOutcome
from gemmdesc.rule import Rule, evaluate_rule, parse_rule
from tests.probe_samples import DEVICE, FP16, IDENTITY, Order, sample_answer

SCOPE = Scope(dtypes=(FP16,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.0)
FUSED_ID, LANES_ID = 7, 19
LANES = (
    "gemm(a_dtype=float16, b_dtype=float16, output_dtype=float16, summed_k=k, "
    "cuts=[cut(layout=strided(count=4, unit=1), partial_dtype=float32, merge_dtype=float32, start=first)], "
    "accumulator=accumulator(instruction_k=1, residue=residue_last(), step=scalar_step(fused=True, start=zero)), "
    "epilogue=[])"
)


def rule_of(problem: GemmProblem, answer: AlgoConfig) -> Rule:
    return parse_rule(LANES) if answer.algo_id == LANES_ID else Order(instruction_k=8).rule()


def answer_of(problem: GemmProblem) -> AlgoConfig:
    return sample_answer(algo_id=LANES_ID if problem.n % 4 == 0 else FUSED_ID)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_QUERIES", 200)
    monkeypatch.setattr(verification, "ROW_PROBLEMS", 8)


def run(folder: Path, *, cuda_cores: bool) -> tuple[Findings, dict[int, ProfileRow]]:
    library = SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=rule_of)
    options = Options(scope=SCOPE, seed=3, first_blocks=1, target_unseen=1.0, cuda_cores=cuda_cores)
    findings = Campaign(InProcess(library), options, folder, lambda *_: None).run()
    profile = make_profile(findings, DEVICE, IDENTITY, command="test", date="2026-11-30")
    return findings, {dict(r.key.answer)["algo_id"]: r for r in profile.rows}


def test_the_second_stage_finds_what_the_first_left_out(tmp_path: Path) -> None:
    first, rows = run(tmp_path, cuda_cores=False)
    assert isinstance(rows[FUSED_ID].outcome, RuleOutcome)
    declined = rows[LANES_ID].outcome
    assert isinstance(declined, DeclineOutcome)
    assert declined.declined.code == "out_of_scope"
    assert all(r.element_tree is None for o in first.outcomes.values() for r in o.readings if not r.fused)

    second, rows = run(tmp_path, cuda_cores=True)
    assert second.tally.queries == first.tally.queries
    assert isinstance(rows[FUSED_ID].outcome, RuleOutcome)
    found = rows[LANES_ID].outcome
    assert isinstance(found, RuleOutcome)
    for number in range(60):
        problem = draw_problem(SCOPE, 8, number)
        answer = sample_answer(algo_id=LANES_ID)
        values = environment(problem, answer, None)
        one, other = evaluate_rule(found.rule, values), evaluate_rule(rule_of(problem, answer), values)
        assert isinstance(one, GEMMDesc)
        assert isinstance(other, GEMMDesc)
        assert same_bits(one, other, problem.k), found.rule.text

    offline = infer_again(tmp_path, lambda *_: None)
    assert len(offline) >= 2
    assert all(a.same for a in offline), offline

    third, again = run(tmp_path, cuda_cores=True)
    assert again == rows
    assert third.comparisons.all() == second.comparisons.all()
