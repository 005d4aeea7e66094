"""Kernels that share out k when they are launched: from what was read of them to a rule.  Pure.

The tiles of D are numbered along one axis, there and back (a snake), and dealt to the programs of the launch a wave at
a time.  Those that are left for the last wave, or all where there are fewer tiles than programs, are each cut into
slices of k, as even as can be, whose sums are folded as a tree over neighbours, the odd one out first.  How many slices
there are shows in the launch: in its programs where every tile is cut, else in the bytes that it clears, one 32-bit
counter for every place of every tile's tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from gemmdesc.descriptor import (
    Accumulator,
    Balanced,
    Contiguous,
    Cut,
    GEMMDesc,
    Layout,
    ResidueLast,
    ScalarStep,
    Short,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.expressions import Const, Expr, evaluate_all
from gemmdesc.plain import answer_from_plain, launch_from_plain, problem_from_plain, to_plain
from gemmdesc.probe.infer import Types, Unexplained, fold_types, infer_rules
from gemmdesc.probe.launch_shares import Shares, shares_of
from gemmdesc.probe.reading import Reading, reading_from_plain
from gemmdesc.probe.tree import Tree
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch, environment
from gemmdesc.regions import Region, evaluate_regions
from gemmdesc.rule import Rule, choose_rule, make_rule
from gemmdesc.schedule import Op, make_schedule

#: Sizes of tiles, and k of the units that slices consist of, among which those of a kernel are sought.
_TILES, _UNITS = (256, 128, 64, 32, 16), (256, 128, 64, 32, 16)
#: Levels of the tree over slices that a rule spells out; more slices than 2 to their number decline.
_LEVELS = 7
#: Where tiles are numbered along n instead of m: with more than ``_WIDE`` tiles along n, at most ``_RATIO`` times m's.
_WIDE, _RATIO = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class SharedReading:
    """What was read of one launch that shares out k.

    ``split``: of every ``step``-th row of D, "1" for each ``step``-th column whose element's k is cut, else "0".
    ``body``, ``tail``: readings at elements whose k is not cut, and is; None where there are none.
    """

    problem: GemmProblem
    answer: AlgoConfig
    launch: Launch
    step: int
    split: tuple[str, ...]
    body: Reading | None
    tail: Reading | None

    @property
    def environment(self) -> dict[str, int]:
        return environment(self.problem, self.answer, self.launch)


def shared_from_plain(data: dict[str, Any]) -> SharedReading:
    """The reading that :func:`gemmdesc.plain.to_plain` wrote."""
    parts = {n: None if data[n] is None else reading_from_plain(data[n]) for n in ("body", "tail")}
    return SharedReading(
        problem=problem_from_plain(data["problem"]), answer=answer_from_plain(data["answer"]),
        launch=launch_from_plain(data["launch"]), step=data["step"], split=tuple(data["split"]), **parts,
    )  # fmt: skip


def shared_to_plain(reading: SharedReading) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(reading)
    return plain


def infer_shared(readings: Sequence[SharedReading], zero_exponent: int | None) -> tuple[Rule, ...] | Unexplained:
    """The rules that foretell all readings: which elements' k is cut, where, and how the slices are folded."""
    bodies, tails = [r.body for r in readings if r.body], [r.tail for r in readings if r.tail]
    if not bodies or not tails:
        return Unexplained(reason="no element whose k is cut was met beside one whose k is not")
    found = infer_rules(bodies, [environment(r.problem, r.answer, None) for r in bodies], zero_exponent=zero_exponent)
    if isinstance(found, Unexplained):
        return found
    plain = [rule for rule in found if not rule.structure.cuts and rule.otherwise is None]
    if not plain:
        return Unexplained(reason="elements whose k is not cut are summed as no one chain")
    cuts = [
        Cut(layout=Balanced(count=1, unit=1), partial_dtype=t.partial, merge_dtype=t.merge, start=t.start, fold=f)
        for t, f in product(_fold_types(tails), _folds(tails))
    ]
    rules = [
        _rule(body, cut, shares)
        for unit in _units(tails)
        for shares in _shares(readings, unit)
        for body, cut in product(plain[:2], cuts)
    ]
    kept = tuple(rule for rule in rules if all(foretells(rule, r) for r in readings))
    return kept or Unexplained(reason="no numbering of tiles of any size says which elements' k is cut, and how often")


def _fold_types(tails: Sequence[Reading]) -> list[Types]:
    """Types that all readings allow; where sums start cannot show where none is ever -0.0, as after matrix steps."""
    wide = {DType.FLOAT32}
    return [t for t in fold_types(tails) if t.start is Start.FIRST or {t.partial, t.merge} != wide]


