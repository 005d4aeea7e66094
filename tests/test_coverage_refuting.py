"""Coverage campaigns that refute rows: what declines then, which records stay, and what a campaign learns from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemmdesc.descriptor import FusedDot, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError, Declined, InvalidInputError
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.operands import Family
from gemmdesc.probe import scan, verification
from gemmdesc.probe.campaign import Campaign, Findings, Options
from gemmdesc.probe.compare import Draw, choose_window, plain_operands
from gemmdesc.probe.facets import Kind
from gemmdesc.probe.publish import make_profile
from gemmdesc.probe.refutations import (
    MOST_OF_AN_ANSWER,
    Refutation,
    in_scope,
    joined,
    read_refutations,
    refutation_from_plain,
    refutation_to_plain,
    write_refutations,
)
from gemmdesc.probe.sampling import Regime, Scope, scope_of_kind
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, GemmProblem, KernelNode, Launch, Transpose, dense_problem
from gemmdesc.profiles import (
    Compared,
    Deciding,
    DeclineOutcome,
    Level,
    Profile,
    ProfileRow,
    RowTested,
    RuleOutcome,
    audit,
    index_profile,
    lookup,
    refuted,
    refuted_examples,
)
from gemmdesc.rule import Rule, parse_rule
from gemmdesc.verification.coverage import CoverageOptions, CoverageTasks, coverage_item, run_coverage
from gemmdesc.verification.coverage_refuted import Found, find_refuted, separations_of
from gemmdesc.verification.coverage_rows import Rows, Taken
from gemmdesc.verification.coverage_summary import Coverage, coverage_summary, read_coverage
from gemmdesc.verification.draws import draws_of
from gemmdesc.verification.hidden import DTYPE, hidden_library, hide, same_rule
from gemmdesc.verification.kind_draws import kind_operands, operand_seed, problem_of
from gemmdesc.verification.kinds import verify_kind
from tests.kind_profiles import bench_of, profile_of
from tests.probe_samples import DEVICE, IDENTITY, sample_answer
from tests.test_verification_coverage import ABOUT, IDENTITY_OF, scopes_of

SCOPES = scopes_of("float16", "tf32")
OPTIONS = CoverageOptions(shapes={"float16": 40, "tf32": 10}, draws=2)
PROFILE = profile_of(SCOPES)


def rows_of(now: Profile, *former: Profile, accept: Level = Level.VERIFIED) -> Rows:
    return Rows(
        now=Taken.on(now, accept, SCOPES), former=tuple(Taken.on(profile, accept, SCOPES) for profile in former)
    )


def cover(
    profile: Profile, folder: Path, options: CoverageOptions = OPTIONS, rows: Rows | None = None
) -> tuple[int, Coverage]:
    done = run_coverage(
        InProcess(bench_of(profile)), SCOPES, options, folder, IDENTITY_OF, lambda *_: None,
        CoverageTasks(verify=verify_kind), ABOUT, rows or rows_of(profile),
    )  # fmt: skip
    return done, read_coverage([folder])


def coarse(rule: Rule) -> Rule:
    def changed(desc: GEMMDesc) -> GEMMDesc:
        step = desc.accumulator.step
        assert isinstance(step, FusedDot)
        return replace(desc, accumulator=replace(desc.accumulator, step=replace(step, fraction_bits=8)))

    return rule.restructured(changed)


def with_rule(profile: Profile, place: int, change: Callable[[Rule], Rule]) -> Profile:
    """The profile with one row's rule changed."""
    row = profile.rows[place]
    assert isinstance(row.outcome, RuleOutcome)
    wrong = replace(row, outcome=RuleOutcome(rule=change(row.outcome.rule)))
    return replace(profile, rows=tuple(wrong if r is row else r for r in profile.rows))


