"""Float32 operands as a matrix instruction takes them, against exact fractions and a PTX-like oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.arithmetic.casts import cast_operand
from gemmdesc.arithmetic.replay import replay
from gemmdesc.arithmetic.step import cast_operand_step
from gemmdesc.bits import Bits
from gemmdesc.descriptor import Accumulator, GEMMDesc, OperandCast, ResidueLast, Rounding
from gemmdesc.dtypes import DType
from gemmdesc.errors import DescriptorError
from gemmdesc.text import parse_descriptor, to_text
from tests.arithmetic_reference import HOPPER

CASTS = {r: OperandCast(dtype=DType.TFLOAT32, rounding=r) for r in Rounding}
TF32 = Accumulator(instruction_k=8, residue=ResidueLast(), step=HOPPER)


def patterns(*values: float) -> Bits:
    return np.array(values, np.float32).view(np.uint32)


@given(bits=st.integers(0, 2**32 - 1), rounding=st.sampled_from(Rounding))
def test_any_pattern_is_cast_as_the_exact_step_says(bits: int, rounding: Rounding) -> None:
    (got,) = cast_operand(np.array([bits], np.uint32), CASTS[rounding]).tolist()
    assert got == cast_operand_step(bits, CASTS[rounding])
    assert got % (1 << 13) == 0


@pytest.mark.parametrize(("value", "toward_zero", "even", "away"), [
    (1 + 2.0**-11, 1.0, 1.0, 1 + 2.0**-10),
    (1 + 2.0**-10 + 2.0**-11, 1 + 2.0**-10, 1 + 2.0**-9, 1 + 2.0**-9),
    (-1 - 2.0**-11, -1.0, -1.0, -1 - 2.0**-10),
    (1 + 2.0**-11 + 2.0**-23, 1.0, 1 + 2.0**-10, 1 + 2.0**-10),
])  # fmt: skip
def test_ties(value: float, toward_zero: float, even: float, away: float) -> None:
    got = [cast_operand(patterns(value), CASTS[r]).view(np.float32)[0] for r in Rounding]
    assert got == [toward_zero, even, away]


def made(**casts: OperandCast) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, output_dtype=DType.FLOAT32, summed_k=64, cuts=(),
        accumulator=TF32, **casts,
    )  # fmt: skip


def test_truncated_operands_are_tfloat32_operands() -> None:
    """What ignores the low bits gives the same bytes under either description."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**32, shape, dtype=np.uint32) & 0xBFFFFFFF for shape in ((5, 40), (40, 3)))
    cast = CASTS[Rounding.TOWARD_ZERO]
    own = GEMMDesc(
        a_dtype=DType.TFLOAT32, b_dtype=DType.TFLOAT32, output_dtype=DType.FLOAT32, summed_k=64, cuts=(),
        accumulator=TF32,
    )  # fmt: skip
    expected = replay(own, a, b)
    np.testing.assert_array_equal(replay(made(a_cast=cast, b_cast=cast), a, b), expected)
    assert (replay(made(a_cast=cast), a, b) != expected).any()


def test_the_two_operands_are_cast_each_by_its_own_rule() -> None:
    x = patterns(1 + 2.0**-11)
    near, cut = CASTS[Rounding.NEAREST_AWAY], CASTS[Rounding.TOWARD_ZERO]
    one = replay(made(a_cast=near, b_cast=cut), x[:, None], patterns(1.0)[:, None]).view(np.float32)[0, 0]
    other = replay(made(a_cast=near, b_cast=cut), patterns(1.0)[:, None], x[:, None]).view(np.float32)[0, 0]
    assert (one, other) == (1 + 2.0**-10, 1.0)


def test_casts_are_spelled_only_where_there_are_any() -> None:
    cast = CASTS[Rounding.NEAREST_AWAY]
    assert "cast" not in to_text(made())
    text = to_text(made(a_cast=cast))
    assert text.endswith("a_cast=operand_cast(dtype=tfloat32, rounding=nearest_away))")
    assert parse_descriptor(text) == made(a_cast=cast)
    assert parse_descriptor(to_text(made())) == made()


def test_only_float32_is_cast_and_only_to_tfloat32() -> None:
    with pytest.raises(DescriptorError, match=r"^operand_cast\.dtype must be tfloat32"):
        OperandCast(dtype=DType.BFLOAT16, rounding=Rounding.TOWARD_ZERO)
    with pytest.raises(DescriptorError, match=r"^b_cast must cast float32"):
        GEMMDesc(
            a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, output_dtype=DType.FLOAT16, summed_k=1, cuts=(),
            accumulator=TF32, b_cast=CASTS[Rounding.TOWARD_ZERO],
        )  # fmt: skip
