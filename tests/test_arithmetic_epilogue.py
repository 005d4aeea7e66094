"""The epilogue's steps, each with its roundings, against the exact scalar functions."""

from __future__ import annotations

import numpy as np
import pytest

from gemmdesc.arithmetic import step as exact
from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay
from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    AddC,
    CastTo,
    EpilogueStep,
    GEMMDesc,
    Relu,
    ResidueLast,
    ScalarStep,
    Scale,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from tests.arithmetic_reference import draw_bits

MULTIPLY = {"a_dtype": DType.FLOAT32, "b_dtype": DType.FLOAT32}


def desc(*steps: EpilogueStep, output: DType = DType.FLOAT32) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=DType.FLOAT16,
        b_dtype=DType.FLOAT16,
        output_dtype=output,
        summed_k=1,
        cuts=(),
        accumulator=Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True)),
        epilogue=steps,
    )


def single(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def product(a: int, b: int) -> int:
    # A fused step on -0.0 is one rounded product, and keeps its sign where the product is -0.0.
    return exact.scalar_step(ScalarStep(fused=True), a, b, 0x80000000, **MULTIPLY)


@pytest.mark.parametrize("kind", ["narrow", "any", "zeros"])
def test_steps_round_where_they_say(kind: str) -> None:
    rng = np.random.default_rng(7)
    a, b = draw_bits(rng, kind, (6, 1), DType.FLOAT16), draw_bits(rng, kind, (1, 5), DType.FLOAT16)
    c, bias = draw_bits(rng, kind, (6, 5), DType.FLOAT16), draw_bits(rng, kind, (5,), DType.BFLOAT16)
    alpha, beta = float(np.float32(0.3)), float(np.float32(-1.7))
    inputs = EpilogueInputs(alpha=alpha, beta=beta, c=c, c_dtype=DType.FLOAT16, bias=bias, bias_dtype=DType.BFLOAT16)
    sums = replay(desc(), a, b)
    wide_c = [[exact.widen_to_float32(x, DType.FLOAT16) for x in row] for row in c.tolist()]
    wide_bias = [exact.widen_to_float32(x, DType.BFLOAT16) for x in bias.tolist()]

    def check(expected: object, *steps: EpilogueStep) -> None:
        assert replay(desc(*steps), a, b, epilogue=inputs).tolist() == expected

    at = [[(i, j) for j in range(5)] for i in range(6)]
    check([[product(single(alpha), int(sums[p])) for p in row] for row in at], Scale())
    check([[exact.add_float32(int(sums[p]), wide_bias[p[1]]) for p in row] for row in at], AddBias())
    check(
        [[exact.add_float32(int(sums[p]), product(single(beta), wide_c[p[0]][p[1]])) for p in row] for row in at],
        AddC(fused=False),
    )
    fma = ScalarStep(fused=True)
    check(
        [
            [exact.scalar_step(fma, single(beta), wide_c[p[0]][p[1]], int(sums[p]), **MULTIPLY) for p in row]
            for row in at
        ],
        AddC(fused=True),
    )
    rounded = [[exact.convert_float32(int(sums[p]), DType.BFLOAT16) for p in row] for row in at]
    check([[exact.widen_to_float32(x, DType.BFLOAT16) for x in row] for row in rounded], CastTo(dtype=DType.BFLOAT16))


def test_steps_run_in_order_and_for_chosen_outputs() -> None:
    a = np.array([[1.0], [-2.0]], np.float16).view(np.uint16)
    b = np.array([[1.0, 3.0, -0.0]], np.float16).view(np.uint16)
    bias = np.array([[1.0], [2.0]], np.float32).view(np.uint32)
    inputs = EpilogueInputs(alpha=2.0, bias=bias)
    chain = desc(Scale(), AddBias(), Relu(), output=DType.FLOAT16)
    out = replay(chain, a, b, rows=[1], cols=[2, 1, 0], epilogue=inputs)
    assert out.view(np.float16).tolist() == [[2.0, 0.0, 0.0]]
    out = replay(desc(AddBias(), Scale()), a, b, epilogue=inputs)
    assert out.view(np.float32).tolist() == [[4.0, 8.0, 2.0], [0.0, -8.0, 4.0]]


def test_relu_turns_negative_zero_positive() -> None:
    a, b = np.array([[-1.0]], np.float16).view(np.uint16), np.array([[2.0**-24]], np.float16).view(np.uint16)
    cast = CastTo(dtype=DType.FLOAT16)
    inputs = EpilogueInputs(alpha=2.0**-10)
    assert replay(desc(Scale(), cast), a, b, epilogue=inputs).item() == 0x80000000
    assert replay(desc(Scale(), cast, Relu()), a, b, epilogue=inputs).item() == 0


def test_a_missing_or_misshapen_input_is_named() -> None:
    a, b = np.zeros((2, 1), np.uint16), np.zeros((1, 3), np.uint16)
    with pytest.raises(InvalidInputError, match=r"^c must be given .*\(got None\)$"):
        replay(desc(AddC(fused=True)), a, b)
    with pytest.raises(InvalidInputError, match=r"^c must have shape \(2, 3\) \(got \(3,\)\)$"):
        replay(desc(AddC(fused=True)), a, b, epilogue=EpilogueInputs(c=np.zeros(3, np.uint32)))
    with pytest.raises(InvalidInputError, match=r"^bias must have shape \(2, 3\) \(got \(2,\)\)$"):
        replay(desc(AddBias()), a, b, epilogue=EpilogueInputs(bias=np.zeros(2, np.uint32)))
    with pytest.raises(InvalidInputError, match=r"^alpha must be a float32 value \(got 0.1\)$"):
        EpilogueInputs(alpha=0.1)
