"""The chooser on plain values: what each descriptor maps to, what declines, and that all stays inside the bound."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.descriptor import (
    Accumulator,
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
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.config import Feature, KernelConfig
from gemmdesc.kernels.meta import KernelMeta, Layout, MatrixMeta
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import compared, features_of
from gemmdesc.kernels.variants import enumerate_variants, variants_of
from gemmdesc.schedule import make_schedule

STEP = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
CARD = CardArithmetic(steps=(MatrixStep(operand_dtype=DType.FLOAT16, lanes=16, step=STEP),))
SHARED = 232448
BOUND = enumerate_variants(SHARED)


def desc(k: int, *, span: int | None = None, step: int = 16, turn: int | None = None, **cut: object) -> GEMMDesc:
    fields = {"partial_dtype": DType.FLOAT32, "merge_dtype": DType.FLOAT32, "start": Start.FIRST} | cut
    return GEMMDesc(
        a_dtype=DType.FLOAT16,
        b_dtype=DType.FLOAT16,
        output_dtype=DType.FLOAT16,
        summed_k=k,
        cuts=() if span is None else (Cut(layout=Contiguous(span=span), **fields),),  # type: ignore[arg-type]
        accumulator=Accumulator(
            instruction_k=step, residue=ResidueFirst(k_loop_step=turn) if turn else ResidueLast(), step=STEP
        ),
    )


def matrix(rows: int, columns: int, *, by_rows: bool = True, pad: int = 0, alignment: int = 256) -> MatrixMeta:
    strides = (columns + pad, 1) if by_rows else (1, rows + pad)
    return MatrixMeta(dtype=DType.FLOAT16, row_stride=strides[0], column_stride=strides[1], alignment=alignment)


def meta(m: int, n: int, k: int, layouts: str = "rrr", alignment: int = 256, pad: int = 0) -> KernelMeta:
    a, b, out = (
        matrix(r, c, by_rows=x == "r", alignment=alignment, pad=pad)
        for (r, c), x in zip(((m, k), (k, n), (m, n)), layouts, strict=True)
    )
    return KernelMeta(m=m, n=n, k=k, a=a, b=b, out=out, sm_count=132, shared_bytes=SHARED)


def chosen(d: GEMMDesc, at: KernelMeta, *asked: Feature) -> KernelChoice:
    """The model's choice among configs of no other features than ``asked``."""
    choice = choose_kernel(d, at, CARD, unasked=frozenset(asked))
    assert isinstance(choice, KernelChoice), choice
    return choice


def reason(d: GEMMDesc, at: KernelMeta, card: CardArithmetic = CARD) -> str:
    choice = choose_kernel(d, at, card)
    assert isinstance(choice, Declined)
    assert choice.code == "kernel"
    return choice.reason


@pytest.mark.parametrize("layouts", ["rrr", "rcr", "crr", "ccr"])
def test_a_large_aligned_chain_runs_on_descriptors_with_the_large_tile(layouts: str) -> None:
    choice = chosen(desc(4096), meta(4096, 4096, 4096, layouts))
    assert choice.structure is Structure.CHAIN_TMA
    assert choice.packing is None
    assert (choice.config.block_m, choice.config.block_n, choice.config.block_k) == (128, 256, 64)
    assert choice.store_by_descriptor
    assert choice.programs == 132


@pytest.mark.parametrize(("n", "pad"), [(1953, 31), (1959, 1), (1952, 32), (1960, 0), (1960, 24)])
def test_lines_that_end_inside_a_chunk_are_stored_by_pointers(n: int, pad: int) -> None:
    """The hardware stores chunks of 16 bytes whole: it would write into the gap before the next line."""
    at = meta(1024, 1984, 2048)
    at = replace(at, n=n, out=matrix(1024, n, pad=pad))
    choice = chosen(desc(2048), at)
    assert choice.structure is Structure.CHAIN_TMA
    assert at.out.by_descriptor(1024, n)
    assert choice.store_by_descriptor is (n % 8 == 0)


