"""Other schedules of a plan: names, which apply, and that they are schedules of the same descriptor."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import features_of
from gemmdesc.plan import Plan
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.speed.schedules import (
    PLAIN,
    SPECIALISED,
    TWO_LAUNCHES,
    USUAL,
    features_named,
    in_a_word,
    scheduled_plans,
    schedules_named,
)
from tests.profile_samples import sample_answer
from tests.test_plan import SETTINGS, Counted, call, made, planner_of

CARD = card_arithmetic("sm_90")


def plan_of(m: int, n: int, k: int, algo_id: int = 66) -> Plan:
    counted = Counted(answers=lambda problem: sample_answer(algo_id=algo_id))
    return made(planner_of(counted).plan_mm(*call(m, n, k), SETTINGS))


def test_names() -> None:
    assert features_named(TWO_LAUNCHES) == features_named(PLAIN) == frozenset()
    assert features_named("one_launch+narrow") == {Feature.ONE_LAUNCH, Feature.NARROW}
    assert schedules_named("") == ()
    assert schedules_named("usual") == USUAL
    assert schedules_named("narrow,one_launch,narrow") == ("narrow", "one_launch")
    # Two launches and the plain schedule have none, and never apply to one product.
    assert len({features_named(name) for name in USUAL}) == len(USUAL) - 1
    for bad in ("wider", "narrow+narrow", "narrow+", "two_launches+narrow"):
        with pytest.raises(InvalidInputError, match="configs must be some of two_launches, one_launch, narrow"):
            schedules_named(bad)


def test_what_applies_has_just_its_features_and_the_same_descriptor() -> None:
    met: set[str] = set()
    # Of the second answer no k here has more than one slice.
    for m, n, k, algo in product((1, 16, 64, 512), (512, 2048), (512, 6832), (66, 24)):
        plan = plan_of(m, n, k, algo)
        for name, other in scheduled_plans(plan, USUAL, CARD).items():
            kernel = other.kernel
            assert isinstance(kernel, KernelChoice)
            assert isinstance(plan.kernel, KernelChoice)
            assert features_of(kernel.structure, kernel.config) == features_named(name)
            assert (kernel.slices, kernel.swapped) == (plan.kernel.slices, plan.kernel.swapped)
            assert replace(other, kernel=plan.kernel) == plan
            assert kernel.merges or name != TWO_LAUNCHES
            assert kernel.slices.merge is None or name != PLAIN
            assert other.programs is not plan.programs
            met.add(name)
    assert met == set(USUAL)


def test_a_kernel_in_a_word_tells_schedules_apart() -> None:
    plan = plan_of(8, 2048, 6832)
    words = {name: in_a_word(other.kernel) for name, other in scheduled_plans(plan, USUAL, CARD).items()}
    assert len(set(words.values())) == len(words) == len(USUAL) - 1
    assert PLAIN not in words
    assert words["one_launch"].startswith("merged_tma")
    assert words["dependent"].endswith("dependent")


def test_the_specialised_chain_is_timed_where_it_is_named() -> None:
    plan = plan_of(512, 2048, 512, 24)
    (other,) = scheduled_plans(plan, schedules_named(SPECIALISED), CARD).values()
    assert isinstance(other.kernel, KernelChoice)
    assert other.kernel.structure is Structure.CHAIN_SPECIALISED
    assert isinstance(plan.kernel, KernelChoice)
    assert other.kernel.slices == plan.kernel.slices
    # It has no slices.
    assert scheduled_plans(plan_of(1, 512, 6832), (SPECIALISED,), CARD) == {}
