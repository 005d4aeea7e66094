"""The specialised chain that ends with a program, compiled for sm_90: as the plain one, with stock kernels' operations.

Both run the same functions.  What is counted here is what came of them in PTX.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from gemmdesc.descriptor import Add, Approximate, CastTo, EpilogueStep, Gelu, Multiply, Sigmoid, Silu
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.compiling import compile_variant
from gemmdesc.kernels.fused import FUSED_CONFIGS, SPECIALISED_ENDS, FusedChoice, choose_fused
from gemmdesc.kernels.meta import MatrixMeta
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.variant import Variant
from gemmdesc.kernels.variants_fused import fused_variant, operand_format
from tests.script_modules import load_script
from tests.test_fused_specialised import CARD, ending, meta
from tests.test_specialised_compile import name_of

check_ptxas = load_script("check_ptxas")
FP16, FP32 = DType.FLOAT16, DType.FLOAT32
FLOAT = re.compile(r"\b((?:fma|mul|add|sub|div|ex2|rcp|max|min|cvt)[a-z0-9_.]*\.(?:f32|f16|f16x2)[a-z0-9_.]*)\b")
#: Products of one tile for each program, and of many.
ALONE, MANY = (1000, 1000, 192), (4096, 6144, 2048)
CAST = CastTo(dtype=FP16)


def lies(rows: int, columns: int, dtype: DType = FP16) -> MatrixMeta:
    return MatrixMeta(dtype=dtype, row_stride=rows, column_stride=columns, alignment=256)


#: What fused calls are measured by and a matrix of another type, and how their operands lie.
GROUPS: dict[str, tuple[tuple[EpilogueStep, ...], tuple[MatrixMeta, ...]]] = {
    "silu": ((Silu(),), ()),
    "gelu_bias": ((Add(operand="bias"), CAST, Gelu(approximate=Approximate.NONE)), (lies(0, 1),)),
    "residual": ((Add(operand="r"),), (lies(6144, 1),)),
    "sigmoid_gate": ((Sigmoid(), CAST, Multiply(operand="up")), (lies(6144, 1),)),
    "weighted": ((Multiply(operand="w"),), (lies(1, 0),)),
    "mixed": ((Add(operand="r"), CAST, Add(operand="bias")), (lies(6144, 1, FP32), lies(0, 1))),
}
#: Bytes of registers that do not fit: of a few numbers that are the same for every tile.
SPILLED = 64


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def variant_of(name: str, config: Any, structure: Structure = Structure.CHAIN_SPECIALISED) -> Variant:
    steps, operands = GROUPS[name]
    sizes = ALONE if getattr(config, "alone", False) else MANY
    found = choose_fused(
        ending(*steps, sizes=sizes), meta(*sizes, FP16), CARD, choose_whole, structure=structure, config=config
    )
    assert isinstance(found, FusedChoice), found
    return fused_variant(found, [operand_format(o, *MANY[:2]) for o in operands])


def operations(ptx: str) -> Counter[str]:
    """Float instructions, one on two 16-bit values as two on one."""
    counts: Counter[str] = Counter()
    for op in FLOAT.findall(ptx):
        counts[re.sub(r"\.rn(?=\.f32$)", "", op.replace("f16x2", "f16"))] += 2 if "x2" in op else 1
    return counts


def check(name: str, config: SpecialisedConfig) -> str:
    variant = variant_of(name, config)
    compiled = compile_variant(variant, capability=90)
    ptx: str = compiled.asm["ptx"]
    verdict = check_ptxas.verdict_of(ptx)
    assert verdict.wgmma
    assert verdict.held_up == ()
    assert verdict.spilled <= SPILLED
    assert compiled.metadata.shared <= config.shared_bytes(2, 2)
    # Operands and results are where the sums are: nothing goes through shared memory but what is stored.
    conversions = re.findall(r"ttg\.convert_layout .*", compiled.asm["ttgir"])
    assert config.whole or conversions == []
    assert "st.global" not in ptx
    assert "div.full" not in ptx
    return ptx


def end_of(sharing: str, columns: int, *, whole: bool = False, cluster: int = 1) -> SpecialisedConfig:
    return next(
        c for c in SPECIALISED_ENDS
        if (c.sharing, c.columns, c.whole, c.cluster) == (sharing, columns, whole, cluster) and not c.dependent
    )  # fmt: skip


#: Of the groups those that are compiled each time: a function, and several operands of all kinds.
AT_LEISURE = ("silu", "mixed")


@pytest.mark.parametrize("name", [n if n in AT_LEISURE else pytest.param(n, marks=pytest.mark.slow) for n in GROUPS])
def test_groups_that_take_turns_do_the_stock_kernels_operations(name: str) -> None:
    config = end_of("turns", 128)
    found = operations(check(name, config))
    stock = FUSED_CONFIGS[0]
    ptx = compile_variant(variant_of(name, stock, Structure.CHAIN_TMA), capability=90).asm["ptx"]
    each = {op: count / stock.outputs_per_thread for op, count in operations(ptx).items()}
    assert found.keys() == each.keys() > set()
    # Triton may have written the end of a stock kernel's tile twice, at the end of its loops and in it.
    (copies,) = {each[op] / (count / (2 * config.outputs_per_thread)) for op, count in found.items()}
    assert copies in (1.0, 2.0)


@pytest.mark.parametrize(
    ("sharing", "columns", "whole"),
    [("shared", 192, False), ("alone", 96, False), ("turns", 160, False), ("turns", 160, True)],
)
def test_other_ways_to_share_compile_likewise(sharing: str, columns: int, whole: bool) -> None:
    config = end_of(sharing, columns, whole=whole)
    for name in ("residual", "silu"):
        ptx = check(name, config)
        rest = config.block_n % config.store_n if whole else config.beside_n
        pieces = config.block_n // config.store_n + -(-rest // config.store_n)
        assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.global", ptx)) == 2 * pieces


def test_operands_are_fetched_before_the_tile_and_read_two_at_a_time() -> None:
    config = end_of("turns", 128)
    ptx = check("residual", config)
    # 128 rows of two lines of 128 bytes, by 128 threads of each group.
    assert ptx.count("prefetch.global.L2") == 2 * 2
    assert len(re.findall(r"ld\.global\.b32", ptx)) == config.outputs_per_thread // 2 * 2
    assert "ld.global" not in check("silu", config)
    early = compile_variant(variant_of("residual", replace(config, dependent=True)), capability=90).asm["ptx"]
    assert early.index("griddepcontrol.wait") < early.index("prefetch.global.L2")


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("config", [c for c in SPECIALISED_ENDS if not c.dependent], ids=name_of)
def test_every_config_compiles_for_every_group(config: SpecialisedConfig, name: str) -> None:
    check(name, config)


def test_what_it_is_asked_for_must_be_its_own() -> None:
    found = choose_fused(
        ending(Silu()), meta(*MANY, FP16), CARD, choose_whole, structure=Structure.CHAIN_SPECIALISED,
        config=FUSED_CONFIGS[0],
    )  # fmt: skip
    assert isinstance(found, Declined)
