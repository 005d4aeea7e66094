"""A rule: a descriptor whose integers are expressions in the problem and the library's answer.

``Rule.text`` is the descriptor's canonical text with expressions where integers stand, for example
``span=round_up(floordiv(k, splitk_num), 64)``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gemmdesc.descriptor import GEMMDesc, variable_fields, with_variables
from gemmdesc.errors import Declined, DescriptorError
from gemmdesc.expressions import Const, Expr, evaluate, from_tree, variables
from gemmdesc.text import build, parse_tree, to_text


@dataclass(frozen=True, kw_only=True)
class Rule:
    """``structure`` holds everything but its variable integers, which are 1 there; ``integers`` gives each by path.

    Raises:
        DescriptorError: ``integers`` does not name exactly the structure's variable fields in their order, or the
            structure holds another integer in one of them.
    """

    structure: GEMMDesc
    integers: tuple[tuple[str, Expr], ...]

    def __post_init__(self) -> None:
        needed, given = variable_fields(self.structure), [path for path, _ in self.integers]
        if list(needed) != given:
            raise DescriptorError(f"integers must name {', '.join(needed)}, in this order (got {', '.join(given)})")
        if any(value != 1 for value in needed.values()):
            raise DescriptorError(f"structure must hold 1 in each variable field (got {to_text(self.structure)})")

    @cached_property
    def text(self) -> str:
        """The canonical text: equal exactly where the rules are."""
        return to_text(self.structure, {path: str(e) for path, e in self.integers})

    @property
    def variables(self) -> frozenset[str]:
        """The names that an environment must hold."""
        return frozenset().union(*(variables(e) for _, e in self.integers))

    def __str__(self) -> str:
        return self.text


def make_rule(desc: GEMMDesc, expressions: Mapping[str, Expr]) -> Rule:
    """``desc`` with the integers at the given paths replaced by expressions; the others become constants.

    Raises:
        DescriptorError: a path names no variable field.
    """
    values = variable_fields(desc)
    unknown = set(expressions) - set(values)
    if unknown:
        raise DescriptorError(f"expressions must name variable fields (got {sorted(unknown)})")
    integers = tuple((path, expressions.get(path, Const(value))) for path, value in values.items())
    return Rule(structure=with_variables(desc, dict.fromkeys(values, 1)), integers=integers)


def parse_rule(text: str) -> Rule:
    """The rule that :attr:`Rule.text` spells.

    Raises:
        DescriptorError: the text is no rule; the message names the field.
    """
    holes: dict[str, ast.expr] = {}
    desc = build(parse_tree(text), holes=holes)
    if not isinstance(desc, GEMMDesc):
        raise DescriptorError(f"text must be a gemm(...) (got {type(desc).__name__})")
    return make_rule(desc, {path: _expression(path, node) for path, node in holes.items()})


def _expression(path: str, node: ast.expr) -> Expr:
    try:
        return from_tree(node)
    except DescriptorError as error:
        raise DescriptorError(f"{path}: {error}") from None


def evaluate_rule(rule: Rule, environment: Mapping[str, int]) -> GEMMDesc | Declined:
    """The descriptor at one problem and answer, or why there is none.

    Declines where the rule needs a launch that is unknown, or yields an integer that no descriptor can have.
    """
    missing = rule.variables - set(environment)
    if missing:
        return Declined(code="no_rule", reason=f"the rule needs {', '.join(sorted(missing))}, which are not known here")
    values = {path: evaluate(e, environment) for path, e in rule.integers}
    try:
        return with_variables(rule.structure, values)
    except DescriptorError as error:
        return Declined(code="no_rule", reason=f"the rule does not apply to this problem: {error}")
