"""Fused kernels compiled for sm_90 without a GPU: what eager's machine code holds, and nothing contracted beyond it."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gemmdesc.descriptor import CastTo, EpilogueStep, Relu, Sigmoid, Silu
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels import functions, fused_steps, instructions, variants_fused
from gemmdesc.kernels.compiling import compile_variant
from gemmdesc.kernels.fused import FUSED_CONFIGS, PAIRED, FusedChoice
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.variants import Variant, enumerate_variants
from gemmdesc.kernels.variants_fused import fused_variant, sample_programs

SHARED = 232448
FLOAT = re.compile(r"\b((?:fma|mul|add|sub|div|ex2|rcp|max|min)[a-z0-9_.]*\.f32)\b")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@triton.jit
def one_kernel(x_ptr, y_ptr, FUNCTION: tl.constexpr):
    index = tl.arange(0, 128)
    tl.store(y_ptr + index, FUNCTION(tl.load(x_ptr + index)))


def operations(function: Any) -> Counter[str]:
    """The float32 instructions of one element."""
    compiled = triton.compile(
        ASTSource(
            fn=one_kernel, signature={"x_ptr": "*fp32", "y_ptr": "*fp32", "FUNCTION": "constexpr"},
            constexprs={"FUNCTION": function},
        ), target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "enable_fp_fusion": False},
    )  # fmt: skip
    return Counter(re.sub(r"\.rn(?=\.f32)", "", op) for op in FLOAT.findall(compiled.asm["ptx"]))


#: What nvcc 13.0 made of torch's kernels: as read from the machine code of torch 2.11, by instruction.
READ = {
    "gelu": ("mul.f32", 4, "fma.f32", 14, "add.f32", 1, "sub.f32", 1, "ex2.approx.ftz.f32", 1),
    "gelu_tanh": ("mul.f32", 7, "fma.f32", 7, "add.f32", 2, "ex2.approx.ftz.f32", 1, "rcp.approx.ftz.f32", 1),
    "silu": ("fma.rn.sat.f32", 1, "fma.rm.f32", 1, "fma.f32", 3, "sub.f32", 1, "ex2.approx.ftz.f32", 1, "div.f32", 1),
    # By analogy with silu: the same sum of the same expf, below one.
    "sigmoid": (
        "fma.rn.sat.f32", 1, "fma.rm.f32", 1, "fma.f32", 3, "sub.f32", 1, "ex2.approx.ftz.f32", 1, "div.f32", 1
    ),
    "tanh": ("mul.f32", 2, "fma.f32", 6, "add.f32", 1, "ex2.approx.ftz.f32", 1, "rcp.approx.ftz.f32", 1),
}


@pytest.mark.parametrize("name", READ)
def test_a_function_is_the_instructions_that_eager_has(name: str) -> None:
    flat = READ[name]
    wanted = dict(zip(flat[::2], flat[1::2], strict=True))
    found = operations(getattr(functions, name))
    # Negation may be a product by -1.
    found["mul.f32"] -= name in ("silu", "sigmoid") and found["mul.f32"]
    assert +found == Counter(wanted)


def test_codes_are_the_programs() -> None:
    names = ("ADD", "MULTIPLY", "DIVIDE", "AT_LEAST", "AT_MOST", "RELU", "RELU_WITHOUT_NAN", "GELU", "GELU_TANH",
             "SILU", "TANH", "SIGMOID", "KEEP", "NUMBER")  # fmt: skip
    for name in names:
        assert getattr(fused_steps, name).value == getattr(instructions, name)
    for name in ("ONE_ROW", "ONE_COLUMN", "UNIT_ROW", "WHOLE_ROWS", "WHOLE_COLUMNS", "UNIT_ROWS", "UNIT_COLUMNS"):
        assert getattr(fused_steps, name).value == getattr(variants_fused, name)
    assert (fused_steps.FLOAT16.value, fused_steps.BFLOAT16.value) == (2, 3)
    assert [instructions.OPERAND_KINDS[d] for d in (DType.FLOAT16, DType.BFLOAT16)] == [2, 3]


def variants(kernel: str, **constants: Any) -> list[Any]:
    found = [v for v in enumerate_variants(SHARED) if v.kernel == kernel]
    return [v for v in found if all(dict(v.constants)[name] == value for name, value in constants.items())]


def test_how_many_there_are() -> None:
    kinds = Counter(v.kernel for v in enumerate_variants(SHARED) if v.kernel.startswith("fused"))
    # Programs x configs x operand types x layouts of A, B x (the result's layout, alignment and way, by stored type).
    assert kinds["fused_tma"] == 2 * len(FUSED_CONFIGS) * 2 * 4 * (6 + 6 + 4)
    assert kinds["fused_pointer"] == 2 * 4 * 2 * 3 * 5 * 2
    assert kinds["fused_after"] == 2 * 3 * 4 * 3


def after(steps: tuple[EpilogueStep, ...], stored: DType, formats: tuple[int, ...] = ()) -> Variant:
    """The kernel that does ``steps`` after a float32 product."""
    program = instructions.assembled(steps)
    assert not isinstance(program, Declined)
    choice = FusedChoice(
        product=None, in_chain=False, program=program, product_dtype=DType.FLOAT32, output_dtype=stored,
        out_layout=Layout.ROWS, aligned=True,
    )  # fmt: skip
    return fused_variant(choice, formats)


@pytest.mark.parametrize("stored", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3FN])
def test_what_runs_after_a_product_contracts_nothing_and_moves_whole_lines(stored: DType) -> None:
    silu = instructions.assembled((CastTo(dtype=DType.FLOAT16), Silu()))
    assert not isinstance(silu, Declined)
    found = variants("fused_after", ALIGNED=True, OUT_LAYOUT=Layout.ROWS.value, KIND=2, PROGRAM=silu.program)
    (variant,) = [v for v in found if v.stored is stored]
    ptx = compile_variant(variant, capability=90).asm["ptx"]
    counts = Counter(FLOAT.findall(ptx))
    elements = 8
    # Every fused operation is a function's own; none is made of a step's product and the next one's sum.
    fused = sum(n for op, n in counts.items() if op.startswith("fma"))
    assert fused == elements * 5
    assert {op for op in counts if ".ftz" in op} == {"ex2.approx.ftz.f32"}
    assert "div.full" not in ptx
    assert re.search(r"ld\.global[a-z0-9_.:]*\.v4\.b32", ptx)
    assert re.search(r"st\.global[a-z0-9_.:]*\.v[24]\.b32", ptx)


def machine_code(variant: Variant, folder: Path) -> str:
    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    if not tool.exists():
        pytest.skip("Triton brings no disassembler")
    (folder / "kernel.cubin").write_bytes(compile_variant(variant, capability=90).asm["cubin"])
    command = [str(tool), "-c", str(folder / "kernel.cubin")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_relu_that_keeps_nan_keeps_its_pattern_in_machine_code(tmp_path: Path) -> None:
    """ptxas makes a maximum of a comparison with zero and a selection, and a maximum's NaN is canonical."""
    kept = machine_code(after((Relu(),), DType.FLOAT32), tmp_path)
    # The relu that drops NaN is a maximum, which shows that the text is read right.
    dropped = machine_code(after((Relu(keeps_nan=False),), DType.FLOAT32), tmp_path)
    both = machine_code(next(v for v in variants("finish") if v.stored is DType.FLOAT32), tmp_path)
    assert "FMNMX" not in kept
    assert "FMNMX R" in dropped
    assert "FMNMX R" in both
    assert "FMNMX.NAN" not in dropped + both


