"""What changed between two releases, shape by shape: recorded answers put through the rules of both profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gemmdesc.books import BookReader, Entry, Shape
from gemmdesc.errors import BookError, Declined
from gemmdesc.lint.words import order_text
from gemmdesc.plain import to_plain
from gemmdesc.plan import Description
from gemmdesc.problem import AlgoConfig, Refused, attributes
from gemmdesc.profiles import NUMERIC_KINDS, ChangeKind, rule_differences
from gemmdesc.regions import same_regions
from gemmdesc.rule import make_rule

#: The name under which shapes are counted that the two releases treat alike.
SAME, DECLINED_BOTH = "same", "declined_on_both"


@dataclass(frozen=True, kw_only=True)
class ShapeDiff:
    """One product in two releases.

    ``kinds``: every kind of change, in the order of ChangeKind; none where the two owe each other the same bits under
    the same kernels, and where both decline (``declined``).  ``old``, ``new``: the orders in words, or why there is
    none.
    """

    shape: Shape
    kinds: tuple[ChangeKind, ...]
    detail: str
    old: str
    new: str
    declined: bool = False

    @property
    def numeric(self) -> bool:
        """Whether the same call gives other bytes."""
        return any(kind in NUMERIC_KINDS for kind in self.kinds)

    @property
    def name(self) -> str:
        """The first kind, or that nothing changed, or that nothing is known."""
        if self.kinds:
            return self.kinds[0].value
        return DECLINED_BOTH if self.declined else SAME


def diff_shapes(shapes: Iterable[Shape], old: BookReader, new: BookReader) -> tuple[ShapeDiff, ...]:
    """What becomes of each of ``shapes`` from the ``old`` release to the ``new`` one, in the list's order.

    Raises:
        BookError: the books were recorded under different torch settings, so that their problems differ.
        InvalidInputError: a shape's result type is one that ``torch.mm`` does not take.
    """
    before, after = old.book.settings, new.book.settings
    if before != after:
        names = [n for n, value in to_plain(before).items() if value != to_plain(after)[n]]
        values = ", ".join(f"{n} {getattr(before, n)} and {getattr(after, n)}" for n in names)
        raise BookError(f"books must be recorded under the same torch settings (got {values})")
    return tuple(_diff(shape, old, new) for shape in dict.fromkeys(shapes))


def _diff(shape: Shape, old: BookReader, new: BookReader) -> ShapeDiff:
    problem = shape.problem(old.book.settings)
    if isinstance(problem, Declined):
        text = _text(problem, shape)
        return ShapeDiff(shape=shape, kinds=(), detail=problem.code, old=text, new=text, declined=True)
    before, after = old.describe(problem), new.describe(problem)

    def made(kinds: tuple[ChangeKind, ...], detail: str, declined: bool = False) -> ShapeDiff:
        texts = _text(before, shape), _text(after, shape)
        return ShapeDiff(shape=shape, kinds=kinds, detail=detail, old=texts[0], new=texts[1], declined=declined)

    if isinstance(before, Description) and isinstance(after, Description):
        kinds, detail = _compared(shape, before, after, _entry(old, problem), _entry(new, problem))
        return made(kinds, detail)
    absent = [name for name, found in (("old", before), ("new", after)) if _is_absent(found)]
    if absent:
        return made((ChangeKind.NOT_MEASURED,), f"the {' and the '.join(absent)} book lacks it")
    if isinstance(after, Description):
        return made((ChangeKind.NEWLY_SUPPORTED,), "was declined")
    if isinstance(before, Description):
        return made((ChangeKind.DROPPED,), "is declined now")
    return made((), "declined on both sides", declined=True)


def _entry(reader: BookReader, problem: Any) -> Entry:
    return reader.book.by_problem[problem]


def _is_absent(found: Description | Declined) -> bool:
    return isinstance(found, Declined) and found.code == "not_in_book"


def _text(found: Description | Declined, shape: Shape) -> str:
    if isinstance(found, Declined):
        return f"declined ({found.code}): {found.reason}"
    return "; elsewhere ".join(dict.fromkeys(order_text(r.descriptor, shape.k) for r in found.regions))


def _compared(
    shape: Shape, before: Description, after: Description, old: Entry, new: Entry
) -> tuple[tuple[ChangeKind, ...], str]:
    if same_regions(before.regions, after.regions, shape.k):
        renamed = _renamed(old, new)
        return ((ChangeKind.RENAMED_SAME_ORDER,), renamed) if renamed else ((), "")
    # Evaluated at this very shape, so that two spellings of one size do not count.
    differences = rule_differences(make_rule(before.descriptor, {}), make_rule(after.descriptor, {}))
    order = list(ChangeKind)
    kinds = sorted({d.kind for d in differences} or {ChangeKind.ORDER_CHANGED}, key=order.index)
    return tuple(kinds), "; ".join(f"{d.detail}: {d.old or '-'} -> {d.new or '-'}" for d in differences)


def _renamed(old: Entry, new: Entry) -> str:
    """How kernels or answers differ, though the order does not."""
    if old.launch is not None and new.launch is not None and old.launch.names != new.launch.names:
        return f"kernels {', '.join(old.launch.names)} -> {', '.join(new.launch.names)}"
    if isinstance(old.answer, AlgoConfig) and isinstance(new.answer, AlgoConfig) and old.answer != new.answer:
        one, other = attributes(old.answer), attributes(new.answer)
        return ", ".join(f"{name} {one[name]} -> {other[name]}" for name in one if one[name] != other[name])
    if isinstance(old.answer, Refused) or isinstance(new.answer, Refused):
        return "refused"
    return ""


def shape_counts(diffs: Iterable[ShapeDiff]) -> dict[str, int]:
    """How many shapes by :attr:`ShapeDiff.name`, in the order of ChangeKind, what did not change last."""
    counts = Counter(diff.name for diff in diffs)
    order = [*(kind.value for kind in ChangeKind), DECLINED_BOTH, SAME]
    return {name: counts[name] for name in order if counts[name]}


def shapes_text(diffs: tuple[ShapeDiff, ...]) -> str:
    """A count per kind, then every shape that changed."""
    lines = [f"shapes {name}: {count}" for name, count in shape_counts(diffs).items()]
    for diff in (d for d in diffs if d.kinds):
        kinds = ", ".join(kind.value for kind in diff.kinds)
        title = f"{kinds}: {diff.shape} {diff.shape.label}".rstrip()
        lines += ["", title, f"  {diff.detail}", f"  old: {diff.old}", f"  new: {diff.new}"]
    return "\n".join(lines) + "\n"


def shapes_json(diffs: tuple[ShapeDiff, ...]) -> list[dict[str, Any]]:
    """JSON-ready form of every shape, changed or not."""
    return [
        {
            **to_plain(diff.shape),
            "kinds": [kind.value for kind in diff.kinds],
            "numeric": diff.numeric,
            "detail": diff.detail,
            "old": diff.old,
            "new": diff.new,
        }
        for diff in diffs
    ]
