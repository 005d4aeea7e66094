"""Batches and epilogues as problems of their own: orders, roundings of what follows the sum, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.descriptor import (
    AddBias,
    AddC,
    CastTo,
    EpilogueStep,
    Relu,
    ScalarStep,
    Scale,
    ScaleOutput,
)
from gemmdesc.dtypes import DType
from gemmdesc.library.interface import Inputs
from gemmdesc.operands import Family, HashOperand
from gemmdesc.probe.compare import Verdict, compare_rules, plain_draws, rival_draws
from gemmdesc.probe.courses import has_epilogue, sequences
from gemmdesc.probe.epilogues import plan_beside, with_epilogues
from gemmdesc.probe.infer import Unexplained, behaviour, infer_rules
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading, reading_from_plain, reading_to_plain
from gemmdesc.probe.scan import Example
from gemmdesc.problem import Epilogue, GemmProblem, ScalarClass, Transpose, environment
from gemmdesc.rule import Rule
from tests.probe_samples import BF16, FP16, FP32, Order, library_of, sample_answer, sample_problem

SPLIT = Order(spans=("round_up(ceildiv(k, splitk_num), 64)",))
NARROW = replace(SPLIT, partial=FP16)
READ = ((1019, 3), (1288, 7), (777, 5))
Steps = tuple[EpilogueStep, ...]


def hidden(order: Order, dtype: DType, steps: Steps = (), output: DType | None = None) -> Rule:
    rule = order.rule(dtype, output)
    return replace(rule, structure=replace(rule.structure, epilogue=steps))


def batched(p: GemmProblem, count: int, *, shared: bool = False) -> GemmProblem:
    return replace(
        p, batch_count=count, a_batch_stride=p.lda * p.a_columns + 8,
        b_batch_stride=0 if shared else p.ldb * p.b_columns, d_batch_stride=p.ldd * p.n,
    )  # fmt: skip


def readings_of(rule: Rule, change: Mapping[str, object], dtype: DType, output: DType | None = None) -> list[Reading]:
    out = []
    for k, splitk in READ:
        problem, answer = replace(sample_problem(k, dtype, output), **change), sample_answer(splitk_num=splitk)
        out.append(read_answer(LibraryReader(library_of(rule, answer), problem, answer), problem, answer))
    return out


def inferred(rule: Rule, change: Mapping[str, object], dtype: DType, output: DType | None = None) -> Rule | Unexplained:
    readings = readings_of(rule, change, dtype, output)
    # As text, which tells a NaN from nothing but itself.
    assert repr(reading_from_plain(reading_to_plain(readings[0]))) == repr(readings[0])
    own = [environment(r.problem, r.answer, None) for r in readings]
    found = infer_rules(readings, own, zero_exponent=-133)
    if isinstance(found, Unexplained):
        return found
    assert any(behaviour(r, own) == behaviour(rule, own) for r in found), [r.text for r in found]
    return found[0]


BIAS: dict[str, object] = {"epilogue": Epilogue.BIAS}
RELU_BIAS: dict[str, object] = {"epilogue": Epilogue.RELU_BIAS}
PLUS_C: dict[str, object] = {"beta": ScalarClass.ONE}
TIMES_C: dict[str, object] = {"beta": ScalarClass.OTHER}


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("order", [SPLIT, NARROW])
@pytest.mark.parametrize(("change", "steps"), [
    (BIAS, (AddBias(),)),
    (BIAS, (CastTo(dtype=FP16), AddBias())),
    ({"epilogue": Epilogue.RELU}, (Relu(),)),
    ({"epilogue": Epilogue.RELU}, (Relu(keeps_nan=False),)),
    (RELU_BIAS, (AddBias(), Relu(keeps_nan=False))),
    (RELU_BIAS, (AddBias(), Relu())),
    (RELU_BIAS, (CastTo(dtype=FP16), AddBias(), Relu())),
    (PLUS_C, (AddC(fused=False),)),
    (PLUS_C, (CastTo(dtype=FP16), AddC(fused=False))),
    (TIMES_C, (AddC(fused=True),)),
    (TIMES_C, (AddC(fused=False),)),
    (TIMES_C, (CastTo(dtype=FP16), AddC(fused=True))),
    ({**TIMES_C, **BIAS}, (AddC(fused=True), AddBias())),
    ({**TIMES_C, "alpha": ScalarClass.OTHER}, (Scale(), AddC(fused=True))),
])  # fmt: skip
def test_what_follows_the_sum_is_found(order: Order, dtype: DType, change: Mapping[str, object], steps: Steps) -> None:
    of_type = tuple(CastTo(dtype=dtype) if isinstance(s, CastTo) else s for s in steps)
    narrowed = replace(order, partial=dtype) if order.partial is FP16 else order
    truth = hidden(narrowed, dtype, of_type)
    found = inferred(truth, change, dtype)
    assert isinstance(found, Rule), found
    if change is PLUS_C:
        # Times one there is no rounding to see.
        assert found.structure.epilogue[-1] in (AddC(fused=False), AddC(fused=True))
        return
    assert found.structure.epilogue == of_type


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("steps", [(AddBias(),), (CastTo(dtype=FP16), AddBias())])
def test_the_end_of_a_fold_in_place(dtype: DType, opened: bool, steps: Steps) -> None:
    """Running sums are stored in D itself; the bias may meet the last one before it is rounded to D's type."""
    of_type = tuple(CastTo(dtype=dtype) if isinstance(s, CastTo) else s for s in steps)
    truth = hidden(replace(SPLIT, merge=dtype), dtype, of_type)
    cut = replace(truth.structure.cuts[0], open_end=opened)
    truth = replace(truth, structure=replace(truth.structure, cuts=(cut,)))
    found = inferred(truth, BIAS, dtype)
    assert isinstance(found, Rule), found
    e = Example(problem=replace(sample_problem(1019, dtype), **BIAS), answer=sample_answer(splitk_num=3))
    other = replace(truth, structure=replace(truth.structure, cuts=(replace(cut, open_end=not opened),)))
    verdicts = compare_rules(library_of(truth), e, [found, other], plain_draws(3, 6), side=64)
    seen = len(of_type) == 1
    assert verdicts == (Verdict.EQUAL, Verdict.DIFFERENT if seen else Verdict.EQUAL)