def place_of(profile: Profile, coverage: Coverage, least: int) -> tuple[int, int]:
    """A row of float16 products that decides at least so many shapes, and how many these are."""
    deciding = Deciding(profile)
    for word, row in deciding.rows.items():
        count = sum(c.row == word for c in coverage.of("float16"))
        if count >= least:
            return profile.rows.index(row), count
    raise AssertionError("no row decides as many shapes")


# --- records and rows -------------------------------------------------------------------------------------------------


def test_a_campaign_goes_on_after_other_rows_changed(tmp_path: Path) -> None:
    assert cover(PROFILE, tmp_path)[0] == 50
    _, found = cover(PROFILE, tmp_path)
    words = Deciding(PROFILE).words
    assert {c.row for c in found.of()} <= words | {"refused"}
    place, count = place_of(PROFILE, found, 3)
    assert count < 40
    # Evidence alone changes nothing.
    row = PROFILE.rows[place]
    more = replace(PROFILE, rows=tuple(
        replace(r, evidence=replace(r.evidence, shapes=9, draws=90)) if r is row else r for r in PROFILE.rows
    ))  # fmt: skip
    assert cover(more, tmp_path)[0] == 0
    wrong = with_rule(PROFILE, place, coarse)
    late, cut = cover(wrong, tmp_path, replace(OPTIONS, seconds=-1.0))
    assert late == 0
    assert coverage_summary(cut)["stale"] == {"float16": count}
    assert len(cut.of()) == 50 - count
    done, after = cover(wrong, tmp_path)
    data = coverage_summary(after)
    assert (done, data["stale"], data["total"]["different"]) == (count, {}, count)
    # Records of a row that is as it was before hold again, where nothing newer is known of the shape.
    assert cover(PROFILE, tmp_path)[0] == count
    assert coverage_summary(read_coverage([tmp_path]))["total"]["different"] == 0


def test_what_no_row_takes_comes_again_when_a_row_does(tmp_path: Path) -> None:
    _, full = cover(PROFILE, tmp_path / "full")
    place, count = place_of(PROFILE, full, 3)
    without = replace(PROFILE, rows=tuple(r for i, r in enumerate(PROFILE.rows) if i != place))
    _, found = cover(without, tmp_path / "x")
    assert coverage_summary(found)["total"]["declined"] == count
    assert cover(without, tmp_path / "x")[0] == 0
    done, found = cover(PROFILE, tmp_path / "x")
    assert (done, coverage_summary(found)["total"]["declined"]) == (count, 0)


def test_weaker_evidence_is_a_row_of_its_own() -> None:
    """What declined because its row was too weak comes again once the row is verified."""
    row = PROFILE.rows[0]
    inferred = replace(row, evidence=replace(row.evidence, level=Level.INFERRED))
    weak = replace(PROFILE, rows=(inferred, *PROFILE.rows[1:]))
    strict, loose = (Deciding(weak, level) for level in (Level.VERIFIED, Level.INFERRED))
    example = row.evidence.example
    assert strict.word(example.problem, example.answer) not in Deciding(PROFILE).words
    assert loose.word(example.problem, example.answer) in Deciding(PROFILE).words


def as_before(folder: Path, profile: Profile) -> None:
    """Turn a folder into one of before records had rows."""
    (folder / "rows.jsonl").unlink()
    for family, digest in Taken.on(profile, Level.VERIFIED, SCOPES).digests.items():
        stamp = folder / family / "campaign.json"
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "rows": digest}, sort_keys=True))
        for path in (folder / family).glob("*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kept = [{name: value for name, value in line.items() if name != "row"} for line in lines]
            path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept))