@settings(max_examples=300, deadline=None)
@given(
    rows=st.integers(1, 40), columns=st.integers(1, 40), pad=st.integers(0, 24), by_rows=st.booleans(),
    dtype=st.sampled_from([DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E5M2]),
)  # fmt: skip
def test_chunks_of_a_store_by_descriptor_lie_inside_the_matrix(
    rows: int, columns: int, pad: int, by_rows: bool, dtype: DType
) -> None:
    out = replace(matrix(rows, columns, by_rows=by_rows, pad=pad), dtype=dtype)
    if not out.stored_by_descriptor(rows, columns):
        return
    steps = (out.row_stride, out.column_stride)
    inside = {
        (i * steps[0] + j * steps[1]) * dtype.itemsize + byte
        for i in range(rows) for j in range(columns) for byte in range(dtype.itemsize)
    }  # fmt: skip
    written = {at // 16 * 16 + byte for at in inside for byte in range(16)}
    assert written == inside


def test_an_unaligned_address_is_repacked_when_large_and_read_by_pointers_when_small() -> None:
    assert chosen(desc(1024), meta(512, 512, 1024, alignment=2)).packing is not None
    assert chosen(desc(512), meta(100, 512, 512, alignment=2)).structure is Structure.CHAIN_POINTER
    assert chosen(desc(511), meta(100, 512, 511)).structure is Structure.CHAIN_POINTER


@pytest.mark.parametrize(
    ("m", "n", "k", "packed"),
    [(512, 512, 512, False), (512, 512, 513, True), (704, 768, 512, False), (705, 768, 512, True), (128, 128, 8, False)]
)
def test_a_short_chain_is_not_worth_copies(m: int, n: int, k: int, packed: bool) -> None:
    assert (chosen(desc(k), meta(m, n, k, alignment=2)).packing is not None) is packed
    # Operands that need no copies are read by descriptor all the same.
    assert chosen(desc(k), meta(m, n, k, pad=-k % 8)).structure is Structure.CHAIN_TMA
    whole = choose_kernel(desc(k), meta(m, n, k, alignment=2), CARD, structure=Structure.CHAIN_TMA)
    assert isinstance(whole, KernelChoice)
    assert whole.packing is not None


def test_slices_of_a_short_chain_are_counted() -> None:
    for m, packed in ((256, False), (512, True)):
        choice = chosen(desc(1536, span=384), meta(m, 512, 1536, alignment=2))
        assert (choice.packing is not None) is packed, m


def test_a_residue_first_chain_is_plain_exactly_where_its_short_step_is_full_or_last() -> None:
    for k, plain in ((512, True), (528, True), (520, False), (20, True), (513, False), (96, True)):
        choice = chosen(desc(k, turn=32), meta(96, 80, k, pad=-k % 8))
        assert (choice.structure is not Structure.GROUPED_CHAIN) is plain, k


def test_a_thin_product_is_swapped_and_covers_the_thin_side_with_one_tile() -> None:
    for asked, structure in (((), Structure.CHAIN_TMA), ((Feature.ONE_LAUNCH,), Structure.MERGED_TMA)):
        choice = chosen(desc(4096, span=1408), meta(16, 4096, 4096, "rcr"), *asked)
        assert choice.swapped
        assert choice.config.block_n == 16
        assert choice.structure is structure
        assert choice.merges == (not asked)
    assert not chosen(desc(4096), meta(4096, 16, 4096)).swapped


@pytest.mark.parametrize("layouts", ["rrr", "rcr", "crr", "ccc"])
def test_a_single_row_is_read_by_descriptor(layouts: str) -> None:
    assert chosen(desc(4096), meta(1, 4096, 4096, layouts)).structure is Structure.CHAIN_TMA
    assert chosen(desc(4096), meta(4096, 1, 4096, layouts)).structure is Structure.CHAIN_TMA


def test_enough_tiles_fold_in_registers_and_few_go_to_scratch() -> None:
    for asked, scratch in (((), Structure.CHAIN_TMA), ((Feature.ONE_LAUNCH,), Structure.MERGED_TMA)):
        assert chosen(desc(4096, span=1408), meta(2048, 2048, 4096), *asked).structure is Structure.FOLDED_CHAIN
        # One program a slice is more than the few tiles of a fold in registers would keep busy.
        assert chosen(desc(8192, span=4096), meta(256, 1024, 8192), *asked).structure is scratch
        # So many slices take one program longer to fold than a launch costs.
        deep = chosen(desc(300000, span=5056), meta(16, 16, 300000), *asked)
        assert deep.structure is Structure.CHAIN_TMA
        assert deep.programs == 60


def test_slices_of_few_tiles_take_one_launch_where_it_is_asked_for_and_of_many_two() -> None:
    # Roundings that no kernel folds in registers.
    scratch = desc(4096, span=1408, merge_dtype=DType.BFLOAT16)
    for d, at, one, two in (
        (desc(4096, span=1408), meta(256, 256, 4096), Structure.MERGED_TMA, Structure.CHAIN_TMA),
        (scratch, meta(20000, 20000, 4096), None, Structure.CHAIN_TMA),
        (scratch, meta(50, 70, 4096, alignment=2), Structure.MERGED_POINTER, Structure.CHAIN_POINTER),
        (scratch, meta(50, 200000, 4096, alignment=2), None, Structure.CHAIN_POINTER),
    ):
        for asked in ((), (Feature.ONE_LAUNCH,)):
            choice = chosen(d, at, *asked)
            merged = one is not None and bool(asked)
            assert choice.structure is (one if merged else two)
            kernels = [choice.structure.value, *([] if merged else ["merge"])]
            assert [v.kernel for v in variants_of(choice)] == kernels
            assert choice.programs >= choice.slices.count
    grouped = chosen(desc(4095, span=1000, step=8, turn=32), meta(50, 70, 4095), Feature.ONE_LAUNCH)
    assert (grouped.structure, grouped.programs % grouped.slices.count) == (Structure.MERGED_GROUPED, 0)
    # A thin product has narrow tiles only there; without them and one launch a fold in registers is left.
    thin = desc(8192, span=512), meta(8, 65536, 8192, "rcr")
    assert chosen(*thin, *Feature).structure is Structure.MERGED_TMA
    assert chosen(*thin).structure is Structure.FOLDED_CHAIN
    # 64-bit offsets are left to the two kernels that have them, and a chain of one slice has nothing to fold.
    far = desc(300007, span=30000), meta(8192, 40, 300007, alignment=2)
    assert chosen(*far, Feature.ONE_LAUNCH).structure is Structure.CHAIN_POINTER
    one = choose_kernel(desc(4096), meta(64, 64, 4096), CARD, structure=Structure.MERGED_TMA)
    assert isinstance(one, Declined)


def test_a_config_or_a_structure_asks_for_one_launch() -> None:
    split, at = desc(4096, span=1408), meta(16, 4096, 4096, "rcr")
    merged = choose_kernel(split, at, CARD, structure=Structure.MERGED_TMA)
    assert isinstance(merged, KernelChoice)
    assert merged.config.one_launch
    assert choose_kernel(split, at, CARD, config=merged.config) == merged
    two = choose_kernel(split, at, CARD, config=replace(merged.config, one_launch=False))
    assert isinstance(two, KernelChoice)
    assert (two.structure, two.slices) == (Structure.CHAIN_TMA, merged.slices)
    for structure, config in ((Structure.CHAIN_TMA, merged.config), (Structure.MERGED_TMA, two.config)):
        assert isinstance(choose_kernel(split, at, CARD, config=config, structure=structure), Declined)
    # Nothing to fold: such a config has no kernel.
    assert isinstance(choose_kernel(desc(4096), at, CARD, config=merged.config), Declined)


#: Of a card without warp groups that multiply.
OFFERED = tuple(f for f in Feature if f is not Feature.SPECIALISED)


@pytest.mark.parametrize("some", [(), *((f,) for f in OFFERED), OFFERED], ids=str)
def test_the_model_picks_only_configs_of_the_features_that_it_may(some: tuple[Feature, ...]) -> None:
    features = frozenset(some)
    met: set[Feature] = set()
    for m, n, k, span in product((1, 8, 24, 300), (512, 4096), (1000, 4096), (None, 512)):
        for alignment in (2, 256):
            at = meta(m, n, k, "rcr", alignment=alignment)
            choice = choose_kernel(desc(k, span=span), at, CARD, unasked=features)
            assert isinstance(choice, KernelChoice)
            assert choice.config in configs_of(choice.structure)
            found = features_of(choice.structure, choice.config)
            assert found <= features
            met |= found
    assert met == features


def test_a_few_rows_get_narrow_tiles_and_enough_bytes_under_way() -> None:
    """Tiles of 64 rows, of 32 where those are too few and a batch has 8 columns, and else deeper pipelines."""

    def tile(m: int, n: int, k: int, span: int | None = None) -> tuple[int, ...]:
        choice = chosen(desc(k, span=span), meta(m, n, k, "rcr"), Feature.NARROW, Feature.ONE_LAUNCH)
        assert choice.swapped
        c = choice.config
        return c.block_m, c.block_n, c.block_k, c.num_stages

    assert tile(8, 14336, 4096) == (64, 8, 128, 4)
    assert tile(8, 6144, 2048) == (32, 8, 128, 6)
    assert tile(32, 14336, 4096) == (64, 32, 128, 4)
    assert tile(32, 6144, 2048) == (64, 32, 128, 8)
    # A step must not cross from one slice into the next.
    assert tile(64, 4096, 14336, 4800)[2] == 64
    for m in (1, 8, 9, 16, 17, 32, 33, 64):
        assert tile(m, 4096, 4096, 1408)[1] == max(8, 1 << (m - 1).bit_length())


def test_slices_match_the_schedule() -> None:
    for k, span in ((1000, 64), (1000, 1000), (1000, 999), (1000, 5000), (7, 3)):
        d = desc(k, span=span)
        choice = chosen(d, meta(40, 40, k))
        leaves = len(make_schedule(d, k).leaf_offsets) - 1
        assert choice.slices.count == leaves


def test_summed_k_bounds_the_slices() -> None:
    d = replace(desc(6832, span=1344), summed_k=6720)
    assert chosen(d, meta(200, 136, 6832)).slices.count == 5


def test_one_part_merges_only_where_its_rounding_shows() -> None:
    assert chosen(desc(100, span=500), meta(96, 96, 100)).slices.merge is None
    assert chosen(desc(100, span=500, merge_dtype=DType.FLOAT16), meta(96, 96, 100)).slices.merge is None
    assert chosen(desc(100, span=500, partial_dtype=DType.FLOAT16), meta(96, 96, 100)).slices.merge is not None


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(desc(64), epilogue=(Relu(),)), "epilogue"),
        (replace(desc(64), cuts=desc(64, span=16).cuts * 2), "nested"),
        (replace(desc(64), b_dtype=DType.BFLOAT16), "b must have"),
        (replace(desc(64), output_dtype=DType.FLOAT32), "out must have"),
        (desc(64, step=4), "instruction_k"),
        (desc(64, step=16, turn=24), "k_loop_step"),
        (
            replace(
                desc(64),
                accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=replace(STEP, fraction_bits=24)),
            ),
            "the accumulator must be the card's",
        ),
    ],
)
def test_what_no_kernel_computes_declines_with_a_reason(broken: GEMMDesc, words: str) -> None:
    assert words in reason(broken, meta(32, 32, 64))


