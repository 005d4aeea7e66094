"""What changed between two profiles: numeric changes told from new names, and from what was never measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from gemmdesc.descriptor import Balanced, Contiguous, Cut, Layout, ResidueFirst, Strided
from gemmdesc.profiles.keys import Family, RowKey
from gemmdesc.profiles.schema import Profile, ProfileRow, RuleOutcome
from gemmdesc.rule import Rule
from gemmdesc.text import to_text


class ChangeKind(Enum):
    """ORDER: the nest of cuts, a start, a residue or the epilogue.  SPLIT: sizes of parts, or how many k are summed.

    MERGE_TYPE: the type of stored partials or of the running sum.  ACCUMULATOR: the step.  RENAMED_SAME_ORDER: other
    kernels with the same rule.  NEWLY_SUPPORTED, DROPPED: a rule on one side only, where the family was measured on
    both.  NOT_MEASURED: the family has rows on one side only, or a decline has no counterpart.
    """

    ORDER_CHANGED = "order_changed"
    SPLIT_CHANGED = "split_changed"
    MERGE_TYPE_CHANGED = "merge_type_changed"
    ACCUMULATOR_CHANGED = "accumulator_changed"
    RENAMED_SAME_ORDER = "renamed_same_order"
    NEWLY_SUPPORTED = "newly_supported"
    DROPPED = "dropped"
    NOT_MEASURED = "not_measured"


#: Kinds after which the same call gives other bytes.
NUMERIC_KINDS = frozenset(
    {
        ChangeKind.ORDER_CHANGED,
        ChangeKind.SPLIT_CHANGED,
        ChangeKind.MERGE_TYPE_CHANGED,
        ChangeKind.ACCUMULATOR_CHANGED,
    }
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of one key; ``detail`` says what, ``old`` and ``new`` show it ("" where a side has nothing)."""

    kind: ChangeKind
    key: RowKey
    detail: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.key}\n  {self.detail}\n  old: {self.old or '-'}\n  new: {self.new or '-'}"


def diff_profiles(old: Profile, new: Profile) -> tuple[Change, ...]:
    """All changes from ``old`` to ``new``, by key and kind; empty where every row says the same.

    Rows are paired by key.  A row whose key the other side lacks is paired with the rows of its family that could speak
    about the same answers, since two releases may need different attributes.
    """
    left, right = _by_family(old), _by_family(new)
    changes: dict[Change, None] = {}
    for row in old.rows:
        partners = _partners(row, right.get(row.key.family, ()))
        for change in [c for p in partners for c in _compare(row, p)] or _alone(row, right, partners, gone=True):
            changes[change] = None
    for row in new.rows:
        partners = _partners(row, left.get(row.key.family, ()))
        for change in [c for p in partners for c in _compare(p, row)] or _alone(row, left, partners, gone=False):
            changes[change] = None
    order = list(ChangeKind)
    return tuple(sorted(changes, key=lambda c: (str(c.key), order.index(c.kind), c.detail, c.old, c.new)))


def has_numeric_change(changes: Iterable[Change], gate: frozenset[ChangeKind] = NUMERIC_KINDS) -> bool:
    """Whether a change is of a kind in ``gate``."""
    return any(change.kind in gate for change in changes)


def changes_text(changes: tuple[Change, ...]) -> str:
    """A count per kind, then every change; the empty string where there is none."""
    if not changes:
        return ""
    counts = Counter(change.kind for change in changes)
    head = [f"{kind.value}: {counts[kind]}" for kind in ChangeKind if counts[kind]]
    return "\n".join([*head, "", *(str(change) for change in changes)]) + "\n"


def changes_json(changes: tuple[Change, ...]) -> str:
    """A JSON array of objects with kind, family, answer, detail, old and new."""
    return json.dumps(
        [
            {
                "kind": change.kind.value,
                "numeric": change.kind in NUMERIC_KINDS,
                "family": str(change.key.family),
                "answer": dict(change.key.answer),
                "detail": change.detail,
                "old": change.old,
                "new": change.new,
            }
            for change in changes
        ],
        indent=1,
    )


