"""How a launch that shares out k does so, as expressions in the problem and the launch.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmdesc.expressions import Const, Expr, Var, call, evaluate

#: Bytes of one counter.
_COUNTER = 4


@dataclass(frozen=True, kw_only=True)
class Shares:
    """``cut``: not 0 for elements (``row``, ``column``) whose k is cut; ``count``: into how many slices of ``unit`` s.

    ``known``: not 0 where the launch is of this family with tiles of this size.  Where it shares out k and is not,
    ``cut`` holds for every element and ``count`` is 0, so that a rule declines.
    """

    cut: Expr
    count: Expr
    known: Expr
    unit: int

    def holds(self, environment: Mapping[str, int]) -> bool:
        """Whether a launch is of the family with tiles of this size."""
        return evaluate(self.known, environment) != 0


def shares_of(
    tile_m: int, tile_n: int, unit: int, *, most: int, along_n: bool | tuple[int, int]
) -> Shares:
    """The family's expressions for tiles of ``tile_m`` x ``tile_n``, and at most ``most`` slices.

    ``along_n``: whether tiles are numbered along n first; a pair (wide, ratio): where there are more than wide tiles
    along n, but at most ratio times as many as along m.
    """
    tiles_m, tiles_n = call("ceildiv", "m", tile_m), call("ceildiv", "n", tile_n)
    tiles = call("mul", tiles_m, tiles_n)
    left = call("mod", tiles, "grid_x")
    count = _count(tiles, left, call("ceildiv", "k", unit))
    known = _known(tiles, left, count, most)
    order = along_n if isinstance(along_n, bool) else None
    number = _number(tiles_m, tiles_n, tile_m, tile_n, order, along_n if isinstance(along_n, tuple) else (0, 0))
    cut = call("mul", "segment_k", call("select", known, _at_most(call("sub", tiles, left), number), 1))
    return Shares(cut=cut, count=call("select", known, count, 0), known=known, unit=unit)


def _count(tiles: Expr, left: Expr, units: Expr) -> Expr:
    """Slices of a tile: programs to a tile if each is cut, else as many as its counters allow.

    Counters cannot tell 2 i - 1 slices from 2 i, whose trees have equally many places: there are 2 i where that many
    programs are free and the longest slice gets shorter by it.
    """
    even = call("leaves", _places(left))
    fewer = call("sub", even, 1)
    free = _at_most(even, call("floordiv", "grid_x", left))
    shorter = _at_most(call("add", call("ceildiv", units, even), 1), call("ceildiv", units, fewer))
    of_rest = call("select", call("mul", free, shorter), even, fewer)
    return call("select", call("floordiv", tiles, "grid_x"), of_rest, call("floordiv", "grid_x", tiles))


def _places(left: Expr) -> Expr:
    """Places of one tile's tree."""
    return call("floordiv", call("floordiv", "memset_bytes", _COUNTER), left)


def _known(tiles: Expr, left: Expr, count: Expr, most: int) -> Expr:
    """Whether tiles are left, one kernel does it all, and counters and programs are those of so many slices."""
    places = _places(left)
    cleared = call("mul", call("mul", left, places), _COUNTER)
    conditions = (
        left,
        _equal(Var("kernel_count"), Const(1)),
        _equal(cleared, Var("memset_bytes")),
        # So many places are those of some tree, and of this one.
        _at_most(call("add", call("leaves", call("sub", places, 1)), 1), call("leaves", places)),
        _equal(call("round_up", count, 2), call("leaves", places)),
        _at_most(count, Const(most)),
        # One slice a program.
        _at_most(count, call("floordiv", "grid_x", left)),
        # Beyond one row of D other kernels' tiles are turned.
        call("sub", "m", 1),
        # Where every tile is cut, all have equally many programs.
        call("select", call("floordiv", tiles, "grid_x"), 1, _equal(call("mul", tiles, count), Var("grid_x"))),
    )
    both: Expr = Const(1)
    for condition in conditions:
        both = call("select", condition, both, 0)
    return both


def _number(
    tiles_m: Expr, tiles_n: Expr, tile_m: int, tile_n: int, along_n: bool | None, limits: tuple[int, int]
) -> Expr:
    """The number of an element's tile: there along one axis, back along the next line."""
    i, j = call("floordiv", "row", tile_m), call("floordiv", "column", tile_n)
    by_m = _there_and_back(i, j, tiles_m)
    by_n = _there_and_back(j, i, tiles_n)
    if along_n is not None:
        return by_n if along_n else by_m
    wide, ratio = limits
    condition = call(
        "mul", _at_most(Const(wide + 1), tiles_n), _at_most(tiles_n, call("mul", ratio, tiles_m))
    )
    return call("select", condition, by_n, by_m)


def _there_and_back(inner: Expr, outer: Expr, length: Expr) -> Expr:
    back = call("sub", call("sub", length, 1), inner)
    return call("add", call("mul", outer, length), call("select", call("mod", outer, 2), back, inner))


def _equal(x: Expr, y: Expr) -> Expr:
    return call("select", call("sub", x, y), 0, 1)


def _at_most(x: Expr, y: Expr) -> Expr:
    """Not 0 where x <= y."""
    return call("max", 0, call("add", call("sub", y, x), 1))