def test_layouts_of_cuts_that_have_no_kernel_decline() -> None:
    (cut,) = desc(64, span=24).cuts
    for layout, words in (
        (Strided(count=2, unit=1), "strided"),
        (Contiguous(span=24, short=Short.FIRST), "short slice"),
    ):
        assert words in reason(replace(desc(64), cuts=(replace(cut, layout=layout),)), meta(32, 32, 64))
    even = replace(desc(64), cuts=(replace(cut, layout=Contiguous(span=32, short=Short.FIRST)),))
    assert chosen(even, meta(32, 32, 64)).slices.count == 2


def test_an_unknown_card_and_an_output_without_unit_stride_decline() -> None:
    assert "not known" in reason(desc(64), meta(32, 32, 64), CardArithmetic(steps=()))
    at = meta(32, 32, 64)
    assert "unit stride" in reason(desc(64), replace(at, out=replace(at.out, column_stride=2, row_stride=64)))


def test_a_card_names_an_operand_type_once() -> None:
    with pytest.raises(InvalidInputError, match=r"^steps must name .*got"):
        CardArithmetic(steps=CARD.steps * 2)


def test_offsets_beyond_32_bits_are_wide() -> None:
    assert chosen(desc(300007), meta(8192, 40, 300007, alignment=2)).wide_offsets
    assert not chosen(desc(30007), meta(8192, 40, 30007, alignment=2)).wide_offsets


