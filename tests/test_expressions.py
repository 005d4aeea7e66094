"""The expression language: what each operation means, totality, text, arrays against single environments."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdesc.errors import DescriptorError
from gemmdesc.expressions import (
    Call,
    Const,
    Expr,
    Operation,
    Var,
    call,
    evaluate,
    evaluate_all,
    parse_expression,
    size,
    variables,
)
from tests.strategies import VARIABLES, environments, expressions


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _floordiv(x: int, y: int) -> int:
    return 0 if y == 0 else _wrap(x // y)


def _ceildiv(x: int, y: int) -> int:
    return _wrap(-_floordiv(_wrap(-x), y))


def _meaning(operation: Operation, *x: int) -> int:
    """The operations over Python's own integers, wrapped to 64 bits."""
    match operation:
        case Operation.ADD:
            return _wrap(x[0] + x[1])
        case Operation.SUB:
            return _wrap(x[0] - x[1])
        case Operation.MUL:
            return _wrap(x[0] * x[1])
        case Operation.FLOORDIV:
            return _floordiv(*x)
        case Operation.CEILDIV:
            return _ceildiv(*x)
        case Operation.MOD:
            return x[0] if x[1] == 0 else x[0] % x[1]
        case Operation.ROUND_UP:
            return x[0] if x[1] == 0 else _wrap(_ceildiv(*x) * x[1])
        case Operation.MIN:
            return min(x)
        case Operation.MAX:
            return max(x)
        case Operation.SELECT:
            return x[1] if x[0] != 0 else x[2]
        case Operation.LEAVES:
            return _leaves(x[0])


def _leaves(places: int) -> int:
    """Tree by tree from below; what many places allow is known to lie near their number."""
    if places < 1:
        return 1
    low = max(1, places - 80)
    return max(s for s in range(low, places + 2) if _tree_places(s) <= places)


def _tree_places(leaves: int) -> int:
    levels = (leaves - 1).bit_length()
    return sum(-(-leaves // 2**level) for level in range(1, levels + 1))


def _value(expression: Expr, environment: dict[str, int]) -> int:
    match expression:
        case Const(value=value):
            return value
        case Var(name=name):
            return environment[name]
        case Call(operation=operation, arguments=arguments):
            return _meaning(operation, *(_value(a, environment) for a in arguments))


@given(expressions, environments)
def test_every_expression_has_its_value_in_every_environment(expression: Expr, environment: dict[str, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(expression, environment) == _value(expression, environment)


@given(expressions, st.lists(environments, min_size=1, max_size=5))
def test_arrays_give_what_single_environments_give(expression: Expr, points: list[dict[str, int]]) -> None:
    arrays = {name: np.array([p[name] for p in points], dtype=np.int64) for name in VARIABLES}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = np.broadcast_to(evaluate_all(expression, arrays), len(points))
    assert together.dtype == np.int64
    assert together.tolist() == [evaluate(expression, p) for p in points]


@given(expressions)
def test_text_comes_back(expression: Expr) -> None:
    assert parse_expression(str(expression)) == expression


@given(expressions)
def test_size_and_variables_agree_with_the_text(expression: Expr) -> None:
    text = str(expression)
    assert size(expression) == 1 + text.count("(") + text.count(",")
    words = set(re.findall(r"[a-z_]+", text))
    assert variables(expression) == words - {operation.value for operation in Operation}


@pytest.mark.parametrize(
    ("text", "environment", "value"),
    [
        ("round_up(floordiv(k, splitk_num), 64)", {"k": 6832, "splitk_num": 5}, 1408),
        ("select(mod(k, 64), 8, 64)", {"k": 640}, 64),
        ("select(mod(k, 64), 8, 64)", {"k": 641}, 8),
        ("min(64, ceildiv(k, 32))", {"k": 33}, 2),
        ("min(64, ceildiv(k, 32))", {"k": 1 << 20}, 64),
        ("ceildiv(k, splitk_num)", {"k": 100, "splitk_num": 7}, 15),
        ("floordiv(k, 0)", {"k": 5}, 0),
        ("leaves(k)", {"k": 0}, 1),
        ("leaves(k)", {"k": 1}, 2),
        ("leaves(k)", {"k": 5}, 4),
        ("leaves(k)", {"k": 6}, 6),
        ("leaves(k)", {"k": 28}, 28),
        ("ceildiv(k, 0)", {"k": 5}, 0),
        ("mod(k, 0)", {"k": 5}, 5),
        ("round_up(k, 0)", {"k": 5}, 5),
        ("floordiv(-7, 2)", {}, -4),
        ("mod(-7, 2)", {}, 1),
        ("ceildiv(-7, 2)", {}, -3),
        ("max(sub(0, k), -3)", {"k": 5}, -3),
        (str(2**63 - 1), {}, 2**63 - 1),
        (str(-(2**63)), {}, -(2**63)),
    ],
)
def test_examples(text: str, environment: dict[str, int], value: int) -> None:
    assert evaluate(parse_expression(text), environment) == value
    assert str(parse_expression(text)) == text


def test_spaces_do_not_matter() -> None:
    assert parse_expression("min( m ,n)") == call("min", "m", "n")


def test_commuting_operations_commute() -> None:
    for operation in Operation:
        if operation.commutes:
            assert all(_meaning(operation, x, y) == _meaning(operation, y, x) for x in (-3, 0, 7) for y in (-2, 5))


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("power(k, 2)", "operation must be one of add, "),
        ("min(k)", "min must have 2 arguments"),
        ("select(k, 1)", "select must have 3 arguments"),
        ("min(*k)", "expression must use integers"),
        ("min(k, y=1)", "expression must use integers"),
        ("k + 1", "expression must use integers"),
        ("1.5", "expression must use integers"),
        ("True", "expression must use integers"),
        ("'k'", "expression must use integers"),
        ("k.bit_length()", "expression must use integers"),
        ("__import__('os')", "operation must be one of add, "),
        (str(2**63), "constant must be a 64-bit integer"),
        ("-" + str(2**63 + 1), "constant must be a 64-bit integer"),
        ("min(k", "expression must parse"),
        ("", "expression must parse"),
        ("k\0", "expression must parse"),
        ("9" * 5000, "expression must parse"),
        ("(" * 5000, "expression must parse"),
        ("-" * 100_000 + "1", "expression must"),
    ],
)
def test_what_is_no_expression_says_so(text: str, start: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        parse_expression(text)
    assert str(caught.value).startswith(start)
    assert "(got " in str(caught.value)
    assert str(caught.value).endswith(")")
    assert len(str(caught.value)) < 500


def test_a_variable_without_a_value_is_named() -> None:
    with pytest.raises(DescriptorError, match=r"^grid_x must have a value \(got k, m\)$"):
        evaluate(Var("grid_x"), {"m": 1, "k": 2})