def _by_family(profile: Profile) -> dict[Family, tuple[ProfileRow, ...]]:
    found: dict[Family, list[ProfileRow]] = {}
    for row in profile.rows:
        found.setdefault(row.key.family, []).append(row)
    return {family: tuple(rows) for family, rows in found.items()}


def _partners(row: ProfileRow, others: tuple[ProfileRow, ...]) -> list[ProfileRow]:
    same = [other for other in others if other.key == row.key]
    return same or [other for other in others if _compatible(row.key, other.key)]


def _compatible(one: RowKey, other: RowKey) -> bool:
    """Whether some answer has both keys, though they use different attributes."""
    values = dict(other.answer)
    return one.projection != other.projection and all(values.get(name, v) == v for name, v in one.answer)


def _alone(
    row: ProfileRow, there: dict[Family, tuple[ProfileRow, ...]], partners: list[ProfileRow], gone: bool
) -> list[Change]:
    """The change of a row that has no partner."""
    if partners:
        return []
    sides = {"old": _outcome_text(row), "new": ""} if gone else {"old": "", "new": _outcome_text(row)}
    missing = "new" if gone else "old"
    if row.key.family not in there or not isinstance(row.outcome, RuleOutcome):
        what = "family" if row.key.family not in there else "answer"
        detail = f"the {missing} profile has no row for this {what}"
        return [Change(kind=ChangeKind.NOT_MEASURED, key=row.key, detail=detail, **sides)]
    kind = ChangeKind.DROPPED if gone else ChangeKind.NEWLY_SUPPORTED
    return [Change(kind=kind, key=row.key, detail=f"the {missing} profile has no row for this answer", **sides)]


def _compare(old: ProfileRow, new: ProfileRow) -> list[Change]:
    before, after = old.outcome, new.outcome
    if isinstance(before, RuleOutcome) and isinstance(after, RuleOutcome):
        return _compare_rules(old, new, before.rule, after.rule)
    sides = {"old": _outcome_text(old), "new": _outcome_text(new)}
    if isinstance(after, RuleOutcome):
        return [Change(kind=ChangeKind.NEWLY_SUPPORTED, key=new.key, detail="was declined", **sides)]
    if isinstance(before, RuleOutcome):
        return [Change(kind=ChangeKind.DROPPED, key=new.key, detail="is declined now", **sides)]
    return []


def _outcome_text(row: ProfileRow) -> str:
    if isinstance(row.outcome, RuleOutcome):
        return row.outcome.rule.text
    return f"declined ({row.outcome.declined.code}): {row.outcome.declined.reason}"