@pytest.mark.parametrize("step", [Silu(), Sigmoid()], ids=str)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_every_quotient_is_a_division_until_a_card_has_confirmed_the_other(
    step: EpilogueStep, dtype: DType, tmp_path: Path
) -> None:
    other = DType.BFLOAT16 if dtype is DType.FLOAT16 else DType.FLOAT16
    for ends, stored in (((CastTo(dtype=dtype),), dtype), ((), DType.FLOAT32), ((CastTo(dtype=other),), other)):
        code = machine_code(after((CastTo(dtype=dtype), step, *ends), stored), tmp_path)
        divides = not fused_steps.QUOTIENTS.value or stored is not dtype
        assert ("CALL" in code) is divides


def test_two_programs_of_a_pair_fit_a_multiprocessor() -> None:
    """Its memory is 228 KiB, of which each program takes one more; so are its registers."""
    tile = {"BLOCK_M": PAIRED.block_m, "BLOCK_N": PAIRED.block_n, "STAGGERED": True}
    found = variants("fused_tma", **tile, A_ROWS=True, B_ROWS=False, OUT_LAYOUT=Layout.ROWS.value, ALIGNED=True)
    narrow = [v for v in found if v.loaded is v.stored is DType.FLOAT16]
    sampled = {v["PROGRAM"] for v in sample_programs(DType.FLOAT16, DType.FLOAT16)}
    assert {dict(v.constants)["PROGRAM"] for v in narrow} == sampled
    for variant in narrow:
        compiled = compile_variant(variant, capability=90)
        assert 2 * (compiled.metadata.shared + 1024) <= 228 * 1024
        assert "nanosleep.u32" in compiled.asm["ptx"]


