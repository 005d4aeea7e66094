"""The specialised chain without a card: which configs there are, when they compete, and what a launch is given."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.descriptor import CastTo, GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.competing import competing, key_of, pick_of, predicted_us
from gemmdesc.kernels.config import TMA_CONFIGS, Feature, KernelConfig
from gemmdesc.kernels.fused import FusedChoice
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.preparing import record
from gemmdesc.kernels.program import Box, Input
from gemmdesc.kernels.specialised import SPECIALISED_CONFIGS, SpecialisedConfig, config_from, specialised_fits
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.tuned import TunedPick, tuned_table
from gemmdesc.kernels.unasked import compared
from gemmdesc.kernels.variants import enumerate_variants, variants_of
from gemmdesc.kernels.variants_specialised import boxes_of
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.pointwise import Silu
from gemmdesc.speed.schedules import in_a_word
from tests.test_kernels_choose import SHARED, desc, meta
from tests.test_kernels_prepared import HOST, NOTHING, NotingDevice, prepared

HOPPER = card_arithmetic("sm_90")
SPECIALISED = Structure.CHAIN_SPECIALISED
BOUND = enumerate_variants(SHARED)
#: Products of one wave, and the config whose tiles are one.
ONE_WAVE = {
    (256, 6144, 2048): "128x96", (512, 4608, 2048): "128x144", (256, 17408, 5120): "256x136",
    (1024, 4608, 2048): "256x144", (3072, 1536, 3072): "256x144", (512, 3072, 7168): "128x96",
    (2048, 2560, 5120): "256x160",
}  # fmt: skip


def chosen(d: GEMMDesc, at: KernelMeta, config: KernelConfig | None = None) -> KernelChoice:
    choice = choose_kernel(d, at, HOPPER, structure=SPECIALISED, config=config)
    assert isinstance(choice, KernelChoice), choice
    assert choice.structure is SPECIALISED
    return choice


@pytest.mark.parametrize("sizes", ONE_WAVE, ids=str)
def test_one_wave_of_tiles_is_to_be_had_where_powers_of_two_have_none(sizes: tuple[int, int, int]) -> None:
    m, n, _ = sizes
    fits = [c for c in SPECIALISED_CONFIGS if 120 <= c.tiles(m, n) <= 132]
    assert ONE_WAVE[sizes] in {f"{c.block_m}x{c.columns}" for c in fits}


def test_the_model_picks_it_among_the_features_that_it_may() -> None:
    for m, n, k in ((256, 6144, 2048), (4096, 4096, 4096), (1024, 4608, 2048), (8192, 2880, 5760)):
        at, d = meta(m, n, k, "rcr"), desc(k)
        own = chosen(d, at)
        assert isinstance(own.config, SpecialisedConfig)
        for some in (None, frozenset({Feature.SPECIALISED}), frozenset(Feature)):
            unasked = choose_kernel(d, at, HOPPER, unasked=some)
            assert isinstance(unasked, KernelChoice)
            assert unasked.structure is SPECIALISED
        for without in (frozenset[Feature](), frozenset(Feature) - {Feature.SPECIALISED}):
            stock = choose_kernel(d, at, HOPPER, unasked=without)
            assert isinstance(stock, KernelChoice)
            assert stock.structure is not SPECIALISED
    for config in configs_of(SPECIALISED):
        assert isinstance(config, SpecialisedConfig)
        assert compared(SPECIALISED, config) is (config.cluster == 1 and not config.whole)


def test_the_model_stores_by_addresses_with_the_stock_chain() -> None:
    for m, n, k in ((4096, 4092, 4096), (1024, 4602, 2048)):
        odd, d = meta(m, n, k, "rcr"), desc(k)
        choice, own = choose_kernel(d, odd, HOPPER), chosen(d, odd)
        assert isinstance(choice, KernelChoice)
        assert (choice.structure, choice.store_by_descriptor) == (Structure.CHAIN_TMA, False)
        assert not own.store_by_descriptor


def test_it_competes_for_whole_chains_where_warp_groups_multiply() -> None:
    at = meta(512, 4608, 2048, "rcr")
    found = competing(desc(2048), at, HOPPER)
    assert not isinstance(found, Declined)
    own = [c for c in found if c.structure is SPECIALISED]
    fit = [c for c in configs_of(SPECIALISED) if not c.alone or c.tiles(512, 4608) <= 132]  # type: ignore[attr-defined]
    assert 2 * len(SPECIALISED_CONFIGS) > len(fit) > len(SPECIALISED_CONFIGS)
    assert {pick_of(c) for c in own} == {TunedPick(structure=SPECIALISED, config=c) for c in fit}
    assert found[0] in own
    assert all((us := predicted_us(c, at)) is not None and us > 0 for c in own)
    # Of the same bytes where the same tiles would be, the estimate ranks one wave before two.
    by_tile = {f"{c.config.block_m}x{c.config.columns}": predicted_us(c, at) for c in own}  # type: ignore[union-attr]
    assert by_tile["128x144"] < by_tile["128x272"]  # type: ignore[operator]
    slices = competing(desc(2048, span=512), at, HOPPER)
    other = competing(desc(2048), at, card_arithmetic("sm_100"))
    for choices in (slices, other):
        assert not isinstance(choices, Declined)
        assert all(c.structure is not SPECIALISED for c in choices)


def test_a_table_may_name_it_and_a_fused_product_does_not_take_it() -> None:
    at, d = meta(512, 4608, 2048, "rcr"), desc(2048)
    own = next(c for c in competing(d, at, HOPPER) if c.structure is SPECIALISED)  # type: ignore[union-attr]
    table = tuned_table([(key_of(own, at), pick_of(own))])
    assert choose_whole(d, at, HOPPER, tuned=table) == own
    silu = replace(d, epilogue=(CastTo(dtype=DType.FLOAT16), Silu()))
    fused = choose_whole(silu, at, HOPPER, fused=True, tuned=table)
    assert isinstance(fused, FusedChoice)
    assert isinstance(fused.product, KernelChoice)
    assert fused.product.structure is Structure.CHAIN_TMA


def test_configs_are_of_their_structure_only() -> None:
    at, d = meta(512, 4608, 2048, "rcr"), desc(2048)
    own, stock = SPECIALISED_CONFIGS[0], TMA_CONFIGS[0]
    assert chosen(d, at, own).config == own
    assert isinstance(choose_kernel(d, at, HOPPER, structure=SPECIALISED, config=stock), Declined)
    assert isinstance(choose_kernel(d, at, HOPPER, structure=Structure.CHAIN_TMA, config=own), Declined)
    picked = choose_kernel(d, at, HOPPER, config=own)
    assert isinstance(picked, KernelChoice)
    assert picked.structure is SPECIALISED
    assert isinstance(choose_kernel(desc(2048, span=512), at, HOPPER, config=own), Declined)


def test_eight_columns_beside_want_a_b_along_k_and_steps_are_counted_in_32_bits() -> None:
    (eight,) = (c for c in SPECIALISED_CONFIGS if c.beside_n == 8 and c.cluster == 1 and not c.whole)
    for layouts, fits in (("rcr", True), ("rrr", False), ("ccc", True)):
        choice = choose_kernel(desc(64), meta(512, 1024, 64, layouts), HOPPER, structure=SPECIALISED, config=eight)
        assert isinstance(choice, KernelChoice) is fits
    # Unaligned operands are copied, each the way it lies.
    assert chosen(desc(72), meta(512, 1024, 72, "rcr", alignment=2), eight).packing is not None
    at = meta(512, 1024, 64, "rcr")
    assert specialised_fits(eight, SPECIALISED, at, 64 * (2**27 - 1))
    assert not specialised_fits(eight, SPECIALISED, at, 64 * 2**27)


def test_a_tile_is_alone_where_no_multiprocessor_has_two() -> None:
    for config in (c for c in SPECIALISED_CONFIGS if c.alone):
        high, wide = (11, 12) if config.cluster_n == 2 else (12, 11)
        for more, fits in ((0, True), (1, False)):
            at = meta(config.block_m * high, config.columns * wide + more, 64, "rcr")
            choice = choose_kernel(desc(64), at, HOPPER, structure=SPECIALISED, config=config)
            assert isinstance(choice, KernelChoice) is fits
            if isinstance(choice, KernelChoice):
                assert choice.programs == config.tiles(at.m, at.n)


def test_configs_refuse_nonsense() -> None:
    good = SPECIALISED_CONFIGS[0]
    for bad in (
        {"block_m": 64}, {"block_m": 192}, {"block_n": 512}, {"beside_n": 24}, {"beside_n": 128}, {"beside_n": 4},
        {"num_warps": 8}, {"num_stages": 1}, {"store_n": 24}, {"store_buffers": 0}, {"one_launch": True},
        {"programs_per_sm": 2}, {"group_m": 0}, {"block_k": 48}, {"alone": True}, {"alone": True, "turns": True},
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match="got"):
            replace(good, **bad)  # type: ignore[arg-type]
    assert replace(good, block_m=64, turns=True).rows == 64
    assert (good.columns, good.tiles(257, 161), good.outputs_per_thread) == (160, 4, 160)


def test_a_config_survives_being_written_down() -> None:
    for structure, config in ((SPECIALISED, SPECIALISED_CONFIGS[2]), (Structure.CHAIN_TMA, TMA_CONFIGS[0])):
        assert config_from(structure, asdict(config)) == config
    with pytest.raises(TypeError):
        config_from(Structure.CHAIN_TMA, asdict(SPECIALISED_CONFIGS[0]))


@pytest.mark.parametrize("layouts", ["rrr", "rcr", "crr", "ccr", "rcc"])
@pytest.mark.parametrize("stored", [DType.FLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("sizes", [(512, 1000, 200), (300, 301, 77), (257, 1024, 64)], ids=str)
def test_what_is_chosen_is_among_the_variants(layouts: str, stored: DType, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    at, d = meta(m, n, k, layouts), replace(desc(k), output_dtype=stored)
    at = replace(at, out=replace(at.out, dtype=stored))
    tried = 0
    for config in configs_of(SPECIALISED):
        choice = choose_kernel(d, at, HOPPER, structure=SPECIALISED, config=config)
        if isinstance(choice, KernelChoice):
            assert set(variants_of(choice)) <= BOUND
            tried += 1
    wide = [c for c in configs_of(SPECIALISED) if not c.wants_columns]  # type: ignore[attr-defined]
    assert tried >= len(wide if layouts[1] == "r" else configs_of(SPECIALISED))


@pytest.mark.parametrize(("layouts", "described"), [("rcr", True), ("ccr", True), ("rrc", False)])
def test_a_launch_has_the_boxes_that_its_kernel_was_compiled_for(layouts: str, described: bool) -> None:
    at, d = meta(520, 1000, 200, layouts), desc(200)
    for config in configs_of(SPECIALISED):
        choice = choose_kernel(d, at, HOPPER, structure=SPECIALISED, config=config)
        if not isinstance(choice, KernelChoice):
            continue
        (step,) = record(choice, at, NOTHING, HOST).steps
        boxes = [a for a in step.arguments if isinstance(a, Box)]
        wanted = boxes_of(dict(step.variant.constants))
        assert [b.block for b in boxes] == list(wanted.values())
        assert isinstance(config, SpecialisedConfig)
        whole_boxes = 1 + (config.block_n & (config.block_n - 1) > 0)
        b_boxes = [Input.B] * (whole_boxes if config.whole else 2 if config.beside_n else 1)
        narrower = config.rest(2) > 0 or config.beside_n > 0
        out_boxes = [Input.OUT] * (1 + narrower) if described else []
        assert [b.start.input for b in boxes] == [Input.A, *b_boxes, *out_boxes]
        assert step.programs == min(132, config.tiles(520, 1000))
        lines = {Input.A: (520, 200), Input.B: (200, 1000), Input.OUT: (520, 1000)}
        for box in boxes:
            turned = {Input.A: choice.a_layout, Input.B: choice.b_layout}.get(box.start.input) is Layout.COLUMNS  # type: ignore[call-overload]
            assert box.shape == (lines[box.start.input][::-1] if turned else lines[box.start.input])  # type: ignore[index]
        numbers = [a for a in step.arguments if isinstance(a, int) and not isinstance(a, bool)]
        assert numbers[:3] == [520, 1000, -(-200 // config.block_k)]


def test_a_prepared_program_hands_over_what_was_recorded() -> None:
    at, device = meta(520, 1000, 200, "rcr"), NotingDevice()
    choice = chosen(desc(200), at, SPECIALISED_CONFIGS[0])
    run = prepared(desc(200), at, device, choice)
    run(7, (4096, 8192, 12288, 0))
    ((step, programs, given),) = device.calls
    assert step.variant == variants_of(choice)[0]
    assert programs == choice.programs
    assert [g for g in given if g is not None][:6] == [4096, 8192, 8192, 12288, 12288, 12288]


def test_a_report_tells_its_whole_tile() -> None:
    choice = chosen(desc(2048), meta(512, 4608, 2048, "rcr"), SPECIALISED_CONFIGS[2])
    assert in_a_word(choice) == "chain_specialised 256x144x64, 4 warps, 4 stages, shared"
    choice = chosen(desc(2048), meta(512, 4608, 2048, "rcr"), replace(SPECIALISED_CONFIGS[3], dependent=True))
    assert in_a_word(choice) == "chain_specialised 256x144x64, 4 warps, 4 stages, alone, dependent"


def test_shared_memory_fits_with_either_output() -> None:
    for config in SPECIALISED_CONFIGS:
        sizes: list[Any] = [config.shared_bytes(2, stored) for stored in (2, 4)]
        assert max(sizes) <= SHARED
        assert config.piece(2) == config.store_n
        assert config.piece(4) * 2 == config.store_n
