"""Classes of CUDA-core kernels: in which order they are solved, and whose rules may be theirs.  Pure.

One answer of such a family is one kernel as a rule, and its neighbours are others: such classes are solved one by one,
where families of tensor-core kernels are divided.  The same answer about other types is the same order most often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.prior import first_rules
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, FAMILY_ATTRIBUTES, Row, Solved
from gemmdesc.probe.scalar_rule import is_scalar
from gemmdesc.rule import Rule

#: Answers whose first classes are solved together: many, as one class may take as long as all others of its step.
_TOGETHER = (96, 128)
#: Rules of other answers that a class's first tree is held against.
_KIN = 24


@dataclass(frozen=True, kw_only=True)
class Kin:
    """Rules that may be a class's: those of the same answer about other types, and those of other answers."""

    twins: tuple[Rule, ...] = ()
    others: tuple[Rule, ...] = ()


#: Of classes that are sought without any.
NO_KIN = Kin()


def steps(classes: Iterable[AnswerKey], counts: Mapping[AnswerKey, int]) -> list[list[AnswerKey]]:
    """The classes in the order in which they are solved, those of one step together.

    Of each answer the types met most often come first, and the other types one step later; answers by how often they
    were met, whatever the types.
    """
    answers: dict[tuple[int | None, ...], list[AnswerKey]] = {}
    for key in sorted(classes, key=lambda c: -counts[c]):
        answers.setdefault(key.values, []).append(key)
    ordered = sorted(answers.values(), key=lambda of: -sum(counts[c] for c in of))
    found: list[list[AnswerKey]] = []
    later: list[AnswerKey] = []
    while ordered:
        together = _TOGETHER[min(len(found), len(_TOGETHER) - 1)]
        now, ordered = ordered[:together], ordered[together:]
        found.append(sorted([*(of[0] for of in now), *later], key=lambda c: -counts[c]))
        later = [c for of in now for c in of[1:]]
    return [*found, later] if later else found


def most_met_types(classes: Iterable[AnswerKey], counts: Mapping[AnswerKey, int]) -> tuple[AnswerKey, ...]:
    """Of each answer the class of those types that it was met with most often."""
    found: dict[tuple[int | None, ...], AnswerKey] = {}
    for key in sorted(classes, key=lambda c: -counts[c]):
        found.setdefault(key.values, key)
    return tuple(found.values())


def kin_of(key: AnswerKey, solved: Mapping[AnswerKey, Rule], retyped: Callable[[Rule], Rule]) -> Kin:
    """Rules found for other classes, those of the most similar answers first.

    ``retyped`` gives a rule for the types of ``key``.
    """
    near: list[tuple[int, Rule]] = []
    often = Counter(rule.text for rule in solved.values())
    for other, rule in solved.items():
        if other != key and is_scalar(rule) and other.attribute("algo_id") == key.attribute("algo_id"):
            unlike = sum(a != b for a, b in zip(other.values, key.values, strict=True))
            near.append((unlike, rule))
    near.sort(key=lambda n: (n[0], -often[n[1].text]))
    twins = first_rules([retyped(rule) for unlike, rule in near if not unlike])
    others = first_rules([retyped(rule) for unlike, rule in near[: 4 * _KIN] if unlike], _KIN)
    return Kin(twins=twins, others=tuple(r for r in others if r not in twins))


def row_alone(key: AnswerKey, met: Iterable[AnswerKey], solved: Solved) -> Row:
    """A row of one class, divided off by whatever takes several values in its family among the classes ``met``."""
    family = key.only(FAMILY_ATTRIBUTES)
    own = [c for c in met if c.only(FAMILY_ATTRIBUTES) == family]
    named = [n for n in CLASS_ATTRIBUTES if n in FAMILY_ATTRIBUTES or len({c.attribute(n) for c in own}) > 1]
    return Row(key=key.only(CLASS_ATTRIBUTES), classes=(key,), named=tuple(named), solved=solved)


def without(rows: Sequence[Row], classes: Iterable[AnswerKey]) -> list[Row]:
    """The rows less those classes; a row keeps its key while any class of it is left."""
    gone = set(classes)
    kept = []
    for row in rows:
        left = tuple(c for c in row.classes if c not in gone)
        if left or not row.classes:
            kept.append(row if len(left) == len(row.classes) else Row(
                key=row.key, classes=left, named=row.named, solved=row.solved
            ))  # fmt: skip
    return kept


def one_rule(rows: Sequence[Row]) -> bool:
    """Whether all rows have the same rule, which then needs no trial to stand for them all."""
    return len({row.solved.rule.text for row in rows if row.solved.rule is not None}) == 1