def _shares(readings: Sequence[SharedReading], unit: int) -> Iterator[Shares]:
    """Sizes of tiles with which every launch is of the family, and numberings of the tiles, the simplest first."""
    orders: list[tuple[int, int] | bool] = [False, True, *product(_WIDE, _RATIO)]
    for tile_m, tile_n in product(_TILES, _TILES):
        sized = shares_of(tile_m, tile_n, unit, most=2**_LEVELS, along_n=False)
        if not all(sized.holds(r.environment) for r in readings):
            continue
        for order in orders:
            shares = shares_of(tile_m, tile_n, unit, most=2**_LEVELS, along_n=order)
            if all(np.array_equal(_said(shares, r), _seen(r)) for r in readings):
                yield shares


def _said(shares: Shares, reading: SharedReading) -> np.ndarray:
    """Which of the elements looked at are cut by the numbering."""
    p, step = reading.problem, reading.step
    places = {name: np.asarray(value, dtype=np.int64) for name, value in reading.environment.items()}
    places |= {"row": np.arange(0, p.m, step)[:, None], "column": np.arange(0, p.n, step)[None, :]}
    return np.broadcast_to(evaluate_all(shares.cut, places) != 0, (-(-p.m // step), -(-p.n // step)))


def _rule(body: Rule, cut: Cut, shares: Shares) -> Rule:
    """``body`` where an element's k is not cut, ``cut`` over its chain where it is."""
    desc = replace(body.structure, cuts=(cut,))
    own = dict(body.integers)
    layout: dict[str, Expr] = {"cuts.0.layout.count": shares.count, "cuts.0.layout.unit": Const(shares.unit)}
    spans: dict[str, Expr] = {
        f"cuts.0.fold.{i}.span": Const(x.span) for i, x in enumerate(cut.fold) if isinstance(x, Contiguous)
    }
    return choose_rule(shares.cut, make_rule(desc, {**own, **layout, **spans}), body)


def foretells(rule: Rule, reading: SharedReading) -> bool:
    """Whether ``rule`` says of ``reading``'s elements which are cut and, of the one read, where."""
    regions = evaluate_regions(rule, reading.environment)
    if isinstance(regions, Declined):
        return False
    if not np.array_equal(cut_by(regions, reading.problem, reading.step), _seen(reading)):
        return False
    if reading.tail is None:
        return True
    cut = next(r.descriptor for r in regions if r.descriptor.cuts)
    layout = cut.cuts[0].layout
    assert isinstance(layout, Balanced)
    return layout.ends(reading.problem.k) == reading.tail.part_ends


def cut_by(regions: Sequence[Region], p: GemmProblem, step: int) -> np.ndarray:
    """Which of the elements in every ``step``-th row and column of D are cut by the regions."""
    out = np.zeros((-(-p.m // step), -(-p.n // step)), dtype=bool)
    for r in regions:
        rows, columns = (slice(-(-a // step), -(-b // step)) for a, b in (r.bounds[:2], r.bounds[2:]))
        out[rows, columns] = bool(r.descriptor.cuts)
    return out


def _seen(reading: SharedReading) -> np.ndarray:
    return np.array([[c == "1" for c in row] for row in reading.split], dtype=bool)


def _units(tails: Sequence[Reading]) -> list[int]:
    """Units of which all slices read consist, as even as can be; the largest first."""
    return [u for u in _UNITS if all(Balanced(count=len(t.part_ends), unit=u).ends(t.summed_k) == t.part_ends
                                     for t in tails)]  # fmt: skip


def _folds(tails: Sequence[Reading]) -> list[tuple[Layout, ...]]:
    """Groups in which the slices' sums are folded in all readings: trees with the odd one first or last, or a chain."""
    spans = [2**level for level in range(_LEVELS - 1, 0, -1)]
    every: list[tuple[Layout, ...]] = [tuple(Contiguous(span=s, short=short) for s in spans) for short in Short]
    return [fold for fold in (*every, ()) if all(_same_tree(t, fold) for t in tails)]


def _same_tree(tail: Reading, fold: tuple[Layout, ...]) -> bool:
    count = len(tail.part_ends)
    types = _fold_types([tail])[:1]
    if not types:
        return False
    cut = Cut(
        layout=Contiguous(span=1), partial_dtype=types[0].partial, merge_dtype=types[0].merge, start=types[0].start,
        fold=fold,
    )  # fmt: skip
    return _unordered(part_tree(cut, count)) == _unordered(tail.part_tree)


def part_tree(cut: Cut, count: int) -> Tree:
    """How ``cut`` joins ``count`` parts, as nested pairs of their numbers."""
    leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))
    spelled = GEMMDesc(
        a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, output_dtype=DType.FLOAT32, summed_k=count, cuts=(cut,),
        accumulator=leaf,
    )  # fmt: skip
    stack: list[Tree] = []
    for op, argument in make_schedule(spelled, count).program.tolist():
        if op == Op.LEAF:
            stack.append(argument)
        elif op == Op.ADD:
            right = stack.pop()
            stack.append((stack.pop(), right))
    return stack[0]


def _unordered(tree: Tree) -> Tree:
    if isinstance(tree, int):
        return tree
    return tuple(sorted((_unordered(t) for t in tree), key=_least))


def _least(tree: Tree) -> int:
    return tree if isinstance(tree, int) else min(map(_least, tree))
