"""Solving classes of CUDA-core answers on simulated libraries: trees are read, rules inferred, and bytes decide."""

from __future__ import annotations

from random import Random

import pytest

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.normal_form import same_bits
from gemmdesc.probe.scan import Example
from gemmdesc.probe.solve import ClassTask, solve_class
from gemmdesc.problem import AlgoConfig, GemmProblem, Transpose, dense_problem, environment
from gemmdesc.rule import Rule, evaluate_rule, parse_rule
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
