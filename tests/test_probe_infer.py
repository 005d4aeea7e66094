"""From readings to rules: probing the simulation of any rule of the space leaves survivors with its normal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.descriptor import FusedDot
from gemmdesc.dtypes import DType
from gemmdesc.expressions import evaluate, parse_expression
from gemmdesc.probe.compare import Verdict, compare_rules, plain_draws, rival_draws
from gemmdesc.probe.infer import Unexplained, behaviour, distinct_rules, infer_rules
from gemmdesc.probe.pool import SpanPool, span_example
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scan import Example
from gemmdesc.probe.steps import StepOption, step_options
from gemmdesc.problem import Transpose, environment
from gemmdesc.rule import Rule
from tests.probe_samples import (
    BF16,
    FP16,
    FP32,
    HOPPER,
    SCALAR,
    Order,
    library_of,
    random_order,
    sample_answer,
    sample_problem,
)

#: (k, splitk_num) of the problems read, and of the domain.
READ = ((1019, 3), (1288, 7), (1000, 3), (777, 5), (1156, 4), (1300, 7), (1153, 4))
DOMAIN = [(k, s) for k in (300, 448, 640, 777, 1019, 1152, 1288, 1400, 1024) for s in (2, 3, 4, 5, 7)]


def example(k: int, splitk: int, dtype: DType, output: DType, number: int = 0) -> Example:
    transa = Transpose.T if number % 2 else Transpose.N
    return Example(problem=sample_problem(k, dtype, output, transa=transa), answer=sample_answer(splitk_num=splitk))


def readings_of(
    rule: Rule, sizes: Sequence[tuple[int, int]], dtype: DType = FP16, output: DType = FP16
) -> list[Reading]:
    out = []
    for number, (k, splitk) in enumerate(sizes):
        e = example(k, splitk, dtype, output, number)
        reader = LibraryReader(library_of(rule, e.answer), e.problem, e.answer)
        out.append(read_answer(reader, e.problem, e.answer))
    return out


def domain_of(
    sizes: Sequence[tuple[int, int]] = DOMAIN, dtype: DType = FP16, output: DType = FP16
) -> list[Mapping[str, int]]:
    made = [example(k, s, dtype, output, i) for i, (k, s) in enumerate(sizes)]
    return [environment(e.problem, e.answer, None) for e in made]


def read_environments(readings: Sequence[Reading]) -> list[Mapping[str, int]]:
    return [environment(r.problem, r.answer, None) for r in readings]


def orders() -> list[Order]:
    rng = np.random.default_rng(1)
    return [random_order(rng) for _ in range(12)]


def test_the_random_orders_are_varied() -> None:
    made = orders()
    assert len(set(made)) >= 10
    assert {o.instruction_k for o in made} == {8, 16}
    assert {o.loop_step for o in made} == {None, 32, 64, 128}
    assert {o.partial for o in made} == {o.merge for o in made} == {FP16, FP32}
    assert any(not o.spans for o in made)
    assert any(o.summed != "k" for o in made)


@pytest.mark.parametrize("number", range(12))
def test_survivors_share_the_truth_s_normal_form(number: int) -> None:
    truth = orders()[number].rule()
    readings = readings_of(truth, READ)
    domain = domain_of()
    found = infer_rules(readings, domain)
    assert not isinstance(found, Unexplained), found.reason
    read = read_environments(readings)
    own = behaviour(truth, read)
    assert "declined" not in own
    for rule in found:
        assert behaviour(rule, read) == own
    everywhere = behaviour(truth, domain)
    assert any(behaviour(rule, domain) == everywhere for rule in found)


@pytest.mark.parametrize("order", [
    Order(spans=("512", "128")),
    Order(spans=("round_up(ceildiv(k, splitk_num), 64)",), instruction_k=32, loop_step=128),
    Order(step=replace(HOPPER, fraction_bits=24, zero_exponent=-132), instruction_k=8),
])  # fmt: skip
@pytest.mark.parametrize(("dtype", "output"), [(BF16, FP32), (FP16, FP32), (BF16, BF16)])
def test_other_types_and_nests(order: Order, dtype: DType, output: DType) -> None:
    truth = order.rule(dtype, output)
    assert isinstance(order.step, FusedDot)
    readings = readings_of(truth, READ, dtype, output)
    domain = domain_of(DOMAIN, dtype, output)
    # Only float32 outputs of bfloat16 operands show what a zero counts as; elsewhere it is known from them.
    known = None if (dtype, output) == (BF16, FP32) else order.step.zero_exponent
    found = infer_rules(readings, domain, zero_exponent=known)
    assert not isinstance(found, Unexplained), found.reason
    assert any(behaviour(rule, domain) == behaviour(truth, domain) for rule in found)
    own = behaviour(truth, read_environments(readings))
    assert all(behaviour(rule, read_environments(readings)) == own for rule in found)


def test_one_reading_leaves_several_rules_and_they_behave_differently() -> None:
    truth = Order(spans=("round_up(floordiv(k, splitk_num), 64)",)).rule()
    readings = readings_of(truth, READ[:1])
    domain = domain_of()
    found = infer_rules(readings, domain)
    assert not isinstance(found, Unexplained)
    assert len(found) > 1
    assert len({behaviour(r, domain) for r in found}) == len(found)
    assert distinct_rules([*found, *found], domain) == found


def test_hints_and_preferred_spans_come_first() -> None:
    span = parse_expression("round_up(floordiv(k, splitk_num), 64)")
    truth = Order(spans=(str(span),)).rule()
    readings = readings_of(truth, READ[:1])
    for offered in ({"hints": (span,)}, {"preferred": (span,)}):
        found = infer_rules(readings, domain_of(), **offered)
        assert not isinstance(found, Unexplained)
        assert behaviour(found[0], domain_of()) == behaviour(truth, domain_of())
    other = parse_expression("ceildiv(k, 100)")
    unhelped = infer_rules(readings, domain_of())
    assert infer_rules(readings, domain_of(), preferred=(other,), hints=(other,)) == unhelped


def test_cuda_core_chains_are_out_of_the_space() -> None:
    readings = readings_of(SCALAR.rule(), [(40, 1), (300, 1)])
    found = infer_rules(readings, domain_of())
    assert isinstance(found, Unexplained)
    assert found.scalar
    mixed = [*readings, *readings_of(Order().rule(), [(300, 1)])]
    found = infer_rules(mixed, domain_of())
    assert isinstance(found, Unexplained)
    assert not found.scalar
    assert "some do not" in found.reason


def test_too_little_to_go_on() -> None:
    assert infer_rules([], domain_of()) == Unexplained(reason="there are no readings")
    found = infer_rules(readings_of(Order().rule(), [(2, 1)]), domain_of())
    assert isinstance(found, Unexplained)
    assert not found.scalar
    anomalous = [replace(r, anomalies=("k = 3 is not summed",)) for r in readings_of(Order().rule(), [(300, 1)])]
    assert infer_rules(anomalous, domain_of()) == Unexplained(reason="k = 3 is not summed")


@pytest.mark.parametrize("shift", [-8, -1, 1, 16])
@pytest.mark.parametrize("part", [0, 1])
def test_a_wrong_reading_is_unexplained_or_its_rule_refuted(part: int, shift: int) -> None:
    truth = Order(spans=("round_up(floordiv(k, splitk_num), 64)",)).rule()
    right = readings_of(truth, READ[:2])
    ends = list(right[0].part_ends)
    ends[part] += shift
    found = infer_rules([replace(right[0], part_ends=tuple(ends)), right[1]], domain_of())
    if not isinstance(found, Unexplained):
        e = example(*READ[0], FP16, FP16)
        draws = (*plain_draws(1, 2), *rival_draws(1, 4))
        verdicts = compare_rules(library_of(truth, e.answer), e, found, draws)
        assert Verdict.EQUAL not in verdicts


def test_a_rule_of_another_span_is_refuted_by_bytes_and_the_truth_is_not() -> None:
    truth = Order(spans=("round_up(floordiv(k, splitk_num), 64)",)).rule()
    wrong = Order(spans=("round_up(ceildiv(k, splitk_num), 32)",)).rule()
    declining = Order(spans=("floordiv(k, 100000)",)).rule()
    e = example(*READ[0], FP16, FP16)
    verdicts = compare_rules(library_of(truth, e.answer), e, [truth, wrong, declining], plain_draws(1, 3))
    assert verdicts == (Verdict.EQUAL, Verdict.DIFFERENT, Verdict.DECLINED)


@pytest.mark.parametrize(("instruction_k", "loop_step"), [(8, None), (16, None), (8, 32), (16, 64), (32, 128)])
def test_step_options_hold_the_truth(instruction_k: int, loop_step: int | None) -> None:
    order = Order(spans=("ceildiv(k, splitk_num)",), instruction_k=instruction_k, loop_step=loop_step)
    readings = readings_of(order.rule(), READ[:3])
    options = step_options(readings)
    assert StepOption(instruction_k=instruction_k, k_loop_step=loop_step) in options
    assert {o.instruction_k for o in options} == {instruction_k}


@pytest.mark.parametrize(
    ("span", "k", "loop_step"),
    [(65, 400, 64), (97, 400, 32), (65, 131, None), (65, 131, 64), (40, 201, None), (129, 259, 64)],
)
def test_step_options_where_a_step_or_a_part_holds_one_k(span: int, k: int, loop_step: int | None) -> None:
    """A part that begins with a step of one product, or a last part of one k, hides a boundary from the pair."""
    readings = readings_of(Order(spans=(str(span),), loop_step=loop_step).rule(), [(k, 1), (300, 1)])
    assert StepOption(instruction_k=16, k_loop_step=loop_step) in step_options(readings)


def test_pooled_spans() -> None:
    truth = Order(spans=("round_up(floordiv(k, splitk_num), 64)",)).rule()
    readings = readings_of(truth, READ)
    pool = SpanPool()
    assert pool.expressions(7) == ()
    pool.add(readings)
    pool.add(readings_of(Order().rule(), [(300, 1)]))
    (first, *_) = pool.expressions(7)
    own = [e for e in map(span_example, readings) if e is not None]
    assert all(evaluate(first, e.environment) == e.allowed.low for e in own)
    assert pool.expressions(8) == ()
    narrow = Order(spans=("384",)).rule()
    read = read_environments(readings)
    assert behaviour(pool.widen(narrow, 7, readings[:1]), read) == behaviour(truth, read)
    assert pool.widen(Order().rule(), 7, readings) == Order().rule()
    one = span_example(readings[0])
    assert one is not None
    assert one.allowed.low == 384
    assert span_example(readings_of(SCALAR.rule(), [(40, 1)])[0]) is None
