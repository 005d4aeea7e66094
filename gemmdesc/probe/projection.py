"""Which attributes of an answer matter: the smallest key under which all classes of one key share a rule.

An attribute is left out of a row's key only if the classes that the row joins took two or more values of it and one
rule gives the bytes of them all.  ``algo_id`` names the kernel family and is never left out; ``splitk_num`` is a
variable of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gemmdesc.probe.scan import AnswerKey
from gemmdesc.problem import ANSWER_ATTRIBUTES
from gemmdesc.rule import Rule

#: Attributes of a class: every one but the variable.
CLASS_ATTRIBUTES = tuple(n for n in ANSWER_ATTRIBUTES if n != "splitk_num")
_ALWAYS = ("algo_id",)


@dataclass(frozen=True, kw_only=True)
class Solved:
    """What is known of one class: its rule, or None, and why."""

    rule: Rule | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Classes that share a key: ``key`` has None for every attribute left out."""

    key: AnswerKey
    classes: tuple[AnswerKey, ...]
    solved: Solved


#: Whether a rule found on one class gives the bytes of another, as far as another's own rule tells.
Covers = Callable[[Rule, AnswerKey], bool]


def learn_projection(solved: Mapping[AnswerKey, Solved], covers: Covers) -> tuple[Row, ...]:
    """Join classes into rows; ``solved`` maps classes (``splitk_num`` left out) to what was found.

    Each family, one ``algo_id`` for one set of types, has attributes that matter of its own.
    """
    rows: list[Row] = []
    for family in families(solved):
        members = {k: solved[k] for k in family}
        matter = list(CLASS_ATTRIBUTES)
        for name in by_variety(family):
            without = [n for n in matter if n != name]
            if not conflicts(members, without, covers):
                matter = without
        for key, classes in _groups(members, matter).items():
            common = _common(classes, members, covers)
            if common is not None:
                rows.append(Row(key=_with_constants(key, classes), classes=tuple(classes), solved=common))
    return tuple(rows)


def families(solved: Iterable[AnswerKey]) -> list[list[AnswerKey]]:
    """Classes by types and ``algo_id``."""
    found: dict[AnswerKey, list[AnswerKey]] = {}
    for key in solved:
        found.setdefault(key.only(_ALWAYS), []).append(key)
    return list(found.values())


def conflicts(
    solved: Mapping[AnswerKey, Solved], names: Sequence[str], covers: Covers
) -> tuple[tuple[AnswerKey, ...], ...]:
    """Groups of classes that agree in the named attributes and share no rule."""
    groups = _groups(solved, names).values()
    return tuple(tuple(g) for g in groups if _common(g, solved, covers) is None)


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


def by_variety(solved: Collection[AnswerKey]) -> list[str]:
    """Attributes that may be left out, those with the most values first: they are the likeliest not to matter."""
    variety = {n: len({k.attribute(n) for k in solved}) for n in CLASS_ATTRIBUTES if n not in _ALWAYS}
    return sorted(variety, key=lambda n: -variety[n])


def _groups(solved: Mapping[AnswerKey, Solved], names: Sequence[str]) -> dict[AnswerKey, list[AnswerKey]]:
    groups: dict[AnswerKey, list[AnswerKey]] = {}
    for key in solved:
        groups.setdefault(key.only(names), []).append(key)
    return groups


def _common(classes: Sequence[AnswerKey], solved: Mapping[AnswerKey, Solved], covers: Covers) -> Solved | None:
    """What holds of all the classes: one rule that covers each, or none of them having one; None where they conflict."""
    rules = {s.rule.text: s.rule for s in (solved[c] for c in classes) if s.rule is not None}
    if not rules:
        return solved[classes[0]]
    if any(solved[c].rule is None for c in classes):
        return None
    for rule in rules.values():
        if all(_is(solved[c].rule, rule) or covers(rule, c) for c in classes):
            return Solved(rule=rule)
    return None


def _is(one: Rule | None, other: Rule) -> bool:
    return one is not None and one.text == other.text


def _with_constants(key: AnswerKey, classes: Sequence[AnswerKey]) -> AnswerKey:
    """Put back attributes that took a single value among the classes: nothing is known of others."""
    values = []
    for name, value in zip(ANSWER_ATTRIBUTES, key.values, strict=True):
        seen = {c.attribute(name) for c in classes}
        values.append(next(iter(seen)) if value is None and len(seen) == 1 and name != "splitk_num" else value)
    return AnswerKey(types=key.types, values=tuple(values))
