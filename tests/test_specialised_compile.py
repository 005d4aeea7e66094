"""The specialised chain compiled for sm_90 without a GPU: instructions, registers, barriers, shared memory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch
import triton

from gemmdesc.dtypes import DType
from gemmdesc.kernels.compiling import KERNELS, compile_variant, constants_of, options_of
from gemmdesc.kernels.gluon_host import box_layout, descriptor_type
from gemmdesc.kernels.launch import launch_here
from gemmdesc.kernels.loaded import load_step, loaded_kernel
from gemmdesc.kernels.preparing import record
from gemmdesc.kernels.specialised import SPECIALISED_CONFIGS, WHOLE_CONFIGS, SpecialisedConfig
from gemmdesc.kernels.variants import enumerate_variants
from tests.script_modules import load_script
from tests.test_kernels_choose import desc, meta
from tests.test_kernels_prepared import HOST, NOTHING
from tests.test_kernels_prepared import hopper as hopper
from tests.test_specialised import chosen

check_ptxas = load_script("check_ptxas")
SHARED = 232448
EVERY = sorted((v for v in enumerate_variants(SHARED) if v.kernel == "chain_specialised"), key=str)
#: Warps of two groups, of the one that loads, and of three that idle so that registers can be shared out.
THREADS = 32 * (4 + 4 + 1 + 3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def variants(config: SpecialisedConfig, **wanted: Any) -> list[Any]:
    constants = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BESIDE_N": config.beside_n, "TURNS": config.turns,
        "STAGES": config.num_stages, "DEPENDENT": config.dependent, "ALONE": config.alone,
        "CLUSTER_M": config.cluster_m, "CLUSTER_N": config.cluster_n, "WHOLE": config.whole, **wanted,
    }  # fmt: skip
    return [v for v in EVERY if all(dict(v.constants)[name] == value for name, value in constants.items())]


def name_of(config: SpecialisedConfig) -> str:
    cluster = f" {config.cluster_m}x{config.cluster_n}" if config.cluster > 1 else ""
    sharing = "turns" if config.turns else "alone" if config.alone else ""
    whole = " whole" if config.whole else ""
    return f"{config.block_m}x{config.columns}{sharing}{cluster}{whole}"


def check(config: SpecialisedConfig, variant: Any) -> str:
    """Compile one variant and hold it against what its config says; its PTX."""
    compiled = compile_variant(variant, capability=90)
    ptx: str = compiled.asm["ptx"]
    verdict = check_ptxas.verdict_of(ptx)
    assert verdict.wgmma
    # Addresses of 64 bits, for outputs of more than 2^31 elements, do not all fit beside the sums.
    wide = dict(variant.constants)["WIDE_OFFSETS"]
    assert verdict.held_up == (), variant
    assert verdict.spilled <= (128 if wide else 0), variant
    widths = {int(n) for n in re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", ptx)}
    assert widths == {config.block_n} | ({config.beside_n} - {0})
    assert len(re.findall(r"wgmma\.mma_async", ptx)) == len(re.findall(r"\.m64n\d+k16\.", ptx))
    assert compiled.metadata.shared <= config.shared_bytes(2, variant.stored.itemsize) <= SHARED
    assert loaded_kernel(compiled, 5).threads == THREADS
    # Steps of one k step, and of the one before, may be in flight; all are waited for at a tile's end.
    steps = 2 if config.beside_n else 1
    assert set(re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)", ptx)) == {str(steps), "0"}
    for registers in ("inc.sync.aligned.u32 \t240", "dec.sync.aligned.u32 \t24;"):
        assert re.search(registers.replace(" \t", r"\s+"), ptx)
    return ptx


def most_at_leisure(configs: tuple[SpecialisedConfig, ...]) -> list[Any]:
    """All of them; of those of one instruction, every fourth but where there is time."""
    later = [c for c in configs if c.whole and WHOLE_CONFIGS.index(c) % 4]
    return [pytest.param(c, marks=pytest.mark.slow) if c in later else c for c in configs]


@pytest.mark.parametrize("config", most_at_leisure(SPECIALISED_CONFIGS), ids=name_of)
def test_every_config_compiles_to_wgmma_in_flight_without_spills(config: SpecialisedConfig) -> None:
    (variant,) = variants(config, A_ROWS=True, B_ROWS=False, STORE_BY_DESCRIPTOR=True, STORE_N=config.store_n)[:1]
    ptx = check(config, variant)
    # Each group stores its pieces by the copy engine, and nothing else goes to global memory.
    pieces = -(-config.block_n // config.store_n) + -(-config.beside_n // config.store_n)
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.global", ptx)) == 2 * pieces
    assert "st.global" not in ptx
    # Two barriers for each stage, and the groups' turns.
    assert len(re.findall(r"mbarrier\.init", ptx)) == 2 * config.num_stages + 2
    # The first instruction of a step may ignore the sums, as a tile's first step does; the others never do.
    always = {*re.findall(r"mov\.pred\s+%(p\d+), -1;", ptx), *re.findall(r"setp\.eq\.b32 (\w+), 0, 0;", ptx)}
    predicates = re.findall(r"wgmma\.mma_async[^;{]*\{[^}]*\}, \w+, \w+, (\w+), 1, 1", ptx.replace("%", ""))
    firsts = 2 * (config.rows // 64) * (2 if config.beside_n else 1)
    assert len(predicates) == firsts * config.block_k // 16
    assert sum(p not in always for p in predicates) == firsts


@pytest.mark.parametrize("every", [277, pytest.param(7, marks=pytest.mark.slow)])
def test_layouts_types_and_stores_compile_likewise(every: int) -> None:
    """Every so many of all variants, dependent ones among them."""
    tried = set()
    for variant in EVERY[::every][: 4000 // every]:
        constants = dict(variant.constants)
        tried.add((constants["A_ROWS"], constants["B_ROWS"], constants["STORE_BY_DESCRIPTOR"], variant.stored))
        if every > 20 and len(tried) > 12:
            break
        (config,) = (
            c for c in SPECIALISED_CONFIGS
            if variant in variants(replace(c, dependent=variant.dependent))
        )  # fmt: skip
        check(config, variant)
    assert len(tried) >= 8


@pytest.mark.parametrize("turns", [False, True])
def test_whoever_touches_memory_waits_for_the_kernel_in_front(turns: bool) -> None:
    config = replace(next(c for c in SPECIALISED_CONFIGS if c.turns is turns), dependent=True)
    variant = variants(config, A_ROWS=True, B_ROWS=False, STORE_BY_DESCRIPTOR=True)[0]
    compiled = compile_variant(variant, capability=90)
    ptx = compiled.asm["ptx"]
    # Two groups and the warp that loads; the next kernel starts after the last tile's steps.
    assert ptx.count("griddepcontrol.wait") == 3
    assert ptx.count("griddepcontrol.launch_dependents") == 2
    assert loaded_kernel(compiled, 5).dependent
    plain = compile_variant(variants(replace(config, dependent=False))[0], capability=90)
    assert "griddepcontrol" not in plain.asm["ptx"]


def test_a_descriptor_names_the_layout_that_the_host_encodes() -> None:
    config = SPECIALISED_CONFIGS[0]
    variant = variants(config, A_ROWS=False, B_ROWS=True, STORE_BY_DESCRIPTOR=True, STORE_N=16)[0]
    boxes = loaded_kernel(compile_variant(variant, capability=90), 5).boxes
    assert variant.stored is DType.FLOAT32
    # The inner side of a box is at most what the hardware swizzles: the rest is further boxes of the same map.
    assert [(b.block, b.element_bytes, b.swizzle) for b in boxes] == [
        ((64, 64), 2, 3), ((64, 64), 2, 3), ((64, 32), 2, 2), ((128, 16), 4, 2), ((128, 16), 4, 2),
    ]  # fmt: skip
    assert box_layout((64, 8), 2).swizzle_byte_width == 0
    assert box_layout((8, 64), 2).swizzle_byte_width == 128
    assert descriptor_type("fp16", (64, 32), 2).startswith("tensordesc<fp16[64, 32],NVMMASharedLayout(")


@pytest.mark.parametrize("config", [SPECIALISED_CONFIGS[0], SPECIALISED_CONFIGS[4]], ids=name_of)
def test_a_launch_finds_what_was_prepared_or_compiled_ahead(
    config: SpecialisedConfig, hopper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = meta(520, 1000, 200, "rcr")
    choice = chosen(desc(200), at, config)
    (step,) = record(choice, at, NOTHING, HOST).steps
    ahead = compile_variant(step.variant, capability=90)
    loaded = load_step(step).owner.hash
    # Later versions of Triton key a launch by more than what is compiled.
    assert loaded == ahead.hash or not triton.__version__.startswith("3.6")
    launched: list[Any] = []

    def enqueue(variant: Any, programs: int, *arguments: Any) -> None:
        kernel = KERNELS[variant.kernel]
        launched.append(kernel.warmup(*arguments, grid=(programs,), **constants_of(variant), **options_of(variant)))

    monkeypatch.setattr("gemmdesc.kernels.launch.enqueue", enqueue)
    a, b = torch.empty(520, 200, dtype=torch.float16), torch.empty(1000, 200, dtype=torch.float16).T
    launch_here(choice, a, b, torch.empty(520, 1000, dtype=torch.float16))
    assert [kernel.hash for kernel in launched] == [loaded]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("turns", [False, True])
def test_every_step_hands_back_a_stage_of_its_own(turns: bool, whole: bool) -> None:
    """Triton 3.6 takes a variable that begins as another one's value for one that no turn of the loop changes."""
    config = next(c for c in SPECIALISED_CONFIGS if (c.turns, c.whole) == (turns, whole))
    variant = variants(config, A_ROWS=True, B_ROWS=False, STORE_BY_DESCRIPTOR=True)[0]
    ttgir = compile_variant(variant, capability=90).asm["ttgir"]
    bodies = re.findall(r"scf\.for %step(?:(?!scf\.for).)*?warp_group_dot_wait.*?scf\.yield", ttgir, re.DOTALL)
    assert len(bodies) == 2
    for body in bodies:
        (barrier,) = re.findall(r"arrive_barrier (%\w+),", body)
        (index,) = re.findall(rf"{barrier} = ttg\.memdesc_index %\w+\[(%\w+)\]", body)
        # Carried from turn to turn.
        assert re.search(rf"iter_args\([^)]*{index} = ", body)