def _compare_rules(old: ProfileRow, new: ProfileRow, before: Rule, after: Rule) -> list[Change]:
    if before == after:
        if old.evidence.launch_names == new.evidence.launch_names:
            return []
        names = {"old": ", ".join(old.evidence.launch_names), "new": ", ".join(new.evidence.launch_names)}
        return [Change(kind=ChangeKind.RENAMED_SAME_ORDER, key=new.key, detail="kernel names", **names)]
    return [
        Change(kind=d.kind, key=new.key, detail=d.detail, old=d.old, new=d.new) for d in rule_differences(before, after)
    ]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One kind of change between two rules; ``detail`` names what, ``old`` and ``new`` show it."""

    kind: ChangeKind
    detail: str
    old: str
    new: str


def rule_differences(before: Rule, after: Rule) -> tuple[Difference, ...]:
    """What differs between two rules as texts, by kind; empty where they are equal."""
    first, second = pieces(before), pieces(after)
    found: dict[ChangeKind, list[str]] = {}
    for name in dict.fromkeys([*first, *second]):
        (one_kind, one), (other_kind, other) = first.get(name, (None, "")), second.get(name, (None, ""))
        kind = one_kind or other_kind
        if one != other and kind is not None:
            found.setdefault(kind, []).append(name)
    # Another nest: its parts' sizes and types belong to that one change.
    nests = tuple(f"{name}." for name in found.get(ChangeKind.ORDER_CHANGED, []) if name.endswith("cuts"))
    if nests:
        found = {
            kind: kept for kind, names in found.items() if (kept := [n for n in names if not n.startswith(nests)])
        }
    return tuple(
        Difference(kind=kind, detail=", ".join(names), old=_show(first, names), new=_show(second, names))
        for kind, names in found.items()
    )


def _show(parts: dict[str, tuple[ChangeKind, str]], names: list[str]) -> str:
    return ", ".join(f"{name}={parts[name][1]}" for name in names if name in parts)


def pieces(rule: Rule) -> dict[str, tuple[ChangeKind, str]]:
    """The rule taken apart: by name, the kind of change that another text there would be, and the text.

    Names in branches after the first start with ``otherwise.``, once for each branch before.
    """
    found: dict[str, tuple[ChangeKind, str]] = {}
    for place, (when, branch) in enumerate(rule.branches):
        where = "otherwise." * place
        if when is not None:
            found[f"{where}when"] = (ChangeKind.ORDER_CHANGED, str(when))
        found |= {f"{where}{name}": piece for name, piece in _pieces(branch).items()}
    return found


def _pieces(rule: Rule) -> dict[str, tuple[ChangeKind, str]]:
    desc, sizes = rule.structure, {path: str(e) for path, e in rule.integers}
    found: dict[str, tuple[ChangeKind, str]] = {
        "cuts": (ChangeKind.ORDER_CHANGED, " > ".join(_nest(cut) for cut in desc.cuts) or "one chain"),
        "epilogue": (ChangeKind.ORDER_CHANGED, to_text(desc.epilogue)),
        "summed_k": (ChangeKind.SPLIT_CHANGED, sizes["summed_k"]),
    }
    for i, cut in enumerate(desc.cuts):
        for name in ("partial_dtype", "merge_dtype"):
            found[f"cuts.{i}.{name}"] = (ChangeKind.MERGE_TYPE_CHANGED, getattr(cut, name).value)
        if cut.open_end:
            found[f"cuts.{i}.open_end"] = (ChangeKind.MERGE_TYPE_CHANGED, "True")
        if cut.opening:
            found[f"cuts.{i}.opening"] = (ChangeKind.ORDER_CHANGED, to_text(cut.opening))
        found[f"cuts.{i}.start"] = (ChangeKind.ORDER_CHANGED, cut.start.value)
    residue = desc.accumulator.residue
    found["residue"] = (ChangeKind.ORDER_CHANGED, "first" if isinstance(residue, ResidueFirst) else "last")
    found["accumulator.step"] = (ChangeKind.ACCUMULATOR_CHANGED, to_text(desc.accumulator.step))
    for name in ("a_cast", "b_cast"):
        cast = getattr(desc, name)
        if cast is not None:
            found[name] = (ChangeKind.ACCUMULATOR_CHANGED, to_text(cast))
    for path, text in sizes.items():
        if path.startswith("cuts."):
            found[path] = (ChangeKind.SPLIT_CHANGED, text)
        elif path.startswith("accumulator.residue"):
            found[path] = (ChangeKind.ORDER_CHANGED, text)
        elif path.startswith("accumulator."):
            found[path] = (ChangeKind.ACCUMULATOR_CHANGED, text)
    return found


def _nest(cut: Cut) -> str:
    return _layout(cut.layout) + "".join(f", grouped {_layout(layout)}" for layout in cut.fold)


def _layout(layout: Layout) -> str:
    match layout:
        case Contiguous(short=short):
            return f"contiguous, short part {short.value}"
        case Strided():
            return "strided"
        case Balanced():
            return "balanced"
