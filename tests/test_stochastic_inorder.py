"""Directions drawn inside a product: exact mode against the replay, drawn mode against an interpreter of fractions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    AddC,
    CastTo,
    Contiguous,
    Cut,
    GEMMDesc,
    Relu,
    ResidueLast,
    ScalarStep,
    Scale,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.inorder import draw_inside
from gemmdesc.numerics.stochastic.sites import NO_SITES, Sites, element_keys, number_sites, single_sites
from gemmdesc.schedule import make_schedule
from tests.arithmetic_reference import HOPPER, KINDS, descriptors, draw_bits
from tests.stochastic_reference import DrawnInterpreter


def product(
    output: DType = DType.FLOAT32,
    *,
    k: int = 512,
    cuts: tuple[Cut, ...] = (),
    operand: DType = DType.FLOAT16,
    **more: Any,
) -> GEMMDesc:
    accumulator = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)
    return GEMMDesc(
        a_dtype=operand, b_dtype=operand, output_dtype=output, summed_k=k, cuts=cuts, accumulator=accumulator, **more
    )


def normal(rng: np.random.Generator, shape: tuple[int, int], dtype: DType = DType.FLOAT16) -> Bits:
    return from_float32(rng.standard_normal(shape).astype(np.float32), dtype)


SPLIT = Cut(layout=Contiguous(span=128), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)
NARROW = Cut(layout=Contiguous(span=128), partial_dtype=DType.FLOAT16, merge_dtype=DType.FLOAT16, start=Start.FIRST)


@settings(max_examples=100, deadline=None)
@given(desc=descriptors(), k=st.integers(0, 30), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
def test_without_draws_the_bytes_are_the_replays(desc: GEMMDesc, k: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = draw_bits(rng, kind, (3, k), desc.a_dtype), draw_bits(rng, kind, (k, 2), desc.b_dtype)
    found = draw_inside(desc, a, b, sites=NO_SITES, samples=2)
    plain = replay(desc, a, b)
    for i in range(2):
        assert found.bits(i).tobytes() == plain.tobytes()
    assert from_float32(found.library, desc.output_dtype).tobytes() == plain.tobytes()
    assert found.exact.all()


@settings(max_examples=150, deadline=None)
@given(desc=descriptors(), k=st.integers(0, 24), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
def test_drawn_samples_are_the_interpreters(desc: GEMMDesc, k: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = draw_bits(rng, kind, (2, k), desc.a_dtype), draw_bits(rng, kind, (k, 1), desc.b_dtype)
    found = draw_inside(desc, a, b, seed=seed)
    numbers = number_sites(desc, make_schedule(desc, k))
    lost, gaps = np.zeros((2, 1), dtype=bool), np.zeros((2, 1))
    for sample, drawn, opposite in ((0, 0, False), (1, 1, False), (2, 1, True)):
        keys = element_keys(seed, drawn, np.arange(2), np.arange(1))
        for i in range(2):
            interpreter = DrawnInterpreter(desc, numbers, int(keys[i, 0]), opposite=opposite)
            expected = interpreter.run(a[i].tolist(), b[:, 0].tolist())
            got = float(found.samples[sample, i, 0])
            both_nan = got != got and expected != expected
            assert both_nan or (got, math.copysign(1, got)) == (expected, math.copysign(1, expected))
            lost[i] |= interpreter.lost
            gaps[i] += interpreter.gaps / 3
    # Sums of powers of two, of many sizes: not bytes, up to the last places.
    assert np.allclose(found.gaps, gaps, rtol=1e-12, atol=0.0)
    assert found.exact.tolist() == (~lost).tolist()


def test_sums_of_extreme_spread_are_exact() -> None:
    """Products 2^250 apart and more, which three float64 cannot hold."""
    desc = product(operand=DType.BFLOAT16, k=16)
    powers = np.array([120, 120, 60, 60, 0, -40, -60, -126, 120, -120, 3, 2, 1, 90, -90, 33])
    left = np.ldexp(np.array([1, -1, 1, -1, 1, 1, 1, 1, 1, 1, 1, -1, 1, 1, -1, 1.0]), powers).astype(np.float32)
    others = np.array([7, 7, 0, 0, -60, -80, -70, -7, -126, -10, 1, 1, 0, -126, 3, 2])
    right = np.ldexp(np.ones(16), others).astype(np.float32)
    a, b = from_float32(left, DType.BFLOAT16)[None, :], from_float32(right, DType.BFLOAT16)[:, None]
    numbers = number_sites(desc, make_schedule(desc, 16))
    for seed in range(8):
        found = draw_inside(desc, a, b, seed=seed, samples=2)
        keys = element_keys(seed, 0, np.arange(1), np.arange(1))
        expected = DrawnInterpreter(desc, numbers, int(keys[0, 0]), opposite=False).run(a[0].tolist(), b[:, 0].tolist())
        assert float(found.samples[0, 0, 0]) == expected


@pytest.mark.parametrize("cuts", [(), (SPLIT,), (NARROW,)])
def test_rows_can_be_drawn_alone(cuts: tuple[Cut, ...]) -> None:
    rng = np.random.default_rng(0)
    desc = product(DType.FLOAT16, cuts=cuts)
    a, b = normal(rng, (40, 512)), normal(rng, (512, 70))
    whole = draw_inside(desc, a, b, seed=5)
    rows, cols = [3, 17, 39], [69, 0]
    part = draw_inside(desc, a, b, seed=5, rows=rows, cols=cols)
    assert part.samples.tobytes() == whole.samples[:, rows][:, :, cols].tobytes()
    narrow = draw_inside(desc, a, b, seed=5, cols=[1])
    assert narrow.samples.tobytes() == whole.samples[:, :, [1]].tobytes()
    assert draw_inside(desc, a, b, seed=6, rows=rows).samples.tobytes() != whole.samples[:, rows].tobytes()


def test_integers_are_exact_and_kept() -> None:
    rng = np.random.default_rng(1)
    desc = product(DType.FLOAT16, k=64)
    a, b = (from_float32(rng.integers(-3, 4, s).astype(np.float32), DType.FLOAT16) for s in ((5, 64), (64, 7)))
    found = draw_inside(desc, a, b)
    assert found.exact.all()
    assert (found.samples == to_float32(replay(desc, a, b), DType.FLOAT16)).all()
    assert found.bias_summary().toward_zero == 0.0


def test_an_inexact_element_never_collapses_unnoticed() -> None:
    rng = np.random.default_rng(2)
    found = draw_inside(product(k=64), normal(rng, (20, 64)), normal(rng, (64, 50)), seed=1)
    estimate = found.estimate()
    same = (found.samples == found.samples[0]).all(0) & ~found.exact
    assert same.any()
    assert (estimate.half_width[same] > 0).all()


def test_truncation_is_a_bias_that_digits_do_not_show() -> None:
    rng = np.random.default_rng(3)
    a = from_float32(rng.uniform(0, 1, (16, 4096)).astype(np.float32), DType.FLOAT16)
    b = from_float32(rng.uniform(0, 1, (4096, 16)).astype(np.float32), DType.FLOAT16)
    found = draw_inside(product(k=4096), a, b)
    reference = to_float32(a, DType.FLOAT16).astype(np.float64) @ to_float32(b, DType.FLOAT16).astype(np.float64)
    bias = found.bias_summary()
    assert bias.share_toward_zero == 1.0
    assert bias.toward_zero > 8 * bias.standard_error
    plain, told = found.plain_estimate(), found.library_estimate()
    error = np.abs(found.library - reference)
    assert (error <= plain.half_width).mean() < 0.5
    assert (error <= told.half_width).mean() > 0.95
    assert (np.abs(found.estimate().mean - reference) <= found.estimate().half_width).mean() > 0.93


@pytest.mark.parametrize("output", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN])
def test_what_storing_moved_is_told_apart_from_what_the_sums_lost(output: DType) -> None:
    rng = np.random.default_rng(4)
    a, b = normal(rng, (24, 512)), normal(rng, (512, 40))
    found = draw_inside(product(output), a, b, seed=9)
    reference = to_float32(a, DType.FLOAT16).astype(np.float64) @ to_float32(b, DType.FLOAT16).astype(np.float64)
    estimate, plain = found.estimate(), found.plain_estimate()
    error = np.abs(estimate.mean - reference)
    used = np.abs(reference) < (448 if output is DType.FLOAT8_E4M3FN else np.inf)
    assert (error <= estimate.half_width)[used].mean() > 0.95
    assert np.median(np.log10(estimate.half_width / error)[used]) < np.median(np.log10(plain.half_width / error)[used])


def test_sites_draw_apart_and_their_kinds_are_the_descriptors() -> None:
    rng = np.random.default_rng(5)
    desc = product(DType.FLOAT16, cuts=(SPLIT,), epilogue=(Scale(), AddBias()))
    a, b = normal(rng, (6, 512)), normal(rng, (512, 9))
    inputs = EpilogueInputs(
        alpha=float(np.float32(0.7)), bias=normal(rng, (1, 9))[0], bias_dtype=DType.FLOAT16
    )
    kinds = list(single_sites(desc))
    assert [k.words for k in kinds] == ["step", "fold 0", "epilogue", "output"]
    for kind in kinds:
        found = draw_inside(desc, a, b, sites=kind, epilogue=inputs)
        assert (found.before != found.library_before).any() or (found.samples != found.library).any(), kind.words
    assert [k.words for k in single_sites(product())] == ["step"]


EPILOGUES = [
    (Scale(),), (AddC(fused=True),), (AddC(fused=False),), (AddBias(), Relu()),
    (Scale(), CastTo(dtype=DType.BFLOAT16), AddBias()),
]  # fmt: skip


@pytest.mark.parametrize("steps", EPILOGUES)
@pytest.mark.parametrize("output", [DType.FLOAT32, DType.FLOAT16])
def test_epilogues_without_draws_are_the_replays_and_with_draws_enclose(steps: Any, output: DType) -> None:
    rng = np.random.default_rng(6)
    desc = product(output, k=48, epilogue=steps)
    a, b = normal(rng, (5, 48)), normal(rng, (48, 8))
    inputs = EpilogueInputs(
        alpha=float(np.float32(0.3)), beta=float(np.float32(1.7)), c=normal(rng, (5, 8)), c_dtype=DType.FLOAT16,
        bias=normal(rng, (1, 8), DType.FLOAT32)[0], bias_dtype=DType.FLOAT32,
    )  # fmt: skip
    plain = draw_inside(desc, a, b, sites=NO_SITES, epilogue=inputs)
    assert plain.bits(0).tobytes() == replay(desc, a, b, epilogue=inputs).tobytes()
    only = Sites(step=False, folds=(), epilogue=True, output=False)
    drawn = draw_inside(desc, a, b, sites=only, epilogue=inputs, samples=16)
    low, high = drawn.before.min(0), drawn.before.max(0)
    # Without its bias an epilogue of one rounding encloses the library's, which is one of its two neighbours.
    assert ((low <= drawn.library_before) & (drawn.library_before <= high)).all()
    assert (low < high).mean() > 0.3


def test_an_opening_is_drawn_with_the_epilogue() -> None:
    rng = np.random.default_rng(7)
    cut = Cut(
        layout=Contiguous(span=32), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST,
        opening=(AddC(fused=False),),
    )  # fmt: skip
    desc = product(DType.FLOAT16, k=96, cuts=(cut,))
    a, b = normal(rng, (4, 96)), normal(rng, (96, 6))
    inputs = EpilogueInputs(beta=float(np.float32(0.3)), c=normal(rng, (4, 6)), c_dtype=DType.FLOAT16)
    plain = draw_inside(desc, a, b, sites=NO_SITES, epilogue=inputs)
    assert plain.bits(0).tobytes() == replay(desc, a, b, epilogue=inputs).tobytes()
    only = Sites(step=False, folds=(), epilogue=True, output=False)
    assert (draw_inside(desc, a, b, sites=only, epilogue=inputs).before != plain.before[0]).any()


def test_scalar_chains_draw_products_and_sums() -> None:
    rng = np.random.default_rng(8)
    a, b = normal(rng, (3, 40), DType.FLOAT32), normal(rng, (40, 3), DType.FLOAT32)
    for fused in (True, False):
        accumulator = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=fused))
        desc = GEMMDesc(
            a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, output_dtype=DType.FLOAT32, summed_k=40, cuts=(),
            accumulator=accumulator,
        )  # fmt: skip
        found = draw_inside(desc, a, b, samples=8)
        reference = to_float32(a, DType.FLOAT32).astype(np.float64) @ to_float32(b, DType.FLOAT32).astype(np.float64)
        assert (np.abs(found.estimate().mean - reference) <= found.estimate().half_width).mean() > 0.7
        assert not found.exact.any()


def test_bad_input_is_named() -> None:
    a, b = np.zeros((2, 16), np.uint16), np.zeros((16, 2), np.uint16)
    desc = product(k=16)
    no_such_fold = Sites(step=True, folds=(0,), epilogue=False, output=False)
    for keywords, message in [({"samples": 1}, "samples must"), ({"samples": 2.0}, "samples must"),
                              ({"confidence": 1.5}, "confidence must"), ({"rows": [2]}, "rows must"),
                              ({"sites": no_such_fold}, "sites.folds must"),
                              ({"seed": "x"}, "seed must"), ({"seed": -1}, "seed must")]:  # fmt: skip
        with pytest.raises(InvalidInputError, match=message):
            draw_inside(desc, a, b, **keywords)


@pytest.mark.parametrize("output", [DType.FLOAT32, DType.BFLOAT16])
def test_half_widths_from_the_sites_cover_and_are_no_wider_than_they_must_be(output: DType) -> None:
    rng = np.random.default_rng(9)
    a, b = normal(rng, (40, 1024)), normal(rng, (1024, 60))
    found = draw_inside(product(output, k=1024, cuts=(SPLIT,)), a, b, seed=2)
    reference = to_float32(a, DType.FLOAT16).astype(np.float64) @ to_float32(b, DType.FLOAT16).astype(np.float64)
    error = np.abs(found.before.astype(np.float64).mean(0) - reference)
    half = found.site_half_width()
    assert 0.945 < (error <= half).mean() < 0.98
    assert np.median(np.log10(half / error)) < 0.55
    # The same element by the spread of three samples: as often covered, and wider by what two degrees of freedom cost.
    wide = found.sum_estimate().half_width
    assert np.median(wide) > 1.4 * np.median(half)


def test_an_epilogue_scales_what_the_sums_lost() -> None:
    rng = np.random.default_rng(10)
    a, b = normal(rng, (4, 256)), normal(rng, (256, 5))
    plain = draw_inside(product(k=256), a, b, seed=1)
    for alpha in (0.5, float(np.float32(0.3))):
        scaled = draw_inside(product(k=256, epilogue=(Scale(),)), a, b, seed=1, epilogue=EpilogueInputs(alpha=alpha))
        extra = scaled.gaps / alpha**2 / plain.gaps
        assert (extra >= 1 - 1e-12).all()
        assert np.median(extra) < 1.2
        assert (alpha == 0.5) == bool((np.abs(extra - 1) < 1e-12).all())
