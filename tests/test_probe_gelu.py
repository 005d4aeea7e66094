"""Gelu's form found by experiments and bytes, on a simulated library with a stand-in for the card's tangent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemmdesc.arithmetic.pointwise import gelu_tanh_approx
from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import AddBias, CastTo, EpilogueStep, GeluTanhApprox
from gemmdesc.dtypes import DType
from gemmdesc.library.interface import tanh_approx_of
from gemmdesc.library.simulated import SimulatedLibrary, permuted
from gemmdesc.probe import gelu, scan, verification
from gemmdesc.probe.campaign import Campaign, Findings, Options
from gemmdesc.probe.gelu import gelu_courses, plan_gelu
from gemmdesc.probe.outcomes import ClassTask
from gemmdesc.probe.projection import Row
from gemmdesc.probe.publish import make_profile, prior_of
from gemmdesc.probe.sampling import Scope, scope_named
from gemmdesc.probe.scan import Example
from gemmdesc.probe.solve_gelu import solve_gelu
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import BIASED, AlgoConfig, Epilogue, GemmProblem
from gemmdesc.profiles import Profile, RuleOutcome
from gemmdesc.rule import Rule
from tests.gelu_samples import FORMS, stand_in_tanh
from tests.kind_profiles import small_scopes
from tests.probe_samples import BF16, DEVICE, FP16, FP32, IDENTITY, Order, sample_answer, sample_problem

SPLIT = Order(spans=("round_up(ceildiv(k, splitk_num), 64)",))
GELU = (Epilogue.GELU, Epilogue.GELU_BIAS)
Steps = tuple[EpilogueStep, ...]


def ending(rule: Rule, steps: Steps) -> Rule:
    return rule.restructured(lambda desc: replace(desc, epilogue=steps))


def library(rule: Rule, *, tangent: bool = True) -> SimulatedLibrary:
    return SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=lambda p: sample_answer(splitk_num=3), rules=lambda p, a: rule,
        tanh_approx=stand_in_tanh if tangent else None,
    )  # fmt: skip


def examples(dtype: DType, output: DType, epilogue: Epilogue) -> tuple[Example, ...]:
    sizes = (64, 200, 333, 1000)
    made = (replace(sample_problem(k, dtype, output), epilogue=epilogue) for k in sizes)
    return tuple(Example(problem=p, answer=sample_answer(splitk_num=3)) for p in made)


def task(of: tuple[Example, ...], known: tuple[Rule, ...] = ()) -> ClassTask:
    return ClassTask(label="test", examples=of, known=known, hints=(), seed=3)


def outputs(form: EpilogueStep) -> bytes:
    """Of every float16 value, as float16."""
    assert isinstance(form, GeluTanhApprox)
    values = to_float32(np.arange(1 << 16, dtype=np.uint16), FP16)
    return from_float32(gelu_tanh_approx(values, form, stand_in_tanh), FP16).tobytes()


@pytest.mark.parametrize(
    ("form", "output"), [(FORMS[0], FP16), (FORMS[3], FP16), (FORMS[6], FP16), (FORMS[3], FP32)], ids=str
)
def test_every_form_is_found_among_all(form: GeluTanhApprox, output: DType) -> None:
    for epilogue in GELU:
        head: Steps = (CastTo(dtype=FP16),) if output is FP16 and form.result is FORMS[0].result else ()
        truth = ending(SPLIT.rule(FP16, output), (*head, *((AddBias(),) if epilogue in BIASED else ()), form))
        found = solve_gelu(library(truth), task(examples(FP16, output, epilogue)), (SPLIT.rule(FP16, output),))
        assert found.checked >= 4
        assert found.rule is not None
        steps = found.rule.structure.epilogue
        assert replace(found.rule, structure=replace(truth.structure, epilogue=steps)) == ending(truth, steps)
        # Of a sum that is rounded first there are few values, on all of which two forms may be the same.
        if head and epilogue is Epilogue.GELU:
            assert steps[:-1] == head
            assert outputs(steps[-1]) == outputs(form)
        else:
            assert found.rule == truth


def test_experiments_tell_all_courses_apart_and_are_few() -> None:
    for output, epilogue in ((FP32, Epilogue.GELU_BIAS), (FP16, Epilogue.GELU)):
        problem = replace(sample_problem(64, FP16, output), epilogue=epilogue)
        asked = plan_gelu(problem, stand_in_tanh)
        assert asked == plan_gelu(problem, stand_in_tanh)
        assert len(gelu_courses(problem)) / 2 < len(asked) < 300


def test_a_sibling_s_wrong_form_and_a_wrong_order_are_not_taken() -> None:
    truth = ending(SPLIT.rule(FP16, FP16), (CastTo(dtype=FP16), FORMS[0]))
    of = examples(FP16, FP16, Epilogue.GELU)
    wrong = tuple(ending(SPLIT.rule(FP16, FP16), (CastTo(dtype=FP16), form)) for form in FORMS[1:])
    assert solve_gelu(library(truth), task(of, wrong), (SPLIT.rule(FP16, FP16),)).rule == truth
    other = replace(SPLIT, instruction_k=8).rule(FP16, FP16)
    found = solve_gelu(library(truth), task(of), (other,))
    assert found.rule is None
    assert "no rule known without it" in found.reason


def test_what_no_form_gives_and_what_nothing_can_ask_stay_without_a_rule() -> None:
    bare = (SPLIT.rule(FP16, FP16),)
    of = examples(FP16, FP16, Epilogue.GELU)
    strange = ending(bare[0], (CastTo(dtype=FP16), CastTo(dtype=BF16), FORMS[0]))
    found = solve_gelu(library(strange), task(of), bare)
    assert found.rule is None
    assert found.reason == "no form of gelu gives what its experiments show"
    truth = ending(bare[0], (FORMS[0],))
    assert solve_gelu(library(truth), task(of), ()).rule is None
    without = library(truth, tangent=False)
    assert not without.check(of[0].problem, of[0].answer)
    assert "function of the card" in solve_gelu(without, task(of), bare).reason
    assert tanh_approx_of(permuted(library(truth), 3)) is stand_in_tanh


def family_library() -> SimulatedLibrary:
    """Two families by m, as a library has them: one rounds the sum first, the other takes it as it is."""

    def answered(p: GemmProblem) -> AlgoConfig:
        return sample_answer(algo_id=7 if p.m % 2 else 66, splitk_num=1 + p.k % 2)

    def ruled(p: GemmProblem, answer: AlgoConfig) -> Rule:
        order = SPLIT if answer.algo_id == 66 else Order(instruction_k=8, loop_step=32)
        rule = order.rule(p.a_dtype, p.d_dtype)
        if p.epilogue not in GELU:
            return rule
        bias: Steps = (AddBias(),) if p.epilogue in BIASED else ()
        head: Steps = (CastTo(dtype=p.d_dtype),) if answer.algo_id == 7 and p.d_dtype is not FP32 else ()
        return ending(rule, (*head, *bias, FORMS[0] if answer.algo_id == 7 else FORMS[3]))

    return SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answered, rules=ruled, tanh_approx=stand_in_tanh
    )


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(scan, "BLOCK_QUERIES", 80)
    patch.setattr(verification, "ROW_PROBLEMS", 6)
    patch.setattr(gelu, "_TURNS", 2)
    yield
    patch.undo()


def campaign(name: str, folder: Path, prior: tuple[Row, ...] = ()) -> tuple[Findings, Profile]:
    scope: Scope = replace(small_scopes((name,))[name], dtypes=(FP16,), output_float32=False)
    options = Options(scope=scope, seed=3, first_blocks=1, target_unseen=1.0, cuda_cores=False)
    found = Campaign(InProcess(family_library()), options, folder, lambda *_: None, prior).run()
    return found, make_profile(found, DEVICE, IDENTITY, command="test", date="2026-01-01")


@pytest.mark.slow
def test_a_campaign_about_gelu_starts_from_plain_products_and_verifies_its_rows(tmp_path: Path) -> None:
    _, plain = campaign("plain", tmp_path / "plain")
    assert scope_named("gelu_bias").kind.value == "gelu_bias"
    found, profile = campaign("gelu_bias", tmp_path / "gelu", prior_of(plain))
    ruled = {dict(r.key.answer)["algo_id"]: r.outcome.rule for r in profile.rows if isinstance(r.outcome, RuleOutcome)}
    assert set(ruled) == {7, 66}
    assert all(isinstance(r.outcome, RuleOutcome) for r in profile.rows), profile.rows
    assert ruled[7].structure.epilogue == (CastTo(dtype=FP16), AddBias(), FORMS[0])
    assert ruled[66].structure.epilogue == (AddBias(), FORMS[3])
    assert all(v.verdict.value == "equal" for v in found.comparisons.all())
    alone, _ = campaign("gelu_bias", tmp_path / "alone")
    assert all(r.solved.rule is None for r in alone.rows)