@pytest.mark.parametrize("output", [FP16, BF16, FP32])
@pytest.mark.parametrize(("change", "opening", "steps"), [
    (BIAS, (AddBias(),), ()),
    (PLUS_C, (AddC(fused=False),), ()),
    (TIMES_C, (AddC(fused=True),), ()),
    (RELU_BIAS, (AddBias(),), (Relu(keeps_nan=False),)),
])  # fmt: skip
def test_what_a_fold_in_place_opens_with(
    output: DType, change: Mapping[str, object], opening: Steps, steps: Steps
) -> None:
    """The first slice takes C or the bias in: as on an H200, where algo_id 24 stores running sums in D itself."""
    dtype = FP16 if output is FP32 else output
    truth = hidden(replace(SPLIT, merge=output), dtype, steps, output)
    cut = truth.structure.cuts[0]
    truth = replace(truth, structure=replace(truth.structure, cuts=(replace(cut, opening=opening),)))
    found = inferred(truth, change, dtype, output)
    assert isinstance(found, Rule), found
    assert [type(s) for s in found.structure.cuts[0].opening] == [type(s) for s in opening]
    closed = replace(truth, structure=replace(truth.structure, cuts=(cut,), epilogue=(*opening, *steps)))
    e = Example(problem=replace(sample_problem(1019, dtype, output), **change), answer=sample_answer(splitk_num=3))
    verdicts = compare_rules(library_of(truth), e, [found, closed], plain_draws(3, 6), side=64)
    assert verdicts == (Verdict.EQUAL, Verdict.DIFFERENT)


def test_a_nan_shows_what_relu_makes_of_it() -> None:
    relu: dict[str, object] = {"epilogue": Epilogue.RELU}
    for kept in (True, False):
        truth, other = (hidden(SPLIT, FP16, (Relu(keeps_nan=k),)) for k in (kept, not kept))
        (reading, *_) = readings_of(truth, relu, FP16)
        assert sum(np.isnan(b.output) for b in reading.beside) == kept
        e = Example(problem=reading.problem, answer=reading.answer)
        verdicts = compare_rules(library_of(truth), e, [truth, other], plain_draws(3, 6), side=64)
        assert verdicts == (Verdict.EQUAL, Verdict.DIFFERENT)


def test_a_sequence_out_of_the_space_and_gelu_are_unexplained() -> None:
    found = inferred(hidden(SPLIT, FP16, (AddBias(), AddBias())), BIAS, FP16)
    assert isinstance(found, Unexplained)
    assert "no sequence" in found.reason
    assert sequences(replace(sample_problem(64), epilogue=Epilogue.GELU_BIAS)) == ()


def test_plain_problems_have_no_epilogue_to_read() -> None:
    assert not has_epilogue(sample_problem(64))
    rules = (hidden(SPLIT, FP16),)
    readings = readings_of(rules[0], {}, FP16)
    assert all(r.beside == () for r in readings)
    assert with_epilogues(rules, readings) == rules


