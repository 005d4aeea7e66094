"""Solving one class where walks leave several rules: bytes decide, and what they refuted stays refuted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmdesc.descriptor import OperandCast, Rounding, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.probe import solve
from gemmdesc.probe.compare import describe
from gemmdesc.probe.outcomes import ClassTask
from gemmdesc.probe.predicted import none_refuted, short_chains
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scan import Example
from gemmdesc.probe.solve import MOST_READINGS, solve_class
from gemmdesc.problem import ComputeType, ScalarClass, Transpose, dense_problem, environment
from gemmdesc.regions import same_regions
from gemmdesc.rule import Rule
from tests.probe_samples import FP32, HOPPER, Order, library_of, sample_answer

CAST = OperandCast(dtype=DType.TFLOAT32, rounding=Rounding.TOWARD_ZERO)


def tf32_rule() -> Rule:
    rule = Order(instruction_k=8, step=HOPPER).rule(FP32)
    return replace(rule, structure=replace(rule.structure, a_cast=CAST, b_cast=CAST))


def leaving_one_product(ks: tuple[int, ...]) -> tuple[Example, ...]:
    """All layouts of problems whose last step is of a single product, which no walk has room to see."""
    made = []
    for k in ks:
        for transa in Transpose:
            for transb in Transpose:
                problem = dense_problem(14, 10, k, FP32, transa=transa, transb=transb)
                problem = replace(problem, compute_type=ComputeType.COMPUTE_32F_FAST_TF32)
                made.append(Example(problem=problem, answer=sample_answer()))
    return tuple(made)


def test_bytes_decide_between_rules_that_a_reading_leaves() -> None:
    library, examples = library_of(tf32_rule()), leaving_one_product((193, 257, 321))
    task = ClassTask(label="tf32", examples=examples, known=(), hints=(), seed=3, zero_exponent=-133)
    found = solve_class(library, task)
    assert found.rule is not None, found.reason
    assert len(found.readings) < MOST_READINGS
    assert found.rivals > 0
    for example in examples:
        values = environment(example.problem, example.answer, None)
        ours, hidden = describe(found.rule, values), describe(tf32_rule(), values)
        assert ours is not None
        assert hidden is not None
        assert same_regions(ours, hidden, example.problem.k)


def test_a_refuted_rule_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates of a class whose rule is no candidate are asked once each, and then there is none."""
    library, examples = library_of(tf32_rule()), leaving_one_product((193, 257, 321))
    others = tuple(
        replace(rule, structure=replace(rule.structure, a_cast=CAST, b_cast=CAST))
        for rule in (Order(instruction_k=8, loop_step=step, step=HOPPER).rule(FP32) for step in (16, 24, 40))
    )
    asked: list[str] = []
    compare = solve.compare_rules

    def counted(library: object, example: Example, rules: list[Rule], draws: object) -> object:
        asked.extend(r.text for r in rules)
        return compare(library, example, rules, draws)  # type: ignore[arg-type]

    def inferred(readings: list[Reading], *arguments: object) -> tuple[Rule, ...]:
        return others

    monkeypatch.setattr(solve, "compare_rules", counted)
    monkeypatch.setattr(solve, "infer_rules", inferred)
    task = ClassTask(label="tf32", examples=examples, known=others[:1], hints=(), seed=3, cuda_cores=False)
    found = solve_class(library, task)
    assert found.rule is None
    assert "bytes differ" in found.reason
    assert sorted(asked) == sorted(r.text for r in others)


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_one_product_is_one_chain(dtype: DType, start: Start) -> None:
    """Of K = 1 there is nothing to read; bytes tell a chain from a matrix step, and from where it starts."""
    problems = [dense_problem(m, n, 1, dtype) for m, n in ((40, 30), (7, 120), (64, 64), (1, 50))]
    examples = tuple(Example(problem=p, answer=sample_answer()) for p in problems)
    hidden = next(
        r for r in short_chains(problems[0]) if r.structure.accumulator.step == ScalarStep(fused=True, start=start)
    )
    matrix = Order(instruction_k=16, step=HOPPER).rule(dtype)
    library = library_of(hidden)
    # A matrix step gives +0.0 for a zero product, as a chain from +0.0 does: such a class takes a known rule instead.
    task = ClassTask(
        label="K = 1", examples=examples, known=(matrix,) if start is Start.FIRST else (), hints=(), seed=3,
        zero_exponent=-133, cuda_cores=False,
    )  # fmt: skip
    found = solve_class(library, task)
    assert found.rule is not None, found.reason
    assert found.rule.structure.accumulator.step == ScalarStep(fused=True, start=start)
    assert found.readings == ()
    assert none_refuted(library, examples, found.rule)
    # The matrix step's own bytes leave it to the rule that is known.
    taken = solve_class(library_of(matrix), replace(task, known=(matrix,)))
    assert taken.rule == matrix
    assert short_chains(replace(problems[0], beta=ScalarClass.ONE)) == ()
