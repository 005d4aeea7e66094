"""First guesses from plain products: how they divide a family, what is tried, and that only the way is shorter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmdesc.descriptor import AddBias, Contiguous, Cut, GEMMDesc, Start
from gemmdesc.dtypes import DType
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe import scan, verification
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.campaign import Campaign, Findings, Options
from gemmdesc.probe.class_solver import Report
from gemmdesc.probe.offline import recorded_findings
from gemmdesc.probe.prior import Prior, first_rules
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Node, Row, Solved, families
from gemmdesc.probe.publish import make_profile, prior_of
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, Epilogue, GemmProblem
from gemmdesc.rule import Rule
from tests.kind_profiles import small_scopes
from tests.probe_samples import DEVICE, FP16, FP32, IDENTITY, Order, sample_answer

TYPES = (DType.FLOAT16, DType.FLOAT16, DType.FLOAT16)
PLAIN = Order().rule()
SPLIT = Order(spans=("round_up(ceildiv(k, splitk_num), 64)",)).rule()


def key(**values: int) -> AnswerKey:
    named = {"algo_id": 7, **values}
    return AnswerKey(types=TYPES, values=tuple(named.get(n) for n in ("algo_id", "tile_id", "splitk_num",
                     "reduction_scheme", "cta_swizzling", "custom_option", "stages_id", "inner_shape_id",
                     "cluster_shape_id")))  # fmt: skip


def row(rule: Rule | None, **values: int) -> Row:
    made = key(**values)
    return Row(key=made, classes=(), named=made.named, solved=Solved(rule=rule))


def following(rule: Rule, *, opens: bool = False) -> Rule:
    def changed(desc: GEMMDesc) -> GEMMDesc:
        if opens:
            return replace(desc, cuts=(replace(desc.cuts[0], opening=(AddBias(),), open_end=True), *desc.cuts[1:]))
        return replace(desc, epilogue=(AddBias(),))

    return rule.restructured(changed)


PRIOR = Prior([row(PLAIN, custom_option=0, stages_id=3), row(SPLIT, custom_option=1, stages_id=3)])
REST = {n: 0 for n in CLASS_ATTRIBUTES if n != "algo_id"}
CLASSES = [key(**REST | {"tile_id": t, "custom_option": c, "stages_id": 3}) for t in (1, 2) for c in (0, 1, 2)]
#: What the many classes of a simulated family are summed by, by ``custom_option``.
ORDERS = (Order(), Order(instruction_k=8, loop_step=32), Order(loop_step=64), Order(instruction_k=32))


def test_a_family_is_divided_by_what_divides_its_rows() -> None:
    (node,) = families(CLASSES)
    divided = PRIOR.divided(node)
    assert [{c.attribute("custom_option") for c in n.classes} for n in divided] == [{0}, {1}, {2}]
    assert all(n.named == ("algo_id", "custom_option") for n in divided)
    other = replace(CLASSES[0], values=(8, *CLASSES[0].values[1:]))
    alone = Node(classes=(other,), named=("algo_id",))
    assert PRIOR.divided(alone) == [alone]
    assert not PRIOR.knows(other)
    assert Prior().divided(node) == [node]


def test_guesses_are_the_rows_rule_with_what_was_found_to_follow() -> None:
    split = next(c for c in CLASSES if c.attribute("custom_option") == 1)
    assert PRIOR.guesses(split, {}) == ()
    foreign = replace(CLASSES[0], values=(8, *CLASSES[0].values[1:]))
    found = {CLASSES[0]: following(PLAIN), foreign: following(SPLIT, opens=True)}
    assert PRIOR.guesses(split, found) == (following(SPLIT), following(SPLIT, opens=True))
    # A fold that nothing opens ends as the row's own rule says.
    ending = Cut(layout=Contiguous(span=1), partial_dtype=FP32, merge_dtype=FP16, start=Start.FIRST, open_end=True)
    narrow = SPLIT.restructured(lambda d: replace(d, cuts=(replace(ending, layout=d.cuts[0].layout),)))
    (made,) = Prior([row(narrow, custom_option=1)]).guesses(split, {CLASSES[0]: following(PLAIN)})
    assert made.structure.cuts[0].open_end
    assert made.structure.epilogue == (AddBias(),)
    unknown = next(c for c in CLASSES if c.attribute("custom_option") == 2)
    assert PRIOR.guesses(unknown, found) == ()


def test_the_row_s_rule_is_foretold_with_what_follows() -> None:
    plain, split = (next(c for c in CLASSES if c.attribute("custom_option") == o) for o in (0, 1))
    assert PRIOR.foretells(plain, following(PLAIN))
    assert PRIOR.foretells(split, following(SPLIT, opens=True))
    assert not PRIOR.foretells(split, following(PLAIN))
    assert not PRIOR.foretells(next(c for c in CLASSES if c.attribute("custom_option") == 2), following(PLAIN))
    assert not Prior().foretells(plain, following(PLAIN))


def test_a_rule_read_without_slices_is_restated_as_the_row_s() -> None:
    """Without slices, one chain and slices are the same; with some, or under another order, they are not."""
    split = next(c for c in CLASSES if c.attribute("custom_option") == 1)
    chain = following(PLAIN)
    one, two = ({"k": 100, "splitk_num": slices} for slices in (1, 2))
    assert PRIOR.restated(split, chain, [one]) == following(SPLIT)
    assert PRIOR.restated(split, chain, [one, two]) == chain
    assert PRIOR.restated(split, chain, []) == chain
    other = following(Order(instruction_k=4).rule())
    assert PRIOR.restated(split, other, [one]) == other
    unknown = next(c for c in CLASSES if c.attribute("custom_option") == 2)
    assert PRIOR.restated(unknown, chain, [one]) == chain


def test_rules_are_tried_once_and_in_order() -> None:
    assert first_rules([SPLIT, PLAIN, SPLIT]) == (SPLIT, PLAIN)
    assert first_rules([SPLIT, PLAIN], 1) == (SPLIT,)


def library_of_many() -> SimulatedLibrary:
    """One family of eight classes and four orders, which a bias follows or not."""

    def answered(p: GemmProblem) -> AlgoConfig:
        return sample_answer(tile_id=1 + p.m % 2, custom_option=p.n % 4, splitk_num=1 + p.k % 2)

    def ruled(p: GemmProblem, answer: AlgoConfig) -> Rule:
        rule = ORDERS[answer.custom_option].rule(p.a_dtype, p.d_dtype)
        return following(rule) if p.epilogue is Epilogue.BIAS else rule

    return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=answered, rules=ruled)


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(scan, "BLOCK_QUERIES", 160)
    patch.setattr(verification, "ROW_PROBLEMS", 8)
    yield
    patch.undo()


def campaign(
    name: str, folder: Path, prior: Sequence[Row] = (), compared: int | None = None, report: Report = lambda *_: None
) -> tuple[Findings, dict[str, int]]:
    scope = replace(small_scopes((name,))[name], dtypes=(DType.FLOAT16,), output_float32=False)
    options = Options(
        scope=scope, seed=3, first_blocks=1, target_unseen=1.0, cuda_cores=False, compared_answers=compared
    )
    found = Campaign(InProcess(library_of_many()), options, folder, report, prior).run()
    counts = {n: len((folder / f"{n}.jsonl").read_text().splitlines()) for n in ("classes", "trials", "verified")}
    counts["readings"] = sum(len(o.readings) for o in found.outcomes.values())
    return found, counts


def rules_of(found: Findings) -> dict[str, Any]:
    """What every answer met is summed by; no float16 output shows what exponent an exact zero counts as."""
    profile = make_profile(found, DEVICE, IDENTITY, command="test", date="2026-01-01")
    ruled = {str(r.key): getattr(getattr(r.outcome, "rule", None), "text", None) for r in profile.rows}
    return {k: re.sub(r"zero_exponent=-?\d+", "", v) for k, v in ruled.items() if v is not None}


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, ...]:
    plain, _ = campaign("plain", tmp_path_factory.mktemp("campaigns") / "plain")
    return prior_of(make_profile(plain, DEVICE, IDENTITY, command="test", date="2026-01-01"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Findings, dict[str, int]]:
    return campaign("bias", tmp_path_factory.mktemp("campaigns") / "alone")


Alone = tuple[Findings, dict[str, int]]


def test_a_campaign_with_a_prior_finds_the_same_rules_with_fewer_readings(
    prior: tuple[Row, ...], alone: Alone, tmp_path: Path
) -> None:
    assert prior
    guided_tries = 0

    def report(phase: str, done: int, total: int | None) -> None:
        nonlocal guided_tries
        guided_tries += phase == "try"

    guided, counts = campaign("bias", tmp_path / "guided", prior, report=report)
    assert set(rules_of(guided).values()) == set(rules_of(alone[0]).values())
    assert counts["readings"] < alone[1]["readings"]
    assert counts["trials"] <= alone[1]["trials"]
    # All eight classes go untried under the rules foretold for them; every answer is compared.
    classes = {k.only(CLASS_ATTRIBUTES) for k in guided.tally.counts}
    # Nor are their families surveyed, whose slices the prior knows.
    assert (tmp_path / "guided" / "survey.jsonl").exists() is False
    assert guided_tries == counts["trials"] - len(classes)
    assert {v.key for v in guided.comparisons.all() if v.variant.natural} == set(guided.tally.counts)


def test_a_wrong_prior_is_given_up(prior: tuple[Row, ...], alone: Alone, tmp_path: Path) -> None:
    wrong = [replace(r, solved=Solved(rule=Order(instruction_k=4).rule())) for r in prior]
    misled, _ = campaign("bias", tmp_path / "misled", wrong)
    assert set(rules_of(misled).values()) == set(rules_of(alone[0]).values())


def test_what_was_foretold_wrongly_is_refuted_and_sought(
    prior: tuple[Row, ...], alone: Alone, tmp_path: Path
) -> None:
    """One row for all classes with the rule of a quarter of them: verifying tells, and its family is surveyed then."""
    met = Counter[AnswerKey]()
    for answer, count in alone[0].tally.counts.items():
        met[answer.only(CLASS_ATTRIBUTES)] += count
    # The class that is read first, so that its rule is found and foretold for the others.
    lead = met.most_common(1)[0][0].attribute("custom_option")
    first = next(r for r in prior if r.key.attribute("custom_option") == lead)
    undivided = replace(first, key=first.key.only(("algo_id",)), named=("algo_id",))
    misled, counts = campaign("bias", tmp_path / "misled", [undivided])
    assert '"different"' in (tmp_path / "misled" / "verified.jsonl").read_text()
    assert (tmp_path / "misled" / "survey.jsonl").exists()
    assert set(rules_of(misled).values()) == set(rules_of(alone[0]).values())
    assert counts["trials"] > len({k.only(CLASS_ATTRIBUTES) for k in misled.tally.counts})


def test_fewer_answers_of_a_class_may_be_compared(tmp_path: Path) -> None:
    """Each class has two numbers of slices, so two answers."""
    every, all_compared = campaign("plain", tmp_path / "every")
    some, few_compared = campaign("plain", tmp_path / "some", compared=1)
    # Each of them on more problems then, where so many are known.
    assert few_compared["verified"] <= all_compared["verified"]
    compared = [{v.key for v in found.comparisons.all() if v.variant.natural} for found in (some, every)]
    assert len(compared[0]) < len(compared[1])
    assert rules_of(some) == rules_of(every)
    for name, most in (("some", 1), ("every", 2)):
        found = {"some": some, "every": every}[name]
        equal = {v.key for v in found.comparisons.all() if v.variant.natural}
        each = Counter(k.only(CLASS_ATTRIBUTES) for k in equal)
        assert set(each) == {k.only(CLASS_ATTRIBUTES) for k in found.tally.counts}
        assert max(each.values()) == most
    again, _, _ = recorded_findings(tmp_path / "some")
    assert rules_of(again) == rules_of(some)