@settings(max_examples=300, deadline=None)
@given(
    m=st.integers(1, 3000),
    n=st.integers(1, 3000),
    k=st.integers(1, 5000),
    span=st.none() | st.integers(1, 5000),
    step=st.sampled_from([8, 16]),
    turn=st.sampled_from([None, 32, 64, 128]),
    layouts=st.text("rc", min_size=3, max_size=3),
    alignment=st.sampled_from([2, 8, 16, 256]),
    pad=st.integers(0, 8),
    partial=st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]),
    asked=st.frozensets(st.sampled_from(Feature)),
)
def test_every_choice_compiles_to_an_enumerated_variant_and_fits(
    m: int, n: int, k: int, span: int | None, step: int, turn: int | None, layouts: str, alignment: int, pad: int,
    partial: DType, asked: frozenset[Feature],
) -> None:  # fmt: skip
    at = meta(m, n, k, layouts, alignment, pad)
    choice = chosen(desc(k, span=span, step=step, turn=turn, partial_dtype=partial), at, *asked)
    assert set(variants_of(choice)) <= BOUND
    assert choice.config in configs_of(choice.structure)
    if choice.structure.by_descriptor:
        span_read = choice.packing.span if choice.packing else choice.slices.span
        assert choice.slices.count == 1 or span_read % choice.config.block_k == 0
        assert choice.a_layout is not Layout.ANY
        assert choice.b_layout is not Layout.ANY
    else:
        assert choice.packing is None
    assert 1 <= choice.programs <= choice.config.tiles(*((n, m) if choice.swapped else (m, n))) * choice.slices.count


