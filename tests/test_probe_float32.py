"""Products of float32, with TF32 off and on: what is read, inferred and replayed is what a simulated library hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from gemmdesc.descriptor import GEMMDesc, OperandCast, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.normal_form import same_bits
from gemmdesc.probe.compare import Verdict, compare_rules, plain_draws, rival_draws
from gemmdesc.probe.formats import operand_casts, with_formats
from gemmdesc.probe.infer import Unexplained, behaviour, infer_rules
from gemmdesc.probe.kinds import rules_of
from gemmdesc.probe.outcomes import ClassTask
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import OperandFormat, Reading, reading_from_plain, reading_to_plain
from gemmdesc.probe.scan import Example
from gemmdesc.probe.solve import solve_class
from gemmdesc.problem import ComputeType, GemmProblem, environment
from gemmdesc.rule import Rule, evaluate_rule, parse_rule
from tests.probe_samples import AMPERE, DEVICE, FP32, HOPPER, IDENTITY, Order, library_of, sample_answer, sample_problem

READ = ((1019, 3), (1288, 7), (777, 5), (1156, 4), (1153, 4))
DOMAIN = [(k, s) for k in (300, 448, 640, 777, 1019, 1152, 1288, 1400) for s in (2, 3, 4, 5, 7)]
PLAIN = "partial_dtype=float32, merge_dtype=float32, start=first"


def cast(rounding: Rounding) -> OperandCast:
    return OperandCast(dtype=DType.TFLOAT32, rounding=rounding)


def hidden(order: Order, a: Rounding | None, b: Rounding | None) -> Rule:
    rule = order.rule(FP32)
    casts = {"a_cast": a and cast(a), "b_cast": b and cast(b)}
    return replace(rule, structure=replace(rule.structure, **casts))


def tf32_problem(k: int, *, along_n: bool = False) -> GemmProblem:
    return replace(sample_problem(k, FP32, along_n=along_n), compute_type=ComputeType.COMPUTE_32F_FAST_TF32)


def readings_of(rule: Rule, sizes: Sequence[tuple[int, int]], *, along_n: bool = False) -> list[Reading]:
    out = []
    for k, splitk in sizes:
        problem, answer = tf32_problem(k, along_n=along_n), sample_answer(splitk_num=splitk)
        out.append(read_answer(LibraryReader(library_of(rule, answer), problem, answer), problem, answer))
    return out


def domain() -> list[Mapping[str, int]]:
    return [environment(tf32_problem(k), sample_answer(splitk_num=s), None) for k, s in DOMAIN]


AWAY, CUT, EVEN = Rounding.NEAREST_AWAY, Rounding.TOWARD_ZERO, Rounding.NEAREST_EVEN
TF32 = {
    "cut, k 8": (Order(instruction_k=8, step=HOPPER), CUT, CUT),
    "rounded, k 4, loop": (Order(instruction_k=4, loop_step=16, step=AMPERE), AWAY, AWAY),
    "mixed, split": (Order(spans=("round_up(floordiv(k, splitk_num), 32)",), instruction_k=8, step=HOPPER), AWAY, CUT),
    "even, split, loop": (
        Order(spans=("round_up(ceildiv(k, splitk_num), 8)",), instruction_k=8, loop_step=32, step=AMPERE), EVEN, CUT,
    ),
    "whole operands": (Order(instruction_k=8, step=HOPPER), None, None),
}  # fmt: skip


@pytest.mark.parametrize("along_n", [False, True])
@pytest.mark.parametrize("name", TF32)
def test_matrix_steps_on_float32_operands(name: str, along_n: bool) -> None:
    order, a, b = TF32[name]
    truth = hidden(order, a, b)
    readings = readings_of(truth, READ[:3] if along_n else READ, along_n=along_n)
    assert operand_casts(readings) == (a and cast(a), b and cast(b))
    assert reading_from_plain(reading_to_plain(readings[0])) == readings[0]
    found = infer_rules(readings, domain())
    assert not isinstance(found, Unexplained), found.reason
    if not along_n:
        assert any(behaviour(rule, domain()) == behaviour(truth, domain()) for rule in found)
    own = [environment(r.problem, r.answer, None) for r in readings]
    assert all(behaviour(rule, own) == behaviour(truth, own) for rule in found)


@pytest.mark.parametrize("other", [CUT, EVEN, None])
def test_bytes_refute_another_cast(other: Rounding | None) -> None:
    order = Order(instruction_k=8, step=HOPPER)
    truth, wrong = hidden(order, AWAY, AWAY), hidden(order, AWAY, other)
    e = Example(problem=tf32_problem(300), answer=sample_answer())
    draws = (*plain_draws(1, 3), *rival_draws(1, 2))
    assert compare_rules(library_of(truth), e, [truth, wrong], draws) == (Verdict.EQUAL, Verdict.DIFFERENT)


def test_what_fits_no_cast_is_unexplained() -> None:
    (reading,) = readings_of(hidden(Order(instruction_k=8), CUT, CUT), READ[:1])
    for strange in (OperandFormat(fraction_bits=12, rounding=CUT), OperandFormat(fraction_bits=None, rounding=None)):
        found = infer_rules([replace(reading, a_format=strange)], domain())
        assert isinstance(found, Unexplained)
        assert "no cast" in found.reason


def scalar(*layouts: str, fused: bool, casts: str = "") -> Rule:
    cuts = ", ".join(f"cut(layout={layout}, {PLAIN})" for layout in layouts)
    return parse_rule(
        f"gemm(a_dtype=float32, b_dtype=float32, output_dtype=float32, summed_k=k, cuts=[{cuts}], "
        "accumulator=accumulator(instruction_k=1, residue=residue_last(), "
        f"step=scalar_step(fused={fused}, start=zero)), epilogue=[]{casts})"
    )


LAYOUTS = {
    "chain": (),
    "slices": ("contiguous(span=round_up(ceildiv(k, splitk_num), 8), short=last)",),
    "lanes": ("strided(count=16, unit=4)",),
}


@pytest.mark.parametrize("fused", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_cuda_core_chains_say_whether_they_fuse(name: str, fused: bool) -> None:
    truth = scalar(*LAYOUTS[name], fused=fused)
    rng = Random(3)
    slices = (2, 3, 5) if name == "slices" else (1,)
    of = tuple(
        Example(
            problem=sample_problem(int(1200 ** rng.uniform(0.4, 1.0)), FP32),
            answer=sample_answer(splitk_num=rng.choice(slices)),
        )
        for _ in range(12)
    )
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=lambda p: of[0].answer, rules=lambda p, x: truth
    )
    outcome = solve_class(library, ClassTask(label="one", examples=of, known=(), hints=(), seed=1))
    assert outcome.rule is not None, outcome.reason
    step = outcome.rule.structure.accumulator.step
    assert isinstance(step, ScalarStep)
    assert step.fused is fused
    for e in of:
        values = environment(e.problem, e.answer, None)
        one, other = evaluate_rule(outcome.rule, values), evaluate_rule(truth, values)
        assert isinstance(one, GEMMDesc)
        assert isinstance(other, GEMMDesc)
        assert same_bits(one, other, e.problem.k), (outcome.rule.text, e.problem.k)


@pytest.mark.parametrize("fused", [True, False])
def test_lanes_that_take_their_second_product_far_on_show_whether_they_fuse(fused: bool) -> None:
    """As 128 threads of two lanes in 16 blocks do on an H200: no two of the first 4,096 k are in one chain."""
    truth = scalar("strided(count=512, unit=1)", "strided(count=2, unit=1)", fused=fused)
    problem, answer = sample_problem(1500, FP32), sample_answer()
    reading = read_answer(LibraryReader(library_of(truth, answer), problem, answer), problem, answer)
    assert reading.fused_products is fused
    two = sample_problem(2, FP32)
    few = read_answer(LibraryReader(library_of(truth, answer), two, answer), two, answer)
    assert with_formats([truth], [reading, few])[0].structure.accumulator.step == ScalarStep(fused=fused)


def test_products_of_float32_decide_between_fused_and_not() -> None:
    truth, wrong = scalar(fused=True), scalar(fused=False)
    e = Example(problem=sample_problem(200, FP32), answer=sample_answer())
    assert compare_rules(library_of(truth), e, [truth, wrong], plain_draws(1, 3)) == (Verdict.EQUAL, Verdict.DIFFERENT)


def test_what_joins_a_chain_far_on_shows_whether_it_is_a_lane_of_its_own() -> None:
    """32 lanes of 16 k fold as a butterfly; the last 16 take few k each: as algo_id 13 does on an H200 at this size."""
    lanes = ["strided(count=2, unit=16)"] * 5
    truth = scalar("contiguous(span=ceildiv(k, splitk_num), short=last)", *lanes, fused=True)
    problem = replace(sample_problem(15649, FP32), m=62, lda=62, ldd=62)
    answer = sample_answer(splitk_num=32)
    reading = read_answer(LibraryReader(library_of(truth, answer), problem, answer), problem, answer)
    found = rules_of([reading])
    assert not isinstance(found, Unexplained), found.reason
    values = environment(problem, answer, None)
    one, other = evaluate_rule(found[0], values), evaluate_rule(truth, values)
    assert isinstance(one, GEMMDesc)
    assert isinstance(other, GEMMDesc)
    assert same_bits(one, other, problem.k), found[0].text
