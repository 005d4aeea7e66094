"""Compiling for sm_90 without a GPU: instructions, roundings that no pass may drop, and what specialises."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import configs_of
from gemmdesc.kernels.compiling import ALIGNED, KERNELS, compile_variant
from gemmdesc.kernels.config import PIPELINED_CONFIGS, SHORT_CONFIGS, THIN_CONFIGS, WIDE_CONFIGS, KernelConfig
from gemmdesc.kernels.loaded import loaded_kernel
from gemmdesc.kernels.slices import Merge
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants import Variant, enumerate_variants, fold_variant, merge_variant

SHARED = 232448
ASKED_FOR = (Structure.CHAIN_WIDE, Structure.CHAIN_SPECIALISED)
#: As the chains they begin with, whose every config is compiled.
ALIKE = (Structure.MERGED_TMA, Structure.MERGED_POINTER, Structure.MERGED_GROUPED)
MATRIX = re.compile(r"(wgmma\.mma_async|mma)\.sync\.aligned\.m\d+n\d+k(\d+)")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def first(structure: Structure, config: KernelConfig | None = None, **constants: Any) -> Variant:
    """The first enumerated fp16 variant with these constants where it has them, the largest tile before the others."""
    configs = configs_of(structure)
    order = {
        (c.block_m, c.block_n, c.beside_n, c.block_k, c.num_warps, c.num_stages): i for i, c in enumerate(configs)
    }

    def rank(variant: Variant) -> tuple[int, str]:
        c = dict(variant.constants)
        tile = c["BLOCK_M"], c["BLOCK_N"], c.get("BESIDE_N", 0), c["BLOCK_K"], variant.num_warps, variant.num_stages
        return order[tile], str(variant)  # type: ignore[index]

    dependent = config is not None and config.dependent
    if config is not None:
        constants |= {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k}
        constants |= {"BESIDE_N": config.beside_n} if config.beside_n else {}
    found = [
        v
        for v in enumerate_variants(SHARED)
        if v.kernel == structure.value
        and v.loaded is v.stored is DType.FLOAT16
        and v.dependent == dependent
        and (config is None or (v.num_warps, v.num_stages) == (config.num_warps, config.num_stages))
        and all(dict(v.constants).get(name, value) == value for name, value in constants.items())
    ]
    return min(found, key=rank)


def instructions(ptx: str) -> set[tuple[str, int]]:
    return {(kind, int(k)) for kind, k in MATRIX.findall(ptx)}


@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
def test_the_large_tile_is_wgmma_k16_on_descriptors_in_every_layout(a_rows: bool, b_rows: bool) -> None:
    variant = first(Structure.CHAIN_TMA, A_ROWS=a_rows, B_ROWS=b_rows, STORE_BY_DESCRIPTOR=True)
    assert dict(variant.constants)["BLOCK_N"] == 256
    compiled = compile_variant(variant, capability=90)
    assert instructions(compiled.asm["ptx"]) == {("wgmma.mma_async", 16)}
    assert "cp.async.bulk.tensor.2d" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= SHARED


@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
def test_two_widths_are_under_way_together_and_share_a(a_rows: bool, b_rows: bool) -> None:
    config = next(c for c in WIDE_CONFIGS if (c.block_m, c.columns, c.num_warps) == (128, 192, 8))
    variant = first(Structure.CHAIN_WIDE, config, A_ROWS=a_rows, B_ROWS=b_rows, STORE_BY_DESCRIPTOR=True)
    compiled = compile_variant(variant, capability=90)
    ptx = compiled.asm["ptx"]
    # Four steps of 16 in a block of 64, for each width.
    assert re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", ptx) == ["128"] * 4 + ["64"] * 4
    # Two are left under way when a step's buffers are given back; all are waited for once, at a tile's end.
    assert sorted(re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", ptx)) == ["0", "2"]
    assert ptx.count("cp.async.bulk.tensor.2d.shared") == 3 * config.num_stages
    assert ptx.count("cp.async.bulk.tensor.2d.global") == 2
    assert compiled.metadata.shared <= SHARED


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "structure",
    # What nothing picks unasked has tests of its own, of fewer variants.
    [pytest.param(s, marks=[pytest.mark.slow] * (s in (*ASKED_FOR, *ALIKE))) for s in Structure if configs_of(s)],
)
def test_every_config_compiles_within_shared_memory_to_k16_steps(structure: Structure, every: bool) -> None:
    """Every one, or one pipeline of a tile."""
    others = {replace(c, one_launch=structure.merged) for c in (*PIPELINED_CONFIGS, *SHORT_CONFIGS)}
    # Dependent ones are the same kernels with two more instructions, which have a test of their own.
    for config in [c for c in configs_of(structure) if not c.dependent and (every or c not in others)]:
        compiled = compile_variant(first(structure, config, WIDE_OFFSETS=False), capability=90)
        kinds = instructions(compiled.asm["ptx"])
        assert {k for _, k in kinds} == {16}, config
        assert len(kinds) == 1
        assert compiled.metadata.shared <= SHARED, config


@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
def test_tiles_of_eight_columns_compile_in_every_layout_and_store(a_rows: bool, b_rows: bool) -> None:
    (config,) = (c for c in THIN_CONFIGS if (c.block_m, c.block_n) == (32, 8))
    stores = [(Structure.CHAIN_TMA, {"STORE_BY_DESCRIPTOR": True})]
    for structure in (Structure.CHAIN_TMA, Structure.MERGED_TMA):
        stores += [(structure, {"STORE_BY_DESCRIPTOR": False, "OUT_LAYOUT": layout}) for layout in (1, 2)]
    for structure, store in stores:
        variant = first(structure, config, A_ROWS=a_rows, B_ROWS=b_rows, WIDE_OFFSETS=False, **store)
        compiled = compile_variant(variant, capability=90)
        assert instructions(compiled.asm["ptx"]) == {("mma", 16)}
        assert compiled.asm["ptx"].count("cp.async.bulk.tensor.2d.shared") >= 2


MERGED = [s for s in Structure if s.merged]


@pytest.mark.parametrize("structure", MERGED)
@pytest.mark.parametrize("stored", [DType.FLOAT16, DType.FLOAT32])
def test_a_merged_kernel_publishes_its_slice_before_it_counts(structure: Structure, stored: DType) -> None:
    """Stores, a barrier, one atomic that releases and acquires, a barrier, loads past the first-level cache."""
    variant = replace(first(structure, configs_of(structure)[-1]), stored=stored)
    ptx = compile_variant(variant, capability=90).asm["ptx"]
    (count,) = re.finditer(r"atom\.\S*", ptx)
    assert count[0] == "atom.global.gpu.acq_rel.add.u32"
    before, after = ptx[: count.start()], ptx[count.end() :]
    handed_in = before.rindex("st.global")
    assert "bar.sync" in before[handed_in:]
    assert "st.global" not in after[: after.index("bar.sync")]
    first_read = after.index("ld.global")
    assert "bar.sync" in after[:first_read]
    assert re.findall(r"ld\.global\S*", after)
    assert all(".cg." in load for load in re.findall(r"ld\.global\S*", after))
    # Where the fold reads, whole lines: scratch is the library's own, so that its alignment is known.
    assert re.search(r"ld\.global\.cg\.v[24]", after)
    assert "fma" not in after
    assert "ftz" not in after
    assert "cvt.rn.f16" in after
    assert "cvt.rn.bf16" in after


@pytest.mark.parametrize("structure", [Structure.CHAIN_TMA, Structure.CHAIN_WIDE, Structure.MERGED_TMA])
def test_a_dependent_kernel_waits_before_it_touches_memory(structure: Structure) -> None:
    config = next(c for c in configs_of(structure) if 16 in (c.block_n, c.beside_n))
    plain = first(structure, config, WIDE_OFFSETS=False)
    early = first(structure, replace(config, dependent=True), WIDE_OFFSETS=False)
    assert dict(plain.constants) | {"DEPENDENT": True} == dict(early.constants)
    compiled = compile_variant(early, capability=90)
    ptx = compiled.asm["ptx"]
    assert ptx.count("griddepcontrol.wait") == 1
    wait, start = ptx.index("griddepcontrol.wait"), ptx.index("griddepcontrol.launch_dependents")
    touched = [m.start() for m in re.finditer(r"cp\.async\.bulk|(ld|st|atom)\.global", ptx)]
    assert wait < min(touched)
    if structure is Structure.CHAIN_WIDE:
        # Where a loop is not flattened, the end of a tile stands in the text before its steps.
        ended = ptx.rindex("wgmma.wait_group.sync.aligned 0", 0, start)
        assert "$L__" not in ptx[ended:start]
        assert "wgmma" not in ptx[start : ptx.index("st.global", start)]
    else:
        assert max(m.start() for m in re.finditer(r"wgmma\.mma_async", ptx)) < start < max(touched)
    assert loaded_kernel(compiled, 5).dependent
    without = compile_variant(plain, capability=90)
    assert "griddepcontrol" not in without.asm["ptx"]
    assert not loaded_kernel(without, 5).dependent


@pytest.mark.slow
def test_wide_offsets_compile() -> None:
    for structure in [s for s in Structure if configs_of(s)]:
        constants: dict[str, Any] = {"WIDE_OFFSETS": True}
        compile_variant(first(structure, **constants), capability=90)


@pytest.mark.parametrize("merge_dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_the_merge_rounds_inside_its_loop_and_fuses_nothing(merge_dtype: DType) -> None:
    merge = Merge(partial_dtype=DType.FLOAT32, merge_dtype=merge_dtype, start=Start.FIRST)
    ptx = compile_variant(merge_variant(merge, DType.FLOAT32, wide_offsets=False), capability=90).asm["ptx"]
    assert "fma" not in ptx
    assert "ftz" not in ptx
    assert re.search(r"add(\.rn)?\.f32", ptx)
    assert "cvt.rn.f16.f32" in ptx if merge_dtype is DType.FLOAT16 else re.search(r"cvt\.rn\.bf16(x2)?\.f32", ptx)


def test_repacking_stores_whole_lines() -> None:
    for variant in enumerate_variants(SHARED):
        constants = dict(variant.constants)
        if variant.kernel == "repack" and variant.loaded is DType.FLOAT16 and not constants["WIDE_OFFSETS"]:
            ptx = compile_variant(variant, capability=90).asm["ptx"]
            assert len(re.findall(r"st\.global\.v4\.b32", ptx)) >= 2, variant  # one for each operand at least
            assert not re.search(r"st\.global\.(?!v4\.b32)", ptx), variant


def test_no_argument_of_a_size_specialises() -> None:
    for name, kernel in KERNELS.items():
        free = [p.name for p in kernel.params if not p.is_constexpr and not p.do_not_specialize]
        assert [n for n in free if not n.endswith("_desc") and n not in ALIGNED] == [], name


FLOAT_ARITHMETIC = re.compile(r"\b(fma|mul|add|sub)(?:\.rn)?(?:\.ftz)?\.f32\b")


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_a_scalar_chain_is_what_its_step_says(fused: bool, dtype: DType) -> None:
    """One rounding for each product, or two: never a contraction that the step does not name, and nothing flushed."""
    chains = [v for v in enumerate_variants(SHARED) if v.kernel == "scalar_leaves" and v.loaded is dtype]
    for variant in [v for v in chains if dict(v.constants)["FUSED"] is fused]:
        ptx = compile_variant(variant, capability=90).asm["ptx"]
        assert set(FLOAT_ARITHMETIC.findall(ptx)) == ({"fma"} if fused else {"mul", "add"}), variant
        assert ".ftz" not in ptx


@pytest.mark.parametrize("start", list(Start))
def test_a_fold_adds_and_nothing_else(start: Start) -> None:
    merge = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=start)
    ptx = compile_variant(fold_variant(merge, DType.FLOAT16), capability=90).asm["ptx"]
    assert set(FLOAT_ARITHMETIC.findall(ptx)) == {"add"}
    assert ".ftz" not in ptx
