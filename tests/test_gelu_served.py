"""Products that end in a library's gelu, once a profile has their rows: planned with the finishing kernel, declined on
a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import gemmdesc
from gemmdesc.descriptor import GEMMDesc, Relu
from gemmdesc.dropin import LibrarySource
from gemmdesc.errors import DeclinedError
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.plan import Plan, Planner
from gemmdesc.probe.sampling import draw_problem
from gemmdesc.problem import AlgoConfig, Epilogue, GemmProblem, Refused
from gemmdesc.profiles import Profile
from gemmdesc.rule import Rule
from gemmdesc.verification.kind_draws import KindItem
from gemmdesc.verification.kinds import verify_kind
from tests.gelu_samples import FORMS, stand_in_tanh
from tests.kind_profiles import bench_of, on_hopper, profile_of, small_scopes
from tests.kind_samples import answer_of, rule_of
from tests.probe_samples import DEVICE, IDENTITY

torch = pytest.importorskip("torch")
SCOPES = small_scopes(("gelu", "gelu_bias"))


def with_gelu(rule: Rule) -> Rule:
    """A rule of the library of kinds, whose stand-in for gelu is relu, with a form of gelu."""

    def changed(desc: GEMMDesc) -> GEMMDesc:
        return replace(desc, epilogue=tuple(FORMS[3] if isinstance(s, Relu) else s for s in desc.epilogue))

    return rule.restructured(changed)


@cache
def profile() -> Profile:
    return profile_of(SCOPES, lambda rule: on_hopper(with_gelu(rule)))


def gelu_rule_of(p: GemmProblem, answer: AlgoConfig) -> Rule:
    return on_hopper(with_gelu(rule_of(p, answer)))


def library(*, tangent: bool) -> SimulatedLibrary:
    return SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=gelu_rule_of,
        tanh_approx=stand_in_tanh if tangent else None,
    )  # fmt: skip


@pytest.mark.parametrize("name", SCOPES)
def test_products_are_planned_with_the_finishing_kernel(name: str) -> None:
    planner = Planner(lambda: library(tangent=True), lambda device, identity: profile())
    planned = 0
    for index in range(40):
        p = draw_problem(SCOPES[name], 4, index)
        if isinstance(answer_of(p), Refused):
            continue
        plan = planner.plan_problem(p, planner.problem_meta(p))
        assert isinstance(plan, Plan), plan
        assert isinstance(plan.kernel, FinishedChoice)
        assert plan.kernel.takes_bias == (p.epilogue is Epilogue.GELU_BIAS)
        planned += 1
    assert planned >= 30


@pytest.mark.parametrize("name", SCOPES)
def test_verification_replays_where_a_tangent_is_to_be_had_and_declines_elsewhere(name: str) -> None:
    item = KindItem(name=name, scope=SCOPES[name], seed=1, index=2, draws=6)
    record = verify_kind(bench_of(profile(), library(tangent=True)), item)
    assert record is not None
    assert record.outcome == "equal"
    declined = verify_kind(bench_of(profile(), library(tangent=False)), item)
    assert declined is not None
    assert declined.declined is not None
    assert declined.declined.reason.startswith("tanh.approx is a function of the card")


def test_the_drop_in_on_a_cpu_declines_before_anything_is_computed() -> None:
    held = LibrarySource(library=library(tangent=True), profile=profile())
    a, b, bias = torch.ones(16, 64).half(), torch.ones(64, 24).half(), torch.ones(24).half()
    with pytest.raises(DeclinedError, match=r"tanh\.approx is a function of the card"), gemmdesc.override(replay=held):
        torch._addmm_activation(bias, a, b, use_gelu=True)
