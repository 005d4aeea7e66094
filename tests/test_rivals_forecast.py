"""The compiled forecast against the one in NumPy operations, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.arithmetic.decode import decode
from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    CastTo,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    Relu,
    ResidueFirst,
    ResidueLast,
    Rounding,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.rivals.sparse import SparseRows, find_places, forecast
from gemmdesc.schedule import make_schedule
from tests.arithmetic_reference import HOPPER, KINDS, OPERANDS, STORED, descriptors, draw_bits
from tests.rivals_oracle import expected_forecast, expected_places

epilogues = st.lists(
    st.one_of(st.just(Relu()), st.just(AddBias()), st.builds(CastTo, dtype=st.sampled_from(OPERANDS))), max_size=3
).map(tuple)


def _rows(rng: np.random.Generator, desc: GEMMDesc, k: int, kind: str, shape: tuple[int, int]) -> SparseRows:
    """Products of drawn operands at k that ascend for the most part; what meets an earlier k has no product."""
    at = rng.integers(0, k, shape)
    if rng.random() < 0.8:
        at.sort(axis=1)
    a, b = (decode(draw_bits(rng, kind, shape, dtype), dtype)[0] for dtype in (desc.a_dtype, desc.b_dtype))
    with np.errstate(invalid="ignore"):
        products = a.astype(np.float64) * b.astype(np.float64)
    if rng.random() < 0.5:
        # Some elements cancel their left neighbours.
        products = np.where(rng.random(shape) < 0.3, -np.roll(products, 1, axis=1), products)
    earlier = np.tril(np.ones((shape[1], shape[1]), dtype=bool), -1)
    products[((at[:, :, None] == at[:, None, :]) & earlier).any(axis=2)] = 0.0
    return SparseRows(k=at, products=products)


def _assert_same(desc: GEMMDesc, k: int, rows: SparseRows) -> None:
    schedule = make_schedule(desc, k)
    places = find_places(schedule, k)
    got, expected = forecast(desc, schedule, places, rows), expected_forecast(desc, k, rows)
    np.testing.assert_array_equal(got.view(np.int64), expected.view(np.int64), err_msg=f"{desc} at {k}")


@settings(max_examples=400)
@given(
    desc=descriptors(),
    epilogue=epilogues,
    output=st.sampled_from(OPERANDS),
    kind=st.sampled_from(KINDS),
    k=st.integers(1, 40),
    shape=st.tuples(st.sampled_from([0, 1, 7, 64, 130]), st.sampled_from([1, 2, 5, 13, 24])),
    seed=st.integers(0, 1 << 30),
)
def test_any_descriptor(
    desc: GEMMDesc, epilogue: tuple, output: DType, kind: str, k: int, shape: tuple[int, int], seed: int
) -> None:
    desc = replace(desc, epilogue=epilogue, output_dtype=output)
    _assert_same(desc, k, _rows(np.random.default_rng(seed), desc, k, kind, shape))


def _layout(rng: np.random.Generator, k: int) -> Contiguous | Strided:
    if rng.random() < 0.3:
        return Strided(count=int(rng.integers(1, 40)), unit=int(rng.integers(1, 65)))
    return Contiguous(span=int(rng.integers(max(1, k // 300), k + 2)), short=Short(rng.choice(["first", "last"])))


def _random_desc(rng: np.random.Generator, k: int) -> GEMMDesc:
    cuts = []
    inner = k
    for _ in range(int(rng.integers(0, 3))):
        layout = _layout(rng, inner)
        inner = -(-inner // layout.count) if isinstance(layout, Strided) else min(inner, layout.span)
        partial, merge = (STORED[i] for i in rng.integers(0, 3, 2))
        start = Start(rng.choice(["first", "zero"]))
        cuts.append(Cut(layout=layout, partial_dtype=partial, merge_dtype=merge, start=start))
    rounding = Rounding(rng.choice(["toward_zero", "nearest_even"]))
    accumulator_dtype = DType.FLOAT16 if rng.random() < 0.2 else DType.FLOAT32
    step: FusedDot | ScalarStep = replace(
        HOPPER,
        fraction_bits=int(rng.choice([13, 24, 25, 35])),
        output_bits=int(rng.integers(8, accumulator_dtype.format.fraction_bits + 1)),
        rounding=rounding,
        accumulator_dtype=accumulator_dtype,
    )
    instruction_k = int(rng.choice([4, 8, 16, 32]))
    residue = ResidueFirst(k_loop_step=int(rng.choice([16, 32, 48, 64]))) if rng.random() < 0.3 else ResidueLast()
    if rng.random() < 0.3:
        step, instruction_k = ScalarStep(fused=bool(rng.integers(2))), 1
    a, b = (OPERANDS[i] for i in rng.integers(0, len(OPERANDS), 2))
    return GEMMDesc(
        a_dtype=a,
        b_dtype=b,
        output_dtype=STORED[int(rng.integers(3))],
        summed_k=k - int(rng.integers(0, 9)) * int(rng.integers(2)),
        cuts=tuple(cuts),
        accumulator=Accumulator(instruction_k=instruction_k, residue=residue, step=step),
    )


@pytest.mark.parametrize("seed", range(60))
def test_long_inner_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(50, 5000))
    desc = _random_desc(rng, k)
    for kind in ("narrow", "finite", "middle", "any"):
        _assert_same(desc, k, _rows(rng, desc, k, kind, (int(rng.integers(1, 200)), int(rng.integers(2, 16)))))


def test_untouched_leaves_round_nothing() -> None:
    """A sum beyond float32 stays as it is beside leaves that no row touches, and overflows beside others."""
    desc = GEMMDesc(
        a_dtype=DType.FLOAT32,
        b_dtype=DType.FLOAT32,
        output_dtype=DType.FLOAT64,
        summed_k=64,
        cuts=(
            Cut(layout=Contiguous(span=16), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.ZERO),
        ),
        accumulator=Accumulator(instruction_k=8, residue=ResidueLast(), step=HOPPER),
    )
    schedule = make_schedule(desc, 64)
    places = find_places(schedule, 64)
    rows = SparseRows(k=np.array([[3, 5], [4, 6]]), products=np.array([[2.0**127, 2.0**127], [1.0, 0.0]]))
    assert forecast(desc, schedule, places, rows).tolist() == [2.0**128, 1.0]
    rows.k[1, 1] = 40
    assert forecast(desc, schedule, places, rows).tolist() == [np.inf, 1.0]


@pytest.mark.parametrize("output_bits", [1, 23])
def test_infinite_products(output_bits: int) -> None:
    step = replace(HOPPER, output_bits=output_bits)
    desc = GEMMDesc(
        a_dtype=DType.FLOAT32,
        b_dtype=DType.FLOAT32,
        output_dtype=DType.FLOAT32,
        summed_k=9,
        cuts=(),
        accumulator=Accumulator(instruction_k=4, residue=ResidueLast(), step=step),
    )
    k = np.arange(6)[None, :].repeat(3, axis=0)
    products = np.array([[1.0, np.inf, 2.0, 0.0, -3.0, 1.0], [-np.inf] + [1.0] * 5, [np.inf] * 5 + [-np.inf]])
    _assert_same(desc, 9, SparseRows(k=k, products=products))


@settings(max_examples=200)
@given(desc=descriptors(), k=st.integers(0, 70))
def test_places(desc: GEMMDesc, k: int) -> None:
    schedule = make_schedule(desc, k)
    places, (leaf, step) = find_places(schedule, k), expected_places(schedule, k)
    np.testing.assert_array_equal(places.leaf[places.step], leaf)
    np.testing.assert_array_equal(places.step, step)
