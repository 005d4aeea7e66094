"""A library's gelu by ``tanh.approx.f32``: its text, its arithmetic, what a CPU declines, and the kernel's code."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmdesc.arithmetic import step as exact
from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.pointwise import gelu_tanh_approx
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    CastTo,
    GeluArgument,
    GeluResult,
    GeluTanhApprox,
    GEMMDesc,
    ResidueLast,
    ScalarStep,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import DeclinedError, DescriptorError
from gemmdesc.kernels.steps import GELU, gelu_code, step_program
from gemmdesc.library.replayed import replay_decline
from gemmdesc.normal_form import normal_form
from gemmdesc.plan.words import in_words
from gemmdesc.pointwise import GELU_K0, GELU_K01, GELU_K1
from gemmdesc.rule import make_rule, parse_rule
from gemmdesc.text import from_json, parse_descriptor, to_json, to_text
from tests.gelu_samples import FORMS, stand_in_tanh

FP16, FP32 = DType.FLOAT16, DType.FLOAT32
WIDE = {"a_dtype": FP32, "b_dtype": FP32}
ONE, HALF = 0x3F800000, 0x3F000000


def desc(*steps: Any, output: DType = FP32) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=FP16, b_dtype=FP16, output_dtype=output, summed_k=1, cuts=(), epilogue=steps,
        accumulator=Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True)),
    )  # fmt: skip


def fma(a: int, b: int, c: int) -> int:
    return exact.scalar_step(ScalarStep(fused=True), a, b, c, **WIDE)


def times(a: int, b: int) -> int:
    return fma(a, b, 0x80000000)


def tangent(bits: int) -> int:
    return int(stand_in_tanh(np.array([bits], np.uint32).view(np.float32)).view(np.uint32)[0])


def spelled(form: GeluTanhApprox, z: int) -> int:
    """The form on one float32 pattern, by the exact scalar functions, as ``docs/descriptor.md`` spells it."""
    match form.argument:
        case GeluArgument.FACTORED:
            y = times(times(GELU_K0, z), fma(times(GELU_K1, z), z, ONE))
        case GeluArgument.FACTORED_SQUARE:
            y = times(times(GELU_K0, z), fma(GELU_K1, times(z, z), ONE))
        case GeluArgument.EXPANDED:
            y = times(z, fma(times(GELU_K01, z), z, GELU_K0))
        case GeluArgument.EXPANDED_SQUARE:
            y = times(z, fma(GELU_K01, times(z, z), GELU_K0))
    half, t = times(HALF, z), tangent(y)
    return fma(half, t, half) if form.result is GeluResult.FUSED else times(half, exact.add_float32(ONE, t))


def some_values() -> np.ndarray:
    rng = np.random.default_rng(5)
    ordinary = rng.uniform(-6, 6, 150).astype(np.float32)
    wide = rng.integers(0, 1 << 32, 60, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, -12.0, 12.0], np.float32)
    return np.concatenate([ordinary, wide, special])


@pytest.mark.parametrize("form", FORMS, ids=to_text)
def test_every_operation_rounds_once_in_the_order_that_is_spelled(form: GeluTanhApprox) -> None:
    values = some_values()
    found = gelu_tanh_approx(values, form, stand_in_tanh).view(np.uint32)
    expected = [spelled(form, int(bits)) for bits in values.view(np.uint32)]
    assert found.tolist() == expected


def test_the_forms_differ_and_a_saturated_zero_has_the_results_sign() -> None:
    values = np.random.default_rng(6).uniform(-4, 4, 1 << 16).astype(np.float32)
    outputs = {gelu_tanh_approx(values, form, stand_in_tanh).tobytes() for form in FORMS}
    assert len(outputs) == len(FORMS)
    low = np.array([-20.0], np.float32)
    for form in FORMS:
        zero = gelu_tanh_approx(low, form, stand_in_tanh).view(np.uint32)[0]
        assert zero == (0 if form.result is GeluResult.FUSED else 0x80000000)


def test_constants_are_the_kernels() -> None:
    functions = pytest.importorskip("gemmdesc.kernels.functions", reason="Triton has no wheel for this platform")
    for name, bits in (("K0", GELU_K0), ("K1", GELU_K1), ("K01", GELU_K01)):
        assert np.float32(getattr(functions, name).value).view(np.uint32) == bits
    near = float(np.float32(0.7978845608028654 * 0.044715))
    assert np.uint32(GELU_K01).view(np.float32) == np.float32(near) + 5 * np.spacing(np.float32(near))


@pytest.mark.parametrize("form", FORMS, ids=to_text)
def test_it_has_a_text_a_json_a_rule_and_words(form: GeluTanhApprox) -> None:
    one = desc(CastTo(dtype=FP16), AddBias(), form, output=FP16)
    assert f"gelu_tanh_approx(argument={form.argument.value}, result={form.result.value})" in to_text(one)
    assert parse_descriptor(to_text(one)) == one
    assert from_json(to_json(one)) == one
    rule = make_rule(one, {})
    assert parse_rule(rule.text) == rule
    assert any("tanh.approx.f32" in line for line in in_words(one, 1))
    others = [normal_form(desc(CastTo(dtype=FP16), AddBias(), f, output=FP16), 1) for f in FORMS]
    assert Counter(others)[normal_form(one, 1)] == 1
    assert normal_form(replace(one, epilogue=(AddBias(), form)), 1) != normal_form(one, 1)


def test_what_is_no_form_is_refused() -> None:
    with pytest.raises(DescriptorError, match=r"gelu_tanh_approx\.argument must be a GeluArgument"):
        GeluTanhApprox(argument="factored", result=GeluResult.FUSED)  # type: ignore[arg-type]
    with pytest.raises(DescriptorError, match="result must be one of product, fused"):
        parse_descriptor(to_text(desc(FORMS[0])).replace("result=product", "result=halved"))


def test_a_cpu_declines_it_and_a_card_s_tangent_serves() -> None:
    a, b = np.full((1, 1), 0x3C00, np.uint16), np.array([[0x3E00, 0xC100]], np.uint16)
    one = desc(FORMS[0], output=FP16)
    with pytest.raises(DeclinedError) as refused:
        replay(one, a, b)
    assert refused.value.declined.code == "out_of_scope"
    assert refused.value.declined.reason.startswith("tanh.approx is a function of the card")
    assert replay_decline(one) == refused.value.declined
    assert replay_decline(desc(AddBias())) is None
    got = replay(one, a, b, epilogue=EpilogueInputs(tanh_approx=stand_in_tanh))
    expected = from_float32(gelu_tanh_approx(to_float32(b, FP16), FORMS[0], stand_in_tanh), FP16)
    assert got.tolist() == expected.tolist()


def test_codes_tell_the_forms_apart() -> None:
    codes = [gelu_code(form) for form in FORMS]
    assert sorted(codes) == list(range(GELU, GELU + len(FORMS)))
    program = step_program((CastTo(dtype=FP16), AddBias(), FORMS[3]))
    assert program.codes >> 10 == gelu_code(FORMS[3])  # type: ignore[union-attr]


def test_the_finishing_kernel_contracts_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tangent an element, and no fused operation besides C's and those that gelu spells."""
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    from gemmdesc.kernels.compiling import compile_variant
    from gemmdesc.kernels.variants import enumerate_variants

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    variant = next(v for v in enumerate_variants(232448) if v.kernel == "finish" and v.stored is FP32)
    ptx = compile_variant(variant, capability=90).asm["ptx"]
    counts = Counter(re.findall(r"\b((?:fma|tanh)[a-z0-9_.]*\.f32)\b", ptx))
    # The opening and the steps are two copies of one loop.
    elements = counts["tanh.approx.f32"] // 2
    assert elements >= 1
    assert counts == {"tanh.approx.f32": 2 * elements, "fma.rn.f32": 2 * elements * (1 + 2 + 1)}
    assert ".ftz" not in ptx
