"""A rule: a descriptor whose integers are expressions in the problem and the library's answer.

``Rule.text`` is the descriptor's canonical text with expressions where integers stand, for example
``span=round_up(floordiv(k, splitk_num), 64)``.  Where one answer has several structures, the text is
``select(condition, gemm(...), gemm(...))``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined, DescriptorError
from gemmdesc.expressions import Const, Expr, Operation, evaluate, from_tree, variables
from gemmdesc.text import build, parse_tree, to_text
from gemmdesc.variable_fields import variable_fields, with_variables


@dataclass(frozen=True, kw_only=True)
class Rule:
    """``structure`` holds everything but its variable integers, which are 1 there; ``integers`` gives each by path.

    ``when``: an expression; where it is 0, ``otherwise`` holds instead.  Both are None for a rule of one structure.

    Raises:
        DescriptorError: ``integers`` does not name exactly the structure's variable fields in their order, or the
            structure holds another integer in one of them; or only one of ``when`` and ``otherwise`` is given.
    """

    structure: GEMMDesc
    integers: tuple[tuple[str, Expr], ...]
    when: Expr | None = None
    otherwise: Rule | None = None

    def __post_init__(self) -> None:
        needed, given = variable_fields(self.structure), [path for path, _ in self.integers]
        if list(needed) != given:
            raise DescriptorError(f"integers must name {', '.join(needed)}, in this order (got {', '.join(given)})")
        if any(value != 1 for value in needed.values()):
            raise DescriptorError(f"structure must hold 1 in each variable field (got {to_text(self.structure)})")
        if (self.when is None) != (self.otherwise is None):
            raise DescriptorError(f"when and otherwise must be given together (got {self.when}, {self.otherwise})")

    @cached_property
    def text(self) -> str:
        """The canonical text: equal exactly where the rules are."""
        own = to_text(self.structure, {path: str(e) for path, e in self.integers})
        return own if self.otherwise is None else f"{Operation.SELECT.value}({self.when}, {own}, {self.otherwise.text})"

    @property
    def branches(self) -> tuple[tuple[Expr | None, Rule], ...]:
        """Rules of one structure each, in order, with the expression under which each holds; None: in all other cases.

        A rule of one structure is its own only branch.
        """
        if self.otherwise is None:
            return ((None, self),)
        return ((self.when, replace(self, when=None, otherwise=None)), *self.otherwise.branches)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Those of all integers in all branches, as they stand."""
        return tuple(e for _, branch in self.branches for _, e in branch.integers)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that an environment must hold."""
        conditions = [when for when, _ in self.branches if when is not None]
        return frozenset().union(*(variables(e) for e in (*conditions, *self.expressions)))

    def branch(self, environment: Mapping[str, int]) -> int:
        """The number of the branch that holds in an environment."""
        held = (when is None or evaluate(when, environment) != 0 for when, _ in self.branches)
        return list(held).index(True)

    def restructured(self, change: Callable[[GEMMDesc], GEMMDesc]) -> Rule:
        """Every branch's structure passed through ``change``, which must leave its variable fields as they are."""
        otherwise = None if self.otherwise is None else self.otherwise.restructured(change)
        return replace(self, structure=change(self.structure), otherwise=otherwise)

    def __str__(self) -> str:
        return self.text


def choose_rule(when: Expr, then: Rule, otherwise: Rule) -> Rule:
    """``then`` where ``when`` is not 0, else ``otherwise``, which may itself have branches.

    Raises:
        DescriptorError: ``then`` has branches.
    """
    if then.otherwise is not None:
        raise DescriptorError(f"then must be a rule of one structure (got {then.text})")
    return replace(then, when=when, otherwise=otherwise)


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
    return _rule(parse_tree(text))


def _rule(node: ast.expr) -> Rule:
    match node:
        case ast.Call(func=ast.Name(id=Operation.SELECT.value), args=[when, then, otherwise], keywords=[]):
            return choose_rule(_expression("select", when), _rule(then), _rule(otherwise))
    holes: dict[str, ast.expr] = {}
    desc = build(node, holes=holes)
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
    if rule.when is not None and rule.otherwise is not None and not evaluate(rule.when, environment):
        return evaluate_rule(rule.otherwise, environment)
    values = {path: evaluate(e, environment) for path, e in rule.integers}
    try:
        return with_variables(rule.structure, values)
    except DescriptorError as error:
        return Declined(code="no_rule", reason=f"the rule does not apply to this problem: {error}")
