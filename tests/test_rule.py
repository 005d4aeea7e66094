"""Rules: descriptors whose integers are expressions."""

from __future__ import annotations

import pytest
from hypothesis import given

from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueLast,
    Rounding,
    ScalarStep,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, DescriptorError
from gemmdesc.expressions import Const, Var, call, evaluate
from gemmdesc.rule import Rule, choose_rule, evaluate_rule, make_rule, parse_rule
from gemmdesc.text import parse_descriptor
from gemmdesc.variable_fields import map_variables, variable_fields
from tests.strategies import branching, descriptors, environments, rules

STEP = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
SPLIT = GEMMDesc(
    a_dtype=DType.FLOAT16,
    b_dtype=DType.FLOAT16,
    output_dtype=DType.FLOAT16,
    summed_k=1,
    cuts=(
        Cut(
            layout=Contiguous(span=1), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST
        ),
    ),
    accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=STEP),
)
SPAN = call("round_up", call("floordiv", "k", "splitk_num"), 64)
LOST_TAIL = make_rule(
    SPLIT, {"cuts.0.layout.span": SPAN, "summed_k": call("min", "k", call("mul", SPAN, "splitk_num"))}
)


@given(rules())
def test_text_comes_back(rule: Rule) -> None:
    again = parse_rule(rule.text)
    assert again == rule
    assert again.text == rule.text == str(rule)
    assert hash(again) == hash(rule)


@given(rules(), environments)
def test_a_rule_gives_a_descriptor_with_the_values_of_its_expressions_or_declines(
    rule: Rule, environment: dict[str, int]
) -> None:
    values = {path: evaluate(e, environment) for path, e in rule.integers}
    result = evaluate_rule(rule, environment)
    if isinstance(result, Declined):
        assert result.code == "no_rule"
        assert any(value < 1 for value in values.values()) or values["accumulator.instruction_k"] != 1
    else:
        assert variable_fields(result) == values
        assert map_variables(result, lambda path, value: 1) == rule.structure


@given(branching)
def test_a_rule_with_branches_survives_its_text(rule: Rule) -> None:
    again = parse_rule(rule.text)
    assert again == rule
    assert again.text == rule.text
    assert all(branch.otherwise is None for _, branch in rule.branches)
    assert rule.restructured(lambda desc: desc) == rule


@given(branching, environments)
def test_the_first_branch_whose_condition_holds_gives_the_descriptor(rule: Rule, environment: dict[str, int]) -> None:
    chosen = next(branch for when, branch in rule.branches if when is None or evaluate(when, environment))
    assert evaluate_rule(rule, environment) == evaluate_rule(chosen, environment)
    assert chosen.variables <= rule.variables


def test_branches_that_are_none() -> None:
    plain = make_rule(SPLIT, {})
    with pytest.raises(DescriptorError, match=r"^when and otherwise must be given together"):
        Rule(structure=plain.structure, integers=plain.integers, when=Const(1))
    with pytest.raises(DescriptorError, match=r"^then must be a rule of one structure"):
        choose_rule(Const(1), choose_rule(Const(1), plain, plain), plain)
    with pytest.raises(DescriptorError, match="select"):
        parse_rule(f"select(1, {plain.text})")


@given(descriptors)
def test_a_descriptor_is_the_rule_of_its_own_constants(desc: GEMMDesc) -> None:
    rule = make_rule(desc, {})
    assert rule.variables == frozenset()
    assert evaluate_rule(rule, {}) == desc
    assert parse_descriptor(rule.text) == desc
    assert parse_rule(rule.text) == rule


def test_the_lost_tail_of_a_split_is_a_rule() -> None:
    assert LOST_TAIL.variables == {"k", "splitk_num"}
    whole = evaluate_rule(LOST_TAIL, {"k": 6832, "splitk_num": 5})
    assert isinstance(whole, GEMMDesc)
    assert (whole.summed_k, whole.cuts[0].layout) == (6832, Contiguous(span=1408))
    lost = evaluate_rule(LOST_TAIL, {"k": 157_504, "splitk_num": 123})
    assert isinstance(lost, GEMMDesc)
    assert (lost.summed_k, lost.cuts[0].layout) == (157_440, Contiguous(span=1280))


