"""The normal form: equal forms give equal bytes on any operands; unequal ones are told apart by some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, bits_dtype, bitwise_equal
from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    AddC,
    CastTo,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    Relu,
    ResidueFirst,
    ResidueLast,
    Rounding,
    ScalarStep,
    Scale,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import DescriptorError
from gemmdesc.normal_form import normal_form, same_bits
from gemmdesc.text import to_text
from tests.arithmetic_reference import HOPPER, KINDS, STORED, cuts, descriptors, draw_bits, paired_bits

F32, F16, BF16 = STORED
CHAIN = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))
MATRIX = Accumulator(instruction_k=16, residue=ResidueLast(), step=HOPPER)


def cut(layout: Contiguous | Strided, partial: DType = F32, merge: DType = F32, start: Start = Start.FIRST) -> Cut:
    return Cut(layout=layout, partial_dtype=partial, merge_dtype=merge, start=start)


def gemm(accumulator: Accumulator, *nest: Cut, operand: DType = F16, output: DType = F16, **more: Any) -> GEMMDesc:
    values: dict[str, Any] = {"summed_k": 1000, **more}
    return GEMMDesc(a_dtype=operand, b_dtype=operand, output_dtype=output, cuts=nest, accumulator=accumulator, **values)


def mutants(value: Any) -> Iterator[Any]:
    """Copies of a descriptor, or of one of its parts, with one field changed to a neighbouring value."""
    if isinstance(value, Enum):
        members = STORED if value in STORED else [m for m in type(value) if m not in STORED]
        yield from (m for m in members if m is not value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value - 1, value + 1)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield value[:i] + value[i + 1 :]
            yield from ((*value[:i], changed, *value[i + 1 :]) for changed in mutants(item))
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            for changed in mutants(getattr(value, f.name)):
                try:
                    yield replace(value, **{f.name: changed})
                except DescriptorError:
                    continue


def one(dtype: DType) -> int:
    layout = dtype.format
    exponent_bits = (1 - layout.min_exponent).bit_length() + 1
    return (1 - layout.min_exponent) << (layout.storage_bits - 1 - exponent_bits)


def outcomes(desc: GEMMDesc, kind: str, k: int, seed: int, size: int) -> Bits:
    rng = np.random.default_rng(seed)
    if kind == "paired":
        a = paired_bits(rng, (size, k), desc.a_dtype)
        b = np.full((k, size), one(desc.b_dtype), bits_dtype(desc.b_dtype))
    elif kind == "negative zeros":
        a = np.full((size, k), 1 << (desc.a_dtype.format.storage_bits - 1), bits_dtype(desc.a_dtype))
        b = np.full((k, size), one(desc.b_dtype), bits_dtype(desc.b_dtype))
    elif kind == "underflowing":
        sign = 1 << (desc.a_dtype.format.storage_bits - 1)
        a = np.full((size, k), sign | 1, bits_dtype(desc.a_dtype))
        b = np.full((k, size), 1, bits_dtype(desc.b_dtype))
    else:
        a, b = draw_bits(rng, kind, (size, k), desc.a_dtype), draw_bits(rng, kind, (k, size), desc.b_dtype)
    inputs = EpilogueInputs(
        alpha=float(np.float32(0.7)),
        beta=float(np.float32(-1.3)),
        c=draw_bits(rng, "zeros" if kind == "negative zeros" else kind, (size, size), F16),
        c_dtype=F16,
        bias=draw_bits(rng, "zeros" if kind == "negative zeros" else kind, (size,), F16),
        bias_dtype=F16,
    )
    return replay(desc, a, b, epilogue=inputs)


@settings(max_examples=150, deadline=None)
@given(desc=descriptors(), k=st.integers(0, 30), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
def test_mutants_of_equal_form_give_equal_bytes(desc: GEMMDesc, k: int, kind: str, seed: int) -> None:
    expected = outcomes(desc, kind, k, seed, 4)
    for mutant in comparable(desc):
        if same_bits(desc, mutant, k):
            assert bitwise_equal(expected, outcomes(mutant, kind, k, seed, 4))


@settings(max_examples=150, deadline=None)
@given(
    desc=descriptors(),
    extra=cuts(),
    at=st.integers(0, 3),
    kind=st.sampled_from(KINDS),
    k=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_cut_that_does_not_show_in_the_form_does_not_show_in_the_bytes(
    desc: GEMMDesc, extra: Cut, at: int, kind: str, k: int, seed: int
) -> None:
    other = replace(desc, cuts=(*desc.cuts[:at], extra, *desc.cuts[at:]))
    if same_bits(desc, other, k):
        assert bitwise_equal(outcomes(desc, kind, k, seed, 4), outcomes(other, kind, k, seed, 4))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (gemm(MATRIX), gemm(MATRIX, cut(Contiguous(span=100)))),
        (gemm(MATRIX, cut(Contiguous(span=100))), gemm(MATRIX, cut(Contiguous(span=777), F32, F32, Start.ZERO))),
        (gemm(MATRIX, cut(Contiguous(span=48))), gemm(MATRIX, cut(Contiguous(span=48), F32, F32, Start.ZERO))),
        (gemm(MATRIX, summed_k=100), gemm(MATRIX, summed_k=101)),
        (gemm(CHAIN), gemm(replace(CHAIN, step=ScalarStep(fused=False)))),
        (
            gemm(MATRIX),
            gemm(replace(MATRIX, residue=ResidueFirst(k_loop_step=50)), summed_k=100),
        ),
        (gemm(CHAIN, cut(Strided(count=2, unit=1))), gemm(CHAIN, cut(Strided(count=2, unit=1), F32, F32, Start.ZERO))),
    ],
)
def test_what_no_operand_shows_is_not_in_the_form(one: GEMMDesc, other: GEMMDesc) -> None:
    k = 32 if isinstance(other.accumulator.residue, ResidueFirst) else 100
    assert same_bits(one, other, k)
    for kind in KINDS:
        assert bitwise_equal(outcomes(one, kind, k, 3, 8), outcomes(other, kind, k, 3, 8))


@pytest.mark.parametrize(("dtype", "shows"), [(F16, False), (DType.BFLOAT16, True), (DType.FLOAT32, True)])
def test_a_tiny_negative_product_may_round_to_negative_zero(dtype: DType, shows: bool) -> None:
    """A fused chain from +0.0 ends in -0.0 where products underflow; a fold that starts at +0.0 hides that."""
    leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))
    cut = Cut(layout=Strided(count=1, unit=1), partial_dtype=F32, merge_dtype=F32, start=Start.ZERO)
    bare = GEMMDesc(a_dtype=dtype, b_dtype=dtype, output_dtype=F32, summed_k=1, cuts=(), accumulator=leaf)
    assert same_bits(bare, replace(bare, cuts=(cut,)), 1) is not shows


def test_the_form_of_a_value_is_stable_and_counts_its_parts() -> None:
    form = normal_form(gemm(MATRIX, cut(Contiguous(span=40))), 100)
    assert (form.leaves, form.steps) == (3, 8)
    assert form == normal_form(gemm(MATRIX, cut(Contiguous(span=40))), 100)
    assert str(form).startswith(form.digest)


BASES = {
    "one chain": gemm(MATRIX, output=F32, summed_k=190),
    "split, partials in the output type": gemm(MATRIX, cut(Contiguous(span=64), F16, F32)),
    "split, running sum in the output type": gemm(
        replace(MATRIX, residue=ResidueFirst(k_loop_step=32)), cut(Contiguous(span=72), F32, F16), summed_k=190
    ),
    "blocks of a narrow accumulator": gemm(
        Accumulator(
            instruction_k=32,
            residue=ResidueLast(),
            step=FusedDot(fraction_bits=13, output_bits=13, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133),
        ),
        cut(Contiguous(span=96)),
        operand=DType.FLOAT8_E4M3FN,
        output=F32,
    ),
    "lanes folded as a butterfly": gemm(
        CHAIN,
        cut(Strided(count=2, unit=4)),
        cut(Strided(count=2, unit=4)),
        cut(Strided(count=3, unit=4)),
        output=F32,
        operand=BF16,
    ),
    "float32 chain in slices": gemm(CHAIN, cut(Contiguous(span=37)), operand=F32, output=F32),
    "a float16 accumulator": gemm(
        Accumulator(
            instruction_k=8,
            residue=ResidueLast(),
            step=FusedDot(
                fraction_bits=24,
                output_bits=10,
                rounding=Rounding.NEAREST_EVEN,
                zero_exponent=-20,
                accumulator_dtype=F16,
            ),
        )
    ),
    "an epilogue": gemm(MATRIX, output=F32, epilogue=(Scale(), AddC(fused=True), AddBias(), Relu())),
    "casts on the way": gemm(MATRIX, output=F32, epilogue=(CastTo(dtype=F16), AddBias(), CastTo(dtype=BF16), Scale())),
}


KINDS_TOLD = ("narrow", "finite", "middle", "tiny", "any", "paired")


def comparable(base: GEMMDesc) -> Iterator[GEMMDesc]:
    """Mutants that take the same operands, give the same type, and can be executed.

    The zero exponent is left out: it shows only for products near 2^-133, and the form errs towards "different".
    """
    for mutant in mutants(base):
        step, own = mutant.accumulator.step, base.accumulator.step
        if isinstance(step, FusedDot) and isinstance(own, FusedDot):
            too_wide = step.output_bits > step.accumulator_dtype.format.fraction_bits
            if too_wide or step.zero_exponent != own.zero_exponent:
                continue
        types = (mutant.a_dtype, mutant.b_dtype, mutant.output_dtype)
        if types == (base.a_dtype, base.b_dtype, base.output_dtype):
            yield mutant


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_some_operands_tell_a_mutant_of_another_form_apart(base: GEMMDesc) -> None:
    k = 200
    draws = [(kind, seed) for seed in range(12) for kind in (*KINDS_TOLD, "negative zeros", "underflowing")]
    expected = {draw: outcomes(base, draw[0], k, draw[1], 24) for draw in draws}
    told_apart = 0
    for mutant in comparable(base):
        if not same_bits(base, mutant, k):
            separates = (not bitwise_equal(expected[d], outcomes(mutant, d[0], k, d[1], 24)) for d in draws)
            assert any(separates), to_text(mutant)
            told_apart += 1
    assert told_apart >= 5
