"""A survey reads split answers of every family until no problem is left on which what explains them disagrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from gemmdesc.expressions import evaluate, parse_expression
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe.examples import Draws
from gemmdesc.probe.pool import SpanPool
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.rulebook import RuleBook
from gemmdesc.probe.sampling import Regime, Scope, draw_problem
from gemmdesc.probe.scan import Tally, scan_block
from gemmdesc.probe.survey import ReadTask, Survey, readable_size, split_numbers, uneven_size
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import AlgoConfig, GemmProblem, environment
from tests.probe_samples import DEVICE, FP16, IDENTITY, Order, sample_answer

SCOPE = Scope(dtypes=(FP16,), output_float32=False, regimes=(Regime.SMALL, Regime.ALIGNED), misaligned_share=0.0)
SLICED, SCALAR, WHOLE = 5, 6, 7
#: The grain depends on k and, where 64 divides k, on the layout: few problems tell 16 from 8 there.
SPAN = "round_up(ceildiv(k, splitk_num), select(k_contiguous, select(mod(k, 64), 8, 64), 8))"
RULES = {
    SLICED: Order(spans=(SPAN,)).rule(),
    SCALAR: Order(spans=("ceildiv(k, splitk_num)",), instruction_k=1).rule(),
    WHOLE: Order().rule(),
}


def answer_of(problem: GemmProblem) -> AlgoConfig:
    p = problem
    if p.k > 2000 or p.m > 4000 or p.n > 4000:
        return sample_answer(algo_id=WHOLE)
    return sample_answer(algo_id=SCALAR if p.n % 7 == 0 else SLICED, splitk_num=2 + (p.m + p.n) % 7, tile_id=p.m % 16)


def library() -> SimulatedLibrary:
    return SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=answer_of, rules=lambda p, x: RULES[x.algo_id]
    )


def scanned(blocks: int = 3) -> Tally:
    tally = Tally()
    for number in range(blocks):
        tally.add(scan_block(library(), SCOPE, 0, number))
    return tally


def surveyed(done: frozenset[int] = frozenset()) -> tuple[list[Reading], SpanPool]:
    book, steps = RuleBook(), count()
    look = Survey(InProcess(library()), Draws(scope=SCOPE, seed=0), scanned(), book, lambda *_: next(steps))
    return list(look.run(done)), book.pool


def test_only_answers_with_several_slices_are_listed() -> None:
    found = split_numbers(scanned())
    assert WHOLE not in found
    assert all(slices > 1 for of in found.values() for _, slices in of)


def test_an_answer_whose_slices_the_launch_decides_is_not() -> None:
    tally = Tally()
    free = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, rules=lambda p, x: RULES[WHOLE],
        heuristic=lambda p: sample_answer(algo_id=SLICED, splitk_num=(1 << 32) - 1),
    )  # fmt: skip
    tally.add(scan_block(free, SCOPE, 0, 0))
    assert split_numbers(tally) == {}


@pytest.mark.slow
def test_the_pool_explains_every_problem_afterwards() -> None:
    readings, pool = surveyed()
    per_family = Counter(r.answer.algo_id for r in readings)
    assert per_family[SCALAR] < per_family[SLICED]
    (expression, *_) = pool.expressions(SLICED)
    truth = parse_expression(SPAN)
    for number in range(4000):
        problem = draw_problem(SCOPE, 0, number)
        answer = answer_of(problem)
        if answer.algo_id == SLICED:
            where = environment(problem, answer, None)
            slices = -(-problem.k // evaluate(truth, where))
            if slices > 1:
                assert evaluate(expression, where) == evaluate(truth, where), (str(expression), where)


def test_what_was_surveyed_is_not_read_again() -> None:
    readings, _ = surveyed(frozenset({SLICED}))
    assert {r.answer.algo_id for r in readings} == {SCALAR}


def test_an_uneven_size_has_one_product_too_many() -> None:
    assert uneven_size(1000, 4) == 769
    assert uneven_size(10, 4) == 257


class Listening(InProcess):
    """Reads nothing, and keeps what it was asked to read."""

    asked: list[ReadTask]

    def run(self, task: Any, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        self.asked = [*getattr(self, "asked", []), *items]
        return iter([(item, None) for item in items])


def test_an_answer_met_on_long_k_alone_is_read_on_shorter_ones_of_the_same_grain() -> None:
    scope = Scope(dtypes=(FP16,), output_float32=False, regimes=(Regime.DEEP_ALIGNED,), misaligned_share=0.0)
    deep = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, rules=lambda p, x: RULES[SLICED],
        heuristic=lambda p: sample_answer(algo_id=SLICED if p.k > 200_000 else WHOLE, splitk_num=66),
    )  # fmt: skip
    tally = Tally()
    for number in range(2):
        tally.add(scan_block(deep, scope, 0, number))
    workers = Listening(deep)
    list(Survey(workers, Draws(scope=scope, seed=0), tally, RuleBook(), lambda *_: None).run(frozenset()))
    naturals = {t.variant.number: draw_problem(scope, 0, t.variant.number).k for t in workers.asked}
    long = [(naturals[t.variant.number], t.variant.k) for t in workers.asked if naturals[t.variant.number] > 200_000]
    assert long
    assert all(k == readable_size(natural) < 1 << 15 and k % 128 == natural % 128 for natural, k in long)


def test_a_readable_size_keeps_the_powers_of_two() -> None:
    assert [readable_size(k) for k in (1, 32768, 32769, 32800, 300_032)] == [1, 32768, 16385, 16416, 21504]
