"""Whole campaigns on simulated libraries: what is hidden is found, kept, resumed, published and never overstated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import CampaignError, Declined
from gemmdesc.library.interface import Library
from gemmdesc.library.simulated import SimulatedLibrary, permuted
from gemmdesc.normal_form import same_bits
from gemmdesc.probe import campaign, scan
from gemmdesc.probe.campaign import Campaign, Findings, Options, quick
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.offline import recorded_findings
from gemmdesc.probe.projection import RowIndex
from gemmdesc.probe.publish import make_profile
from gemmdesc.probe.sampling import Regime, Scope, draw_problem
from gemmdesc.probe.scan import answer_key, unseen_mass
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, GemmProblem, environment
from gemmdesc.profiles import (
    DeclineOutcome,
    Level,
    Profile,
    RuleOutcome,
    audit,
    index_profile,
    lookup,
    matching_rows,
    read_profile,
    write_profile,
)
from gemmdesc.rule import Rule, evaluate_rule
from tests.probe_samples import DEVICE, FP16, IDENTITY, Order, sample_answer

SCOPE = Scope(dtypes=(FP16,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.0)
OPTIONS = Options(scope=SCOPE, seed=3, first_blocks=1, target_unseen=1.0)
SHORT_ID, LONG_ID, SHAKY_ID, FAILING_ID = 11, 23, 31, 47
LONG = 256
#: By (algo_id, stages_id) for short k, by (algo_id, reduction_scheme) for long k.
RULES = {
    (SHORT_ID, 1): Order(instruction_k=8).rule(),
    (SHORT_ID, 2): Order(instruction_k=16, loop_step=32).rule(),
    (LONG_ID, 1): Order(spans=("round_up(floordiv(k, splitk_num), 32)",), partial=FP16).rule(),
    (LONG_ID, 2): Order(spans=("round_up(ceildiv(k, splitk_num), 64)",)).rule(),
    (SHAKY_ID, 1): Order(instruction_k=8).rule(),
    (SHAKY_ID, 2): Order(instruction_k=8).rule(),
    (FAILING_ID, 1): Order(instruction_k=8).rule(),
    (FAILING_ID, 2): Order(instruction_k=8).rule(),
}


def rule_of(problem: GemmProblem, answer: AlgoConfig) -> Rule:
    return RULES[answer.algo_id, answer.reduction_scheme if answer.algo_id == LONG_ID else answer.stages_id]


def answer_of(problem: GemmProblem) -> AlgoConfig:
    p, long = problem, problem.k >= LONG
    return sample_answer(
        algo_id=LONG_ID if long else SHORT_ID, tile_id=10 + p.m // 2 % 2, cluster_shape_id=p.n // 2 % 2,
        stages_id=1 + p.n % 2, reduction_scheme=1 + p.m % 2 if long else 0,
        splitk_num=2 + (p.m + p.n) % 3 if long else 1,
    )  # fmt: skip


def sometimes_bad(problem: GemmProblem) -> AlgoConfig:
    answer = answer_of(problem)
    if problem.k < LONG and problem.n % 5 == 0:
        return replace(answer, algo_id=SHAKY_ID if problem.m % 2 else FAILING_ID)
    return answer


def simulated(heuristic: Callable[[GemmProblem], AlgoConfig] = answer_of) -> SimulatedLibrary:
    return SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=heuristic, rules=rule_of,
        failures=lambda p, x: "CUBLAS_STATUS_EXECUTION_FAILED" if x.algo_id == FAILING_ID else None,
        nondeterministic=lambda p, x: x.algo_id == SHAKY_ID,
    )  # fmt: skip


class Stopped(Exception):
    """Stands for a kill."""


@dataclass
class Steps:
    """What was reported, and when to stop."""

    done: Counter[str]
    stop_after: tuple[str, int] | None = None

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        self.done[phase] += 1
        if self.stop_after is not None and self.done[self.stop_after[0]] >= self.stop_after[1]:
            raise Stopped


@pytest.fixture(scope="module", autouse=True)
def small() -> object:
    """Blocks of few queries, and few comparisons of each row."""
    patch = pytest.MonkeyPatch()
    patch.setattr(scan, "BLOCK_QUERIES", 500)
    patch.setattr(campaign, "ROW_PROBLEMS", 8)
    yield
    patch.undo()


def campaign_on(library: Library, folder: Path, stop_after: tuple[str, int] | None = None) -> tuple[Findings, Steps]:
    steps = Steps(done=Counter(), stop_after=stop_after)
    return Campaign(InProcess(library), OPTIONS, folder, steps).run(), steps


@pytest.fixture(scope="module")
def whole(small: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Findings, Steps, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return *campaign_on(simulated(), folder), folder


def problems(count: int = 150) -> list[GemmProblem]:
    """Not those of the scan."""
    return [draw_problem(SCOPE, 99, i) for i in range(count)]


def desc_of(rule: Rule, problem: GemmProblem, answer: AlgoConfig) -> GEMMDesc:
    desc = evaluate_rule(rule, environment(problem, answer, None))
    assert isinstance(desc, GEMMDesc)
    return desc


def published(findings: Findings, library: Library) -> Profile:
    return make_profile(findings, library.device, library.identity, command="test", date="2026-11-29")


def test_every_answer_gets_the_hidden_order(whole: tuple[Findings, Steps, Path]) -> None:
    findings = whole[0]
    index = RowIndex(findings.rows)
    met = Counter[tuple[int, int]]()
    for problem in problems():
        answer = answer_of(problem)
        row = index.find(answer_key(problem, answer))
        assert row is not None
        assert row.solved.rule is not None
        truth = rule_of(problem, answer)
        met[answer.algo_id, answer.reduction_scheme or answer.stages_id] += 1
        found = desc_of(row.solved.rule, problem, answer)
        assert same_bits(found, desc_of(truth, problem, answer), problem.k), (problem, row.solved.rule.text)
    assert set(met) == {(SHORT_ID, 1), (SHORT_ID, 2), (LONG_ID, 1), (LONG_ID, 2)}
    assert findings.unseen <= findings.unseen_all


def test_rows_name_what_matters_and_leave_out_what_does_not(whole: tuple[Findings, Steps, Path]) -> None:
    rows = whole[0].rows
    assert len(rows) == 4
    for row in rows:
        assert "splitk_num" not in row.key.named
        assert not {"tile_id", "cluster_shape_id"} & set(row.key.named)
        short = row.key.attribute("algo_id") == SHORT_ID
        assert set(row.named) == {"algo_id", "stages_id" if short else "reduction_scheme"}


def test_every_answer_is_verified(whole: tuple[Findings, Steps, Path]) -> None:
    findings = whole[0]
    compared = {key for key, _ in findings.verified}
    assert compared == set(findings.tally.counts)
    assert {v.verdict for v in findings.verified.values()} == {Verdict.EQUAL}
    assert sum(findings.tally.counts.values()) == findings.tally.queries == 500


def test_the_profile_serves_the_orders(whole: tuple[Findings, Steps, Path], tmp_path: Path) -> None:
    library = simulated()
    profile = published(whole[0], library)
    assert audit(profile) == ()
    assert dict(profile.metadata.excluded_attributes)["tile_id"] == 2
    assert dict(profile.metadata.excluded_attributes)["cluster_shape_id"] == 2
    write_profile(profile, tmp_path / "one.parquet")
    back = read_profile(tmp_path / "one.parquet")
    assert set(back.rows) == set(profile.rows)
    assert (back.device, back.library) == (profile.device, profile.library)
    index = index_profile(back)
    for problem in problems(60):
        answer = answer_of(problem)
        (row,) = matching_rows(index, problem, answer)
        assert row.evidence.level is Level.VERIFIED
        assert row.evidence.shapes > 0
        rule = lookup(index, problem, answer)
        assert isinstance(rule, Rule)
        truth = desc_of(rule_of(problem, answer), problem, answer)
        assert same_bits(desc_of(rule, problem, answer), truth, problem.k)
    unknown = lookup(index, problems(1)[0], sample_answer(algo_id=999))
    assert isinstance(unknown, Declined)


def test_ids_carry_no_meaning(whole: tuple[Findings, Steps, Path], tmp_path: Path) -> None:
    plain = RowIndex(whole[0].rows)
    renamed = permuted(simulated(), 8)
    findings, _ = campaign_on(renamed, tmp_path)
    index = RowIndex(findings.rows)
    assert len(findings.rows) == len(whole[0].rows)
    for problem in problems(80):
        own, other = answer_of(problem), renamed.answer(problem)
        assert isinstance(other, AlgoConfig)
        assert own != other
        one, two = plain.find(answer_key(problem, own)), index.find(answer_key(problem, other))
        assert one is not None
        assert two is not None
        assert one.solved.rule is not None
        assert two.solved.rule is not None
        found = desc_of(two.solved.rule, problem, other)
        assert same_bits(desc_of(one.solved.rule, problem, own), found, problem.k)


def lines(folder: Path) -> dict[str, list[str]]:
    return {p.name: p.read_text().splitlines() for p in folder.glob("*.jsonl")}


@pytest.mark.parametrize("stop_after", [("solve", 1)])
def test_a_killed_campaign_resumes(
    whole: tuple[Findings, Steps, Path], tmp_path: Path, stop_after: tuple[str, int]
) -> None:
    with pytest.raises(Stopped):
        campaign_on(simulated(), tmp_path, stop_after)
    before = lines(tmp_path)
    assert before
    # The kill cut a line off.
    with (tmp_path / "scan.jsonl").open("a") as file:
        file.write('{"number": 7, "quer')
    findings, steps = campaign_on(simulated(), tmp_path)
    after = lines(tmp_path)
    for name, kept in before.items():
        assert after[name][: len(kept)] == kept
    full = whole[1].done
    assert steps.done["scan"] == 0
    assert steps.done["solve"] == full["solve"] - len(before["classes.jsonl"])
    assert {r.key for r in findings.rows} == {r.key for r in whole[0].rows}
    assert {r.key for r in findings.rows if r.solved.rule} == {r.key for r in whole[0].rows if r.solved.rule}
    assert findings.tally.counts == whole[0].tally.counts
    assert {key for key, _ in findings.verified} == {key for key, _ in whole[0].verified}


def test_a_survey_that_was_cut_short_is_made_again(whole: tuple[Findings, Steps, Path], tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        campaign_on(simulated(), tmp_path, ("survey", 3))
    before = lines(tmp_path)
    assert before["survey.jsonl"]
    assert "surveyed.jsonl" not in before
    findings, steps = campaign_on(simulated(), tmp_path)
    assert steps.done["survey"] == whole[1].done["survey"]
    assert lines(tmp_path)["surveyed.jsonl"] == lines(whole[2])["surveyed.jsonl"]
    assert {r.key for r in findings.rows} == {r.key for r in whole[0].rows}
    # Made whole, it is not made a third time.
    assert campaign_on(simulated(), tmp_path)[1].done["survey"] == 0


def test_a_profile_needs_only_the_folder(whole: tuple[Findings, Steps, Path]) -> None:
    findings, library, device = recorded_findings(whole[2])
    asked = simulated()
    assert (library, device) == (asked.identity, asked.device)
    assert findings.rows == whole[0].rows
    ours = make_profile(findings, device, library, command="probe", date="2026-01-01")
    theirs = make_profile(whole[0], asked.device, asked.identity, command="probe", date="2026-01-01")
    assert ours.rows == theirs.rows
    assert any(isinstance(row.outcome, RuleOutcome) for row in ours.rows)


def test_a_row_with_an_answer_not_yet_compared_declines(whole: tuple[Findings, Steps, Path]) -> None:
    asked = simulated()
    full = make_profile(whole[0], asked.device, asked.identity, command="probe", date="2026-01-01")
    served = next(r for r in full.rows if isinstance(r.outcome, RuleOutcome))
    text = served.outcome.rule.text
    gone = next(k for k, v in whole[0].verified.items() if v.rule == text)[0]
    cut = replace(whole[0], verified={k: v for k, v in whole[0].verified.items() if k[0] != gone})
    short = make_profile(cut, asked.device, asked.identity, command="probe", date="2026-01-01")
    before = sum(isinstance(r.outcome, RuleOutcome) for r in full.rows)
    assert sum(isinstance(r.outcome, RuleOutcome) for r in short.rows) == before - 1


def test_a_finished_campaign_does_nothing_again(whole: tuple[Findings, Steps, Path]) -> None:
    findings, steps = campaign_on(simulated(), whole[2])
    assert steps.done["scan"] == steps.done["solve"] == steps.done["try"] == steps.done["verify"] == 0
    assert findings.rows == whole[0].rows
    assert findings.verified == whole[0].verified


@pytest.mark.parametrize("change", ["seed", "library", "device"])
def test_a_folder_belongs_to_one_campaign(whole: tuple[Findings, Steps, Path], change: str) -> None:
    library, options = simulated(), OPTIONS
    if change == "seed":
        options = replace(OPTIONS, seed=4)
    elif change == "library":
        library = replace(library, identity=replace(IDENTITY, build_id="ffff"))
    else:
        library = replace(library, device=replace(DEVICE, sm_count=114))
    with pytest.raises(CampaignError, match=r"^folder must hold this campaign"):
        Campaign(InProcess(library), options, whole[2], Steps(done=Counter()))


def test_answers_that_fail_or_vary_are_not_served(tmp_path: Path) -> None:
    library = simulated(sometimes_bad)
    findings, _ = campaign_on(library, tmp_path)
    profile = published(findings, library)
    assert audit(profile) == ()
    served = Counter[int]()
    declined = Counter[int]()
    for row in profile.rows:
        ids = dict(row.key.answer)
        (served if isinstance(row.outcome, RuleOutcome) else declined)[ids["algo_id"]] += 1
        if isinstance(row.outcome, DeclineOutcome):
            assert row.outcome.declined.reason
            assert row.evidence.level is not Level.VERIFIED
    assert set(served) == {SHORT_ID, LONG_ID}
    assert set(declined) == {SHAKY_ID, FAILING_ID}
    index = index_profile(profile)
    for problem in problems(80):
        answer = sometimes_bad(problem)
        got = lookup(index, problem, answer)
        if answer.algo_id in (SHAKY_ID, FAILING_ID):
            assert isinstance(got, Declined)
        else:
            assert isinstance(got, Rule)
            truth = desc_of(rule_of(problem, answer), problem, answer)
            assert same_bits(desc_of(got, problem, answer), truth, problem.k)


def test_unseen_mass_never_claims_nothing_is_left() -> None:
    assert unseen_mass([]) == 1.0
    assert unseen_mass([1, 1, 2]) == 0.5
    assert unseen_mass([50, 50]) == 0.01


def test_a_first_look_asks_less() -> None:
    assert quick(OPTIONS).most_queries < OPTIONS.most_queries
    assert quick(OPTIONS).scope == OPTIONS.scope
