"""What a coverage campaign refutes: rows with shapes that differ, what would tell these apart, and problems to learn
from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdesc.library.interface import Library
from gemmdesc.operands import Family
from gemmdesc.plain import answer_from_plain, problem_from_plain
from gemmdesc.probe.refutations import Refutation, RefutingDraw
from gemmdesc.probe.sampling import Regime, Scope
from gemmdesc.probe.workers import Workers
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch, Refused, attributes, environment
from gemmdesc.profiles import Compared, Deciding, ProfileRow, RowKey, RowTested
from gemmdesc.verification.coverage import CoverageOptions, coverage_item
from gemmdesc.verification.coverage_records import Covered
from gemmdesc.verification.coverage_summary import Coverage, all_different
from gemmdesc.verification.kind_draws import KindItem, operand_seed, problem_of
from gemmdesc.verification.records import Outcome

#: Equal shapes of a refuted row that are asked about, to see what tells them from those that differ.
_ASKED_EQUAL = 200
#: Values of one thing up to which they are told apart one by one; more are told apart by size.
_FEW_VALUES = 12
#: Numbers that tell by how large they are alone.
_SIZES = ("m", "n", "k", "max(m, n)", "m * n", "grid_x", "grid_y", "grid_z", "splitk_num")
#: Shapes of one row that are kept for a campaign to learn from.
_OF_A_ROW = 16


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the library says of one shape; ``answer`` None where it refuses, ``launch`` where it cannot be captured."""

    answer: AlgoConfig | None
    launch: Launch | None = None


def see_shape(library: Library, item: KindItem) -> Seen:
    """The library's answer to one shape, and what it launches."""
    problem = problem_of(item)
    answer = library.answer(problem)
    if isinstance(answer, Refused):
        return Seen(answer=None)
    return Seen(answer=answer, launch=library.launch(problem, answer))


@dataclass(frozen=True, kw_only=True)
class RefutedRow:
    """A row with shapes that differ; ``separations``: what tells all of these from all equal ones asked about."""

    row: ProfileRow
    equal: int
    different: int
    separations: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "row": str(self.row.key), "different": self.different, "equal": self.equal,
            "separations": list(self.separations),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a campaign says of a profile's rows: ``tested`` for :func:`gemmdesc.profiles.refuted`, and its report.

    ``refutations``: every shape that ever differed in the folder, for a campaign of the probe to take up.
    """

    tested: Mapping[RowKey, RowTested]
    refuted: tuple[RefutedRow, ...]
    refutations: tuple[Refutation, ...]


def find_refuted(
    workers: Workers, coverage: Coverage, folder: Path, deciding: Deciding, scopes: Mapping[str, Scope],
    options: CoverageOptions,
) -> Found:  # fmt: skip
    """What ``coverage``, read from ``folder``, says of the rows that decide its shapes.

    The library is asked for the launches of shapes that differ, and of some equal ones of their rows.  Nothing is
    divided here: a narrower key is for a campaign of the probe to find.
    """
    of_row: dict[str, list[tuple[str, Covered]]] = {}
    for (family, regime), shapes in coverage.covered.items():
        for covered in shapes:
            of_row.setdefault(covered.row, []).append((f"{family}/{regime}", covered))
    rows = {word: row for word, row in deciding.rows.items() if word in of_row}
    tested = {row.key: _tested(of_row[word], coverage.draws) for word, row in rows.items()}

    asking = _Asking(workers, scopes, options.seed)
    wrong = [(rows[word], of_row[word]) for word in rows if tested[rows[word].key].differing]
    return Found(
        tested=tested, refuted=tuple(_refuted_row(asking, row, shapes) for row, shapes in wrong),
        refutations=tuple(_refutations(asking, folder, deciding)),
    )  # fmt: skip


def _tested(shapes: Sequence[tuple[str, Covered]], draws: int) -> RowTested:
    equal = [c for _, c in shapes if c.outcome == Outcome.EQUAL.value]
    return RowTested(
        equal=tuple((c.sizes[0], c.sizes[1], c.sizes[2]) for c in equal), draws=draws * len(equal),
        differing=tuple(_compared(c.detail) for _, c in shapes if c.outcome == Outcome.DIFFERENT.value and c.detail),
    )  # fmt: skip


def _compared(detail: Mapping[str, Any]) -> Compared:
    counts, (problem, answer) = detail["counts"], _asked(detail)
    return Compared(
        problem=problem, answer=answer, launch_names=(), equal=counts.get(Outcome.EQUAL.value, 0),
        different=counts.get(Outcome.DIFFERENT.value, 0),
    )  # fmt: skip


class _Asking:
    """Asks about shapes of a campaign, named as it names them; of families that are not among ``scopes`` nothing."""

    def __init__(self, workers: Workers, scopes: Mapping[str, Scope], seed: int) -> None:
        self._workers, self._scopes, self._seed = workers, scopes, seed

    def item(self, name: str, index: int) -> KindItem | None:
        family, regime = name.split("/")
        if family not in self._scopes:
            return None
        return coverage_item(family, self._scopes[family], Regime(regime), index, seed=self._seed, draws=1)

    def see(self, items: Iterable[KindItem | None]) -> dict[str, tuple[KindItem, Seen]]:
        """By the shape's key, in the order given."""
        due = {item.key: item for item in items if item is not None}
        seen = {item.key: (item, found) for item, found in self._workers.run(see_shape, list(due.values()))}
        return {key: seen[key] for key in due}


