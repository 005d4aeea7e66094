"""Choosing kernels for epilogues, openings and open ends: what is launched, what declines, the bound on variants."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    AddC,
    Balanced,
    CastTo,
    Contiguous,
    Cut,
    EpilogueStep,
    GEMMDesc,
    Relu,
    ResidueLast,
    ScalarStep,
    Scale,
    ScaleOutput,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels import steps as codes
from gemmdesc.kernels.card import CardArithmetic, MatrixStep
from gemmdesc.kernels.finished import FinishedChoice, choose_finished, needs_finish
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.steps import StepProgram, rounding_code, step_program
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import TiledChoice, choose_tiled, choose_whole
from gemmdesc.kernels.variants import enumerate_variants, finish_is_wide, finished_variants
from gemmdesc.plan import needed_variants
from gemmdesc.regions import Region, whole
from tests.finish_samples import draw_finished
from tests.probe_samples import HOPPER

FP16, BF16, FP32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
CARD = CardArithmetic(steps=tuple(MatrixStep(operand_dtype=d, lanes=16, step=HOPPER) for d in (FP16, BF16)))
SHARED = 232448
BOUND = enumerate_variants(SHARED)


def meta(desc: GEMMDesc, m: int, n: int, k: int, *, alignment: int = 256, columns: bool = False) -> KernelMeta:
    def matrix(dtype: DType, rows: int, across: int, by_columns: bool = False) -> MatrixMeta:
        strides = (1, rows) if by_columns else (across, 1)
        return MatrixMeta(dtype=dtype, row_stride=strides[0], column_stride=strides[1], alignment=alignment)

    return KernelMeta(
        m=m, n=n, k=k, a=matrix(desc.a_dtype, m, k), b=matrix(desc.b_dtype, k, n),
        out=matrix(desc.output_dtype, m, n, columns), sm_count=132, shared_bytes=SHARED,
    )  # fmt: skip


def desc(*steps: EpilogueStep, cut: Cut | None = None, output: DType = FP16, k: int = 512) -> GEMMDesc:
    leaf = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)
    return GEMMDesc(
        a_dtype=FP16, b_dtype=FP16, output_dtype=output, summed_k=k, cuts=() if cut is None else (cut,),
        accumulator=leaf, epilogue=steps,
    )  # fmt: skip


def slices(span: int, **changes: object) -> Cut:
    cut = Cut(layout=Contiguous(span=span), partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST)
    return replace(cut, **changes)  # type: ignore[arg-type]


def chosen(d: GEMMDesc, at: KernelMeta) -> FinishedChoice:
    choice = choose_whole(d, at, CARD)
    assert isinstance(choice, FinishedChoice), choice
    return choice


def reason(d: GEMMDesc, at: KernelMeta | None = None) -> str:
    choice = choose_finished(d, at or meta(d, 64, 64, 512), CARD)
    assert isinstance(choice, Declined)
    assert choice.code == "kernel"
    return choice.reason


def test_steps_become_codes_in_their_order() -> None:
    steps = (Scale(), AddC(fused=True), AddBias(), CastTo(dtype=FP32), Relu(), CastTo(dtype=FP16), AddC(fused=False))
    program = step_program((*steps, Relu(keeps_nan=False), CastTo(dtype=BF16)))
    assert program == StepProgram(codes=int("".join(f"{c:05b}" for c in (8, 6, 2, 7, 5, 4, 3, 1)), 2), count=8)
    assert isinstance(program, StepProgram)
    assert program.takes_c
    assert program.takes_bias
    assert step_program(()) == StepProgram()
    assert not StepProgram().takes_c
    full = step_program((Scale(),) * 12)
    assert isinstance(full, StepProgram)
    assert 0 < full.codes < 2**63
    for wrong in ((Scale(),) * 13, (ScaleOutput(),), (CastTo(dtype=DType.FLOAT8_E5M2),)):
        assert isinstance(step_program(wrong), Declined)


def test_the_kernels_codes_are_the_programs() -> None:
    finish = pytest.importorskip("gemmdesc.kernels.finish", reason="Triton has no wheel for this platform")
    names = [n for n in vars(codes) if n.isupper() and n not in ("CODE_BITS", "MOST_STEPS") and not n.startswith("_")]
    assert len(names) == 12
    assert codes.CODE_BITS == 5
    for name in names:
        assert getattr(finish, name).value == getattr(codes, name)
    assert [rounding_code(d) for d in (FP32, FP16, BF16)] == [0, 7, 8]


def test_sums_go_to_scratch_unfolded_and_slices_keep_their_roundings_for_the_last_fold() -> None:
    plain = desc(k=4096)
    assert not needs_finish(plain)
    cut = slices(1024, partial_dtype=FP16, merge_dtype=BF16, start=Start.ZERO, opening=(AddBias(),), open_end=True)
    d = desc(Relu(), cut=cut, k=4096)
    choice = chosen(d, meta(d, 2048, 2048, 4096))
    # Tiles alone fill the card, which would make it a folded chain were there nothing after it.
    assert choice.sums.structure is Structure.CHAIN_TMA
    assert (choice.fold.partial_dtype, choice.fold.merge_dtype, choice.fold.start) == (FP16, BF16, Start.ZERO)
    assert (choice.open_end, choice.opens_early, choice.swapped) == (True, False, False)
    assert (choice.opening.count, choice.steps.count) == (1, 1)
    assert choice.takes_bias
    assert not choice.takes_c
    thin = chosen(d, meta(d, 16, 2048, 4096))
    assert thin.swapped
    assert needs_finish(desc(cut=slices(64, open_end=True, merge_dtype=FP16)))
    assert not needs_finish(desc(cut=slices(64, open_end=True)))


def test_groups_are_opened_before_they_are_folded() -> None:
    cut = slices(1, layout=Balanced(count=4, unit=64), fold=(Contiguous(span=2),), opening=(AddC(fused=True),))
    d = desc(cut=cut)
    choice = chosen(d, meta(d, 200, 200, 512))
    assert (choice.sums.structure, choice.opens_early) == (Structure.BALANCED_CHAINS, True)
    for changes in ({"partial_dtype": FP16}, {"start": Start.ZERO}):
        changed = replace(cut, **changes)  # type: ignore[arg-type]
        assert "first part that is opened" in reason(desc(cut=changed))


def test_regions_are_finished_one_by_one() -> None:
    d = desc(AddBias())
    at = meta(d, 100, 90, 512)
    names = ("row_begin", "row_end", "column_begin", "column_end")
    parts = [
        Region(**dict(zip(names, x, strict=True)), descriptor=d) for x in ((0, 40, 0, 90), (40, 100, 0, 90))
    ]
    choice = choose_tiled(parts, at, CARD)
    assert isinstance(choice, TiledChoice)
    assert all(isinstance(p.choice, FinishedChoice) for p in choice.parts)
    assert needed_variants(choice, at) <= BOUND


def test_what_no_kernel_finishes_declines() -> None:
    assert "8-bit output" in reason(desc(ScaleOutput()))
    assert "cast_to" in reason(desc(CastTo(dtype=DType.FLOAT8_E4M3FN)))
    assert "at most 12" in reason(desc(*(Relu(),) * 16))
    d = desc(Relu())
    assert "out must have" in reason(d, meta(replace(d, output_dtype=FP32), 8, 8, 512))
    assert "operands' type or float32" in reason(desc(Relu(), output=BF16))
    assert "nested cuts" in reason(replace(d, cuts=(slices(256), slices(64))))
    at = meta(d, 8, 8, 512)
    assert "strides" in reason(d, replace(at, out=replace(at.out, row_stride=-8)))
    # The last fold of an inner cut is none of the finishing kernel's.
    scalar = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))
    inner = replace(d, accumulator=scalar, cuts=(slices(256), slices(64, merge_dtype=FP16, open_end=True)))
    assert "open end" in reason(inner)


def test_any_output_strides_are_taken() -> None:
    d = desc(Relu())
    at = meta(d, 64, 64, 512)
    assert chosen(d, replace(at, out=replace(at.out, row_stride=200, column_stride=3))).steps.count == 1
    assert chosen(d, meta(d, 64, 64, 512, columns=True)).steps.count == 1


def test_every_choice_stays_in_the_bound(rng: np.random.Generator) -> None:
    met: set[Structure] = set()
    for number in range(400):
        k = int(rng.integers(40, 3000))
        d = draw_finished(rng, number, k, HOPPER)
        m, n = (int(x) for x in np.exp2(rng.uniform(0, 11, 2)))
        at = meta(d, m, n, k, alignment=int(rng.choice([4, 16, 256])), columns=bool(rng.integers(2)))
        choice = choose_tiled(whole(d, m, n), at, CARD)
        if isinstance(choice, Declined):
            assert "every slice must hold a k" in choice.reason
            continue
        if isinstance(choice, FinishedChoice):
            met.add(choice.sums.structure)
            assert all(set(finished_variants(choice, wide_offsets=wide)) <= BOUND for wide in (False, True))
        assert needed_variants(choice, at) <= BOUND
    assert met == {
        Structure.CHAIN_TMA, Structure.CHAIN_POINTER, Structure.GROUPED_CHAIN, Structure.SCALAR_NEST,
        Structure.BALANCED_CHAINS, Structure.LANE_NEST,
    }  # fmt: skip


def test_wide_offsets_where_a_matrix_reaches_beyond_31_bits() -> None:
    d = desc(Relu())
    for reach, wide in ((2**31 - 2000, False), (2**31, True)):
        assert finish_is_wide(64, reach) is wide
        at = meta(d, 2, 64, 512)
        at = replace(at, out=replace(at.out, row_stride=reach - 63))
        (last,) = [v for v in needed_variants(chosen(d, at), at) if v.kernel == "finish"]
        assert dict(last.constants)["WIDE_OFFSETS"] is wide


def test_the_finishing_kernel_contracts_nothing_and_keeps_subnormals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling = pytest.importorskip("gemmdesc.kernels.compiling", reason="Triton has no wheel for this platform")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    variants = [v for v in BOUND if v.kernel == "finish"]
    assert len(variants) == 10
    for variant in variants:
        assert not variant.fp_fusion
        ptx = compiling.compile_variant(variant, capability=90).asm["ptx"]
        assert ".ftz" not in ptx
        arithmetic = re.findall(r"\b((?:fma|mul|add|sub)\.(?:[a-z]+\.)?f32)\b", ptx)
        assert set(arithmetic) == {"fma.rn.f32", "mul.rn.f32", "add.rn.f32"}
        assert not re.search(r"cvt\.(?!rn)[a-z]*\.?b?f16\.f32", ptx)
        assert "cvt.rn.f16.f32" in ptx
        assert "cvt.rn.bf16.f32" in ptx
