"""First guesses from a neighbouring release: what is equal is found with less, what changed is found all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from gemmdesc.cli.serving import NO_FIRST_GUESSES, neighbour
from gemmdesc.descriptor import FusedDot, GEMMDesc
from gemmdesc.errors import InvalidInputError, ProfileError
from gemmdesc.probe import scan, verification
from gemmdesc.probe.offline import recorded_findings
from gemmdesc.probe.prior import NO_GUESSES, FirstGuesses, Prior
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Row, Solved
from gemmdesc.probe.publish import guesses_of, make_profile
from gemmdesc.probe.sampling import draw_problem, scope_named
from gemmdesc.probe.survey import READINGS
from gemmdesc.problem import LibraryVersion
from gemmdesc.profiles import Profile, lookup, profile_path, read_profile, write_profile
from gemmdesc.profiles import index_profile as indexed
from gemmdesc.rule import Rule
from gemmdesc.verification.hidden import same_rule
from tests.probe_samples import DEVICE
from tests.release_samples import (
    ADDED,
    CHAIN,
    LANES,
    NEW,
    OLD,
    SCOPE,
    SPLIT,
    Came,
    Release,
    campaign,
    changed_classes,
    neighbour_guesses,
    wrong_answers,
)

EQUAL, CHANGED = Release(identity=NEW), Release(identity=NEW, changed=True)


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(scan, "BLOCK_QUERIES", 250)
    patch.setattr(verification, "ROW_PROBLEMS", 8)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Came, FirstGuesses]:
    return neighbour_guesses(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, old: tuple[Came, FirstGuesses]) -> Came:
    return campaign(CHANGED, tmp_path_factory.mktemp("changed"), old[1])


def verified(came: Came) -> dict[str, str]:
    """Rows that carry a rule, by key."""
    rules = {str(row.key): getattr(row.outcome, "rule", None) for row in came.profile.rows}
    return {key: rule.text for key, rule in rules.items() if rule is not None}


def compared(came: Came, algo_id: int) -> int:
    """Comparisons of one family, made problems among them."""
    return sum(v.key.family == algo_id for v in came.findings.comparisons.all())


@pytest.mark.slow
def test_a_release_equal_to_its_neighbour_comes_out_the_same_with_fewer_products(
    old: tuple[Came, FirstGuesses], tmp_path: Path
) -> None:
    # The neighbour's own campaign is that from scratch: the libraries are equal but for their names.
    scratch, guesses = old
    came = campaign(EQUAL, tmp_path, guesses)
    assert verified(came) == verified(scratch)
    assert not wrong_answers(came, EQUAL)
    assert came.products < 0.8 * scratch.products
    assert came.readings < scratch.readings
    assert not (tmp_path / "survey.jsonl").exists()
    # Every answer is compared, and every class of steps has its trial.  From scratch the rows of splits are divided for
    # a while, and each of them is compared until it may be served.
    natural, there = ({v.key for v in c.findings.comparisons.all() if v.variant.natural} for c in (came, scratch))
    assert natural == there
    for algo_id in (CHAIN, LANES):
        assert compared(came, algo_id) == compared(scratch, algo_id)
    assert compared(came, SPLIT) >= 0.7 * compared(scratch, SPLIT)
    tried = (tmp_path / "trials.jsonl").read_text()
    assert "foretold" not in tried
    classes = {k.only(CLASS_ATTRIBUTES) for k in came.findings.tally.counts}
    assert tried.count('"given":true') >= len(classes)


def test_what_a_release_changed_is_found_and_nothing_of_the_wrong_guesses_is_left(
    changed: Came, old: tuple[Came, FirstGuesses]
) -> None:
    met = {a.algo_id for a in changed_classes(changed, CHANGED)}
    assert met == {CHAIN, SPLIT, LANES, ADDED}
    assert not wrong_answers(changed, CHANGED)
    assert verified(changed) != verified(old[0])
    refuted = [o for o in changed.findings.outcomes.values() if o.rule is None]
    assert not refuted


def test_families_of_wrong_guesses_are_surveyed_as_from_scratch(changed: Came) -> None:
    own = sum(len(o.readings) for o in changed.findings.outcomes.values())
    assert changed.readings - own >= READINGS // 4


class Over(Exception):
    """The time is over."""


@pytest.mark.slow
def test_a_campaign_with_guesses_resumes(changed: Came, old: tuple[Came, FirstGuesses], tmp_path: Path) -> None:
    """Cut off twice, in the middle of trying guesses and of comparing, it comes to the same."""
    for cut in ("try", "verify"):

        def stop(phase: str, done: int, total: int | None, cut: str = cut) -> None:
            if phase == cut and done == 3:
                raise Over

        with pytest.raises(Over):
            campaign(CHANGED, tmp_path, old[1], stop)
    came = campaign(CHANGED, tmp_path, old[1])
    assert verified(came) == verified(changed)
    assert came.findings.first_guesses == (old[1].source,)


def test_the_profile_says_whose_rules_came_first(changed: Came, old: tuple[Came, FirstGuesses], tmp_path: Path) -> None:
    write_profile(changed.profile, tmp_path / "one.parquet")
    (measured,) = read_profile(tmp_path / "one.parquet").metadata.measured
    assert measured.first_guesses == old[1].source
    assert "cublaslt-13.1.0, build-id 01d" in measured.first_guesses
    assert old[0].profile.metadata.measured[0].first_guesses == ""


def wrong_step(rule: Rule) -> Rule:
    """Steps that keep one bit less of the products that they align."""

    def changed(desc: GEMMDesc) -> GEMMDesc:
        leaf = desc.accumulator
        assert isinstance(leaf.step, FusedDot)
        step = replace(leaf.step, fraction_bits=leaf.step.fraction_bits - 1)
        return replace(desc, accumulator=replace(leaf, step=step))

    return rule.restructured(changed)


def test_a_guess_of_launches_or_of_another_kind_is_none(old: tuple[Came, FirstGuesses]) -> None:
    rows = old[1].rows
    assert guesses_of(old[0].profile, scope_named("bias")) == NO_GUESSES
    assert guesses_of(old[0].profile, scope_named("float32")) == NO_GUESSES
    assert guesses_of(old[0].profile, SCOPE) == old[1]
    key = next(iter(old[0].findings.tally.counts)).only(CLASS_ATTRIBUTES)
    assert Prior((), rows).exact(key) is not None
    assert Prior(rows).exact(key) is None
    empty = [replace(r, solved=Solved(rule=None)) for r in rows]
    assert Prior((), empty).exact(key) is None


@pytest.mark.slow
def test_of_guesses_that_are_all_wrong_none_is_left(old: tuple[Came, FirstGuesses], tmp_path: Path) -> None:
    def other(row: Row) -> Row:
        rule = row.solved.rule
        return row if rule is None or row.key.family == LANES else replace(row, solved=Solved(rule=wrong_step(rule)))

    wrong = replace(old[1], rows=tuple(other(r) for r in old[1].rows))
    came = campaign(EQUAL, tmp_path, wrong)
    # One bit of the alignment hardly shows through float16 partials: bytes alone would let some of them pass.
    rules = {rule for r in came.findings.rows if (rule := r.solved.rule) is not None}
    assert rules
    assert rules.isdisjoint({r.solved.rule for r in wrong.rows if r.key.family != LANES})
    assert not wrong_answers(came, EQUAL, declined=False)
    again, _, _ = recorded_findings(tmp_path)
    made = make_profile(again, DEVICE, NEW, command="test", date="2026-12-01")
    assert {r.key for r in made.rows} == {r.key for r in came.profile.rows}


# --- which neighbour --------------------------------------------------------------------------------------------------


def put(profile: Profile, folder: Path, version: str, build: str = "x", **device: object) -> Profile:
    library = replace(OLD, version=LibraryVersion.parse(version), build_id=build)
    made = replace(profile, library=library, device=replace(DEVICE, **device))
    write_profile(made, profile_path(folder, made.device, made.library.version))
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMDESC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(import_module("gemmdesc.profiles.lookup"), "packaged_folder", lambda: None)
    return tmp_path / "profiles"


def test_the_nearest_release_of_the_same_card_is_the_neighbour(old: tuple[Came, FirstGuesses], folder: Path) -> None:
    profile = old[0].profile
    asked = replace(NEW, version=LibraryVersion.parse("13.2.0"))
    assert neighbour(DEVICE, asked, None, None) is None
    put(profile, folder, "13.2.1", sm_count=78)
    put(profile, folder, "12.9.1")
    far = put(profile, folder, "13.0.0")
    assert neighbour(DEVICE, asked, None, None) == far
    later = put(profile, folder, "13.3.0")
    assert neighbour(DEVICE, asked, None, None) == later
    older = put(profile, folder, "13.1.0")
    # Of two as near the older one.
    assert neighbour(DEVICE, asked, None, None) == older
    own = put(profile, folder, "13.2.0", build=asked.build_id)
    assert neighbour(DEVICE, asked, None, None) == older
    assert neighbour(DEVICE, asked, NO_FIRST_GUESSES, None) is None
    assert neighbour(DEVICE, asked, "13.0.0", None) == far
    assert neighbour(DEVICE, asked, str(profile_path(folder, DEVICE, far.library.version)), None) == far
    for named, error in (("13.9.9", ProfileError), ("13.2.0", ProfileError), ("nonsense", InvalidInputError)):
        with pytest.raises(error):
            neighbour(DEVICE, asked, named, None)
    # Another build of the same release is the nearest there is.
    assert neighbour(DEVICE, replace(asked, build_id="other"), None, None) == own


def test_served_rules_are_those_of_the_release(changed: Came) -> None:
    """Through the profile, as a caller meets them."""
    index, seen = indexed(changed.profile), 0
    for number in range(150):
        problem = draw_problem(SCOPE, 3, number)
        answer = CHANGED.answer(problem)
        rule = lookup(index, problem, answer)
        seen += isinstance(rule, Rule)
        if isinstance(rule, Rule):
            assert same_rule(rule, CHANGED.rule(problem, answer), problem, answer)
    assert seen > 100