def test_text_shows_expressions_where_integers_stand() -> None:
    assert "span=round_up(floordiv(k, splitk_num), 64), short=last" in LOST_TAIL.text
    assert "instruction_k=16" in LOST_TAIL.text


def test_a_rule_declines_without_the_launch_that_it_needs() -> None:
    rule = make_rule(SPLIT, {"cuts.0.layout.span": call("ceildiv", "k", "grid_z")})
    result = evaluate_rule(rule, {"m": 1, "n": 1, "k": 100, "splitk_num": 4})
    assert result == Declined(code="no_rule", reason="the rule needs grid_z, which are not known here")
    assert isinstance(evaluate_rule(rule, {"k": 100, "grid_z": 4}), GEMMDesc)


def test_a_rule_declines_where_an_integer_is_out_of_range_and_names_it() -> None:
    rule = make_rule(SPLIT, {"cuts.0.layout.span": call("floordiv", "k", 64)})
    result = evaluate_rule(rule, {"k": 63})
    assert isinstance(result, Declined)
    assert "contiguous.span must be an integer of at least 1 (got 0)" in result.reason


def test_a_scalar_step_takes_one_product_at_a_time_whatever_the_expression_says() -> None:
    desc = GEMMDesc(
        a_dtype=DType.FLOAT32,
        b_dtype=DType.FLOAT32,
        output_dtype=DType.FLOAT32,
        summed_k=1,
        cuts=(),
        accumulator=Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True)),
    )
    result = evaluate_rule(make_rule(desc, {"accumulator.instruction_k": Var("k")}), {"k": 2})
    assert isinstance(result, Declined)
    assert "accumulator.instruction_k" in result.reason


def test_make_rule_refuses_paths_that_are_not_there() -> None:
    with pytest.raises(DescriptorError, match=r"^expressions must name variable fields \(got .*cuts.1.*\)$"):
        make_rule(SPLIT, {"cuts.1.layout.span": Const(1)})


def test_a_rule_names_each_variable_field_once_and_in_order() -> None:
    with pytest.raises(DescriptorError, match=r"^integers must name .*, in this order \(got summed_k\)$"):
        Rule(structure=LOST_TAIL.structure, integers=(("summed_k", Const(1)),))
    with pytest.raises(DescriptorError, match=r"^integers must name"):
        Rule(structure=LOST_TAIL.structure, integers=(*LOST_TAIL.integers, LOST_TAIL.integers[0]))
    with pytest.raises(DescriptorError, match=r"^integers must name"):
        Rule(structure=LOST_TAIL.structure, integers=LOST_TAIL.integers[::-1])


def test_the_structure_holds_no_integers_of_its_own() -> None:
    with pytest.raises(DescriptorError, match=r"^structure must hold 1 in each variable field \(got gemm\("):
        Rule(structure=SPLIT, integers=LOST_TAIL.integers)


@pytest.mark.parametrize(
    ("old", "new", "start"),
    [
        ("span=round_up(", "span=pad_to(", "cuts.0.layout.span: operation must be one of"),
        ("span=round_up(floordiv(k, splitk_num), 64)", "span=k + 1", "cuts.0.layout.span: expression must use"),
        ("instruction_k=16", "instruction_k=0.5", "accumulator.instruction_k: expression must use"),
        ("instruction_k=16", "instruction_k=True", "accumulator.instruction_k: expression must use"),
        ("fraction_bits=25", "fraction_bits=k", "fraction_bits must not be a bare word"),
        ("instruction_k=16, ", "", "accumulator.instruction_k must be given"),
        ("gemm(", "cut(", "cut must have only the fields"),
        ("gemm(", "gem(", "text must be a tag"),
    ],
)
def test_bad_text_names_the_field(old: str, new: str, start: str) -> None:
    assert old in LOST_TAIL.text
    with pytest.raises(DescriptorError) as caught:
        parse_rule(LOST_TAIL.text.replace(old, new, 1))
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(")")
    assert "(got " in str(caught.value)


def test_text_of_a_part_is_no_rule() -> None:
    with pytest.raises(DescriptorError, match=r"^text must be a gemm\(\.\.\.\) \(got Relu\)$"):
        parse_rule("relu()")
