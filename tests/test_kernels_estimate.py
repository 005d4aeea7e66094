"""The estimate that ranks schedules: what it must do with sizes, and the rule of what is picked unasked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import configs_of
from gemmdesc.kernels.config import (
    FOLDED_CONFIGS,
    MERGED_CONFIGS,
    TMA_CONFIGS,
    UNCOMPARED_CONFIGS,
    Feature,
    KernelConfig,
)
from gemmdesc.kernels.estimate import H200, estimated_us, turns_of
from gemmdesc.kernels.fused import FUSED_CONFIGS
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.slices import NO_LOOP_STEP, Merge, Slices
from gemmdesc.kernels.specialised import CLUSTERED_CONFIGS, SPECIALISED_CONFIGS, WHOLE_CONFIGS
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import features_of, pays_unasked, without_twins

TMA, FOLDED, MERGED = Structure.CHAIN_TMA, Structure.FOLDED_CHAIN, Structure.MERGED_TMA
WIDE, SPECIALISED = Structure.CHAIN_WIDE, Structure.CHAIN_SPECIALISED


def meta(m: int, n: int, k: int) -> KernelMeta:
    a, b, out = (
        MatrixMeta(dtype=DType.FLOAT16, row_stride=line, column_stride=1, alignment=256) for line in (k, n, n)
    )
    return KernelMeta(m=m, n=n, k=k, a=a, b=b, out=out, sm_count=132, shared_bytes=232448)


def slices(k: int, count: int = 1) -> Slices:
    merge = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)
    return Slices(
        summed_k=k, span=k // count, count=count, instruction_k=16, k_loop_step=NO_LOOP_STEP,
        merge=merge if count > 1 else None,
    )  # fmt: skip


def tile(m: int, n: int, k: int, stages: int, warps: int | None = None) -> KernelConfig:
    wanted = (m, n, k, stages)
    found = [c for c in TMA_CONFIGS if (c.block_m, c.block_n, c.block_k, c.num_stages) == wanted]
    return next(c for c in found if warps in (None, c.num_warps))


def us(config: KernelConfig, m: int, n: int, k: int, count: int = 1, structure: Structure = TMA) -> float:
    return estimated_us(structure, config, meta(m, n, k), slices(k, count), k // count, H200)


def test_a_card_is_full_or_it_is_not() -> None:
    """One tile more than there are multiprocessors costs as much as twice the tiles, but for memory and power."""
    config = tile(128, 256, 64, 3)
    one, more, two = (us(config, 128 * tiles, 256, 8192) for tiles in (132, 133, 264))
    assert one * 1.4 < more <= two * 1.01
    turns = turns_of(TMA, config, meta(128 * 133, 256, 8192), slices(8192), 8192)
    assert (turns.items, turns.programs, turns.each, turns.share, turns.steps) == (133, 132, 2, 2, 128)


def test_a_lone_program_takes_its_latency_over_its_stages() -> None:
    """256 rows of tiles that no multiprocessor has two of: what was measured to be half as fast as the library."""
    few, more = (us(tile(64, 64, 64, stages), 256, 2048, 6144) for stages in (4, 6))
    deep = us(tile(64, 64, 128, 6), 256, 2048, 6144)
    assert deep < more < few
    assert few == pytest.approx(30.4, rel=0.1)  # as measured


def test_two_widths_multiply_as_one_and_their_tiles_start_one_after_the_other() -> None:
    whole = tile(128, 256, 64, 3)
    wide = replace(whole, block_n=128, beside_n=64)
    three_quarters = 0.75 * us(whole, 128, 256 * 132, 16384)
    assert us(wide, 128, 192 * 132, 16384, structure=WIDE) == pytest.approx(three_quarters, rel=0.03)
    one, two = (us(wide, 128, 192 * 132 * turns, 1024, structure=WIDE) for turns in (1, 2))
    assert two == pytest.approx(2 * one - H200.start_us - H200.fill_us + H200.restart_us, rel=0.03)
    # Where two programs share a multiprocessor, one multiplies while the other starts again.
    alone, shared = (us(replace(wide, programs_per_sm=each), 128, 192 * 528, 64, structure=WIDE) for each in (1, 2))
    assert alone - shared > 2 * H200.restart_us
    # A second width of few columns costs as much as its rows take to read.
    thin = replace(whole, beside_n=16)
    assert us(thin, 128, 272 * 132, 16384, structure=WIDE) > 272 / 256 * us(whole, 128, 256 * 132, 16384)


def test_slices_fold_where_that_takes_least() -> None:
    config = tile(64, 64, 64, 4)
    at = (256, 2048, 8192)
    assert us(config, *at, count=2, structure=FOLDED) > us(config, *at, count=2)
    merged = replace(config, one_launch=True)
    assert us(merged, *at, count=2, structure=MERGED) < us(config, *at, count=2)
    # A program that folds many slices reads them one after the other.
    long = (64, 64, 65536)
    assert us(merged, *long, count=64, structure=MERGED) > us(config, *long, count=64)


def test_a_fold_costs_what_measured_ones_did() -> None:
    """Of many slices of large tiles one launch is slow: each program hands in, and the next one starts from nothing."""
    # 2051 x 6145 x 2049 in three slices, copied to 1,408 lanes each: 219 us folded in registers, 349 us in one launch.
    lanes, at = 1408, (2051, 6145)
    registers = FOLDED_CONFIGS[0]
    merged = next(c for c in MERGED_CONFIGS if (c.block_m, c.block_n, c.num_warps, c.num_stages) == (128, 128, 8, 4))
    folded, together = (
        us(config, *at, 3 * lanes, count=3, structure=structure)
        for config, structure in ((registers, FOLDED), (merged, MERGED))
    )
    assert folded == pytest.approx(219, rel=0.1)
    assert together == pytest.approx(349, rel=0.15)
    # Scratch lies by rows: an output by columns takes a fold longer.
    narrow, by_rows = tile(64, 32, 128, 4), meta(4096, 32, 4096)
    by_columns = replace(by_rows, out=by_rows.out.transposed)
    long, short = (estimated_us(TMA, narrow, x, slices(4096, 2), 2048) for x in (by_columns, by_rows))
    assert long > short


def test_no_estimate_depends_on_what_cannot_matter() -> None:
    for config in TMA_CONFIGS:
        assert us(config, 512, 512, 1024) == us(replace(config, group_m=4), 512, 512, 1024)
        assert us(config, 512, 512, 1024) < us(config, 5120, 5120, 10240)
        early = us(replace(config, dependent=True), 512, 512, 1024)
        assert early == pytest.approx(us(config, 512, 512, 1024) - H200.early_us)


def test_dependent_launches_are_for_whole_chains_of_one_turn_or_shorter_than_the_pipeline() -> None:
    early = replace(tile(64, 64, 64, 4), dependent=True)

    def pays(m: int, n: int, k: int, count: int = 1) -> bool:
        return pays_unasked(TMA, early, meta(m, n, k), slices(k, count), k // count)

    assert pays(1024, 1536, 2048)  # 384 tiles on 396 programs
    assert not pays(1024, 4608, 2048)
    assert pays(1024, 4608, 64)
    assert not pays(256, 2048, 4096, 2)
    assert pays_unasked(TMA, replace(early, dependent=False), meta(1024, 4608, 2048), slices(2048), 2048)


def test_narrow_tiles_are_for_slices_that_one_launch_folds() -> None:
    at = meta(4096, 8, 4096), slices(4096, 2), 2048
    for structure, wanted in ((TMA, False), (MERGED, True)):
        narrow = [c for c in configs_of(structure) if c.thin and not c.dependent]
        assert narrow
        assert {pays_unasked(structure, c, *at) for c in narrow} == {wanted}
        assert all(Feature.NARROW in features_of(structure, c) for c in narrow)


def test_a_twin_gives_way() -> None:
    config = tile(64, 64, 64, 4)
    early = replace(config, dependent=True)
    other = tile(64, 64, 128, 4)
    assert without_twins([config, other, early]) == [other, early]
    assert without_twins([config, other]) == [config, other]


def test_what_no_card_has_compared_is_not_picked_unasked() -> None:
    at = meta(256, 2048, 6144), slices(6144), 6144
    for config in UNCOMPARED_CONFIGS:
        (structure,) = (s for s in Structure if config in configs_of(s))
        assert not any(pays_unasked(structure, replace(config, dependent=early), *at) for early in (False, True))
        assert config not in FUSED_CONFIGS
    for config in (*CLUSTERED_CONFIGS, *WHOLE_CONFIGS):
        assert not any(pays_unasked(SPECIALISED, replace(config, dependent=e), *at) for e in (False, True))
    for config in (c for c in SPECIALISED_CONFIGS if c not in CLUSTERED_CONFIGS + WHOLE_CONFIGS):
        assert all(pays_unasked(SPECIALISED, replace(config, dependent=e), *at) for e in (False, True))
