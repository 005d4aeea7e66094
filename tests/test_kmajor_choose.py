"""Choosing K-major kernels on plain values: what each descriptor maps to, what declines, and the bound of variants."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.descriptor import (
    AddBias,
    Contiguous,
    GEMMDesc,
    Rounding,
    ScaleOutput,
    Short,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.fma import FmaChoice
from gemmdesc.kernels.kmajor import KMajorChoice, choose_kmajor
from gemmdesc.kernels.kmajor_blocks import TILES
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.variants import enumerate_variants
from gemmdesc.kernels.variants_fma import fma_variants
from gemmdesc.kernels.variants_kmajor import kmajor_variants
from gemmdesc.plan.cards import card_arithmetic, realised
from gemmdesc.schedule import make_schedule
from tests.kmajor_samples import E4M3, E5M2, FLOAT8_STEP, FP32, contiguous, float8, samples, tf32
from tests.nest_samples import draw_nest

SHARED = 232448
CARD = card_arithmetic("sm_90")


def meta(desc: GEMMDesc, m: int, n: int, k: int, layouts: str = "rcr", alignment: int = 256) -> KernelMeta:
    types = (desc.a_dtype, desc.b_dtype, desc.output_dtype)
    a, b, out = (
        MatrixMeta(
            dtype=t, row_stride=c if x == "r" else 1, column_stride=1 if x == "r" else r, alignment=alignment
        )
        for t, (r, c), x in zip(types, ((m, k), (k, n), (m, n)), layouts, strict=True)
    )
    return KernelMeta(m=m, n=n, k=k, a=a, b=b, out=out, sm_count=132, shared_bytes=SHARED)


def chosen(desc: GEMMDesc, at: KernelMeta) -> KMajorChoice:
    choice = choose_whole(desc, at, CARD)
    assert isinstance(choice, KMajorChoice), choice
    return choice


def test_the_library_s_layout_is_read_where_it_lies_and_others_are_copied() -> None:
    desc = float8(4096, contiguous(128))
    assert chosen(desc, meta(desc, 4096, 4096, 4096)).packings is None
    for layouts in ("rrr", "ccr", "crr"):
        assert chosen(desc, meta(desc, 4096, 4096, 4096, layouts)).packings is not None
    assert chosen(desc, meta(desc, 4096, 4096, 4096, alignment=8)).packings is not None
    single = tf32(4096)
    assert chosen(single, meta(single, 64, 64, 4096)).packings is not None


def test_blocks_are_folded_in_registers_and_slices_of_them_go_to_scratch() -> None:
    desc = float8(4096, contiguous(128))
    choice = chosen(desc, meta(desc, 256, 256, 4096))
    assert (choice.folded, choice.blocks.count, choice.blocks.slices, choice.k_tiles) == (1, 32, 1, 1)
    split = float8(4096, contiguous(1408), contiguous(128))
    choice = chosen(split, meta(split, 256, 256, 4096))
    assert (choice.folded, choice.blocks.count, choice.blocks.per_slice, choice.blocks.slices) == (1, 32, 11, 3)
    fast = float8(4096, contiguous(1408))
    choice = chosen(fast, meta(fast, 256, 256, 4096))
    assert (choice.folded, choice.blocks.slices, choice.k_tiles) == (0, 3, 11)
    assert chosen(fast, meta(fast, 4096, 4096, 4096)).folded == 2


def test_leaves_are_those_of_the_schedule() -> None:
    for sample in samples():
        at = meta(sample.desc, sample.m, sample.n, sample.k, sample.layouts)
        leaves = len(make_schedule(sample.desc, sample.k).leaf_offsets) - 1
        assert chosen(sample.desc, at).blocks.count == leaves, sample.name


def test_no_tile_has_fewer_rows_than_wgmma_takes() -> None:
    assert all(t.block_m * 4 >= 64 * t.num_warps for t in TILES)
    for m in (1, 16, 32, 48, 64):
        desc = float8(512, contiguous(128))
        choice = chosen(desc, meta(desc, m, 4096, 512))
        assert choice.swapped
        assert choice.config.block_m >= 64
        assert choice.config.block_n >= m


def test_a_transposed_product_swaps_types_and_casts() -> None:
    desc = float8(512, pair=(E4M3, E5M2))
    choice = chosen(desc, meta(desc, 16, 512, 512))
    assert (choice.swapped, choice.a_dtype, choice.b_dtype) == (True, E5M2, E4M3)
    single = tf32(512, casts=(Rounding.NEAREST_EVEN, Rounding.TOWARD_ZERO))
    packings = chosen(single, meta(single, 16, 512, 512)).packings
    assert packings is not None
    assert [p.cast for p in packings] == [1, 2]


def test_every_choice_stays_inside_the_bound() -> None:
    bound, rng = enumerate_variants(SHARED), np.random.default_rng(0)
    for sample in samples():
        for m, n in ((sample.m, sample.n), (1, 70000), (50000, 50000)):
            layouts = "".join(rng.choice(["r", "c"], 3))
            at = meta(sample.desc, m, n, sample.k, layouts, alignment=int(rng.choice([1, 256])))
            assert set(kmajor_variants(chosen(sample.desc, at))) <= bound, sample.name


def test_large_outputs_have_wide_offsets() -> None:
    desc = tf32(64)
    choice = chosen(desc, meta(desc, 60000, 60000, 64))
    assert choice.wide_offsets
    assert not chosen(desc, meta(desc, 6000, 6000, 64)).wide_offsets


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda d: replace(d, a_dtype=DType.FLOAT16), "the descriptor's type float16"),
        (lambda d: replace(d, epilogue=(AddBias(),)), "the epilogue"),
        (lambda d: replace(d, epilogue=(ScaleOutput(),)), "the epilogue"),
        (lambda d: replace(d, accumulator=replace(d.accumulator, instruction_k=8)), "instruction_k"),
        (
            lambda d: replace(d, accumulator=replace(d.accumulator, step=replace(FLOAT8_STEP, fraction_bits=25))),
            "the accumulator must be the card's",
        ),
        (lambda d: replace(d, cuts=(replace(d.cuts[0], layout=Strided(count=2, unit=32)),)), "strided"),
        (
            lambda d: replace(d, cuts=(replace(d.cuts[0], layout=Contiguous(span=100, short=Short.FIRST)),)),
            "the short slice first",
        ),
        (lambda d: replace(d, cuts=(contiguous(200), contiguous(128))), "whole blocks"),
        (lambda d: replace(d, cuts=(contiguous(256), contiguous(128, DType.BFLOAT16))), "folded in float32"),
        (lambda d: replace(d, cuts=(contiguous(256), contiguous(128), contiguous(64))), "two cuts"),
        (lambda d: replace(d, cuts=(contiguous(256, DType.FLOAT16),)), "rounded to float32 or"),
    ],
)
def test_what_no_kernel_computes_declines(broken: object, words: str) -> None:
    plain = float8(512, contiguous(128))
    desc: GEMMDesc = broken(plain)  # type: ignore[operator]
    choice = choose_kmajor(desc, meta(plain, 64, 64, 512), CARD)
    assert isinstance(choice, Declined)
    assert choice.code == "kernel"
    assert re.search(words, choice.reason), choice.reason


def test_float32_needs_both_casts_and_a_float32_output() -> None:
    desc = replace(tf32(64), a_cast=None)
    choice = choose_whole(desc, meta(desc, 64, 64, 64), CARD)
    assert isinstance(choice, Declined)
    assert "a cast to tfloat32 for both" in choice.reason
    desc = replace(tf32(64), output_dtype=DType.FLOAT16)
    choice = choose_whole(desc, meta(desc, 64, 64, 64), CARD)
    assert isinstance(choice, Declined)
    assert "the output" in choice.reason


def test_a_card_says_which_pairs_it_multiplies() -> None:
    step = CARD.step_for(E4M3, E5M2)
    assert step is not None
    assert (step.lanes, step.step) == (32, FLOAT8_STEP)
    assert CARD.step_for(DType.TFLOAT32) is not None
    assert CARD.step_for(E4M3, DType.FLOAT16) is None
    desc = float8(128)
    choice = choose_kmajor(desc, meta(desc, 64, 64, 128), card_arithmetic("sm_80"))
    assert isinstance(choice, Declined)
    # Ada Lovelace adds 16 products a step.
    choice = choose_kmajor(desc, meta(desc, 64, 64, 128), card_arithmetic("sm_89"))
    assert isinstance(choice, Declined)
    with pytest.raises(InvalidInputError, match="b_dtype"):
        MatrixStep(operand_dtype=E4M3, lanes=32, step=FLOAT8_STEP, b_dtype=E4M3)
    twice = MatrixStep(operand_dtype=E4M3, lanes=32, step=FLOAT8_STEP, b_dtype=E5M2)
    with pytest.raises(InvalidInputError, match="once"):
        CardArithmetic(steps=(twice, twice))


def test_a_zero_s_exponent_is_the_card_s_where_no_8_bit_product_shows_it() -> None:
    """The probe reads -126, a floor that such products never reach."""
    desc = float8(512, contiguous(128))
    read = replace(
        desc, accumulator=replace(desc.accumulator, step=replace(FLOAT8_STEP, zero_exponent=-126))
    )
    assert realised(read, CARD) == desc
    shown = tf32(64)
    other = replace(
        shown, accumulator=replace(shown.accumulator, step=replace(shown.accumulator.step, zero_exponent=-126))
    )
    assert realised(other, CARD) == other


def test_float32_nests_have_kernels() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        desc = draw_nest(rng, FP32, 100)
        assert isinstance(choose_whole(desc, meta(desc, 40, 50, 100), CARD), NestChoice | LaneChoice | FmaChoice)
        assert isinstance(choose_whole(desc, meta(desc, 4, 50, 100), CARD), NestChoice | LaneChoice)


def test_tiled_chains_stay_inside_the_bound_and_leave_the_rest_to_nests() -> None:
    bound, rng, tiled = enumerate_variants(SHARED), np.random.default_rng(5), 0
    for _ in range(200):
        desc = draw_nest(rng, FP32, 100)
        m, n = (int(rng.choice([1, 15, 16, 300, 70000])) for _ in range(2))
        choice = choose_whole(desc, meta(desc, m, n, 100, "".join(rng.choice(["r", "c"], 3))), CARD)
        if isinstance(choice, FmaChoice):
            assert set(fma_variants(choice)) <= bound
            assert min(m, n) >= 16
            assert len(desc.cuts) <= 1
            assert len(make_schedule(desc, 100).leaf_offsets) - 1 == choice.count
            tiled += 1
    assert tiled >= 3
