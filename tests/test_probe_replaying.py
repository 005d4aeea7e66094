"""Comparisons with a library that replays where its operands lie: the same verdicts, and both replays compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gemmdesc.bits import Bits
from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import NO_INPUTS, Inputs, Replaying, Window
from gemmdesc.library.replayed import replay_problem
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.operands import Operand
from gemmdesc.probe import beside
from gemmdesc.probe.compare import Verdict, compare_rules, plain_draws, rival_draws
from gemmdesc.probe.scan import Example
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem
from gemmdesc.regions import Region
from tests.probe_samples import FP16, Order, library_of, sample_answer, sample_problem

TRUTH = Order(spans=("round_up(ceildiv(k, splitk_num), 64)",)).rule()
OTHER = Order(spans=("round_up(ceildiv(k, splitk_num), 32)",)).rule()
ANSWER = sample_answer(splitk_num=3)
DRAWS = (*plain_draws(3, 4), *rival_draws(3, 2))


@dataclass(frozen=True, kw_only=True)
class ReplayingLibrary(SimulatedLibrary):
    """A simulated library whose replays beside a product may be wrong in one bit."""

    flipped: int = 0

    def run_and_replay(
        self, problem: GemmProblem, answer: AlgoConfig, a: Operand, b: Operand, window: Window,
        orders: Sequence[Sequence[Region]], *, inputs: Inputs = NO_INPUTS,
    ) -> tuple[Bits, tuple[Bits, ...]] | Failed:  # fmt: skip
        got = self.run(problem, answer, a, b, window, inputs=inputs)
        if isinstance(got, Failed):
            return got
        replays = [replay_problem(x, problem, a, b, window, inputs=inputs) for x in orders]
        return got, tuple(x ^ x.dtype.type(self.flipped) for x in replays)


def replaying(flipped: int = 0) -> ReplayingLibrary:
    plain = library_of(TRUTH, ANSWER)
    return ReplayingLibrary(
        identity=plain.identity, device=plain.device, heuristic=plain.heuristic, rules=plain.rules, flipped=flipped
    )


def test_verdicts_are_those_of_a_library_that_does_not_replay() -> None:
    library = replaying()
    assert isinstance(library, Replaying)
    assert not isinstance(library_of(TRUTH), Replaying)
    example = Example(problem=sample_problem(1000), answer=ANSWER)
    for rules in ([TRUTH], [OTHER], [TRUTH, OTHER, TRUTH], [OTHER, TRUTH]):
        expected = compare_rules(library_of(TRUTH, ANSWER), example, rules, DRAWS)
        assert compare_rules(library, example, rules, DRAWS) == expected
    assert expected == (Verdict.DIFFERENT, Verdict.EQUAL)


def test_a_wrong_replay_beside_a_product_ends_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_CROSSCHECK_EVERY", 1)
    example = Example(problem=sample_problem(1000), answer=ANSWER)
    assert compare_rules(replaying(), example, [TRUTH], DRAWS) == (Verdict.EQUAL,)
    with pytest.raises(CampaignError, match="must give the CPU's bytes"):
        compare_rules(replaying(flipped=1), example, [TRUTH], DRAWS)


def test_about_one_comparison_in_so_many_is_replayed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(beside, "replays", lambda asked: made.append(asked) or ())
    monkeypatch.setattr(beside, "bitwise_equal", lambda x, y: True)
    problem = sample_problem(64, FP16)
    window = Window(rows=np.arange(2), columns=np.arange(2))
    example = Example(problem=problem, answer=ANSWER)
    asked = beside.Asked(example, (None, None), window, NO_INPUTS, ((), ()))  # type: ignore[arg-type]
    for seed in range(640):
        beside.crosscheck(asked, (), seed)
    assert len(made) == 10


def test_orders_that_owe_the_same_bits_are_replayed_once() -> None:
    problem = sample_problem(48)
    region = Region(row_begin=0, row_end=problem.m, column_begin=0, column_end=problem.n, descriptor=TRUTH.structure)
    one, same = (replace(TRUTH.structure, summed_k=k) for k in (48, 1 << 20))
    orders = [(replace(region, descriptor=d),) for d in (one, same)]
    kept, places = beside.distinct_orders(orders, problem)
    assert kept == (orders[0],)
    assert places == (0, 0)
