"""The table of accumulator models."""

from __future__ import annotations

from collections import Counter

import pytest

from gemmdesc.arithmetic.models import AccumulatorModel, find_model, load_models
from gemmdesc.descriptor import FusedDot, Rounding
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError

ARCHITECTURES = {"Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell", "RTX Blackwell"}


def key(model: AccumulatorModel) -> tuple[object, ...]:
    return model.architecture, model.instruction, model.a_dtype, model.b_dtype, model.accumulator_dtype


def test_every_row_has_its_own_key_and_a_source() -> None:
    models = load_models()
    assert {m.architecture for m in models} == ARCHITECTURES
    assert max(Counter(map(key, models)).values()) == 1
    assert all(m.source for m in models)


@pytest.mark.parametrize("model", load_models(), ids=lambda m: " ".join(getattr(x, "value", x) for x in key(m)))
def test_a_row_is_found_by_its_key_and_makes_a_step(model: AccumulatorModel) -> None:
    found = find_model(
        architecture=model.architecture,
        instruction=model.instruction,
        a_dtype=model.a_dtype,
        b_dtype=model.b_dtype,
        accumulator_dtype=model.accumulator_dtype,
    )
    assert found == model
    assert found.step.accumulator_dtype is model.accumulator_dtype
    # No row needs the slower test for zeros among the terms.
    assert found.zero_exponent < model.accumulator_dtype.format.min_exponent


def test_hopper_is_what_was_measured() -> None:
    step = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
    for operand in (DType.FLOAT16, DType.BFLOAT16):
        for instruction in ("mma", "wgmma"):
            model = find_model(
                architecture="Hopper",
                instruction=instruction,
                a_dtype=operand,
                b_dtype=operand,
                accumulator_dtype=DType.FLOAT32,
            )
            assert (model.step, model.instruction_k) == (step, 16)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architecture", "Pascal"),
        ("instruction", "dp4a"),
        ("a_dtype", DType.FLOAT64),
        ("b_dtype", DType.BFLOAT16),
        ("accumulator_dtype", DType.BFLOAT16),
    ],
)
def test_the_error_names_the_part_of_the_key_that_has_no_match(name: str, value: object) -> None:
    wanted = {
        "architecture": "Hopper",
        "instruction": "wgmma",
        "a_dtype": DType.FLOAT16,
        "b_dtype": DType.FLOAT16,
        "accumulator_dtype": DType.FLOAT32,
        name: value,
    }
    with pytest.raises(InvalidInputError, match=rf"^{name} must .*\(got {getattr(value, 'value', value)}\)$"):
        find_model(**wanted)  # type: ignore[arg-type]