def test_folders_of_before_records_had_rows_go_on(tmp_path: Path) -> None:
    place, count = place_of(PROFILE, cover(PROFILE, tmp_path / "whole")[1], 3)
    wrong = with_rule(PROFILE, place, coarse)
    # One row was wrong then, and its shapes differ.
    _, found = cover(wrong, tmp_path / "old")
    as_before(tmp_path / "old", wrong)
    old = read_coverage([tmp_path / "old"])
    assert [replace(c, row="") for c in found.of()] == old.of()
    for name in ("same", "former", "lost"):
        shutil.copytree(tmp_path / "old", tmp_path / name)
    done, same = cover(wrong, tmp_path / "same")
    assert (done, same.of(), same.stale) == (0, found.of(), {})
    done, after = cover(PROFILE, tmp_path / "former", rows=rows_of(PROFILE, wrong))
    assert (done, coverage_summary(after)["total"]["different"]) == (count, 0)
    # Where the profile that decided them is not at hand, nothing says which rows of the family have changed.
    late, lost = cover(PROFILE, tmp_path / "lost", replace(OPTIONS, seconds=-1.0))
    assert (late, lost.families, lost.stale) == (0, ("tf32",), {"float16": 40})
    assert cover(PROFILE, tmp_path / "lost")[0] == 40


def test_shards_of_different_rows_are_not_read_together(tmp_path: Path) -> None:
    place, _ = place_of(PROFILE, cover(PROFILE, tmp_path / "a")[1], 3)
    cover(with_rule(PROFILE, place, coarse), tmp_path / "b")
    with pytest.raises(CampaignError, match=r"^folders must hold shards of one campaign"):
        read_coverage([tmp_path / "a", tmp_path / "b"])
    cover(PROFILE, tmp_path / "b", replace(OPTIONS, seconds=-1.0))
    both = read_coverage([tmp_path / "a", tmp_path / "b"])
    assert (len(both.of()), both.stale) == (50, {})


# --- refuting rows ----------------------------------------------------------------------------------------------------


def found_by(profile: Profile, folder: Path) -> Found:
    _, coverage = cover(profile, folder)
    bench = InProcess(bench_of(profile))
    return find_refuted(bench, coverage, folder, Deciding(profile), SCOPES, OPTIONS)


def test_a_row_with_a_shape_that_differs_declines_and_others_count_theirs(tmp_path: Path) -> None:
    _, whole = cover(PROFILE, tmp_path / "whole")
    place, count = place_of(PROFILE, whole, 3)
    wrong = with_rule(PROFILE, place, coarse)
    found = found_by(wrong, tmp_path / "x")
    made = refuted(wrong, found.tested, command="now", date="2026-12-02")
    row = made.rows[place]
    assert isinstance(row.outcome, DeclineOutcome)
    (one,) = found.refuted
    assert one.row == wrong.rows[place]
    assert f"{one.different} of {count} shapes differ" in row.outcome.declined.reason
    assert (row.evidence.level, row.evidence.shapes, row.evidence.draws) == (Level.OBSERVED, count, 2 * count)
    assert 0 < row.evidence.mismatches <= row.evidence.draws
    p, answer = row.evidence.example.problem, row.evidence.example.answer
    assert lookup(index_profile(made), p, answer) == row.outcome.declined
    assert refuted_examples(made) == (row.evidence.example,)
    assert audit(made) == audit(wrong)
    deciding = Deciding(wrong)
    for old, new in zip(wrong.rows, made.rows, strict=True):
        if old.key == row.key:
            continue
        equal = sum(deciding.rows.get(c.row) == old for c in whole.of())
        assert new.outcome == old.outcome
        assert new.evidence.shapes == max(equal, old.evidence.shapes)
        assert new.evidence.draws == (2 * equal if equal > 1 else old.evidence.draws)
    # What was applied once is applied: the row's shapes decline, and nothing is counted twice.
    again = find_refuted(
        InProcess(bench_of(made)), cover(made, tmp_path / "x")[1], tmp_path / "x", Deciding(made), SCOPES, OPTIONS
    )
    assert again.refuted == ()
    assert refuted(made, again.tested, command="later", date="2026-12-03") == made
    assert {r.shape for r in again.refutations} == {r.shape for r in found.refutations}


