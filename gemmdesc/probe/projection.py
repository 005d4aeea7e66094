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
#: Share of misplaced classes up to which an attribute is taken to tell the two kinds apart.
TOLERATED = 0.25


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


def divide(node: Node, given: Collection[AnswerKey], *, tolerated: float = TOLERATED) -> list[Node]:
    """Divide ``node`` by the attribute that best tells the classes in ``given`` from the others.

    Empty where every attribute misplaces more than ``tolerated`` of the rarer kind, or none takes two values.
    """
    best: tuple[int, int, str] | None = None
    rarer = max(1, min(len(given), len(node.classes) - len(given)))
    for name in CLASS_ATTRIBUTES:
        values = _by_value(node.classes, name)
        if len(values) < 2:
            continue
        misplaced = sum(min(_count(v, given), len(v) - _count(v, given)) for v in values.values())
        # Every value is a part of its own: many of them misplace few by chance.
        candidate = (misplaced + len(values), misplaced, name)
        if best is None or candidate < best:
            best = candidate
    if best is None or best[1] > tolerated * rarer:
        return []
    name = best[2]
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


def overlaps(row: Row, others: Iterable[Row]) -> bool:
    """Whether the row's key would also take a class of another row, or another's key one of its classes."""
    return any(_takes(row, other) or _takes(other, row) for other in others)


def _takes(row: Row, other: Row) -> bool:
    names = row.key.named
    return row.key.types == other.key.types and any(c.only(names) == row.key for c in other.classes)


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
