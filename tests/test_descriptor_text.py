"""Descriptors: validation that names the field, variable integers, canonical text and JSON."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.descriptor import (
    Accumulator,
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
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import DescriptorError
from gemmdesc.text import from_json, parse_descriptor, to_json, to_text
from gemmdesc.variable_fields import map_variables, variable_fields, with_variables
from tests.strategies import descriptors

STEP = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
CUT = Cut(
    layout=Contiguous(span=128), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT16, start=Start.FIRST
)
LEAF = Accumulator(instruction_k=16, residue=ResidueFirst(k_loop_step=64), step=STEP)
DESC = GEMMDesc(
    a_dtype=DType.FLOAT16,
    b_dtype=DType.FLOAT16,
    output_dtype=DType.FLOAT16,
    summed_k=1000,
    cuts=(CUT, replace(CUT, layout=Strided(count=4, unit=8))),
    accumulator=LEAF,
    epilogue=(Scale(), AddC(fused=True), CastTo(dtype=DType.FLOAT16), Relu()),
)
TEXT = (
    "gemm(a_dtype=float16, b_dtype=float16, output_dtype=float16, summed_k=1000, "
    "cuts=[cut(layout=contiguous(span=128, short=last), partial_dtype=float32, merge_dtype=float16, start=first), "
    "cut(layout=strided(count=4, unit=8), partial_dtype=float32, merge_dtype=float16, start=first)], "
    "accumulator=accumulator(instruction_k=16, residue=residue_first(k_loop_step=64), "
    "step=fused_dot(fraction_bits=25, output_bits=23, rounding=toward_zero, zero_exponent=-133, "
    "accumulator_dtype=float32)), "
    "epilogue=[scale(), add_c(fused=True), cast_to(dtype=float16), relu()])"
)


def _ends_with_got(error: pytest.ExceptionInfo[DescriptorError], start: str) -> None:
    message = str(error.value)
    assert message.startswith(start), message
    assert "(got " in message, message
    assert message.endswith(")"), message


def test_the_canonical_text() -> None:
    assert to_text(DESC) == TEXT
    assert parse_descriptor(TEXT) == DESC


@given(descriptors)
def test_text_and_json_come_back(desc: GEMMDesc) -> None:
    assert parse_descriptor(to_text(desc)) == desc
    assert from_json(to_json(desc)) == desc
    assert to_text(parse_descriptor(to_text(desc))) == to_text(desc)
    assert hash(parse_descriptor(to_text(desc))) == hash(desc)


@given(descriptors, descriptors)
def test_text_tells_descriptors_apart(one: GEMMDesc, other: GEMMDesc) -> None:
    assert (to_text(one) == to_text(other)) == (one == other)
    assert (to_json(one) == to_json(other)) == (one == other)


def test_json_is_an_object_with_tags() -> None:
    data = json.loads(to_json(DESC))
    assert data["is"] == "gemm"
    assert data["summed_k"] == 1000
    assert data["cuts"][1]["layout"] == {"is": "strided", "count": 4, "unit": 8}
    assert data["epilogue"][3] == {"is": "relu"}


def test_defaults_may_be_left_out_in_text_and_json() -> None:
    short = TEXT.replace(", short=last", "").replace(", accumulator_dtype=float32", "")
    assert parse_descriptor(short) == DESC
    data = json.loads(to_json(DESC))
    del data["cuts"][0]["layout"]["short"]
    assert from_json(json.dumps(data)) == DESC


@pytest.mark.parametrize(
    ("old", "new", "start"),
    [
        ("gemm(", "gem(", "text must be a tag"),
        ("summed_k=1000", "summed_k=-1", "summed_k must be an integer of at least 0"),
        ("summed_k=1000", "summed_k=True", "summed_k must be an integer of at least 0"),
        ("summed_k=1000", "summed_k=1e3", "summed_k must be a tag, a word, a list or an integer"),
        ("summed_k=1000", "summed_k=k", "summed_k must not be a bare word"),
        ("summed_k=1000", "summed_k=floordiv(k, 2)", "summed_k must be a tag"),
        ("summed_k=1000", "summed_k=-'a'", "summed_k must be a tag"),
        ("summed_k=1000", "summed_k=-True", "summed_k must be a tag"),
        ("summed_k=1000, ", "", "gemm.summed_k must be given"),
        ("summed_k=1000", "summed_k=1000, summed_k=1", "gemm must have only the fields"),
        ("summed_k=1000", "**x", "gemm must have only the fields"),
        ("summed_k=1000", "seed=1", "gemm must have only the fields"),
        ("span=128", "span=0", "contiguous.span must be an integer of at least 1"),
        ("short=last", "short=middle", "short must be one of first, last"),
        ("unit=8", "unit=0", "strided.unit must be"),
        ("count=4", "count=0", "strided.count must be"),
        ("strided(count=4, unit=8)", "relu()", "cut.layout must be a Contiguous or a Strided"),
        ("start=first", "start=second", "start must be one of first, zero"),
        ("start=first", "start=1", "cut.start must be a Start"),
        ("merge_dtype=float16", "merge_dtype=float64", "cut.merge_dtype must be float32, float16 or bfloat16"),
        ("partial_dtype=float32", "partial_dtype=5", "cut.partial_dtype must be float32, float16 or bfloat16"),
        ("a_dtype=float16", "a_dtype=half", "a_dtype must be one of float16"),
        ("a_dtype=float16", "a_dtype='float16'", "a_dtype must be a tag"),
        ("a_dtype=float16", "a_dtype=16", "a_dtype must be a DType"),
        ("instruction_k=16", "instruction_k=0", "accumulator.instruction_k must be"),
        ("k_loop_step=64", "k_loop_step=0", "residue_first.k_loop_step must be"),
        ("residue_first(k_loop_step=64)", "[]", "accumulator.residue must be a ResidueLast or a ResidueFirst"),
        ("fraction_bits=25", "fraction_bits=0", "fused_dot.fraction_bits must be"),
        ("output_bits=23", "output_bits=0", "fused_dot.output_bits must be"),
        ("zero_exponent=-133", "zero_exponent=True", "fused_dot.zero_exponent must be an integer"),
        ("rounding=toward_zero", "rounding=up", "rounding must be one of toward_zero, nearest_even"),
        ("rounding=toward_zero", "rounding=0", "fused_dot.rounding must be a Rounding"),
        ("accumulator_dtype=float32", "accumulator_dtype=bfloat16", "fused_dot.accumulator_dtype must be"),
        ("fused=True", "fused=1", "add_c.fused must be a bool"),
        ("cast_to(dtype=float16)", "cast_to(dtype=1)", "cast_to.dtype must be a DType"),
        ("epilogue=[scale()", "epilogue=[residue_last()", "epilogue.0 must be a Scale or"),
        ("epilogue=[", "epilogue=[scale(x=1), ", "scale must have no fields"),
        ("epilogue=[", "epilogue=[cast_to(float16), ", "cast_to must name every field"),
        ("cuts=[", "cuts=[relu(), ", "cuts.0 must be a Cut"),
        ("cuts=[", "cuts=[float16, ", "cuts must not be a bare word"),
    ],
)
def test_bad_text_is_refused_and_the_field_named(old: str, new: str, start: str) -> None:
    assert old in TEXT
    with pytest.raises(DescriptorError) as caught:
        parse_descriptor(TEXT.replace(old, new, 1))
    _ends_with_got(caught, start)


@pytest.mark.parametrize("text", ["", "gemm(", "gemm(\0)", "9" * 5000, "(" * 5000, "relu()", "float16", "1", "[]"])
def test_what_is_no_descriptor_at_all_is_refused(text: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        parse_descriptor(text)
    _ends_with_got(caught, "text must")


@given(st.text(max_size=30))
def test_any_text_is_a_descriptor_or_a_descriptor_error(text: str) -> None:
    with pytest.raises(DescriptorError):
        parse_descriptor(text)
    with pytest.raises(DescriptorError):
        from_json(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("is"), inner),
        max_leaves=5,
    )
)
def test_any_other_json_is_a_descriptor_error(data: Any) -> None:
    with pytest.raises(DescriptorError) as caught:
        from_json(json.dumps(data))
    _ends_with_got(caught, "")


def test_json_with_a_field_that_no_descriptor_has_is_refused() -> None:
    for key in ("seed", "not a name", ""):
        with pytest.raises(DescriptorError):
            from_json(json.dumps({**json.loads(to_json(DESC)), key: 1}))


def test_reading_evaluates_nothing() -> None:
    with pytest.raises(DescriptorError):
        parse_descriptor("gemm(a_dtype=__import__('os').abort())")


def test_values_are_checked_when_they_are_made() -> None:
    with pytest.raises(DescriptorError) as caught:
        replace(DESC, cuts=[CUT])  # type: ignore[arg-type]
    _ends_with_got(caught, "cuts must be a tuple")
    with pytest.raises(DescriptorError) as caught:
        replace(LEAF, step=ScalarStep(fused=True))
    _ends_with_got(caught, "accumulator.instruction_k must be 1 for a scalar step")
    with pytest.raises(DescriptorError) as caught:
        ScalarStep(fused=1)  # type: ignore[arg-type]
    _ends_with_got(caught, "scalar_step.fused must be a bool")
    with pytest.raises(DescriptorError) as caught:
        Contiguous(span=8, short="last")  # type: ignore[arg-type]
    _ends_with_got(caught, "contiguous.short must be a Short")


def test_no_field_accepts_a_value_of_a_foreign_type() -> None:
    """Every field of every part, given an object that no field can hold."""

    def parts(value: Any) -> list[Any]:
        inner = [getattr(value, f.name) for f in fields(value)]
        inner += [x for item in inner if isinstance(item, tuple) for x in item]
        return [value] + [p for x in inner if is_dataclass(x) for p in parts(x)]

    seen = 0
    for part in [*parts(DESC), ResidueLast(), ScalarStep(fused=True)]:
        for f in fields(part):
            with pytest.raises(DescriptorError, match=rf"(^|\.){f.name} must "):
                replace(part, **{f.name: object()})
            seen += 1
    assert seen > 20


def test_variable_fields_in_order() -> None:
    assert list(variable_fields(DESC).items()) == [
        ("summed_k", 1000),
        ("cuts.0.layout.span", 128),
        ("cuts.1.layout.count", 4),
        ("cuts.1.layout.unit", 8),
        ("accumulator.instruction_k", 16),
        ("accumulator.residue.k_loop_step", 64),
    ]


@given(descriptors, st.data())
def test_with_variables_changes_those_and_nothing_else(desc: GEMMDesc, data: st.DataObject) -> None:
    old = variable_fields(desc)
    new = {
        path: data.draw(st.integers(1, 99))
        for path in data.draw(st.sets(st.sampled_from(sorted(set(old) - {"accumulator.instruction_k"}))))
    }
    changed = with_variables(desc, new)
    assert variable_fields(changed) == {**old, **new}
    assert with_variables(changed, old) == desc
    assert map_variables(desc, lambda path, value: new.get(path, value)) == changed


def test_with_variables_refuses_unknown_paths_and_bad_values() -> None:
    with pytest.raises(DescriptorError) as caught:
        with_variables(DESC, {"cuts.2.layout.span": 1})
    _ends_with_got(caught, "path must name a variable field")
    with pytest.raises(DescriptorError) as caught:
        with_variables(DESC, {"cuts.0.layout.span": 0})
    _ends_with_got(caught, "contiguous.span")


def test_parts_print_and_expressions_take_the_place_of_integers() -> None:
    assert to_text(CUT.layout) == "contiguous(span=128, short=last)"
    assert to_text(Short.FIRST) == "first"
    assert to_text((Relu(), Scale())) == "[relu(), scale()]"
    assert "span=ceildiv(k, 3)," in to_text(DESC, {"cuts.0.layout.span": "ceildiv(k, 3)"})