def test_weaker_rows_are_refuted_and_not_promoted() -> None:
    row = PROFILE.rows[0]
    weak = replace(PROFILE, rows=(replace(row, evidence=replace(row.evidence, level=Level.PUBLISHED)),))
    example = row.evidence.example
    right = RowTested(equal=((4, 5, 6),) * 40, draws=400)
    assert refuted(weak, {row.key: right}, command="c", date="d") == weak
    differing = Compared(problem=example.problem, answer=example.answer, launch_names=(), equal=9, different=1)
    made = refuted(weak, {row.key: replace(right, differing=(differing,))}, command="c", date="d")
    outcome = made.rows[0].outcome
    assert isinstance(outcome, DeclineOutcome)
    assert outcome.declined.reason.startswith("the published rule was refuted: 1 of 41 shapes differ, the first ")
    assert made.metadata.command == "c; before: test"


def test_what_tells_shapes_apart_is_said() -> None:
    equal = [{"block_y": 8, "m": m, "kernels": "a"} for m in (10, 20, 30)]
    different = [{"block_y": 4, "m": m, "kernels": k} for m, k in ((40, "b"), (50, "a"))]
    assert separations_of(equal, different) == (
        "block_y: 4 where different, 8 where equal", "m: at least 40 where different, at most 30 where equal",
    )  # fmt: skip
    assert separations_of(different, equal)[1] == "m: at most 30 where different, at least 40 where equal"
    assert separations_of(equal, [*different, {"block_y": 8, "m": 15, "kernels": "b"}]) == ()
    assert separations_of([], different) == ()


# --- what a campaign takes up -----------------------------------------------------------------------------------------


def test_the_draw_that_showed_it_is_the_one_compared_again(tmp_path: Path) -> None:
    """Seed, number and family make coverage's very operands, and the element that differed is in the window."""
    place, _ = place_of(PROFILE, cover(PROFILE, tmp_path / "whole")[1], 3)
    found = found_by(with_rule(PROFILE, place, coarse), tmp_path / "x")
    assert found.refutations
    for one in found.refutations:
        assert refutation_from_plain(json.loads(json.dumps(refutation_to_plain(one)))) == one
        family, regime, index = one.shape.split("/")
        item = coverage_item(family, SCOPES[family], Regime(regime), int(index), seed=1, draws=2)
        assert problem_of(item) == one.problem
        assert one.draw is not None
        theirs = kind_operands(one.problem, draws_of(2)[one.draw.number], operand_seed(item))
        draw = Draw(
            seed=one.draw.seed, number=one.draw.number, rival=False, family=one.draw.family,
            at=(one.draw.row, one.draw.column),
        )  # fmt: skip
        p = one.problem
        for mine, their, rows in zip(plain_operands(p, draw), theirs, (p.m, p.n), strict=True):
            assert np.array_equal(mine.bits(rows, p.k), their.bits(rows, p.k))
        window = choose_window(p, draw)
        assert one.draw.row in window.rows
        assert one.draw.column in window.columns


def test_an_element_is_looked_at_wherever_it_is() -> None:
    problem = dense_problem(5000, 4000, 64, DType.FLOAT16)
    plain = Draw(seed=1, number=1, rival=False, family=Family.WIDE)
    assert 1234 not in choose_window(problem, plain).rows
    window = choose_window(problem, replace(plain, at=(1234, 987)))
    assert 1234 in window.rows
    assert 987 in window.columns
    assert len(window.rows) == len(choose_window(problem, plain).rows) + 1
    assert len(set(window.rows.tolist())) == len(window.rows)


def refutation_of(problem: GemmProblem, **changes: int) -> Refutation:
    return Refutation(problem=problem, answer=sample_answer(**changes))