def test_matrices_of_the_next_tile_are_fetched() -> None:
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "A_ROWS": True, "B_ROWS": False}
    found = [v for v in variants("fused_tma", **tile, OUT_LAYOUT=1) if v.loaded is v.stored is DType.FLOAT16]
    for formats, fetches in ((0, False), (18, True)):
        variant = next(v for v in found if dict(v.constants)["FORMATS"] == formats)
        assert ("prefetch.global.L2" in compile_variant(variant, capability=90).asm["ptx"]) is fetches


@pytest.mark.parametrize(
    "stored",
    [DType.FLOAT16, *(pytest.param(d, marks=pytest.mark.slow) for d in (DType.FLOAT32, DType.FLOAT8_E4M3FN))],
)
def test_every_layout_compiles(stored: DType) -> None:
    """Of the smallest tiles, as what differs is how they are stored."""
    silu = instructions.assembled((CastTo(dtype=DType.FLOAT16), Silu()))
    assert not isinstance(silu, Declined)
    after = [v for v in variants("fused_after", PROGRAM=silu.program, KIND=2) if v.stored is stored]
    tile = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 64, "A_ROWS": True, "B_ROWS": True}
    small = [v for v in variants("fused_tma", **tile, PROGRAM=silu.program)
             if v.stored is stored and v.loaded is DType.FLOAT16]  # fmt: skip
    tiny = [v for v in variants("fused_pointer", BLOCK_M=16, A_LAYOUT=1, B_LAYOUT=1, PROGRAM=silu.program)
            if v.stored is stored and v.loaded is DType.FLOAT16]  # fmt: skip
    ways = 4 if stored is DType.FLOAT8_E4M3FN else 6
    assert (len(after), len({(v.num_stages, v.dependent) for v in small}), len(tiny)) == (3, len(small) // ways, 2)
    for variant in (*after, *small, *tiny):
        compile_variant(variant, capability=90)


@pytest.mark.parametrize("config", FUSED_CONFIGS, ids=str)
def test_a_chain_that_ends_with_an_epilogue_is_one_kernel_of_matrix_steps(config: Any) -> None:
    tile = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k}
    found = variants("fused_tma", **tile, A_ROWS=True, B_ROWS=False, OUT_LAYOUT=Layout.ROWS.value, ALIGNED=True)
    pipeline = (config.num_warps, config.num_stages)
    variant = next(
        v for v in found if v.loaded is v.stored is DType.BFLOAT16 and (v.num_warps, v.num_stages) == pipeline
    )
    compiled = compile_variant(variant, capability=90)
    assert re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16", compiled.asm["ptx"])
    assert "cp.async.bulk.tensor.2d" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= SHARED


def test_the_pointer_kernel_takes_any_strides() -> None:
    (variant,) = [
        v for v in variants("fused_pointer", A_LAYOUT=0, B_LAYOUT=0, OUT_LAYOUT=2, BLOCK_M=32)
        if v.loaded is v.stored is DType.FLOAT16
    ][:1]  # fmt: skip
    assert re.search(r"mma\.sync\.aligned\.m16n8k16", compile_variant(variant, capability=90).asm["ptx"])
