"""The simulated library: what it answers, what it runs, and that its ids carry no meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.arithmetic.replay import replay
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueLast,
    Rounding,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.expressions import parse_expression
from gemmdesc.library.interface import Library, Window
from gemmdesc.library.simulated import ID_ATTRIBUTES, SimulatedLibrary, permuted
from gemmdesc.library.stability import Stability, run_to_run
from gemmdesc.operands import Family, HashOperand
from gemmdesc.problem import (
    AlgoConfig,
    DeviceId,
    Failed,
    GemmProblem,
    KernelNode,
    Launch,
    LibraryId,
    LibraryVersion,
    Refused,
    dense_problem,
    environment,
)
from gemmdesc.rule import Rule, evaluate_rule, make_rule
from gemmdesc.variable_fields import variable_fields

FP16 = DType.FLOAT16
IDENTITY = LibraryId(version=LibraryVersion(major=13, minor=1, patch=0), build_id="abcd")
DEVICE = DeviceId(sm="sm_90", sm_count=132, name="simulated")
ANSWER = AlgoConfig(
    algo_id=66, tile_id=20, splitk_num=3, reduction_scheme=2, cta_swizzling=0, custom_option=7, stages_id=35,
    inner_shape_id=0, cluster_shape_id=4,
)  # fmt: skip
PROBLEM = dense_problem(6, 5, 200, FP16)
A = HashOperand(dtype=FP16, family=Family.WIDE, seed=1, draw=0, role="a")
B = HashOperand(dtype=FP16, family=Family.WIDE, seed=1, draw=0, role="b")


def split_rule(text: str = "round_up(floordiv(k, splitk_num), 16)") -> Rule:
    step = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-400)
    desc = GEMMDesc(
        a_dtype=FP16,
        b_dtype=FP16,
        output_dtype=FP16,
        summed_k=200,
        cuts=(
            Cut(layout=Contiguous(span=64), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST),
        ),
        accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=step),
    )
    span = next(path for path in variable_fields(desc) if "span" in path)
    return make_rule(desc, {span: parse_expression(text), "summed_k": parse_expression("k")})


def heuristic(problem: GemmProblem) -> AlgoConfig | Refused:
    if problem.m == 13:
        return Refused(status="CUBLAS_STATUS_NOT_SUPPORTED")
    return replace(ANSWER, custom_option=problem.n)


def simulated(**changes: object) -> SimulatedLibrary:
    fields = {"identity": IDENTITY, "device": DEVICE, "heuristic": heuristic, "rules": lambda p, x: split_rule()}
    return SimulatedLibrary(**(fields | changes))  # type: ignore[arg-type]


def test_it_is_a_library() -> None:
    library: Library = simulated()
    assert library.identity == IDENTITY
    assert library.device == DEVICE
    assert library.answer(PROBLEM) == replace(ANSWER, custom_option=5)
    assert isinstance(library.answer(replace(PROBLEM, m=13, lda=13, ldd=13)), Refused)
    assert library.check(PROBLEM, ANSWER)
    assert library.launch(PROBLEM, ANSWER) is None


def test_run_is_the_replay_of_the_rule() -> None:
    got = simulated().run(PROBLEM, ANSWER, A, B)
    desc = evaluate_rule(split_rule(), environment(PROBLEM, ANSWER, None))
    assert isinstance(desc, GEMMDesc)
    np.testing.assert_array_equal(got, replay(desc, A.bits(6, 200), B.bits(5, 200).T))


def test_a_window_is_the_part_of_the_whole_and_makes_only_its_rows() -> None:
    class Counted:
        dtype = FP16
        made = 0

        def bits(self, outer: int, k: int, rows: object = None) -> object:
            self.made += len(rows)  # type: ignore[arg-type]
            return A.bits(outer, k, rows)  # type: ignore[arg-type]

    counted = Counted()
    window = Window(rows=np.array([4, 0]), columns=np.array([1]))
    whole = simulated().run(PROBLEM, ANSWER, A, B)
    part = simulated().run(PROBLEM, ANSWER, counted, B, window)  # type: ignore[arg-type]
    assert not isinstance(whole, Failed)
    np.testing.assert_array_equal(part, whole[[4, 0]][:, [1]])
    assert counted.made == 2


def test_rules_may_be_a_mapping() -> None:
    library = simulated(rules={ANSWER: split_rule()})
    assert library.check(PROBLEM, ANSWER)
    assert not library.check(PROBLEM, replace(ANSWER, algo_id=1))
    assert library.run(PROBLEM, replace(ANSWER, algo_id=1), A, B) == Failed(status="CUBLAS_STATUS_NOT_SUPPORTED")


def test_failures_and_rules_that_do_not_apply() -> None:
    library = simulated(failures=lambda p, x: "CUBLAS_STATUS_EXECUTION_FAILED" if p.k > 100 else None)
    assert library.run(PROBLEM, ANSWER, A, B) == Failed(status="CUBLAS_STATUS_EXECUTION_FAILED")
    assert not library.check(PROBLEM, ANSWER)
    zero_span = simulated(rules=lambda p, x: split_rule("floordiv(k, 1000)"))
    assert zero_span.run(PROBLEM, ANSWER, A, B) == Failed(status="CUBLAS_STATUS_NOT_SUPPORTED")


def test_rules_may_use_the_launch() -> None:
    kernel = KernelNode(name="x", grid=(4, 1, 1), block=(128, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
    uses_grid = {"rules": lambda p, x: split_rule("ceildiv(k, grid_x)")}
    assert simulated(**uses_grid, launches=lambda p, x: Launch(kernels=(kernel,))).check(PROBLEM, ANSWER)
    assert not simulated(**uses_grid).check(PROBLEM, ANSWER)


def test_types_must_fit() -> None:
    other = HashOperand(dtype=DType.BFLOAT16, family=Family.WIDE, seed=1, draw=0, role="a")
    with pytest.raises(InvalidInputError, match=r"^a must be of float16"):
        simulated().run(PROBLEM, ANSWER, other, B)
    with pytest.raises(InvalidInputError, match=r"^rules must be of float32"):
        simulated().run(replace(PROBLEM, d_dtype=DType.FLOAT32), ANSWER, A, B)


def test_stability_tells_a_nondeterministic_answer() -> None:
    steady = run_to_run(simulated(), PROBLEM, ANSWER, A, B, repeats=2)
    assert steady == Stability(stable_alone=True, stable_busy=True, repeats=2)
    assert isinstance(steady, Stability)
    assert steady.stable
    shaky = run_to_run(simulated(nondeterministic=lambda p, x: True), PROBLEM, ANSWER, A, B, repeats=2)
    assert isinstance(shaky, Stability)
    assert not shaky.stable
    failing = simulated(failures=lambda p, x: "CUBLAS_STATUS_EXECUTION_FAILED")
    assert run_to_run(failing, PROBLEM, ANSWER, A, B) == Failed(status="CUBLAS_STATUS_EXECUTION_FAILED")
    with pytest.raises(InvalidInputError, match=r"^repeats must"):
        run_to_run(simulated(), PROBLEM, ANSWER, A, B, repeats=0)


ids = st.integers(0, 1 << 17)
answers = st.builds(
    AlgoConfig, splitk_num=st.integers(1, 500), opaque=st.just("00"), **dict.fromkeys(ID_ATTRIBUTES, ids)
)


@given(answers, answers, st.integers(0, 1 << 32))
@settings(max_examples=100)
def test_renaming_is_a_bijection(x: AlgoConfig, y: AlgoConfig, seed: int) -> None:
    renaming = permuted(simulated(), seed).renaming
    assert renaming.back(renaming.forth(x)) == x
    assert (renaming.forth(x) == renaming.forth(y)) == (x == y)
    assert renaming.forth(x).splitk_num == x.splitk_num


def test_a_permuted_library_runs_the_same_orders_under_other_ids() -> None:
    plain = simulated()
    for seed in range(3):
        other = permuted(plain, seed)
        answer = other.answer(PROBLEM)
        assert isinstance(answer, AlgoConfig)
        assert answer != plain.answer(PROBLEM)
        assert other.check(PROBLEM, answer)
        np.testing.assert_array_equal(other.run(PROBLEM, answer, A, B), plain.run(PROBLEM, ANSWER, A, B))
    assert isinstance(permuted(plain, 0).answer(replace(PROBLEM, m=13, lda=13, ldd=13)), Refused)
