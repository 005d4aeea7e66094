"""Directed rounding and error-free operations: NumPy and torch against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic import rounding
from gemmdesc.numerics.stochastic.formats import RoundingFormat, format_of, ieee_format, parse_format
from tests.stochastic_reference import exact_neighbour

FORMATS = [format_of(d) for d in DType] + [ieee_format(4, 3), ieee_format(11, 30), ieee_format(2, 1)]
numbers = st.floats(allow_nan=False, allow_infinity=False)
formats = st.sampled_from(FORMATS)


def both(function: Any, *lanes: list[float] | list[bool], **keywords: Any) -> tuple[np.ndarray, ...]:
    """What NumPy gives, after torch was seen to give the same bytes."""
    with np.errstate(all="ignore"):
        ours = function(np, *(np.array(x) for x in lanes), **keywords)
    theirs = function(torch, *(torch.tensor(x, dtype=torch.bool if x and isinstance(x[0], bool) else torch.float64)
                               for x in lanes), **keywords)  # fmt: skip
    ours, theirs = (x if isinstance(x, tuple) else (x,) for x in (ours, theirs))
    for x, y in zip(ours, theirs, strict=True):
        assert np.asarray(x).tobytes() == y.numpy().tobytes()
    return ours


@settings(max_examples=400, deadline=None)
@given(values=st.lists(numbers, min_size=1, max_size=8), fmt=formats, seed=st.integers(0, 2**32 - 1))
def test_neighbours_are_those_of_the_definition(values: list[float], fmt: RoundingFormat, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Half of the values are of the format or just beside, where a rest decides.
    with np.errstate(over="ignore"):
        grid = rounding.round_nearest(np, np.array(values), fmt)
    values = [float(g) if math.isfinite(g) and rng.random() < 0.5 else v for v, g in zip(values, grid, strict=True)]
    values += [math.ldexp(s, e) for s in (1, -1) for e in range(-24, 18, 3)]
    rests = [float(r) * math.ulp(v) for v, r in zip(values, rng.choice([-0.25, 0.0, 0.25], len(values)), strict=True)]
    ups = [bool(u) for u in rng.random(len(values)) < 0.5]
    (got,) = both(rounding.round_directed, values, rests, ups, fmt=fmt)
    for v, r, up, g in zip(values, rests, ups, got, strict=True):
        z = Fraction(v) + Fraction(r) if v else Fraction(0)
        expected = exact_neighbour(z, up, fmt) if z else v
        assert (g, math.copysign(1, g)) == (expected, math.copysign(1, expected)), (v, r, up)


def test_specials_pass() -> None:
    values = [math.inf, -math.inf, math.nan, 0.0, -0.0]
    (got,) = both(rounding.round_directed, values, [0.0] * 5, [True] * 5, fmt=format_of(DType.BFLOAT16))
    assert np.array(values).tobytes() == got.tobytes()
    (got,) = both(rounding.round_directed, values, [0.0] * 5, [True] * 5, fmt=format_of(DType.FLOAT8_E4M3FN))
    assert got[:2].tolist() == [448.0, -448.0]
    assert np.isnan(got[2])
    (got,) = both(rounding.round_kicked, values, [True] * 5, fmt=format_of(DType.BFLOAT16))
    assert np.array(values).tobytes() == got.tobytes()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_to_nearest_is_the_conversion_of_numpy(dtype: DType) -> None:
    x = np.random.default_rng(1).standard_normal(4000) * 2.0 ** np.random.default_rng(2).integers(-30, 20, 4000)
    (got,) = both(rounding.round_nearest, x.tolist(), fmt=format_of(dtype))
    with np.errstate(over="ignore"):
        assert got.tobytes() == x.astype(np.dtype(dtype.value)).astype(np.float64).tobytes()


def test_the_papers_rule_never_keeps_a_value() -> None:
    fmt = ieee_format(8, 23)
    values = [1.0, 1.5, -2.0, 1.0 + 2.0**-30, 2.0**-149, 3.5e38]
    (away,) = both(rounding.round_kicked, values, [True] * 6, fmt=fmt)
    (toward,) = both(rounding.round_kicked, values, [False] * 6, fmt=fmt)
    ulp = 2.0**-23
    assert away.tolist() == [1 + ulp, 1.5 + ulp, -2 - 2 * ulp, 1 + ulp, 2.0**-148, math.inf]
    # Under 1.0 the nearest float32 is half a unit away; the rule takes a whole one.
    assert toward.tolist()[:5] == [1 - ulp, 1.5 - ulp, -2 + 2 * ulp, 1.0, 0.0]


wide = st.one_of(numbers, st.floats(-2, 2), st.integers(-(2**40), 2**40).map(float))


@settings(max_examples=400, deadline=None)
@given(x=wide, y=wide)
def test_rests_have_the_sign_of_what_was_left_out(x: float, y: float) -> None:
    cases = [(rounding.add_exact, (x, y), Fraction(x) + Fraction(y)),
             (rounding.multiply_exact, (x, y), Fraction(x) * Fraction(y))]  # fmt: skip
    if y:
        cases.append((rounding.divide_exact, (x, y), Fraction(x) / Fraction(y)))
    for function, operands, z in cases:
        value, rest = both(function, *([v] for v in operands))
        if math.isfinite(value[0]):
            left = z - Fraction(float(value[0]))
            assert np.sign(rest[0]) == (left > 0) - (left < 0), function
    value, rest = both(rounding.root_exact, [abs(x)])
    below = Fraction(float(value[0])) ** 2
    assert np.sign(rest[0]) == (below < Fraction(abs(x))) - (below > Fraction(abs(x)))


@pytest.mark.parametrize("spelling", ["float33", (1, 3), (8, 0), (8, 53), (12, 3), 7, None, (8.0, 23)])
def test_an_unknown_format_is_an_error(spelling: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"must be .* \(got "):
        parse_format(spelling)


def test_spellings_of_one_format_agree() -> None:
    assert parse_format("float32") == parse_format((8, 23)) == parse_format(DType.FLOAT32)
    assert parse_format((11, 52)).largest == np.finfo(np.float64).max
    assert parse_format("float16").largest == 65504