SCALAR = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))


@pytest.mark.parametrize(("m", "n", "layouts"), [(4000, 1, "rrr"), (4000, 1, "crr"), (1, 1, "rrr"), (3, 700, "rcr")])
def test_scalar_chains_take_lanes_or_a_nest(m: int, n: int, layouts: str) -> None:
    for span in (None, 100):
        d = replace(desc(1000, span=span), accumulator=SCALAR)
        lanes = choose_kernel(d, meta(m, n, 1000, layouts), CARD, structure=Structure.LANE_NEST)
        assert isinstance(lanes, LaneChoice)
        assert set(variants_of(lanes)) <= BOUND
        choice = choose_kernel(d, meta(m, n, 1000, layouts), CARD, structure=Structure.SCALAR_NEST)
        assert isinstance(choice, NestChoice)
        assert choice.structure is Structure.SCALAR_NEST
        assert set(variants_of(choice)) <= BOUND
        assert choose_kernel(d, meta(m, n, 1000, layouts), CARD) == lanes
        # One more fold than cuts only where there is no cut, to store the single leaf.
        assert len(choice.folds) == 1
        assert isinstance(choose_kernel(d, meta(m, n, 1000), CARD, structure=Structure.CHAIN_TMA), Declined)


def test_a_nest_with_an_epilogue_or_another_output_declines() -> None:
    d = replace(desc(64), accumulator=SCALAR)
    assert "epilogue" in reason(replace(d, epilogue=(Relu(),)), meta(8, 8, 64))
    assert "out must have" in reason(replace(d, output_dtype=DType.FLOAT32), meta(8, 8, 64))


def test_the_bound_is_what_the_docs_say() -> None:
    page = Path(__file__).parents[1] / "docs" / "kernels.md"
    (stated,) = re.findall(r"every variant that the chooser can pick: (\d+)", page.read_text())
    assert len(BOUND) == int(stated)


def test_the_swapped_product_is_its_own_inverse() -> None:
    at = meta(10, 20, 30, "rcr")
    assert at.swapped.swapped == at
    assert at.swapped.a.layout(20, 30) is Layout.ROWS


def test_configs_refuse_nonsense() -> None:
    good = configs_of(Structure.CHAIN_TMA)[0]
    for bad in ({"block_m": 48}, {"block_k": 8}, {"num_warps": 3}, {"num_stages": 0}):
        with pytest.raises(InvalidInputError, match="got"):
            replace(good, **bad)  # type: ignore[arg-type]
    assert isinstance(good, KernelConfig)
    assert good.tiles(129, 257) == 4


