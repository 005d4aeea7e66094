"""Rival draws separate the two descriptors that they were built from, by the replay's word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.arithmetic.replay import replay
from gemmdesc.descriptor import (
    Accumulator,
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
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.mutants import mutants
from gemmdesc.rivals import rival_operands, rival_set_operands

FUSED = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32


def _cut(layout: Contiguous | Strided, partial: DType = F32, merge: DType = F32, start: Start = Start.FIRST) -> Cut:
    return Cut(layout=layout, partial_dtype=partial, merge_dtype=merge, start=start)


def _desc(
    *cuts: Cut,
    k: int = 100_000,
    instruction_k: int = 16,
    residue: ResidueFirst | ResidueLast = ResidueLast(),  # noqa: B008
    step: FusedDot | ScalarStep = FUSED,
    dtype: DType = F16,
    output: DType | None = None,
) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=dtype,
        b_dtype=dtype,
        output_dtype=output or dtype,
        summed_k=k,
        cuts=cuts,
        accumulator=Accumulator(instruction_k=instruction_k, residue=residue, step=step),
    )


def _span(span: int, **kwargs: object) -> Cut:
    return _cut(Contiguous(span=span), **kwargs)  # type: ignore[arg-type]


SCALAR = {"instruction_k": 1, "dtype": F32}
PAIRS = {
    "span by a grain": (_desc(_span(512)), _desc(_span(576)), 1500),
    "one span or a chain": (_desc(), _desc(_span(1024)), 1100),
    "short part first": (_desc(_span(256)), _desc(_cut(Contiguous(span=256, short=Short.FIRST))), 900),
    "residue": (_desc(residue=ResidueFirst(k_loop_step=32)), _desc(residue=ResidueLast()), 1001),
    "residue loop": (_desc(residue=ResidueFirst(k_loop_step=32)), _desc(residue=ResidueFirst(k_loop_step=64)), 1001),
    "instruction_k": (_desc(instruction_k=8), _desc(instruction_k=16), 512),
    "instruction_k at k = 16": (_desc(instruction_k=8), _desc(instruction_k=16), 16),
    "lost tail": (_desc(_span(256), k=1024), _desc(_span(256)), 1030),
    "partial float16": (_desc(_span(256, partial=F16)), _desc(_span(256)), 1024),
    "merge float16": (_desc(_span(256, partial=F16, merge=F16)), _desc(_span(256, partial=F16)), 1024),
    "partial bfloat16": (_desc(_span(256, partial=BF16), dtype=BF16), _desc(_span(256), dtype=BF16), 1024),
    "bfloat16 or float16": (_desc(_span(256, partial=BF16)), _desc(_span(256, partial=F16)), 1024),
    "start": (_desc(_span(256, partial=F16)), _desc(_span(256, partial=F16, start=Start.ZERO)), 1024),
    "start bfloat16": (
        _desc(_span(256, partial=BF16), dtype=BF16),
        _desc(_span(256, partial=BF16, start=Start.ZERO), dtype=BF16),
        1024,
    ),
    "strided or contiguous": (_desc(_cut(Strided(count=4, unit=32))), _desc(_span(256)), 1024),
    "strided unit": (_desc(_cut(Strided(count=4, unit=32))), _desc(_cut(Strided(count=4, unit=64))), 1024),
    "nested": (_desc(_span(512), _span(128)), _desc(_span(128)), 2048),
    "fraction bits": (_desc(), _desc(step=replace(FUSED, fraction_bits=24)), 512),
    "output bits": (_desc(), _desc(step=replace(FUSED, output_bits=22)), 512),
    "rounding hidden by narrow partials": (
        _desc(_span(16, partial=F16)),
        _desc(_span(16, partial=F16), step=replace(FUSED, rounding=Rounding.NEAREST_EVEN)),
        512,
    ),
    "rounding": (_desc(), _desc(step=replace(FUSED, rounding=Rounding.NEAREST_EVEN)), 512),
    "scalar order": (
        _desc(_cut(Strided(count=32, unit=1)), step=ScalarStep(fused=True), **SCALAR),  # type: ignore[arg-type]
        _desc(step=ScalarStep(fused=True), **SCALAR),  # type: ignore[arg-type]
        300,
    ),
    "fma or not": (
        _desc(step=ScalarStep(fused=True), **SCALAR),  # type: ignore[arg-type]
        _desc(step=ScalarStep(fused=False), **SCALAR),  # type: ignore[arg-type]
        300,
    ),
    "fma or not, bfloat16": (
        _desc(step=ScalarStep(fused=True), instruction_k=1, dtype=BF16),
        _desc(step=ScalarStep(fused=False), instruction_k=1, dtype=BF16),
        300,
    ),
    "float8": (
        _desc(_span(128), instruction_k=32, dtype=DType.FLOAT8_E4M3FN, output=BF16,
              step=replace(FUSED, fraction_bits=13, output_bits=13)),
        _desc(instruction_k=32, dtype=DType.FLOAT8_E4M3FN, output=BF16,
              step=replace(FUSED, fraction_bits=13, output_bits=13)),
        512,
    ),
    "cast": (replace(_desc(output=F32), epilogue=(CastTo(dtype=F16),)), _desc(output=F32), 64),
    "relu hides half": (
        replace(_desc(_span(512)), epilogue=(Relu(),)), replace(_desc(_span(576)), epilogue=(Relu(),)), 1500
    ),
    "many leaves": (_desc(_span(64)), _desc(_span(128)), 50_000),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_rivals_differ_in_most_rows(name: str) -> None:
    one, other, k = PAIRS[name]
    shares = []
    for draw in range(4):
        pair = rival_operands(one, other, k, seed=3, draw=draw, dtype=one.a_dtype)
        assert pair is not None
        a, b = (operand.bits(outer, k) for operand, outer in zip(pair, (40, 2), strict=True))
        first, second = (replay(desc, a, np.ascontiguousarray(b.T)) for desc in (one, other))
        shares.append(float((first != second).mean()))
    assert min(shares) > 0.8, shares


def test_same_arguments_same_operands_and_new_draws_differ() -> None:
    one, other, k = PAIRS["span by a grain"]
    bits = []
    for draw in (0, 0, 1):
        pair = rival_operands(one, other, k, seed=1, draw=draw, dtype=F16)
        assert pair is not None
        bits.append(pair[0].bits(30, k))
    np.testing.assert_array_equal(bits[0], bits[1])
    assert (bits[0] != bits[2]).any()


def test_no_operands_for_equal_normal_forms() -> None:
    assert rival_operands(_desc(), _desc(_span(4096)), 1000, seed=0, draw=0, dtype=F16) is None
    assert rival_operands(_desc(), _desc(_span(16)), 0, seed=0, draw=0, dtype=F16) is None


def test_an_empty_sum_is_told_from_a_full_one() -> None:
    one, other = _desc(k=0), _desc()
    pair = rival_operands(one, other, 64, seed=0, draw=0, dtype=F16)
    assert pair is not None
    a, b = pair[0].bits(8, 64), pair[1].bits(1, 64)
    assert (replay(one, a, b.T) != replay(other, a, b.T)).mean() > 0.8


SETS = {
    "one chain": (_desc(residue=ResidueFirst(k_loop_step=64)), 1000),
    "slices": (_desc(_span(264), residue=ResidueFirst(k_loop_step=32)), 1000),
    "bfloat16 slices": (_desc(_span(264), dtype=BF16, output=BF16, residue=ResidueFirst(k_loop_step=128)), 1000),
    "lost tail": (_desc(_span(192), k=960), 1000),
}


@pytest.mark.parametrize("name", SETS)
def test_one_product_tells_all_rivals(name: str) -> None:
    """Rows of one operand pair, 64 of which a comparison looks at, refute every mutant."""
    desc, k = SETS[name]
    rivals = [m.desc for m in mutants(desc, k)]
    assert len(rivals) >= 4
    pair = rival_set_operands(desc, rivals, k, seed=7, draw=0, dtype=desc.a_dtype)
    assert pair is not None
    a, b = pair[0].bits(200, k)[::3], np.ascontiguousarray(pair[1].bits(2, k).T)
    own = replay(desc, a, b)
    caught = [(replay(other, a, b) != own).any() for other in rivals]
    assert all(caught), [m.change for m, seen in zip(mutants(desc, k), caught, strict=True) if not seen]


def test_a_set_without_rivals_has_no_operands() -> None:
    assert rival_set_operands(_desc(), (), 500, seed=1, draw=0, dtype=F16) is None
    assert rival_set_operands(_desc(), (_desc(),), 500, seed=1, draw=0, dtype=F16) is None
    assert rival_set_operands(_desc(), (_desc(_span(64)),), 0, seed=1, draw=0, dtype=F16) is None


def test_odd_sets_show_where_a_fold_starts() -> None:
    first = _desc(_span(64), output=F32)
    zero = replace(first, cuts=(replace(first.cuts[0], partial_dtype=F16, start=Start.ZERO),))
    narrow = replace(first, cuts=(replace(first.cuts[0], partial_dtype=F16),))
    pair = rival_set_operands(narrow, (zero,), 300, seed=1, draw=1, dtype=F16)
    assert pair is not None
    a, b = pair[0].bits(40, 300), np.ascontiguousarray(pair[1].bits(1, 300).T)
    assert (replay(narrow, a, b) != replay(zero, a, b)).any()


@pytest.mark.parametrize("draw", [0, 1])
def test_a_rival_without_patterns_has_no_rows(draw: int) -> None:
    """Two empty sums are told apart by nothing; the rows of another rival stay."""
    one, others = _desc(k=0), (_desc(_span(16), k=0), _desc(_span(16)))
    assert rival_set_operands(one, others[:1], 64, seed=0, draw=draw, dtype=F16) is None
    assert rival_set_operands(one, others, 64, seed=0, draw=draw, dtype=F16) is not None
