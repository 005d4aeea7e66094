"""K-major kernels compiled for sm_90 without a GPU: native instructions at every tile, and the additions of folds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.dtypes import DType
from gemmdesc.kernels.compiling import compile_variant
from gemmdesc.kernels.kmajor_blocks import FLOAT8_DTYPES
from gemmdesc.kernels.variant import Variant
from gemmdesc.kernels.variants_kmajor import enumerate_kmajor_variants

SHARED = 232448
MATRIX = re.compile(r"(wgmma\.mma_async|mma)\.sync\.aligned\.m64n\d+k(\d+)\.f32\.(\w+)\.(\w+)")
SPELLED = {DType.FLOAT8_E4M3FN: "e4m3", DType.FLOAT8_E5M2: "e5m2", DType.FLOAT32: "tf32"}
VARIANTS = sorted(enumerate_kmajor_variants(SHARED), key=str)
THREADS = 32


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def narrow(kernel: str) -> list[Variant]:
    """Variants with 32-bit offsets that store rows."""
    found = [v for v in VARIANTS if v.kernel == kernel and not dict(v.constants)["WIDE_OFFSETS"]]
    return [v for v in found if dict(v.constants).get("OUT_LAYOUT", 1) == 1]


@pytest.mark.parametrize("folded", [0, 1, 2])
@pytest.mark.parametrize(
    "pair",
    [(a, b) for a in FLOAT8_DTYPES for b in FLOAT8_DTYPES] + [(DType.FLOAT32, DType.FLOAT32)],
    ids=lambda p: "-".join(SPELLED[d] for d in p),
)
def test_every_tile_is_native_and_every_fold_adds_once_a_block(pair: tuple[DType, DType], folded: int) -> None:
    chains = [v for v in narrow("kmajor_chain") if (v.loaded, v.loaded_b or v.loaded) == pair]
    chains = [v for v in chains if dict(v.constants)["FOLDED"] == folded]
    assert len(chains) == (5 if folded else 6)
    for variant in chains:
        constants = dict(variant.constants)
        compiled = compile_variant(variant, capability=90)
        ptx = compiled.asm["ptx"]
        kinds = set(MATRIX.findall(ptx))
        assert kinds == {("wgmma.mma_async", "8" if pair[0] is DType.FLOAT32 else "32", *(SPELLED[d] for d in pair))}
        assert not re.search(r"\bmma\.sync|cvt\S*\.f16", ptx), "the operands must not be converted"
        outputs = int(constants["BLOCK_M"]) * int(constants["BLOCK_N"]) // (THREADS * variant.num_warps)
        # A fold that the compiler moved into the instruction's accumulator would leave none.
        assert len(re.findall(r"\badd(?:\.rn)?\.f32\b", ptx)) == (outputs if folded else 0), variant
        assert not re.search(r"\b(fma|mul)\.\S*f32|\.ftz|\.local\b", ptx)
        assert compiled.metadata.shared <= SHARED


def test_copies_round_with_integers_and_store_whole_lines() -> None:
    for variant in narrow("kmajor_pack"):
        ptx = compile_variant(variant, capability=90).asm["ptx"]
        assert "st.global.v4.b32" in ptx, variant
        assert not re.search(r"\.f32|\.ftz", ptx), variant


def test_finishing_multiplies_as_often_as_it_says_and_saturates_8_bit_outputs() -> None:
    for variant in narrow("scaled_merge"):
        constants = dict(variant.constants)
        ptx = compile_variant(variant, capability=90).asm["ptx"]
        each = int(constants["BLOCK"]) // (THREADS * variant.num_warps)
        products = bool(constants["SCALED"]) + bool(constants["OUTPUT_SCALED"])
        assert len(re.findall(r"\bmul(?:\.rn)?\.f32\b", ptx)) == products * each, variant
        assert not re.search(r"\bfma\.\S*f32|\.ftz", ptx)
        if variant.stored in FLOAT8_DTYPES:
            assert f"cvt.rn.satfinite.{SPELLED[variant.stored]}x2.f32" in ptx
