"""The small integer language of rules: total, printable, parsable, evaluable on whole arrays at once.

An expression is a constant, a variable, or one of the operations in :class:`Operation` applied to expressions.  It
evaluates to an int64 for every environment: dividing by zero (or rounding up to a multiple of zero) is defined
below, and what overflows wraps modulo 2^64, so that enumeration never has to guess which expressions are safe.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.errors import DescriptorError

Values = npt.NDArray[np.int64]


def _floordiv(x: Values, y: Values) -> Values:
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y))


def _mod(x: Values, y: Values) -> Values:
    return np.where(y == 0, x, x % np.where(y == 0, 1, y))


def _ceildiv(x: Values, y: Values) -> Values:
    return -_floordiv(-x, y)


def _round_up(x: Values, y: Values) -> Values:
    return np.where(y == 0, x, _ceildiv(x, y) * y)


def _select(c: Values, x: Values, y: Values) -> Values:
    return np.where(c != 0, x, y)


def _joins(leaves: int) -> int:
    """Joins of a tree over ``leaves`` in which each level joins neighbours, a level of s taking ceil(s / 2) places."""
    found = 0
    while leaves > 1:
        leaves = -(-leaves // 2)
        found += leaves
    return found


def _int_leaves(joins: int) -> int:
    if joins < 1:
        return 1
    leaves = joins + 1
    while _joins(leaves) > joins:
        leaves -= 1
    return leaves


_leaves = np.vectorize(_int_leaves, otypes=[np.int64])


class Operation(Enum):
    """Names as they print.  ``floordiv(x, 0)`` and ``ceildiv(x, 0)`` are 0; ``mod(x, 0)`` and ``round_up(x, 0)`` are x.

    ``select(c, x, y)`` is x where c is not 0, else y.  ``leaves(x)``: the most leaves (at least 1) of a tree that joins
    neighbours level by level and has at most x places to join, where a level of s leaves or joins below takes
    ceil(s / 2) places; never more than about x + 1.
    """

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    FLOORDIV = "floordiv"
    CEILDIV = "ceildiv"
    MOD = "mod"
    ROUND_UP = "round_up"
    MIN = "min"
    MAX = "max"
    SELECT = "select"
    LEAVES = "leaves"

    @property
    def arity(self) -> int:
        return {Operation.SELECT: 3, Operation.LEAVES: 1}.get(self, 2)

    @property
    def commutes(self) -> bool:
        return self in (Operation.ADD, Operation.MUL, Operation.MIN, Operation.MAX)


_COMPUTE: dict[Operation, Callable[..., Values]] = {
    Operation.ADD: np.add,
    Operation.SUB: np.subtract,
    Operation.MUL: np.multiply,
    Operation.FLOORDIV: _floordiv,
    Operation.CEILDIV: _ceildiv,
    Operation.MOD: _mod,
    Operation.ROUND_UP: _round_up,
    Operation.MIN: np.minimum,
    Operation.MAX: np.maximum,
    Operation.SELECT: _select,
    Operation.LEAVES: _leaves,
}


@dataclass(frozen=True)
class Const:
    """``value`` is an int64."""

    value: int

    def __post_init__(self) -> None:
        if not -(2**63) <= self.value < 2**63:
            raise DescriptorError(f"constant must be a 64-bit integer (got {self.value})")

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Var:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    operation: Operation
    arguments: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if len(self.arguments) != self.operation.arity:
            raise DescriptorError(
                f"{self.operation.value} must have {self.operation.arity} arguments (got {len(self.arguments)})"
            )

    def __str__(self) -> str:
        return f"{self.operation.value}({', '.join(str(a) for a in self.arguments)})"


Expr = Const | Var | Call


def size(expression: Expr) -> int:
    """Number of nodes."""
    if isinstance(expression, Call):
        return 1 + sum(size(a) for a in expression.arguments)
    return 1


def parts(expression: Expr) -> Iterator[Expr]:
    """The expression and everything in it; an object that several places hold comes once."""
    seen: set[int] = set()
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += part.arguments if isinstance(part, Call) else ()


def variables(expression: Expr) -> frozenset[str]:
    """Names of the variables that occur."""
    return frozenset(part.name for part in parts(expression) if isinstance(part, Var))


def apply(operation: Operation, *arguments: Values) -> Values:
    """One operation on int64 arrays, elementwise."""
    with np.errstate(over="ignore"):
        return np.asarray(_COMPUTE[operation](*arguments), dtype=np.int64)


def evaluate_all(expression: Expr, environments: Mapping[str, Values]) -> Values:
    """The expression over many environments, given as one int64 array per variable (broadcast together).

    Raises:
        DescriptorError: a variable has no value.
    """
    known: dict[int, Values] = {}

    def value_of(part: Expr) -> Values:
        """What several places of an expression hold is one object, and worked out once."""
        match part:
            case Const(value=value):
                return np.asarray(value, dtype=np.int64)
            case Var(name=name):
                if name not in environments:
                    raise DescriptorError(f"{name} must have a value (got {', '.join(sorted(environments))})")
                return np.asarray(environments[name], dtype=np.int64)
            case Call(operation=operation, arguments=arguments):
                if id(part) not in known:
                    known[id(part)] = apply(operation, *(value_of(a) for a in arguments))
                return known[id(part)]

    return value_of(expression)


def evaluate(expression: Expr, environment: Mapping[str, int]) -> int:
    """The expression in one environment.

    Raises:
        DescriptorError: a variable has no value.
    """
    known: dict[int, int] = {}

    def value_of(part: Expr) -> int:
        match part:
            case Const(value=value):
                return value
            case Var(name=name):
                if name not in environment:
                    raise DescriptorError(f"{name} must have a value (got {', '.join(sorted(environment))})")
                return int(environment[name])
            case Call(operation=operation, arguments=arguments):
                if id(part) not in known:
                    known[id(part)] = _applied(operation, [value_of(a) for a in arguments])
                return known[id(part)]

    return value_of(expression)


def _applied(operation: Operation, x: list[int]) -> int:
    """The operation on Python's integers: what :func:`apply` gives, without an array for each."""
    match operation:
        case Operation.ADD:
            return _wrap(x[0] + x[1])
        case Operation.SUB:
            return _wrap(x[0] - x[1])
        case Operation.MUL:
            return _wrap(x[0] * x[1])
        case Operation.FLOORDIV:
            return _wrap(x[0] // x[1]) if x[1] else 0
        case Operation.CEILDIV:
            return _int_ceildiv(x[0], x[1])
        case Operation.MOD:
            return x[0] % x[1] if x[1] else x[0]
        case Operation.ROUND_UP:
            return _wrap(_int_ceildiv(x[0], x[1]) * x[1]) if x[1] else x[0]
        case Operation.MIN:
            return min(x)
        case Operation.MAX:
            return max(x)
        case Operation.SELECT:
            return x[1] if x[0] else x[2]
        case Operation.LEAVES:
            return _int_leaves(x[0])


def _int_ceildiv(x: int, y: int) -> int:
    return _wrap(-_wrap(_wrap(-x) // y)) if y else 0


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def from_tree(node: ast.expr) -> Expr:
    """The expression that a Python syntax tree spells.

    Raises:
        DescriptorError: the tree holds anything but integers, names and the operations.
    """
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return Const(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return Const(-value)
        case ast.Name(id=name):
            return Var(name)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            try:
                operation = Operation(name)
            except ValueError:
                known = ", ".join(o.value for o in Operation)
                raise DescriptorError(f"operation must be one of {known} (got {name})") from None
            return Call(operation, tuple(from_tree(a) for a in arguments))
    raise DescriptorError(f"expression must use integers, names and operations only (got {ast.unparse(node)!r})")


def parse_expression(text: str) -> Expr:
    """The expression that ``text`` spells, in the form that ``str`` prints.

    Raises:
        DescriptorError: ``text`` is no such expression.
    """
    try:
        return from_tree(ast.parse(text, mode="eval").body)
    except DescriptorError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DescriptorError(f"expression must parse ({error}) (got {text[:80]!r})") from None


def call(operation: str, *arguments: Expr | int | str) -> Expr:
    """Shorthand: ``call("round_up", call("floordiv", "k", "splitk_num"), 64)``."""

    def lift(value: Any) -> Expr:
        if isinstance(value, str):
            return Var(value)
        return Const(value) if isinstance(value, int) else value

    return Call(Operation(operation), tuple(lift(a) for a in arguments))
