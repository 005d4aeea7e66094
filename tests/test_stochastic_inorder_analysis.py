"""Attribution, orders side by side, and the data perturbation beside the draws inside."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, ResidueLast, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.formats import format_of
from gemmdesc.numerics.stochastic.inorder import draw_inside
from gemmdesc.numerics.stochastic.inorder_analysis import (
    attribute_sites,
    compare_orders,
    cover,
    digit_gap,
    perturb_outside,
)
from tests.arithmetic_reference import HOPPER

K = 512


def product(output: DType, *types: DType, span: int = 64) -> GEMMDesc:
    """``types``: partial types of one cut, if any."""
    return GEMMDesc(
        a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, output_dtype=output, summed_k=K,
        cuts=tuple(Cut(layout=Contiguous(span=span), partial_dtype=t, merge_dtype=t, start=Start.FIRST) for t in types),
        accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER),
    )  # fmt: skip


def operands(seed: int, m: int = 12, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(from_float32(rng.standard_normal(s).astype(np.float32), DType.FLOAT16) for s in ((m, K), (K, n)))  # type: ignore[return-value]


def test_the_coarsest_rounding_has_the_variance() -> None:
    a, b = operands(0)
    shares = {s.sites: s for s in attribute_sites(product(DType.FLOAT16), a, b)}
    assert set(shares) == {"step", "output"}
    assert shares["output"].variance_share > 0.99
    assert shares["step"].digits > shares["output"].digits + 2
    folded = {s.sites: s for s in attribute_sites(product(DType.FLOAT32, DType.BFLOAT16), a, b)}
    assert folded["fold 0"].variance_share > 0.99
    assert sum(s.variance_share for s in folded.values()) == pytest.approx(1.0)


def test_orders_agree_where_digits_say_so() -> None:
    a, b = operands(1)
    single = DType.FLOAT32
    orders = [product(single), product(single, single), product(single, single, span=128)]
    found = compare_orders(orders, a, b)
    assert found.orders == 3
    assert found.elements == 12 * 40
    assert 0 < found.equal_share < 1
    assert found.kept_share > 0.9
    assert found.inside_share >= found.kept_share * 0.98
    same = compare_orders([orders[0]] * 2, a, b)
    assert same.equal_share == same.kept_share == 1.0
    assert math.isnan(same.median_agreement)
    with pytest.raises(InvalidInputError, match="orders must"):
        compare_orders(orders[:1], a, b)
    with pytest.raises(InvalidInputError, match="orders must"):
        compare_orders([orders[0], product(DType.FLOAT16)], a, b)


def test_theorem_2_bounds_what_meets_its_conditions() -> None:
    rng = np.random.default_rng(2)
    z = 5.0 + rng.standard_normal((3, 2000))
    small = z + 0.2 * rng.standard_normal((3, 2000))
    found = digit_gap(z, small)
    assert found.within_conditions > 1500
    assert found.bounded == found.within_conditions
    assert 0 < found.median_gap < found.median_bound
    apart = digit_gap(z, 5.0 + rng.standard_normal((3, 2000)))
    assert apart.within_conditions < 1000
    assert apart.bounded == apart.within_conditions
    with pytest.raises(InvalidInputError, match="outside must"):
        digit_gap(z, z[:, :5])


def test_data_perturbation_sees_conditioning_and_not_the_order() -> None:
    a, b = operands(3)
    one, other = product(DType.FLOAT32), product(DType.FLOAT32, DType.BFLOAT16)
    fmt = format_of(DType.FLOAT32)
    first, second = (perturb_outside(d, a, b, format=fmt, seed=4) for d in (one, other))
    assert first.tobytes() == second.tobytes()
    reference = to_float32(a, DType.FLOAT16).astype(np.float64) @ to_float32(b, DType.FLOAT16).astype(np.float64)
    assert np.abs(first.mean(0) - reference).max() < 1e-4
    inside = [draw_inside(d, a, b, seed=4).before for d in (one, other)]
    gaps = [digit_gap(z, first) for z in inside]
    # The narrow merge costs digits that no perturbation of operands shows.
    assert gaps[1].median_difference > gaps[0].median_difference + 1


def test_cover_counts() -> None:
    a, b = operands(5)
    found = draw_inside(product(DType.FLOAT16), a, b)
    reference = to_float32(a, DType.FLOAT16).astype(np.float64) @ to_float32(b, DType.FLOAT16).astype(np.float64)
    estimate = found.estimate()
    result = cover(estimate, estimate.mean, reference)
    assert result.elements == 480
    assert result.covered > 450
    assert cover(estimate, estimate.mean, reference + 1.0).covered < 10
    assert cover(estimate, estimate.mean, reference, skip=np.ones((12, 40), bool)).elements == 0
