"""Which attributes of an answer matter, read off where one rule stops giving the bytes.

A family is one ``algo_id`` for one set of types.  It starts undivided; it is divided by an attribute only where a rule
that gives some of its classes' bytes does not give others', and by the attribute that tells the two apart best.  What
no division needed is left out of the key, if the row met it at two or more values.  ``splitk_num`` is a variable of
the rules and never divides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gemmdesc.probe.answers import AnswerKey
from gemmdesc.problem import ANSWER_ATTRIBUTES
from gemmdesc.rule import Rule

#: Attributes of a class: every one but the variable.
CLASS_ATTRIBUTES = tuple(n for n in ANSWER_ATTRIBUTES if n != "splitk_num")
#: What every key names.
FAMILY_ATTRIBUTES = ("algo_id",)


@dataclass(frozen=True, kw_only=True)
class Solved:
    """What is known of some classes: their rule, or None, and why."""

    rule: Rule | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Node:
    """Classes of one family, and the attributes by which they were divided from the rest of it."""

    classes: tuple[AnswerKey, ...]
    named: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Classes that share a key.

    ``key`` has None for every attribute left out; ``named`` are those that divided it off.
    """

    key: AnswerKey
    classes: tuple[AnswerKey, ...]
    named: tuple[str, ...]
    solved: Solved


def families(classes: Iterable[AnswerKey]) -> list[Node]:
    """Undivided families."""
    found: dict[AnswerKey, list[AnswerKey]] = {}
    for key in classes:
        found.setdefault(key.only(FAMILY_ATTRIBUTES), []).append(key)
    return [Node(classes=tuple(members), named=FAMILY_ATTRIBUTES) for members in found.values()]


def divide(node: Node, given: Collection[AnswerKey]) -> list[Node]:
    """Divide ``node`` by the attribute that best tells the classes in ``given`` from the others.

    Empty where no attribute takes two values.
    """
    best: tuple[int, str] | None = None
    for name in CLASS_ATTRIBUTES:
        values = _by_value(node.classes, name)
        if len(values) < 2:
            continue
        misplaced = sum(min(_count(v, given), len(v) - _count(v, given)) for v in values.values())
        # Every value is a part of its own: many of them misplace few by chance.
        candidate = (misplaced + len(values), name)
        if best is None or candidate < best:
            best = candidate
    if best is None:
        return []
    return parts(node, best[1])


def parts(node: Node, name: str) -> list[Node]:
    """The node's classes by their values of the attribute ``name``."""
    return [Node(classes=tuple(c), named=(*node.named, name)) for c in _by_value(node.classes, name).values()]


def _by_value(classes: Sequence[AnswerKey], name: str) -> dict[int | None, list[AnswerKey]]:
    values: dict[int | None, list[AnswerKey]] = {}
    for key in classes:
        values.setdefault(key.attribute(name), []).append(key)
    return values


def _count(classes: Sequence[AnswerKey], given: Collection[AnswerKey]) -> int:
    return sum(1 for c in classes if c in given)


def make_row(node: Node, solved: Solved) -> Row:
    """The node's row: attributes that divided it, and those of which it met a single value."""
    constant = [n for n in CLASS_ATTRIBUTES if len(_by_value(node.classes, n)) == 1]
    key = node.classes[0].only({*node.named, *constant})
    return Row(key=key, classes=node.classes, named=node.named, solved=solved)


def settle(node: Node, found: Solved, given: Collection[AnswerKey]) -> tuple[list[Row], list[Node]]:
    """Rows where ``found`` settles the node, and nodes to go on with where it was divided.

    ``given``: the node's classes whose bytes ``found`` gave.
    """
    if len(given) == len(node.classes):
        return [make_row(node, found)], []
    divided = divide(node, given)
    return _split(divided, given, found) if divided else _apart(node, given, found)


def _split(divided: Sequence[Node], given: Collection[AnswerKey], found: Solved) -> tuple[list[Row], list[Node]]:
    rows, nodes = [], []
    for part in divided:
        if all(c in given for c in part.classes):
            rows.append(make_row(part, found))
        else:
            nodes.append(part)
    return rows, nodes


def _apart(node: Node, given: Collection[AnswerKey], found: Solved) -> tuple[list[Row], list[Node]]:
    """No attribute and no rule joins them: each class that the rule fails on gets a row of its own, without one."""
    reason = "no rule of the space gives the bytes of this answer together with those of its neighbours"
    rows = [
        make_row(Node(classes=(c,), named=CLASS_ATTRIBUTES), Solved(rule=None, reason=reason))
        for c in node.classes
        if c not in given
    ]
    if given:
        rest = Node(classes=tuple(c for c in node.classes if c in given), named=node.named)
        rows.append(make_row(rest, found))
    return rows, []


def joinable(rows: Sequence[Row], name: str) -> list[tuple[Row, ...]]:
    """Rows with rules that would share a key if ``name`` had not divided them, and are more than one."""
    groups: dict[tuple[tuple[str, ...], AnswerKey], list[Row]] = {}
    for row in rows:
        if row.solved.rule is not None and name in row.named:
            rest = tuple(sorted(set(row.named) - {name}))
            groups.setdefault((rest, row.key.only(rest)), []).append(row)
    return [tuple(g) for g in groups.values() if len(g) > 1]


def join(rows: Sequence[Row], name: str, solved: Solved) -> Row:
    """One row in place of several, ``name`` no longer dividing them."""
    named = tuple(n for n in rows[0].named if n != name)
    return make_row(Node(classes=tuple(c for r in rows for c in r.classes), named=named), solved)


def narrowed(rows: Sequence[Row]) -> list[Row]:
    """The rows, divided until every row of a family with rules names each attribute that divides any of them.

    An attribute that mattered somewhere in the family may matter for a value that a row has not met; and keys that name
    the same attributes do not overlap.
    """
    mattering: dict[AnswerKey, set[str]] = {}
    for row in rows:
        mattering.setdefault(row.key.only(FAMILY_ATTRIBUTES), set()).update(row.named)
    out: list[Row] = []
    for row in rows:
        nodes = [Node(classes=row.classes, named=row.named)]
        names = mattering[row.key.only(FAMILY_ATTRIBUTES)] - set(row.named)
        for name in (n for n in CLASS_ATTRIBUTES if n in names):
            nodes = [part for node in nodes for part in parts(node, name)]
        out.extend(make_row(node, row.solved) for node in nodes)
    return out


class RowIndex:
    """Rows by the attributes that they name, for finding the one that an answer falls into."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._patterns: dict[tuple[str, ...], dict[AnswerKey, Row]] = {}
        for row in rows:
            self._patterns.setdefault(row.key.named, {})[row.key] = row
        self._order = sorted(self._patterns, key=lambda names: -len(names))

    def find(self, key: AnswerKey) -> Row | None:
        """The row whose key has the types and all named attributes of ``key``; the most specific where several do."""
        for names in self._order:
            row = self._patterns[names].get(key.only(names))
            if row is not None:
                return row
        return None