def test_a_campaign_takes_up_a_few_of_its_own_kind() -> None:
    plain = [refutation_of(dense_problem(m, 8, 64, DType.FLOAT16)) for m in range(8, 8 + 16 * 30, 16)]
    other = refutation_of(dense_problem(8, 24, 64, DType.FLOAT16), tile_id=2)
    float32 = refutation_of(dense_problem(8, 8, 64, DType.FLOAT32))
    bias = refutation_of(replace(dense_problem(8, 8, 64, DType.FLOAT16), batch_count=2, a_batch_stride=512))
    scope = Scope(dtypes=(DType.FLOAT16,), output_float32=False)
    taken = joined((), [*plain, *plain, other, float32, bias], scope)
    assert len(taken) == MOST_OF_AN_ANSWER + 1
    assert other in taken
    # The smallest and the largest: one answer may be several kernels.
    assert {plain[0], plain[-1]} <= set(taken)
    assert joined(taken, plain, scope) == ()
    assert joined(taken[:3], plain, scope)
    assert in_scope(float32.problem, Scope(dtypes=(DType.FLOAT32,)))
    assert in_scope(bias.problem, replace(scope_of_kind(Kind.BATCH), dtypes=(DType.FLOAT16,)))
    wide = refutation_of(dense_problem(8, 8, 64, DType.FLOAT16, d_dtype=DType.FLOAT32))
    assert not in_scope(wide.problem, scope)
    assert in_scope(wide.problem, Scope())


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "new" / "refuted.jsonl"
    one = refutation_of(dense_problem(8, 8, 64, DType.FLOAT16))
    write_refutations(path, [one], IDENTITY, DEVICE)
    assert read_refutations(path, IDENTITY, DEVICE) == (one,)
    assert [p.name for p in path.parent.iterdir()] == ["refuted.jsonl"]
    for library, device in ((replace(IDENTITY, build_id="other"), DEVICE), (IDENTITY, replace(DEVICE, sm_count=1))):
        with pytest.raises(InvalidInputError, match=r"^refuted must be of"):
            read_refutations(path, library, device)
    line = json.loads(path.read_text())
    for wrong, match in (
        ("{", "refuted must be a file of JSON lines"), ("[]", "refuted must be of"),
        (json.dumps({**line, "problem": {"m": 1}}), "refutation must be"),
        (json.dumps({**line, "draw": {"seed": 1}}), "refutation must be"),
        (json.dumps({**line, "draw": {**dict.fromkeys(("seed", "number", "row", "column"), 1), "family": "x"}}),
         "refutation must be"),
    ):  # fmt: skip
        path.write_text(wrong + "\n")
        with pytest.raises(InvalidInputError, match=f"^{match}"):
            read_refutations(path, IDENTITY, DEVICE)
    with pytest.raises(InvalidInputError, match=r"^refuted must be a file"):
        read_refutations(tmp_path / "none", IDENTITY, DEVICE)


# --- end to end -------------------------------------------------------------------------------------------------------

HIDDEN = hide(5)
SMALL = Scope(dtypes=(DTYPE,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.0)
FEW = Options(scope=SMALL, target_unseen=1e-2, first_blocks=1, most_queries=400, cuda_cores=False)


def campaign_in(folder: Path, given: tuple[Refutation, ...] = ()) -> tuple[Profile, Findings]:
    library = hidden_library(HIDDEN)
    findings = Campaign(InProcess(library), FEW, folder, lambda *_: None, refuted=given).run()
    return make_profile(findings, library.device, library.identity, command="c", date="2026-12-01"), findings


def narrow_slices(rule: Rule) -> Rule:
    """Slices of half the grain: many shapes of few slices do not tell."""
    text = rule.text.replace("splitk_num), 64)", "splitk_num), 32)")
    assert text != rule.text
    return parse_rule(text)


@pytest.fixture(scope="module")
def misled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Profile, int]]:
    """A finished campaign that believes a wrong rule of one row, its profile, and the row's place there."""
    patch = pytest.MonkeyPatch()
    patch.setattr(scan, "BLOCK_QUERIES", 400)
    patch.setattr(verification, "ROW_PROBLEMS", 8)
    folder = tmp_path_factory.mktemp("campaign")
    profile, _ = campaign_in(folder)
    split = [r.outcome.rule if isinstance(r.outcome, RuleOutcome) else None for r in profile.rows]
    place = next(
        i for i, rule in enumerate(split)
        if rule is not None and "summed_k=k," in rule.text and "splitk_num), 64)" in rule.text
    )  # fmt: skip
    right = split[place]
    assert right is not None
    old, new = (json.dumps(r.text)[1:-1] for r in (right, narrow_slices(right)))
    for path in folder.glob("*.jsonl"):
        path.write_text(path.read_text().replace(old, new))
    yield folder, with_rule(profile, place, narrow_slices), place
    patch.undo()


