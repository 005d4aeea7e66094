"""The replay against the exact interpreter, and its contract at the edges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.arithmetic import step as exact
from gemmdesc.arithmetic.replay import fused_dot, replay
from gemmdesc.bits import Bits, bitwise_equal
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueLast,
    Rounding,
    ScalarStep,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from tests.arithmetic_reference import HOPPER, KINDS, OPERANDS, accumulators, descriptors, draw_bits, interpret

SCALAR = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))
MATRIX = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)


def plain(accumulator: Accumulator, k: int, *, cuts: tuple[Cut, ...] = (), operand: DType = DType.FLOAT16) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=operand,
        b_dtype=operand,
        output_dtype=DType.FLOAT32,
        summed_k=k,
        cuts=cuts,
        accumulator=accumulator,
    )


def interpreted(desc: GEMMDesc, a: Bits, b: Bits) -> list[list[int]]:
    return [[interpret(desc, row, column) for column in b.T.tolist()] for row in a.tolist()]


@settings(max_examples=300, deadline=None)
@given(desc=descriptors(), k=st.integers(0, 30), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
def test_replay_equals_the_interpreter_on_any_descriptor(desc: GEMMDesc, k: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = draw_bits(rng, kind, (2, k), desc.a_dtype)
    b = draw_bits(rng, kind, (k, 3), desc.b_dtype)
    assert replay(desc, a, b).tolist() == interpreted(desc, a, b)


@settings(max_examples=300, deadline=None)
@given(
    accumulator=accumulators().filter(lambda x: isinstance(x.step, FusedDot)),
    a_dtype=st.sampled_from(OPERANDS),
    b_dtype=st.sampled_from(OPERANDS),
    kind=st.sampled_from(KINDS),
    c_kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
)
def test_one_step_from_any_accumulator_equals_the_exact_step(
    accumulator: Accumulator, a_dtype: DType, b_dtype: DType, kind: str, c_kind: str, seed: int
) -> None:
    step, k = accumulator.step, accumulator.instruction_k
    assert isinstance(step, FusedDot)
    rng = np.random.default_rng(seed)
    a, b = draw_bits(rng, kind, (4, k), a_dtype), draw_bits(rng, kind, (k, 3), b_dtype)
    c = draw_bits(rng, c_kind, (4, 3), step.accumulator_dtype)
    got = fused_dot(step, a, b, c, a_dtype=a_dtype, b_dtype=b_dtype, instruction_k=k)
    expected = [
        [
            exact.fused_dot_step(step, row, column, c[i, j].item(), a_dtype=a_dtype, b_dtype=b_dtype)
            for j, column in enumerate(b.T.tolist())
        ]
        for i, row in enumerate(a.tolist())
    ]
    assert got.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_many_tiles_and_threads_equal_single_elements(kind: str) -> None:
    # 70 x 130 outputs at k = 300 fill several row blocks and column tiles, and are enough work for threads.
    cut = Cut(
        layout=Strided(count=3, unit=7), partial_dtype=DType.FLOAT16, merge_dtype=DType.FLOAT32, start=Start.FIRST
    )
    rng = np.random.default_rng(3)
    for accumulator in (MATRIX, SCALAR):
        desc = plain(accumulator, 300, cuts=(cut,))
        a, b = draw_bits(rng, kind, (70, 300), DType.FLOAT16), draw_bits(rng, kind, (300, 130), DType.FLOAT16)
        whole = replay(desc, a, b)
        for i, j in ((0, 0), (7, 63), (8, 64), (69, 129)):
            assert whole[i, j] == interpret(desc, a[i].tolist(), b[:, j].tolist())
        rows, cols = [69, 3, 3], [0, 129]
        assert bitwise_equal(whole[np.ix_(rows, cols)], replay(desc, a, b, rows=rows, cols=cols))
        assert bitwise_equal(whole.T, replay(desc, np.ascontiguousarray(b.T), np.ascontiguousarray(a.T)))


def test_callers_may_run_in_threads() -> None:
    rng = np.random.default_rng(5)
    a, b = draw_bits(rng, "narrow", (32, 2048), DType.FLOAT16), draw_bits(rng, "narrow", (2048, 64), DType.FLOAT16)
    desc = plain(MATRIX, 2048)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: replay(desc, a, b), range(8)))
    assert all(bitwise_equal(results[0], r) for r in results)


@pytest.mark.parametrize("accumulator", [MATRIX, SCALAR])
@pytest.mark.parametrize("summed_k", [0, 5])
def test_an_empty_sum_is_positive_zero(accumulator: Accumulator, summed_k: int) -> None:
    desc = plain(accumulator, summed_k)
    k = 0 if summed_k else 4
    out = replay(desc, np.full((2, k), 0x8000, np.uint16), np.full((k, 3), 0x3C00, np.uint16))
    assert out.tolist() == [[0] * 3] * 2


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (0, 0)])
def test_empty_outputs_have_their_shape(m: int, n: int) -> None:
    out = replay(plain(MATRIX, 8), np.zeros((m, 8), np.uint16), np.zeros((8, n), np.uint16))
    assert out.shape == (m, n)
    assert out.dtype == np.uint32


@pytest.mark.parametrize("accumulator", [MATRIX, SCALAR])
def test_products_of_negative_zero_sum_to_positive_zero(accumulator: Accumulator) -> None:
    out = replay(plain(accumulator, 3), np.full((1, 3), 0x8000, np.uint16), np.full((3, 1), 0x3C00, np.uint16))
    assert out.item() == 0


@pytest.mark.parametrize(("start", "expected"), [(Start.FIRST, 0x80000000), (Start.ZERO, 0)])
def test_the_start_of_a_fold_shows_in_the_sign_of_zero(start: Start, expected: int) -> None:
    # -2^-24 x 2^-14 rounds to -0.0 in float16.
    cut = Cut(layout=Contiguous(span=4), partial_dtype=DType.FLOAT16, merge_dtype=DType.FLOAT32, start=start)
    a, b = np.full((1, 1), 0x8001, np.uint16), np.full((1, 1), 0x0400, np.uint16)
    assert replay(plain(SCALAR, 1, cuts=(cut,)), a, b).item() == expected


INFINITY, NAN, ONE, ZERO, MAXIMUM = 0x7C00, 0x7E01, 0x3C00, 0, 0x7BFF


@pytest.mark.parametrize("accumulator", [MATRIX, SCALAR])
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([INFINITY, ONE], [ONE, ONE], 0x7F800000),
        ([INFINITY, INFINITY], [ONE, 0xBC00], 0x7FFFFFFF),
        ([INFINITY, ONE], [ZERO, ONE], 0x7FFFFFFF),
        ([NAN, ONE], [ZERO, ONE], 0x7FFFFFFF),
        ([0xFC00, MAXIMUM], [ONE, MAXIMUM], 0xFF800000),
    ],
)
def test_specials(accumulator: Accumulator, a: list[int], b: list[int], expected: int) -> None:
    row, column = np.array([a], np.uint16), np.array([b], np.uint16).T
    assert replay(plain(accumulator, 2), row, column).item() == expected


def test_an_infinite_accumulator_meets_its_opposite_in_a_later_step() -> None:
    a = np.zeros((1, 32), np.uint16)
    a[0, [0, 16]] = [INFINITY, 0xFC00]
    assert replay(plain(MATRIX, 32), a, np.full((32, 1), ONE, np.uint16)).item() == 0x7FFFFFFF


def test_truncation_toward_zero_overflows_to_infinity() -> None:
    big = np.full((1, 16), 0x7F7F, np.uint16)
    desc = plain(MATRIX, 16, operand=DType.BFLOAT16)
    assert replay(desc, big, np.full((16, 1), 0x4000, np.uint16)).item() == 0x7F800000


def test_a_float32_fma_rounds_once() -> None:
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: a tie in float32 that a tiny accumulator breaks, and two roundings miss.
    a, b = np.array([[0x0B800000, 0x3F800800]], np.uint32), np.array([[0x3F800000], [0x3F800800]], np.uint32)
    desc = plain(SCALAR, 2, operand=DType.FLOAT32)
    assert replay(desc, a, b).item() == 0x3F801001


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"a": np.zeros((2, 4), np.int16)}, r"^a must be a matrix of uint16 .*\(got "),
        ({"a": np.zeros(4, np.uint16)}, r"^a must be a matrix .*\(got 1 dimensions"),
        ({"b": np.zeros((5, 2), np.uint16)}, r"^b must have as many rows .*\(got 5\)$"),
        ({"rows": [2]}, r"^rows must be .*\(got \[2\]\)$"),
        ({"cols": [-1]}, r"^cols must be .*\(got \[-1\]\)$"),
    ],
)
def test_misuse_is_named(change: dict[str, object], match: str) -> None:
    arguments: dict[str, object] = {"a": np.zeros((2, 4), np.uint16), "b": np.zeros((4, 2), np.uint16), **change}
    with pytest.raises(InvalidInputError, match=match):
        replay(plain(MATRIX, 4), **arguments)  # type: ignore[arg-type]


def test_a_step_too_wide_for_exact_sums_is_refused() -> None:
    step = FusedDot(fraction_bits=50, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
    desc = plain(Accumulator(instruction_k=16, residue=ResidueLast(), step=step), 16)
    with pytest.raises(InvalidInputError, match=r"^fused_dot.fraction_bits .*\(got 50\)$"):
        replay(desc, np.zeros((1, 16), np.uint16), np.zeros((16, 1), np.uint16))
