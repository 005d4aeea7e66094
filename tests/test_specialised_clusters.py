"""Pairs of programs of the specialised chain: when there are any, how they are launched, and what their PTX does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels import launch
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.competing import competing, predicted_us
from gemmdesc.kernels.compiling import compile_variant
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.driver import LaunchAttribute, LaunchConfig
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.preparing import record
from gemmdesc.kernels.program import Box, Input
from gemmdesc.kernels.specialised import CLUSTERED_CONFIGS, SPECIALISED_CONFIGS, WHOLE_CONFIGS, SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import compared
from gemmdesc.kernels.variants import enumerate_variants, variants_of
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.speed.schedules import in_a_word
from tests.fake_device import FakeDevice
from tests.test_kernels_choose import desc, meta
from tests.test_kernels_prepared import HOST, NOTHING, prepared
from tests.test_specialised import chosen
from tests.test_specialised_compile import EVERY, name_of, variants

HOPPER = card_arithmetic("sm_90")
SPECIALISED = Structure.CHAIN_SPECIALISED
SINGLE = [c for c in SPECIALISED_CONFIGS if c.cluster == 1 and not c.whole]
WHOLE = {"A_ROWS": True, "B_ROWS": False, "STORE_BY_DESCRIPTOR": True}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def twin(config: SpecialisedConfig) -> SpecialisedConfig:
    """The same without a cluster."""
    return replace(config, cluster_m=1, cluster_n=1)


def test_pairs_come_both_ways_and_each_has_its_like_without_one() -> None:
    assert {(c.cluster_m, c.cluster_n) for c in CLUSTERED_CONFIGS} == {(2, 1), (1, 2)}
    assert (*SINGLE, *CLUSTERED_CONFIGS, *WHOLE_CONFIGS) == SPECIALISED_CONFIGS
    assert len(set(SPECIALISED_CONFIGS)) == len(SPECIALISED_CONFIGS)
    # The shape of one wave whose pairs gain most has no config without a cluster.
    assert {twin(c) for c in CLUSTERED_CONFIGS} - set(SINGLE) == {
        twin(c) for c in CLUSTERED_CONFIGS if (c.block_m, c.columns) == (128, 80)
    }


def test_configs_refuse_clusters_that_no_kernel_has() -> None:
    good = CLUSTERED_CONFIGS[0]
    for bad in ({"cluster_m": 2}, {"cluster_n": 4}, {"cluster_n": 0}, {"cluster_m": 3}, {"turns": True}):
        with pytest.raises(InvalidInputError, match="got"):
            replace(good, **bad)  # type: ignore[arg-type]
    # Half of eight columns begins within the pattern of the swizzling.
    with pytest.raises(InvalidInputError, match="at least 16"):
        replace(good, cluster_m=2, cluster_n=1, beside_n=8)
    assert replace(good, cluster_m=1, cluster_n=2, beside_n=8).cluster == 2


def test_tiles_of_pairs_count_in_twos() -> None:
    below = replace(SINGLE[0], cluster_m=2)
    aside = replace(SINGLE[0], cluster_n=2)
    for m, n, single, one, other in (
        (256, 160, 1, 2, 2), (257, 160, 2, 2, 4), (256, 161, 2, 4, 2), (768, 480, 9, 12, 12), (512, 320, 4, 4, 4),
    ):  # fmt: skip
        assert (SINGLE[0].tiles(m, n), below.tiles(m, n), aside.tiles(m, n)) == (single, one, other)


@pytest.mark.parametrize("multiprocessors", [132, 131, 3])
def test_programs_come_in_whole_clusters(multiprocessors: int) -> None:
    for config in CLUSTERED_CONFIGS:
        for m, n in ((8192, 5760), (130, 520), (64, 24), (config.block_m * 12, config.columns * 11)):
            at = replace(meta(m, n, 128, "rcr"), sm_count=multiprocessors)
            choice = choose_kernel(desc(128), at, HOPPER, structure=SPECIALISED, config=config)
            if isinstance(choice, Declined):
                assert config.alone
                continue
            assert choice.programs % 2 == 0
            assert 2 <= choice.programs <= multiprocessors
            if config.alone:
                assert choice.programs == config.tiles(*((n, m) if choice.swapped else (m, n)))  # type: ignore[union-attr]


def test_a_cluster_is_picked_only_where_it_is_named() -> None:
    for m, n, k in ((512, 3072, 7168), (4096, 4096, 4096), (256, 5120, 17408), (130, 520, 72)):
        at, d = meta(m, n, k, "rcr"), desc(k)
        for asked in ({}, {"structure": SPECIALISED}, {"unasked": frozenset(Feature)}, {"unasked": frozenset()}):
            choice = choose_kernel(d, at, HOPPER, **asked)  # type: ignore[arg-type]
            assert isinstance(choice, KernelChoice)
            assert choice.config.cluster == 1
        named = choose_kernel(d, at, HOPPER, structure=SPECIALISED, configs=CLUSTERED_CONFIGS)
        assert isinstance(named, KernelChoice)
        assert named.config.cluster == 2
    for structure in Structure:
        assert not any(compared(structure, c) for c in configs_of(structure) if c.cluster > 1)


def test_the_estimate_counts_what_a_program_loads_itself() -> None:
    at = meta(512, 3072, 7168, "rcr")
    found = competing(desc(7168), at, HOPPER)
    assert not isinstance(found, Declined)
    us = {c.config: predicted_us(c, at) for c in found if c.structure is SPECIALISED}
    both = [c for c in CLUSTERED_CONFIGS if c in us and twin(c) in us]
    told = [c for c in both if c.tiles(512, 3072) == twin(c).tiles(512, 3072)]
    assert len(told) > 5
    assert all(us[c] < us[twin(c)] for c in told)  # type: ignore[operator]
    aside, below = (replace(SINGLE[0], **{side: 2}) for side in ("cluster_n", "cluster_m"))  # type: ignore[arg-type]
    assert (SINGLE[0].loaded_lines, aside.loaded_lines, below.loaded_lines) == (416, 288, 336)


def test_a_report_tells_the_cluster() -> None:
    at = meta(512, 3072, 7168, "rcr")
    config = next(c for c in CLUSTERED_CONFIGS if (c.block_m, c.columns, c.cluster_m) == (128, 96, 2))
    choice = chosen(desc(7168), at, replace(config, dependent=True))
    assert in_a_word(choice) == "chain_specialised 128x96x64, 4 warps, 8 stages, alone, cluster 2x1, dependent"


class ClusterDevice(FakeDevice):
    """Notes the grid of each launch, and its attributes: number, and the three first words of the value."""

    def launch(self, config: int, function: int, parameters: int, extra: None) -> int:
        told = LaunchConfig.from_address(config)
        made = (LaunchAttribute * told.attribute_count).from_address(told.attributes) if told.attribute_count else ()
        self.noted = told.grid_x, [(a.id, tuple(a.value[:3])) for a in made]
        return 0


@pytest.mark.parametrize("dependent", [False, True])
def test_a_prepared_program_launches_clusters(dependent: bool) -> None:
    at = meta(600, 1000, 200, "rcr")
    for config in (CLUSTERED_CONFIGS[0], SINGLE[0]):
        device = ClusterDevice()
        choice = chosen(desc(200), at, replace(config, dependent=dependent))
        prepared(desc(200), at, device, choice)(7, (4096, 8192, 12288, 0))
        grid, attributes = device.noted
        assert grid == choice.programs
        assert [a for a in attributes if a[0] == 4] == ([(4, (2, 1, 1))] if config.cluster > 1 else [])


def test_a_direct_launch_of_a_cluster_goes_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gemmdesc.kernels import launch_clustered

    device, steps = ClusterDevice(), []

    def load(step: Any) -> Any:
        steps.append(step)
        return device.load(step)

    monkeypatch.setattr(launch_clustered, "load_step", load)
    monkeypatch.setattr(launch_clustered, "cuda_driver", lambda: device)
    monkeypatch.setattr(launch_clustered, "current_stream", lambda: lambda index: 7)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    a, b = torch.zeros(600, 200, dtype=torch.float16), torch.zeros(1000, 200, dtype=torch.float16).T
    out = torch.zeros(600, 1000, dtype=torch.float16)
    at = meta(600, 1000, 200, "rcr")
    for layouts in (CLUSTERED_CONFIGS[0], CLUSTERED_CONFIGS[5]):
        choice = chosen(desc(200), at, layouts)
        launch.launch_here(choice, a, b, out)
        (recorded,) = record(choice, at, NOTHING, HOST).steps
        (step,) = steps
        steps.clear()
        assert step.variant == recorded.variant == variants_of(choice)[0]
        assert step.variant.cluster == 2
        assert device.noted == (choice.programs, [(4, (2, 1, 1)), (5, (1, 0, 0))])
        # The same boxes of the same matrices; which input is which goes by their order here.
        assert [(x.block, x.shape, x.strides) for x in step.arguments if isinstance(x, Box)] == [
            (x.block, x.shape, x.strides) for x in recorded.arguments if isinstance(x, Box)
        ]
        order = [x.start.input for x in step.arguments if isinstance(x, Box)]
        assert order == [x.start.input for x in recorded.arguments if isinstance(x, Box)]
        assert {Input.A, Input.B, Input.OUT} == set(order)


def loads(config: SpecialisedConfig, a_rows: bool, b_rows: bool) -> tuple[int, int]:
    """Copies of a step by the copy engine, and of these for both programs: pieces of 64 columns of the stored box."""

    def pieces(length: int) -> int:
        return -(-length // 64)

    a_box = pieces(config.block_k if a_rows else config.rows)
    b_boxes = [pieces(width if b_rows else config.block_k) for width in (config.block_n, config.beside_n) if width]
    if config.cluster_n == 2:
        return a_box + sum(b_boxes), a_box
    return 2 * a_box + sum(b_boxes), sum(b_boxes)


@pytest.mark.parametrize(("a_rows", "b_rows"), [(True, False), pytest.param(False, True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("config", CLUSTERED_CONFIGS, ids=name_of)
def test_what_a_pair_shares_is_copied_to_both_and_handed_back_to_both(
    config: SpecialisedConfig, a_rows: bool, b_rows: bool
) -> None:
    if 0 < config.beside_n < 16 and b_rows:
        assert not variants(config, A_ROWS=a_rows, B_ROWS=b_rows)
        return
    variant = variants(config, A_ROWS=a_rows, B_ROWS=b_rows, STORE_BY_DESCRIPTOR=True, STORE_N=config.store_n)[0]
    ptx = compile_variant(variant, capability=90).asm["ptx"]
    at = r"\[%r\d+\], \[%rd\d+, \{[^}]*\}\], \[(%r\d+)\]"
    copies = re.findall(rf"cp\.async\.bulk\.tensor\.2d\.shared::c\w+\.global\S* {at}", ptx)
    shared = re.findall(rf"multicast::cluster {at}, both;", ptx)
    assert (len(copies), len(shared)) == loads(config, a_rows, b_rows)
    # All signal the barrier that expects their bytes, all of the step's.
    (barrier,) = set(copies) | set(shared)
    size = (config.block_m + config.columns) * config.block_k * 2
    assert re.findall(rf"expect_tx\S* _, \[{barrier}\], (\d+);", ptx) == [str(size)]
    assert set(re.findall(r"mov\.b16 both, (\d+);", ptx)) == {"3"}
    # Each group hands back a stage of each step, and its last one, to its own program and to the other.
    own = re.findall(r"mbarrier\.arrive\.shared::cta\.b64 _, \[(%r\d+)\]", ptx)
    there = re.findall(r"mapa\.shared::cluster\.u32 there, (%r\d+), ", ptx)
    assert sorted(own) == sorted(there)
    assert len(own) == 4
    assert ptx.count("mbarrier.arrive.shared::cluster.b64 _, [there];") == 4
    # All of a group are done before its first thread tells.
    for stage in own:
        before = ptx[: ptx.index(f"mbarrier.arrive.shared::cta.b64 _, [{stage}]")]
        done = r"wgmma\.wait_group(?:(?!wgmma\.commit).)*bar(?:rier)?\.sync\s+\d+, 128;(?:(?!wgmma).)*$"
        assert re.search(done, before, re.DOTALL)
    # A stage is empty when two groups of both programs say so; three warps make up the last four.
    assert sorted(re.findall(r"mbarrier\.init\S* \[%r\d+\], (\d+);", ptx)) == sorted(
        ["1"] * (config.num_stages + 2) + ["4"] * config.num_stages
    )
    # All warps meet: one group, and those of four partitions more, of which LLVM may find two to be the same code.
    targets = re.search(r"\.branchtargets([^;]*);", ptx)
    assert targets is not None
    partitions = re.findall(r"\$\w+", targets[1])[:-1]
    assert len(partitions) == 4
    assert ptx.count("barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire;") == 1 + len(set(partitions))
    assert ptx.count("fence.mbarrier_init.release.cluster;") == 1
    assert ".reqntid 384" in ptx
    # Program after program waits for a stage of each of its steps, and then for all stages once.
    assert len(re.findall(r"mbarrier\.try_wait\.parity", ptx)) == 3 + config.num_stages


def test_nothing_of_that_is_in_a_kernel_without_clusters() -> None:
    for config in (SINGLE[0], SINGLE[9]):
        ptx = compile_variant(variants(config, **WHOLE)[0], capability=90).asm["ptx"]
        for word in ("multicast", "mapa", "barrier.cluster", "mbarrier_init", "mbarrier.arrive.shared::cluster"):
            assert word not in ptx


def test_every_variant_in_clusters_says_so() -> None:
    for variant in EVERY:
        constants = dict(variant.constants)
        assert variant.cluster == constants["CLUSTER_M"] * constants["CLUSTER_N"]  # type: ignore[operator]
    specialised = (SPECIALISED.value, "fused_specialised")
    assert all(v.cluster == 1 for v in enumerate_variants(232448) if v.kernel not in specialised)


def test_half_of_the_lines_of_b_are_a_box_where_tiles_are_below_each_other() -> None:
    config = next(c for c in CLUSTERED_CONFIGS if c.cluster_m == 2 and c.beside_n == 64)
    for layouts, b, beside in (("rcr", (64, 64), (32, 64)), ("rrr", (32, 128), (32, 64))):
        at = meta(520, 1000, 200, layouts)
        choice = chosen(desc(200), at, config)
        assert choice.b_layout is (Layout.COLUMNS if layouts == "rcr" else Layout.ROWS)
        (step,) = record(choice, at, NOTHING, HOST).steps
        found = [x.block for x in step.arguments if isinstance(x, Box) and x.start.input is Input.B]
        assert found == [b, beside]

