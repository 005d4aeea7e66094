"""Where one product has several orders: rectangles of D, each with the descriptor of all its elements.

Most rules hold for every element alike.  A kernel that splits only the k of the tiles that are left over at the end
has two orders, and which one an element has follows from its tile.  Such a rule uses the variables ``row`` and
``column``, an element's place in D (m x n, in cuBLASLt's terms), as ``floordiv(row, e)`` and ``floordiv(column, e)``
only, and only in the conditions of its branches.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.expressions import Call, Expr, Operation, Var, evaluate, evaluate_all, parts, variables
from gemmdesc.normal_form import same_bits
from gemmdesc.rule import Rule, evaluate_rule

Grid = npt.NDArray[np.int64]

#: The variables of an element's place.
PLACE = frozenset({"row", "column"})
#: Tiles beyond which no rule is spelled out.
_MOST_TILES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Region:
    """Rows ``row_begin`` to ``row_end`` (exclusive) of m and columns ``column_begin`` to ``column_end`` of n."""

    row_begin: int
    row_end: int
    column_begin: int
    column_end: int
    descriptor: GEMMDesc

    @property
    def bounds(self) -> tuple[int, int, int, int]:
        """Where it begins and ends, along m and along n."""
        return self.row_begin, self.row_end, self.column_begin, self.column_end

    @property
    def elements(self) -> int:
        return (self.row_end - self.row_begin) * (self.column_end - self.column_begin)

    @property
    def transposed(self) -> Region:
        """The same elements of D's transpose, op(B)^T times op(A)^T."""
        d = self.descriptor
        turned = replace(d, a_dtype=d.b_dtype, b_dtype=d.a_dtype, a_cast=d.b_cast, b_cast=d.a_cast)
        return Region(
            row_begin=self.column_begin, row_end=self.column_end, column_begin=self.row_begin,
            column_end=self.row_end, descriptor=turned,
        )  # fmt: skip


def depends_on_place(rule: Rule) -> bool:
    """Whether elements of one product may have several orders under ``rule``."""
    return bool(rule.variables & PLACE)


def whole(descriptor: GEMMDesc, m: int, n: int) -> tuple[Region, ...]:
    """All of D (m x n) as one region."""
    return (Region(row_begin=0, row_end=m, column_begin=0, column_end=n, descriptor=descriptor),)


def same_regions(one: Sequence[Region], other: Sequence[Region], k: int) -> bool:
    """Whether every element has the same bits under both at inner size ``k``; the rectangles must be the same ones."""
    return len(one) == len(other) and all(
        replace(x, descriptor=y.descriptor) == y and same_bits(x.descriptor, y.descriptor, k)
        for x, y in zip(one, other, strict=True)
    )


def evaluate_regions(rule: Rule, environment: Mapping[str, int]) -> tuple[Region, ...] | Declined:
    """D's rectangles under ``rule``, disjoint and together all of D, the largest first.

    ``environment``: see :func:`gemmdesc.problem.environment`.

    Declines as :func:`gemmdesc.rule.evaluate_rule` does, for any branch that some element has, and where the rule
    uses an element's place in a way that is none of the module's.
    """
    m, n = environment["m"], environment["n"]
    if not depends_on_place(rule):
        desc = evaluate_rule(rule, environment)
        return desc if isinstance(desc, Declined) else whole(desc, m, n)
    missing = rule.variables - PLACE - set(environment)
    if missing:
        return Declined(code="no_rule", reason=f"the rule needs {', '.join(sorted(missing))}, which are not known here")
    branches = rule.branches
    conditions = [when for when, _ in branches if when is not None]
    steps = {name: _tile_sizes(conditions, name, environment) for name in PLACE}
    if None in steps.values() or any(variables(e) & PLACE for e in rule.expressions):
        return Declined(code="no_rule", reason="the rule must use row and column by tiles, in conditions only")
    rows, columns = _bounds(m, steps["row"] or ()), _bounds(n, steps["column"] or ())
    if len(rows) * len(columns) > _MOST_TILES:
        tiles = f"{len(rows)} x {len(columns)}"
        return Declined(code="no_rule", reason=f"D must have at most {_MOST_TILES} tiles (got {tiles})")
    places = {name: np.asarray(value, dtype=np.int64) for name, value in environment.items()}
    places |= {"row": rows[:-1, None], "column": columns[None, :-1]}
    chosen = np.full((len(rows) - 1, len(columns) - 1), len(branches) - 1, dtype=np.int64)
    for number in reversed(range(len(conditions))):
        chosen = np.where(evaluate_all(conditions[number], places) != 0, number, chosen)
    return _spelled(chosen, rows, columns, [branch for _, branch in branches], environment)


def _spelled(
    chosen: Grid, rows: Grid, columns: Grid, branches: list[Rule], environment: Mapping[str, int]
) -> tuple[Region, ...] | Declined:
    descs: dict[int, GEMMDesc] = {}
    for number in np.unique(chosen).tolist():
        desc = evaluate_rule(branches[number], environment)
        if isinstance(desc, Declined):
            return desc
        descs[number] = desc
    found = [
        Region(
            row_begin=int(rows[i]), row_end=int(rows[i_end]), column_begin=int(columns[j]),
            column_end=int(columns[j_end]), descriptor=descs[number],
        )
        for i, i_end, j, j_end, number in _rectangles(chosen)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda r: -r.elements))


def _tile_sizes(conditions: list[Expr], name: str, environment: Mapping[str, int]) -> tuple[int, ...] | None:
    """The values of all e in ``floordiv(name, e)``; None where ``name`` occurs otherwise, or e is not positive."""
    sizes: list[int] = []
    for part in (part for condition in conditions for part in parts(condition)):
        match part:
            case Call(operation=Operation.FLOORDIV, arguments=(Var(name=place), size)) if place == name:
                if variables(size) & PLACE:
                    return None
                sizes.append(evaluate(size, environment))
            case Call(arguments=arguments) if Var(name) in arguments:
                return None
    return tuple(sizes) if min(sizes, default=1) > 0 and Var(name) not in conditions else None


def _bounds(length: int, sizes: tuple[int, ...]) -> Grid:
    """0, all multiples of the sizes below ``length``, and ``length``."""
    return np.unique(np.concatenate([[0, length], *(np.arange(0, length, s) for s in sizes)])).astype(np.int64)


def _rectangles(chosen: Grid) -> list[tuple[int, int, int, int, int]]:
    """(i, i_end, j, j_end, value) of rectangles of one value each, by whichever axis takes fewer."""
    by_columns = list(_runs_by_columns(chosen))
    by_rows = [(i, i_end, j, j_end, value) for j, j_end, i, i_end, value in _runs_by_columns(chosen.T)]
    return min(by_columns, by_rows, key=len)


def _runs_by_columns(chosen: Grid) -> Iterator[tuple[int, int, int, int, int]]:
    """Equal neighbouring columns are taken together, and each such band cut where its value changes."""
    edges = np.flatnonzero((chosen[:, 1:] != chosen[:, :-1]).any(axis=0)) + 1
    for j, j_end in zip((0, *edges.tolist()), (*edges.tolist(), chosen.shape[1]), strict=True):
        column = chosen[:, j]
        turns = np.flatnonzero(column[1:] != column[:-1]) + 1
        for i, i_end in zip((0, *turns.tolist()), (*turns.tolist(), len(column)), strict=True):
            yield i, i_end, j, j_end, int(column[i])
