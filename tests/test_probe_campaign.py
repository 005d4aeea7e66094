"""Whole campaigns on simulated libraries: what is hidden is found, kept, resumed, published and never overstated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from gemmdesc.descriptor import Contiguous, GEMMDesc
from gemmdesc.errors import CampaignError, Declined
from gemmdesc.expressions import Const, Var
from gemmdesc.library.interface import Library
from gemmdesc.library.simulated import SimulatedLibrary, permuted
from gemmdesc.normal_form import same_bits
from gemmdesc.probe import scan, verification
from gemmdesc.probe.campaign import Campaign, Findings, Options, quick
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.comparisons import FEWEST_COMPARED, Comparisons
from gemmdesc.probe.crosscheck import crosscheck, withdrawn
from gemmdesc.probe.examples import Draws
from gemmdesc.probe.offline import recorded_findings
from gemmdesc.probe.projection import RowIndex
from gemmdesc.probe.publish import make_profile
from gemmdesc.probe.sampling import Regime, Scope, draw_problem
from gemmdesc.probe.scan import answer_key, unseen_mass
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, GemmProblem, Transpose, dense_problem, environment
from gemmdesc.profiles import (
    DeclineOutcome,
    Level,
    Profile,
    ProfileRow,
    RuleOutcome,
    audit,
    index_profile,
    lookup,
    matching_rows,
    read_profile,
    write_profile,
)
from gemmdesc.rule import Rule, evaluate_rule, make_rule
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
    patch.setattr(verification, "ROW_PROBLEMS", 8)
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
    compared = findings.comparisons.all()
    assert {v.key for v in compared if v.variant.natural} == set(findings.tally.counts)
    assert {v.verdict for v in compared} == {Verdict.EQUAL}
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


@pytest.mark.slow
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
    assert {(v.key, v.variant) for v in findings.comparisons.all()} == {
        (v.key, v.variant) for v in whole[0].comparisons.all()
    }


@pytest.mark.slow
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
    known = whole[0].comparisons.all()
    gone = next(v.key for v in known if v.rule == text)
    left = Comparisons(Draws(scope=SCOPE, seed=OPTIONS.seed), (v for v in known if v.key != gone))
    cut = replace(whole[0], comparisons=left)
    short = make_profile(cut, asked.device, asked.identity, command="probe", date="2026-01-01")
    before = sum(isinstance(r.outcome, RuleOutcome) for r in full.rows)
    assert sum(isinstance(r.outcome, RuleOutcome) for r in short.rows) == before - 1


def test_a_finished_campaign_does_nothing_again(whole: tuple[Findings, Steps, Path]) -> None:
    findings, steps = campaign_on(simulated(), whole[2])
    assert steps.done["scan"] == steps.done["solve"] == steps.done["try"] == steps.done["verify"] == 0
    assert findings.rows == whole[0].rows
    assert findings.comparisons.all() == whole[0].comparisons.all()


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


RARE_ID = 51
RARE_SPAN = "round_up(ceildiv(k, splitk_num), select(k_contiguous, select(mod(k, 64), 8, 64), 8))"
RARE_RULE = Order(spans=(RARE_SPAN,)).rule()


def rarely(problem: GemmProblem) -> AlgoConfig:
    """A few long problems whose operands both store k contiguously get an answer of their own."""
    answer = answer_of(problem)
    contiguous = problem.transa is Transpose.T and problem.transb is Transpose.N
    if problem.k >= LONG and contiguous and problem.n % 3 == 0:
        return replace(answer, algo_id=RARE_ID, stages_id=1, reduction_scheme=2)
    return answer


@pytest.mark.slow
def test_a_rare_answer_is_tried_where_the_heuristic_never_gives_it(tmp_path: Path) -> None:
    """Where its slices end depends on a layout in which no scan meets it."""
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=rarely,
        rules=lambda p, x: RARE_RULE if x.algo_id == RARE_ID else rule_of(p, x),
    )  # fmt: skip
    findings, _ = campaign_on(library, tmp_path)
    met = [k for k in findings.tally.counts if k.attribute("algo_id") == RARE_ID]
    assert 1 <= sum(findings.tally.counts[k] for k in met) <= 20
    index = index_profile(published(findings, library))
    splits = {k.attribute("splitk_num") for k in met}
    for k, slices in product((512, 520, 576, 640, 1000, 1001), splits):
        answer = sample_answer(algo_id=RARE_ID, stages_id=1, reduction_scheme=2, splitk_num=slices)
        for transa, transb in product(Transpose, Transpose):
            problem = dense_problem(64, 48, k, FP16, transa=transa, transb=transb)
            rule = lookup(index, problem, answer)
            assert isinstance(rule, Rule), rule
            assert same_bits(desc_of(rule, problem, answer), desc_of(RARE_RULE, problem, answer), k)


def test_a_row_compared_on_few_problems_declines(whole: tuple[Findings, Steps, Path]) -> None:
    """Equal on all that was compared, but that is little."""
    known = whole[0].comparisons.all()
    text = Counter(v.rule for v in known).most_common()[-1][0]
    answers = {v.key for v in known if v.rule == text}
    first = [next(v for v in known if v.key == a and v.variant.natural) for a in answers]
    assert len(first) < FEWEST_COMPARED < sum(v.rule == text for v in known)
    others = [v for v in known if v.key not in answers]
    cut = replace(whole[0], comparisons=Comparisons(Draws(scope=SCOPE, seed=OPTIONS.seed), [*others, *first]))
    rows = published(cut, simulated()).rows
    declined = [r.outcome.declined.reason for r in rows if isinstance(r.outcome, DeclineOutcome)]
    assert any(f"compared on {len(first)} problems only, {FEWEST_COMPARED} are needed" in r for r in declined)


def test_a_comparison_counts_for_every_rule_of_its_normal_form(whole: tuple[Findings, Steps, Path]) -> None:
    source = Draws(scope=SCOPE, seed=OPTIONS.seed)
    findings = whole[0]
    found = next(v for v in findings.comparisons.all() if v.key.attribute("algo_id") == LONG_ID and v.variant.natural)
    slices, k = found.key.attribute("splitk_num"), source.problem(found.variant.number).k
    assert slices is not None
    rule = RULES[LONG_ID, found.key.attribute("reduction_scheme") or 0]
    span = desc_of(rule, source.problem(found.variant.number), sample_answer(splitk_num=slices)).cuts[0].layout
    assert isinstance(span, Contiguous)
    same = make_rule(rule.structure, dict(rule.integers) | {"cuts.0.layout.span": Const(span.span)})
    other = make_rule(rule.structure, dict(rule.integers) | {"cuts.0.layout.span": Const(span.span + 1)})
    known = Comparisons(source, [found])
    assert span.span + 1 < k
    assert known.under(found.key, found.variant.number, same) is found
    assert known.under(found.key, found.variant.number, other) is None


def with_rule(profile: Profile, algo_id: int, change: Callable[[Rule], Rule]) -> Profile:
    def changed(row: ProfileRow) -> ProfileRow:
        if not isinstance(row.outcome, RuleOutcome) or ("algo_id", algo_id) not in row.key.answer:
            return row
        return replace(row, outcome=RuleOutcome(rule=change(row.outcome.rule)))

    return replace(profile, rows=tuple(map(changed, profile.rows)))


def longer_slices(rule: Rule) -> Rule:
    return make_rule(rule.structure, dict(rule.integers) | {"cuts.0.layout.span": Const(LONG)})


def sliced_by_the_grid(rule: Rule) -> Rule:
    return make_rule(rule.structure, dict(rule.integers) | {"cuts.0.layout.span": Var("grid_x")})


def test_a_profile_is_held_against_a_campaign(whole: tuple[Findings, Steps, Path]) -> None:
    """A rule that needs a launch says nothing about comparisons of another one; one of other bits is contradicted."""
    findings, _, folder = whole
    profile = published(findings, simulated())
    own = crosscheck(profile, folder)
    assert own.agreeing > 0
    assert (own.not_judged, dict(own.against)) == (0, {})

    wrong = with_rule(profile, LONG_ID, longer_slices)
    found = crosscheck(wrong, folder)
    assert sum(found.against.values()) > 0
    assert {dict(key.answer)["algo_id"] for key in found.against} == {LONG_ID}
    assert found.agreeing + sum(found.against.values()) == own.agreeing
    kept = [r for r in withdrawn(wrong, found, "it").rows if isinstance(r.outcome, RuleOutcome)]
    assert not {r.key for r in kept} & set(found.against)

    untold = crosscheck(with_rule(profile, LONG_ID, sliced_by_the_grid), folder)
    assert untold.not_judged > 0
    assert not untold.against
    assert untold.agreeing + untold.not_judged == own.agreeing


SMALL_STAGES = 4
SMALL_RULE = Order(instruction_k=16, loop_step=64).rule()


@pytest.mark.slow
def test_an_answer_met_at_small_k_only_is_tried_where_its_main_loop_shows(tmp_path: Path) -> None:
    """Up to k = 32, turns of 32 and of 64 are one and the same."""

    def small_stages(problem: GemmProblem) -> AlgoConfig:
        answer = answer_of(problem)
        return replace(answer, stages_id=SMALL_STAGES) if problem.k <= 32 and problem.n % 2 else answer

    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=small_stages,
        rules=lambda p, x: SMALL_RULE if x.algo_id == SHORT_ID and x.stages_id == SMALL_STAGES else rule_of(p, x),
    )  # fmt: skip
    findings, _ = campaign_on(library, tmp_path)
    index = index_profile(published(findings, library))
    answer = sample_answer(algo_id=SHORT_ID, stages_id=SMALL_STAGES, tile_id=10, cluster_shape_id=0)
    for k in (32, 64, 72, 104, 112, 200):
        problem = dense_problem(64, 48, k, FP16)
        rule = lookup(index, problem, answer)
        assert isinstance(rule, Rule), rule
        assert same_bits(desc_of(rule, problem, answer), desc_of(SMALL_RULE, problem, answer), k)