def _refuted_row(asking: _Asking, row: ProfileRow, shapes: Sequence[tuple[str, Covered]]) -> RefutedRow:
    equal, different = (
        [(n, c) for n, c in shapes if c.outcome == o.value] for o in (Outcome.EQUAL, Outcome.DIFFERENT)
    )
    step = max(1, len(equal) // _ASKED_EQUAL)
    values = [
        [_values(row, *one) for one in asking.see(asking.item(n, c.index) for n, c in of).values()]
        for of in (equal[::step], different)
    ]
    return RefutedRow(row=row, equal=len(equal), different=len(different), separations=separations_of(*values))


def _values(row: ProfileRow, item: KindItem, seen: Seen) -> dict[str, int | str]:
    """What is known of a shape beside its row's key."""
    if seen.answer is None:
        return {}
    problem = problem_of(item)
    found: dict[str, int | str] = {}
    found |= {n: v for n, v in attributes(seen.answer).items() if n not in row.key.projection}
    found |= environment(problem, seen.answer, seen.launch)
    found |= {"max(m, n)": max(problem.m, problem.n), "m * n": problem.m * problem.n}
    if seen.launch is not None:
        found["kernels"] = " ".join(seen.launch.names)
    return found


def separations_of(
    equal: Sequence[Mapping[str, int | str]], different: Sequence[Mapping[str, int | str]]
) -> tuple[str, ...]:
    """What tells all shapes of one list from all of the other: a number that is larger in one, a value met in one only.

    Empty where either list is.  Few shapes may be told apart by chance: it is for a campaign to find out.
    """
    if not equal or not different:
        return ()
    names = [n for n in different[0] if all(n in v for v in (*equal, *different))]
    told = (_told(name, {v[name] for v in equal}, {v[name] for v in different}) for name in names)
    return tuple(text for text in told if text)


def _told(name: str, equal: set[int | str], different: set[int | str]) -> str:
    numbers = [sorted(v for v in values if isinstance(v, int)) for values in (equal, different)]
    if all(numbers) and (name in _SIZES or len(equal) + len(different) > _FEW_VALUES):
        (low, high), (least, most) = ((v[0], v[-1]) for v in numbers)
        if high < least:
            return f"{name}: at least {least} where different, at most {high} where equal"
        return f"{name}: at most {most} where different, at least {low} where equal" if most < low else ""
    if equal & different or len(equal) + len(different) > _FEW_VALUES:
        return ""
    here, there = (", ".join(sorted(map(str, values))) for values in (different, equal))
    return f"{name}: {here} where different, {there} where equal"


def _refutations(asking: _Asking, folder: Path, deciding: Deciding) -> Iterable[Refutation]:
    """Shapes that ever differed, each once, few of one row."""
    found: dict[str, list[tuple[KindItem, Covered]]] = {}
    for name, covered in all_different([folder]):
        item, detail = asking.item(name, covered.index), covered.detail
        if item is None or detail is None:
            continue
        word = covered.row or deciding.word(*_asked(detail))
        found.setdefault(word, []).append((item, covered))
    kept = {item.key: (item, covered) for several in found.values() for item, covered in _spread(several)}
    seen = asking.see(item for item, _ in kept.values())
    for key, (item, covered) in kept.items():
        assert covered.detail is not None
        problem, answer = _asked(covered.detail)
        row = deciding.rows.get(deciding.word(problem, answer))
        yield Refutation(
            problem=problem, answer=answer, launch=seen[key][1].launch, draw=_draw(item, covered.detail),
            shape=f"{item.name}/{item.index}", row="" if row is None else str(row.key),
        )  # fmt: skip


def _spread(several: Sequence[tuple[KindItem, Covered]]) -> list[tuple[KindItem, Covered]]:
    """At most ``_OF_A_ROW``, by the sizes of D evenly."""
    last = {item.key: (item, covered) for item, covered in several}
    ordered = sorted(last.values(), key=lambda one: (one[1].sizes[0] * one[1].sizes[1], one[1].sizes))
    if len(ordered) <= _OF_A_ROW:
        return ordered
    return [ordered[i * (len(ordered) - 1) // (_OF_A_ROW - 1)] for i in range(_OF_A_ROW)]


def _asked(detail: Mapping[str, Any]) -> tuple[GemmProblem, AlgoConfig]:
    return problem_from_plain(detail["problem"]), answer_from_plain(detail["answer"])


def _draw(item: KindItem, detail: Mapping[str, Any]) -> RefutingDraw | None:
    """The draw and the element that showed it; None where our side raised, or differed outside of D's elements."""
    located = detail.get("located")
    if not located:
        return None
    return RefutingDraw(
        seed=operand_seed(item), number=located["draw"], family=Family(located["family"]), row=located["row"],
        column=located["column"],
    )  # fmt: skip
