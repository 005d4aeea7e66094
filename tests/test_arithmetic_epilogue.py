"""The epilogue's steps, each with its roundings, against the exact scalar functions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.arithmetic import step as exact
from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    AddC,
    CastTo,
    Contiguous,
    Cut,
    EpilogueStep,
    GEMMDesc,
    Relu,
    ResidueLast,
    ScalarStep,
    Scale,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import DescriptorError, InvalidInputError
from gemmdesc.normal_form import same_bits
from gemmdesc.text import from_json, parse_descriptor, to_json, to_text
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


def test_relu_keeps_a_nan_or_makes_it_zero() -> None:
    one, nan = np.full((1, 1), 0x3C00, np.uint16), np.full((1, 1), 0x7FFF, np.uint16)
    assert replay(desc(Relu()), nan, one)[0, 0] == 0x7FFFFFFF
    dropped = desc(Relu(keeps_nan=False))
    assert replay(dropped, nan, one)[0, 0] == 0
    below = np.array([[0xC000, 0x8000, 0x0000, 0x3C01]], np.uint16).T
    np.testing.assert_array_equal(replay(dropped, below, one), replay(desc(Relu()), below, one))
    assert same_bits(desc(Relu()), dropped, 1) is False


@pytest.mark.parametrize("merge", [DType.FLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("steps", [(AddBias(),), (AddC(fused=True), AddBias()), (AddC(fused=False),)])
def test_a_fold_opens_with_c_and_bias(merge: DType, steps: tuple[EpilogueStep, ...]) -> None:
    """The first part's sum meets them and is rounded; the other parts follow, each addition rounded in turn."""
    rng = np.random.default_rng(11)
    a, b = draw_bits(rng, "narrow", (70, 20), DType.FLOAT16), draw_bits(rng, "narrow", (20, 5), DType.FLOAT16)
    c, bias = draw_bits(rng, "narrow", (70, 5), DType.FLOAT16), draw_bits(rng, "narrow", (5,), DType.FLOAT16)
    inputs = EpilogueInputs(beta=0.75, c=c, c_dtype=DType.FLOAT16, bias=bias, bias_dtype=DType.FLOAT16)
    bare = replace(desc(), summed_k=20)
    cut = Cut(
        layout=Contiguous(span=8), partial_dtype=DType.FLOAT32, merge_dtype=merge, start=Start.FIRST, opening=steps
    )
    running = replay(replace(bare, epilogue=(*steps, CastTo(dtype=merge))), a[:, :8], b[:8], epilogue=inputs)
    for part in (slice(8, 16), slice(16, 20)):
        partial = replay(bare, a[:, part], b[part]).view(np.float32)
        running = from_float32(running.view(np.float32) + partial, merge)
        running = from_float32(to_float32(running, merge), DType.FLOAT32)
    opened = replace(bare, cuts=(cut,))
    np.testing.assert_array_equal(replay(opened, a, b, epilogue=inputs), running)
    chosen = replay(opened, a, b, rows=[3, 69], cols=[4], epilogue=inputs)
    np.testing.assert_array_equal(chosen, running[[3, 69]][:, [4]])
    assert parse_descriptor(to_text(opened)) == opened == from_json(to_json(opened))
    closed = replace(bare, cuts=(replace(cut, opening=()),), epilogue=steps)
    assert not same_bits(opened, closed, 20)
    # One part alone is rounded by nothing but the merge type.
    assert same_bits(opened, closed, 8) is (merge is DType.FLOAT32)


def test_only_the_outermost_cut_may_have_an_opening() -> None:
    plain = Cut(
        layout=Contiguous(span=8), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST
    )
    with pytest.raises(DescriptorError, match=r"cuts\.1\.opening must be empty"):
        replace(desc(), cuts=(plain, replace(plain, opening=(AddBias(),))))
    with pytest.raises(DescriptorError, match=r"cut\.opening\.0 must be"):
        replace(plain, opening=(plain,))  # type: ignore[arg-type]


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