@pytest.fixture
def misled(misled_once: tuple[Path, Profile, int], tmp_path: Path) -> tuple[Path, Profile, int]:
    """The same, in a folder of its own."""
    folder, profile, place = misled_once
    return shutil.copytree(folder, tmp_path / "campaign"), profile, place


def test_a_wrong_row_is_found_declines_is_learned_anew_and_covered(
    misled: tuple[Path, Profile, int], tmp_path: Path
) -> None:
    folder, wrong, place = misled
    hidden, scopes = hidden_library(HIDDEN), {DTYPE.value: SMALL}
    options = CoverageOptions(shapes={DTYPE.value: 250}, draws=4)

    def covered(profile: Profile) -> tuple[int, Coverage, Found]:
        rows = Rows(now=Taken.on(profile, Level.VERIFIED, scopes))
        workers = InProcess(bench_of(profile, hidden))
        done = run_coverage(
            workers, scopes, options, tmp_path / "coverage", IDENTITY_OF, lambda *_: None,
            CoverageTasks(verify=verify_kind), ABOUT, rows,
        )  # fmt: skip
        coverage = read_coverage([tmp_path / "coverage"])
        found = find_refuted(workers, coverage, tmp_path / "coverage", rows.now.deciding, scopes, options)
        return done, coverage, found

    # A campaign that is told nothing keeps its rule.
    shutil.copytree(folder, tmp_path / "untold")
    untold, _ = campaign_in(tmp_path / "untold")
    assert untold.rows[place].outcome == wrong.rows[place].outcome

    done, coverage, found = covered(wrong)
    counts = coverage_summary(coverage)["total"]
    (row,) = found.refuted
    assert (done, counts["different"], row.row.key) == (250, row.different, wrong.rows[place].key)
    assert 0 < row.different < row.different + row.equal < 250

    applied = refuted(wrong, found.tested, command="verify", date="2026-12-01")
    index = index_profile(applied)
    for one in found.refutations:
        said = lookup(index, one.problem, one.answer)
        assert isinstance(said, Declined)
        assert said.reason.startswith(f"the verified rule was refuted: {row.different} of ")
    done, coverage, _ = covered(applied)
    counts = coverage_summary(coverage)["total"]
    assert done == counts["declined"] == row.different + row.equal
    assert counts["different"] == 0

    path = tmp_path / "refuted.jsonl"
    write_refutations(path, found.refutations, hidden.identity, hidden.device)
    known = read_refutations(path, hidden.identity, hidden.device)
    repaired, findings = campaign_in(folder, known)
    given = {v.variant.number: v for v in findings.comparisons.all() if v.variant.number < 0}
    assert {v.verdict.value for v in given.values()} == {"equal"}
    assert len(given) == len({(r.problem, r.draw) for r in findings.source.given})
    outcome = repaired.rows[place].outcome
    assert isinstance(outcome, RuleOutcome)
    assert repaired.rows[place].evidence.level is Level.VERIFIED
    _, coverage, found = covered(repaired)
    counts = coverage_summary(coverage)["total"]
    assert (counts["equal"], counts["different"], found.refuted) == (250, 0, ())
    # The campaign knows them from now on, from its folder alone.
    again, findings = campaign_in(folder)
    assert findings.source.given
    assert again.rows == repaired.rows