def test_lanes_of_a_slice_hold_all_of_its_steps() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        k, step, turn = int(rng.integers(1, 600)), int(rng.choice([8, 16])), int(rng.choice([32, 64]))
        span = int(rng.integers(1, 600))
        d = desc(k, span=span, step=step, turn=turn)
        schedule = make_schedule(d, k)
        choice = chosen(d, meta(200, 200, k, alignment=2))
        steps = np.diff(schedule.step_offsets)
        assert choice.slices.lanes >= 16 * int(steps.max())
        assert choice.packing is None or choice.packing.span >= choice.slices.lanes


def test_tiles_of_two_widths_fill_a_card_that_others_leave_idle() -> None:
    """Where they are asked for, and where the others do not fill it."""
    for m, n, k, tiles in ((256, 6144, 2048, 96), (512, 4608, 2048, 576), (2048, 1536, 2048, 384)):
        plain, wide = chosen(desc(k), meta(m, n, k, "rcr")), chosen(desc(k), meta(m, n, k, "rcr"), Feature.WIDE)
        # Of one width there is no tile of which every multiprocessor, or nearly, has just one.
        assert plain.config.tiles(m, n) == tiles
        assert wide.structure is Structure.CHAIN_WIDE
        assert wide.config.beside_n
        assert wide.config.tiles(m, n) == wide.programs == 128
        assert set(variants_of(wide)) <= BOUND
        assert wide.slices == plain.slices
    assert chosen(desc(4096), meta(128 * 11, 256 * 12, 4096, "rcr"), Feature.WIDE).structure is Structure.CHAIN_TMA


@pytest.mark.parametrize("n", [8, 48, 64])
def test_a_thin_side_gets_one_tile_of_one_width(n: int) -> None:
    at = meta(6144, n, 2048, "rcr")
    assert chosen(desc(2048), at, *Feature).structure is not Structure.CHAIN_WIDE
    assert isinstance(choose_kernel(desc(2048), at, CARD, structure=Structure.CHAIN_WIDE), Declined)
    for config in configs_of(Structure.CHAIN_WIDE):
        choice = choose_kernel(desc(2048), at, CARD, structure=Structure.CHAIN_WIDE, config=config)
        assert isinstance(choice, KernelChoice)


def test_two_widths_are_for_the_wide_chain_alone() -> None:
    at = meta(256, 6144, 2048, "rcr")
    wide, plain = (configs_of(s)[0] for s in (Structure.CHAIN_WIDE, Structure.CHAIN_TMA))
    choice = choose_kernel(desc(2048), at, CARD, config=wide)
    assert isinstance(choice, KernelChoice)
    assert choice.structure is Structure.CHAIN_WIDE
    for structure in set(Structure) - {Structure.CHAIN_WIDE}:
        assert isinstance(choose_kernel(desc(2048), at, CARD, config=wide, structure=structure), Declined)
    asked = choose_kernel(desc(2048), at, CARD, config=plain, structure=Structure.CHAIN_WIDE)
    assert isinstance(asked, Declined)
    for bad in (8, 48, wide.block_n, 2 * wide.block_n):
        with pytest.raises(InvalidInputError, match="beside_n must be"):
            replace(wide, beside_n=bad)
    assert (wide.columns, wide.tiles(wide.block_m, wide.columns + 1)) == (wide.block_n + wide.beside_n, 2)


@pytest.mark.parametrize("some", [None, (), tuple(f for f in Feature if f is not Feature.WIDE)], ids=str)
def test_the_model_picks_only_what_a_card_has_compared(some: tuple[Feature, ...] | None) -> None:
    unasked = None if some is None else frozenset(some)
    for m, n, k in ((256, 2048, 6144), (128, 256, 4096), (4096, 4096, 16), (2048, 2048, 2048), (32, 6144, 2048)):
        for d in (desc(k), desc(k, span=64)):
            choice = choose_kernel(d, meta(m, n, k), CARD, unasked=unasked)
            assert isinstance(choice, KernelChoice)
            assert compared(choice.structure, choice.config)
