"""Solving classes of CUDA-core answers on simulated libraries: trees are read, rules inferred, and bytes decide."""

from __future__ import annotations

from random import Random

import pytest

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.expressions import Var
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.normal_form import same_bits
from gemmdesc.probe.examples import stretched
from gemmdesc.probe.outcomes import ClassTask
from gemmdesc.probe.predicted import farthest, none_refuted, predicts
from gemmdesc.probe.scan import Example
from gemmdesc.probe.solve import FORETOLD, solve_class
from gemmdesc.problem import AlgoConfig, GemmProblem, Transpose, dense_problem, environment
from gemmdesc.rule import Rule, choose_rule, evaluate_rule, parse_rule
from tests.probe_samples import DEVICE, FP16, FP32, IDENTITY, sample_answer

PLAIN = "partial_dtype=float32, merge_dtype=float32, start=first"


def hidden(*layouts: str, start: str = "zero") -> Rule:
    cuts = ", ".join(f"cut(layout={layout}, {PLAIN})" for layout in layouts)
    return parse_rule(
        f"gemm(a_dtype=float16, b_dtype=float16, output_dtype=float32, summed_k=k, cuts=[{cuts}], "
        "accumulator=accumulator(instruction_k=1, residue=residue_last(), "
        f"step=scalar_step(fused=True, start={start})), epilogue=[])"
    )


LONG_LANE = "strided(count=2, unit=min(64, ceildiv(k, 4)))"
RULES = {
    "chain": hidden(),
    "butterfly": hidden(*["strided(count=2, unit=1)"] * 3),
    "long lanes": hidden(LONG_LANE, LONG_LANE),
    "two levels": hidden("contiguous(span=ceildiv(k, 2), short=last)", "contiguous(span=256, short=last)"),
    "lanes and chunks": hidden("strided(count=16, unit=1)", "contiguous(span=16, short=last)"),
    "slices": hidden("contiguous(span=ceildiv(k, splitk_num), short=last)", *["strided(count=2, unit=4)"] * 2),
}
RULES["two kernels"] = choose_rule(
    Var("transa"), hidden("strided(count=16, unit=1)", "contiguous(span=16, short=last)"), RULES["two levels"]
)


def examples(count: int, largest: int, *, slices: tuple[int, ...] = (1,)) -> tuple[Example, ...]:
    rng = Random(5)
    found = []
    for i in range(count):
        k = int(largest ** rng.uniform(0.3, 1.0))
        problem = dense_problem(rng.randrange(100, 400), 1, k, FP16, d_dtype=FP32, transa=list(Transpose)[i % 2])
        found.append(Example(problem=problem, answer=sample_answer(splitk_num=rng.choice(slices))))
    return tuple(found)


def solved(rule: Rule, of: tuple[Example, ...]) -> Rule:
    def follow(problem: GemmProblem, answer: AlgoConfig) -> Rule:
        return rule

    library = SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=lambda p: of[0].answer, rules=follow)
    outcome = solve_class(library, ClassTask(label="one", examples=of, known=(), hints=(), seed=1))
    assert outcome.rule is not None, outcome.reason
    return outcome.rule


@pytest.mark.parametrize("name", RULES)
def test_the_hidden_order_of_cuda_core_chains_is_found(name: str) -> None:
    slices = (2, 3, 5) if name == "slices" else (1,)
    found = solved(RULES[name], examples(14, 1500, slices=slices))
    for e in examples(40, 1500, slices=slices)[14:]:
        values = environment(e.problem, e.answer, None)
        one, other = evaluate_rule(found, values), evaluate_rule(RULES[name], values)
        assert isinstance(one, GEMMDesc)
        assert isinstance(other, GEMMDesc)
        assert same_bits(one, other, e.problem.k), (found.text, e.problem.k)


def test_a_single_product_that_keeps_its_sign() -> None:
    """Kernels for k = 1 give -0.0 where their product is."""
    rule = hidden(start="first")
    of = tuple(
        Example(problem=dense_problem(m, n, 1, FP16, d_dtype=FP32), answer=sample_answer())
        for m, n in ((80, 3), (5, 200), (33, 17))
    )
    found = solved(rule, of)
    values = environment(of[0].problem, of[0].answer, None)
    one, other = evaluate_rule(found, values), evaluate_rule(rule, values)
    assert isinstance(one, GEMMDesc)
    assert isinstance(other, GEMMDesc)
    assert same_bits(one, other, 1)


def library(rule: Rule) -> SimulatedLibrary:
    def follow(problem: GemmProblem, answer: AlgoConfig) -> Rule:
        return rule

    return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=lambda p: sample_answer(), rules=follow)


def test_a_tree_refutes_what_bytes_seldom_do() -> None:
    right, wrong = RULES["butterfly"], hidden(*["strided(count=2, unit=1)"] * 2)
    (example,) = examples(1, 900)
    assert predicts(library(right), example, right)
    assert not predicts(library(right), example, wrong)
    assert none_refuted(library(right), [example], right)
    assert not none_refuted(library(right), [example], wrong)


def test_how_chains_open_is_part_of_what_is_foretold() -> None:
    (example,) = examples(1, 60)
    assert not predicts(library(hidden()), example, hidden(start="first"))


def test_the_farthest_example_lies_otherwise() -> None:
    of = [
        Example(problem=dense_problem(80, 1, k, FP16, transa=t), answer=sample_answer())
        for k, t in ((100, Transpose.N), (110, Transpose.N), (100, Transpose.T), (150, Transpose.N))
    ]
    assert farthest(of, [0], [1, 2, 3]) == 2
    assert farthest(of, [0, 2], [1, 3]) == 3
    assert farthest(of, [0], []) is None


def test_answers_are_stretched_as_far_as_the_check_goes() -> None:
    (example,) = examples(1, 300)
    sliced = Example(problem=example.problem, answer=sample_answer(splitk_num=5))
    ks = [e.problem.k for e in stretched(library(RULES["slices"]), [sliced])]
    k = example.problem.k
    assert ks == [4 * k + 1, 16 * k + 7, 64 * k + 13, 54, 214, 519]


def test_a_rule_of_other_classes_must_foretell_trees_too() -> None:
    """Both orders are one while k has a single lane's units only; the known one is not taken over."""
    of = examples(14, 1500)
    truth, known = RULES["butterfly"], hidden(*["strided(count=2, unit=1)"] * 4)
    outcome = solve_class(library(truth), ClassTask(label="one", examples=of, known=(known,), hints=(known,), seed=1))
    assert outcome.rule is not None
    assert outcome.rule.text == truth.text
    assert len(outcome.readings) > FORETOLD