def test_a_given_problem_is_compared_before_its_row_is_served(misled: tuple[Path, Profile, int]) -> None:
    """Whatever else a row has shown, and were it only by this one problem."""
    folder, wrong, place = misled
    example = wrong.rows[place].evidence.example
    given = Refutation(problem=example.problem, answer=example.answer)
    campaign = Campaign(InProcess(hidden_library(HIDDEN)), FEW, folder, lambda *_: None, refuted=(given,))
    made = make_profile(campaign.findings(), wrong.device, wrong.library, command="c", date="2026-12-01")
    before, after = wrong.rows[place], next(r for r in made.rows if r.key == wrong.rows[place].key)
    assert isinstance(before.outcome, RuleOutcome)
    assert isinstance(after.outcome, DeclineOutcome)
    assert "equal 62; 1 of 57 answers not compared in full" in after.outcome.declined.reason
    assert [r for r in made.rows if r is not after] == [r for r in wrong.rows if r is not before]


@pytest.mark.slow
def test_a_kernel_of_fewer_lanes_beyond_what_the_scan_met_is_learned_from_its_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer is two kernels by the sizes of D, and no problem of the campaign's own launches the second."""
    monkeypatch.setattr(scan, "BLOCK_QUERIES", 100)
    monkeypatch.setattr(verification, "ROW_PROBLEMS", 8)
    hidden = lanes_of("strided(count=2, unit=floordiv(32, block_y))")

    def launch(p: GemmProblem, answer: AlgoConfig) -> Launch:
        block = (32, 8 if max(p.m, p.n) <= 128 else 16, 1)
        kernel = KernelNode(name="gemv", grid=(1, 1, 1), block=block, cluster=(1, 1, 1), shared_bytes=0)
        return Launch(kernels=(kernel,))

    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=lambda p: sample_answer(), rules=lambda p, x: hidden,
        launches=launch,
    )  # fmt: skip
    options = Options(scope=SMALL, target_unseen=0.5, first_blocks=1, most_queries=100)

    def row_of(given: tuple[Refutation, ...]) -> ProfileRow:
        found = Campaign(InProcess(library), options, tmp_path, lambda *_: None, refuted=given).run()
        (row,) = make_profile(found, DEVICE, IDENTITY, command="c", date="2026-12-01").rows
        return row

    assert row_of(()).outcome == RuleOutcome(rule=lanes_of("strided(count=2, unit=4)"))
    wide = [dense_problem(m, n, k, DType.FLOAT16, transa=t) for m, n, k, t in WIDE]
    row = row_of(tuple(Refutation(problem=p, answer=sample_answer()) for p in wide))
    assert row.evidence.level is Level.VERIFIED
    assert isinstance(row.outcome, RuleOutcome)
    for problem in (*wide, row.evidence.example.problem, dense_problem(5, 6, 900, DType.FLOAT16)):
        answer = sample_answer()
        assert same_rule(row.outcome.rule, hidden, problem, answer, launch(problem, answer))
    # Not what it had before, by the same measure.
    assert not same_rule(lanes_of("strided(count=2, unit=4)"), hidden, wide[0], answer, launch(wide[0], answer))


#: m, n, k, and how A is stored, of problems with a longer side than any of the campaign's.
WIDE = ((300, 7, 200, Transpose.N), (513, 9, 333, Transpose.T), (7, 700, 150, Transpose.N))


def lanes_of(layout: str) -> Rule:
    """A CUDA-core rule of one cut."""
    return parse_rule(
        f"gemm(a_dtype=float16, b_dtype=float16, output_dtype=float16, summed_k=k, cuts=[cut(layout={layout}, "
        "partial_dtype=float32, merge_dtype=float32, start=first)], accumulator=accumulator(instruction_k=1, "
        "residue=residue_last(), step=scalar_step(fused=True, start=zero)), epilogue=[])"
    )
