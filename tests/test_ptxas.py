"""ptxas leaves the main loops alone: a sample of what ``scripts/check_ptxas.py`` does with every config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.dtypes import DType
from gemmdesc.kernels.compiling import compile_variant
from gemmdesc.kernels.variants import Variant
from tests.script_modules import load_script

check_ptxas = load_script("check_ptxas")
EVERY = check_ptxas.one_each(check_ptxas.multiplying())
#: The largest tile of each kernel, and the one with the deepest pipeline.
SAMPLE = list(
    dict.fromkeys(
        choose([v for v in EVERY if v.kernel == kernel and v.loaded is not DType.BFLOAT16], key=key)
        for kernel in sorted({v.kernel for v in EVERY})
        for choose, key in (
            (max, lambda v: dict(v.constants)["BLOCK_M"] * dict(v.constants)["BLOCK_N"]),
            (max, lambda v: (v.num_stages, dict(v.constants)["BLOCK_K"])),
        )
    )
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("variant", SAMPLE, ids=lambda v: f"{v.kernel}-{v.num_stages}")
def test_main_loops_are_left_in_flight(variant: Variant) -> None:
    _, verdict = check_ptxas.check(variant)
    assert verdict.held_up == ()


@pytest.mark.parametrize("kernel", ["chain_tma", "merged_tma"])
def test_tiles_of_eight_columns_are_left_in_flight(kernel: str) -> None:
    """Which Triton may multiply by wgmma or by mma.sync."""
    thin = [v for v in EVERY if v.kernel == kernel and dict(v.constants)["BLOCK_N"] == 8 and v.num_warps == 4]
    for variant in [v for v in thin if dict(v.constants)["A_ROWS"] and v.loaded is v.stored]:
        _, verdict = check_ptxas.check(variant)
        assert verdict.held_up == (), variant


def test_the_check_sees_a_sum_that_is_read_while_it_is_in_the_making() -> None:
    variant = next(v for v in SAMPLE if v.kernel == "chain_tma")
    ptx = compile_variant(variant, capability=90).asm["ptx"]
    assert check_ptxas.verdict_of(ptx).wgmma
    multiplied = re.search(r"wgmma\.mma_async[^{]*\{\s*(%\w+)", ptx)
    assert multiplied is not None
    place = ptx.index("wgmma.commit_group", multiplied.end())
    early = ptx[:place] + f"add.rn.f32 {multiplied[1]}, {multiplied[1]}, 0f3F800000;\n\t" + ptx[place:]
    assert check_ptxas.verdict_of(early).held_up


def test_every_config_of_every_kernel_that_multiplies_is_among_them() -> None:
    def told(variants: list[Variant]) -> set[tuple[str, int, int]]:
        return {(v.kernel, v.num_warps, v.num_stages) for v in variants}

    assert told(check_ptxas.multiplying()) == told(EVERY)
    assert {"chain_tma", "merged_tma", "folded_chain", "kmajor_chain", "fused_tma"} <= {v.kernel for v in EVERY}
    assert len(EVERY) < len(check_ptxas.multiplying()) / 3
