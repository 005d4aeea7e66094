"""Learning integers as expressions: known forms come back, hints come first, and nothing is made up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.errors import InvalidInputError
from gemmdesc.expressions import Call, Const, Expr, Operation, Var, evaluate, parse_expression, size
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.learn import Example, learn_integer
from tests.probe_samples import environments

KS = (129, 200, 264, 300, 512, 777, 1000, 1024, 1499)
DOMAIN = environments(KS, (2, 3, 5, 7))


def examples(truth: Expr, where: Sequence[dict[str, int]]) -> list[Example]:
    return [Example(environment=e, allowed=Allowed.exactly(evaluate(truth, e))) for e in where]


def equal_on(one: Expr, other: Expr, where: Sequence[dict[str, int]]) -> bool:
    return all(evaluate(one, e) == evaluate(other, e) for e in where)


@pytest.mark.parametrize(
    "text",
    [
        "k",
        "256",
        "ceildiv(k, splitk_num)",
        "round_up(floordiv(k, splitk_num), 64)",
        "round_up(ceildiv(k, splitk_num), 32)",
    ],
)
def test_known_forms_come_back(text: str) -> None:
    truth = parse_expression(text)
    found = learn_integer(examples(truth, DOMAIN[::9]), DOMAIN)
    assert any(equal_on(f, truth, DOMAIN) for f in found)
    assert [size(f) for f in found] == sorted(size(f) for f in found)
    assert all(equal_on(f, truth, DOMAIN[::9]) for f in found)


def test_a_grain_that_depends_on_alignment_and_layout() -> None:
    truth = parse_expression("round_up(ceildiv(k, splitk_num), select(mod(k, 64), 8, select(k_contiguous, 64, 8)))")
    where = environments((130, 192, 320, 448, 640, 777, 1000, 1280), (3, 5, 7))
    found = learn_integer(examples(truth, where[::2]), where)
    assert any(equal_on(f, truth, where) for f in found)


def test_given_expressions_are_used_like_variables() -> None:
    span = parse_expression("round_up(floordiv(k, splitk_num), 8)")
    truth = Call(Operation.MIN, (Var("k"), Call(Operation.MUL, (Var("splitk_num"), span))))
    readings = examples(truth, DOMAIN[::5])
    assert any(e.allowed.low < e.environment["k"] for e in readings)
    found = learn_integer(readings, DOMAIN, given=(span,))
    assert any(equal_on(f, truth, DOMAIN) for f in found)
    assert all(size(f) <= size(truth) for f in found)


def test_nothing_fits() -> None:
    rng = np.random.default_rng(3)
    noise = [
        Example(environment=e, allowed=Allowed.exactly(int(v)))
        for e, v in zip(DOMAIN[::6], rng.integers(10**6, 10**9, len(DOMAIN[::6])), strict=True)
    ]
    assert learn_integer(noise, DOMAIN) == ()
    with pytest.raises(InvalidInputError, match=r"^examples must hold at least one reading"):
        learn_integer([], DOMAIN)


def test_one_environment_with_two_values_has_no_expression() -> None:
    one = Example(environment=DOMAIN[0], allowed=Allowed.exactly(64))
    assert learn_integer([one, Example(environment=DOMAIN[0], allowed=Allowed.exactly(65))], DOMAIN) == ()


def test_hints_come_first() -> None:
    # The reading alone allows simpler expressions; the hint is a function that others were found to follow.
    hint = parse_expression("add(round_up(floordiv(k, splitk_num), 64), mul(0, mod(k, 7)))")
    readings = examples(hint, DOMAIN[:1])
    assert learn_integer(readings, DOMAIN, hints=(hint,)) == (hint,)
    assert hint not in learn_integer(readings, DOMAIN)
    wrong = parse_expression("floordiv(k, 1000000)")
    assert learn_integer(readings, DOMAIN, hints=(wrong,)) == learn_integer(readings, DOMAIN)
    # A constant hints at nothing.
    assert Const(999) not in learn_integer(readings, DOMAIN, hints=(Const(999),))


def test_hints_with_unknown_variables_are_left_out() -> None:
    hint = parse_expression("ceildiv(k, grid_x)")
    readings = examples(parse_expression("ceildiv(k, splitk_num)"), DOMAIN[::9])
    assert learn_integer(readings, DOMAIN, hints=(hint,)) == learn_integer(readings, DOMAIN)


def test_at_least() -> None:
    allowed = Allowed.at_least(300)
    assert (allowed.low, allowed.exact) == (300, False)
    assert Allowed.exactly(5).exact
    where = environments((200, 1000), (1, 4))
    truth = parse_expression("ceildiv(k, splitk_num)")
    readings = [
        Example(
            environment=e,
            allowed=Allowed.at_least(e["k"]) if e["splitk_num"] == 1 else Allowed.exactly(evaluate(truth, e)),
        )
        for e in where
    ]
    found = learn_integer(readings, where)
    assert found
    for f in found:
        assert all(r.allowed.low <= evaluate(f, r.environment) <= r.allowed.high for r in readings)
    assert any(equal_on(f, truth, where) for f in found)


@st.composite
def expressions(draw: st.DrawFn, operations: int) -> Expr:
    atom = st.one_of(st.sampled_from([Var("k"), Var("splitk_num")]), st.sampled_from([Const(2**i) for i in range(11)]))
    tree: Expr = draw(atom)
    for _ in range(operations):
        operation = draw(st.sampled_from([o for o in Operation if o.arity == 2]))
        pair = (tree, draw(atom))
        tree = Call(operation, pair if draw(st.booleans()) else pair[::-1])
    return tree


SMALL = environments((130, 264, 777, 1024), (2, 3, 5))[::4]


def operations_in(expression: Expr) -> int:
    return 1 + sum(map(operations_in, expression.arguments)) if isinstance(expression, Call) else 0


@given(expressions(2), st.integers(4, 10))
@settings(max_examples=12)
def test_the_truth_survives_unless_a_simpler_stage_explains_all(truth: Expr, count: int) -> None:
    readings = examples(truth, SMALL[:count])
    found = learn_integer(readings, SMALL, conditions=(), most=10**6)
    assert found
    assert all(equal_on(f, truth, SMALL[:count]) for f in found)
    same = any(equal_on(f, truth, SMALL) for f in found)
    assert same or all(operations_in(f) < operations_in(truth) for f in found)
    # One survivor for each function on the domain.
    functions = {tuple(evaluate(f, e) for e in SMALL) for f in found}
    assert len(functions) == len(found)