@pytest.mark.parametrize("change", [BIAS, RELU_BIAS, TIMES_C])
def test_experiments_are_repeatable_and_few(change: Mapping[str, object]) -> None:
    problem = replace(sample_problem(64), **change)
    planned = plan_beside(problem, 32)
    assert planned == plan_beside(problem, 32)
    assert 8 <= len(planned) <= 200
    assert all(k in (0, 32) for x in planned for k, _ in x.pattern)
    assert all(len(x.pattern) == 1 for x in plan_beside(problem, 0))


@pytest.mark.parametrize(("change", "steps", "wrong"), [
    (BIAS, (AddBias(),), (CastTo(dtype=FP16), AddBias())),
    (TIMES_C, (AddC(fused=True),), (AddC(fused=False),)),
    (TIMES_C, (AddC(fused=False),), (CastTo(dtype=FP16), AddC(fused=False))),
])  # fmt: skip
def test_bytes_with_random_c_and_bias_decide(change: Mapping[str, object], steps: Steps, wrong: Steps) -> None:
    output = FP32 if change is TIMES_C and wrong == (AddC(fused=False),) else FP16
    truth, other = hidden(SPLIT, FP16, steps, output), hidden(SPLIT, FP16, wrong, output)
    e = Example(problem=replace(sample_problem(300, FP16, output), **change), answer=sample_answer(splitk_num=2))
    draws = (*plain_draws(3, 6), *rival_draws(3, 2))
    assert compare_rules(library_of(truth), e, [truth, other], draws, side=64) == (Verdict.EQUAL, Verdict.DIFFERENT)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("m", "n"), [(64, 8), (8, 64), (5, 5)])
def test_batches_are_read_and_compared_like_one_product(m: int, n: int, shared: bool) -> None:
    truth = hidden(SPLIT, FP16)
    p = batched(replace(sample_problem(777), m=m, n=n, lda=m, ldb=777, ldd=m), 6, shared=shared)
    answer = sample_answer(splitk_num=5)
    reader = LibraryReader(library_of(truth), p, answer)
    reading = read_answer(reader, p, answer)
    assert reading.part_ends == (192, 384, 576, 768, 777)
    assert reader.width == (m * 6 if m >= n else n)
    wrong = hidden(Order(), FP16)
    e = Example(problem=p, answer=answer)
    draws = (*plain_draws(1, 3), *rival_draws(1, 2))
    assert compare_rules(library_of(truth), e, [truth, wrong], draws) == (Verdict.EQUAL, Verdict.DIFFERENT)


def test_a_batch_is_its_matrices_one_by_one() -> None:
    truth = hidden(Order(), FP16, (AddC(fused=True), AddBias()))
    one = replace(sample_problem(100, transa=Transpose.T), m=6, n=4, lda=100, ldb=100, ldd=6, beta=ScalarClass.OTHER,
                  epilogue=Epilogue.BIAS)  # fmt: skip
    p, answer, library = batched(one, 3), sample_answer(), library_of(truth)

    def hashed(dtype: DType, role: str) -> HashOperand:
        return HashOperand(dtype=dtype, family=Family.NORMAL, seed=1, draw=2, role=role)  # type: ignore[arg-type]

    a, b = hashed(FP16, "a"), hashed(FP16, "b")
    c, bias = hashed(FP16, "a"), hashed(FP16, "b")
    whole = library.run(p, answer, a, b, inputs=Inputs(beta=0.75, c=c, bias=bias))
    assert isinstance(whole, np.ndarray)
    assert whole.shape == (18, 4)
    first = library.run(one, answer, a, b, inputs=Inputs(beta=0.75, c=c, bias=bias))
    np.testing.assert_array_equal(whole[:6], first)
    assert (whole[6:12] != first).any()


def test_scales_that_are_multiplied_one_by_one_are_unexplained() -> None:
    """[Scale, ScaleOutput] is the only sequence of an 8-bit product; a library that does otherwise has no rule."""
    assert sequences(
        replace(sample_problem(64), a_dtype=DType.FLOAT8_E4M3FN, b_dtype=DType.FLOAT8_E4M3FN, d_dtype=DType.FLOAT8_E5M2)
    )[0] == (Scale(), ScaleOutput())


def test_cuda_core_chains_have_epilogues_too() -> None:
    truth = hidden(Order(instruction_k=1, step=ScalarStep(fused=True)), FP16, (AddBias(),))
    reading = readings_of(truth, BIAS, FP16)[0]
    bare = replace(truth, structure=replace(truth.structure, epilogue=()))
    assert with_epilogues([bare], [reading]) == (truth,)
