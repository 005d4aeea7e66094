"""An element's expression as a sum over k: chains of steps, additions, roundings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.equivalence.spelling import Chain, Column, matrix_lanes
from gemmdesc.equivalence.table import Table
from gemmdesc.errors import InvalidInputError

_ROUNDINGS = {
    ("cvt.f32.f16", "cvt.rn.f16.f32"): DType.FLOAT16,
    ("cvt.f32.bf16", "cvt.rn.bf16.f32"): DType.BFLOAT16,
}


@dataclass(frozen=True, slots=True)
class Sum:
    """One addition; ``second``: a tree, or a zero, positive for ``ZERO`` and negative for ``FIRST``."""

    first: Tree
    second: Tree | Start


@dataclass(frozen=True, slots=True)
class Rounded:
    inner: Tree
    dtype: DType


Tree = Chain | Sum | Rounded


class StrangeError(Exception):
    """The expression is no sum of products over k."""


class Reader:
    """Reads sums over one row and one column.

    ``lanes``: products that one step of the matrix instruction takes in, on the card asked about.
    """

    def __init__(self, table: Table, a: Column, b: Column, lanes: int) -> None:
        self._table, self._a, self._b, self._lanes = table, a, b, lanes

    def tree(self, node: int) -> Tree:
        """What a node sums.

        Raises:
            StrangeError: it is no sum of products over k.
        """
        steps, at = [], node
        while (found := self._step(at)) is not None:
            steps.append(found)
            at = found[2]
        start = self._start(at)
        opening = self._opening(at)
        if opening is not None:
            # What a first sum with -0.0 leaves is the product.
            steps.append((((opening,),), ("", False), at))
            start = Start.FIRST
        if steps:
            if start is None:
                raise StrangeError("a chain goes on from a sum that is not zero")
            kinds = {kind for _, kind, _ in steps}
            if len(kinds) != 1:
                raise StrangeError("one chain has steps of two kinds")
            ((matrix, fused),) = kinds
            taken = tuple(ks for keys, _, _ in reversed(steps) for ks in keys)
            return Chain(steps=taken, matrix=matrix, fused=fused, start=start)
        here = self._table.node(node)
        if here.name == "add.f32":
            one, other = here.children
            for zero, rest in ((one, other), (other, one)):
                if (start := self._start(zero)) is not None:
                    return Sum(self.tree(rest), start)
            first, second = sorted((self.tree(one), self.tree(other)), key=lambda t: min(ks_of(t)))
            return Sum(first, second)
        if here.children:
            inner = self._table.node(here.children[0])
            dtype = _ROUNDINGS.get((here.name, inner.name))
            if dtype is not None:
                return Rounded(self.tree(inner.children[0]), dtype)
        raise StrangeError(f"{here.name} is no addition")

    def _step(self, node: int) -> tuple[tuple[tuple[int, ...], ...], tuple[str, bool], int] | None:
        """The k of each step, the kind and the accumulator, of a scalar step or of a chain of matrix steps."""
        here = self._table.node(node)
        if here.name == "fma.rn.f32":
            x, y, rest = here.children
            key = self._product(x, y)
            return None if key is None else (((key,),), ("", True), rest)
        if here.name == "add.f32":
            for product, rest in (here.children, here.children[::-1]):
                factors = self._table.node(product)
                # A sum of two products opened with -0.0: the one of the lower k is what the other goes on from.
                if factors.name == "mul.f32" and (key := self._product(*factors.children)) is not None:
                    opening = self._opening(rest)
                    if opening is None or opening < key:
                        return ((key,),), ("", False), rest
        if here.name.startswith("mma."):
            if not self._lanes:
                raise StrangeError(f"no model says how {here.name} adds")
            found = [ks for step in self._table.matrix_steps(node) for ks in self._matrix_step(*step)]
            if not found:
                raise StrangeError("a chain of matrix steps over zeros")
            return tuple(found), (here.name, True), here.children[2]
        return None

    def _opening(self, node: int) -> int | None:
        here = self._table.node(node)
        return self._product(*here.children) if here.name == "mul.f32" else None

    def _matrix_step(self, row: int, column: int) -> Iterator[tuple[int, ...]]:
        """The k that each step of one instruction takes in; what is zero on both sides is a lane that it leaves out.

        A step over zeros alone leaves an accumulator that a step, or +0.0, made as it is.
        """
        left = self._lanes_of(row, column)
        for begin in range(0, len(left), self._lanes):
            ks = tuple(k for k in left[begin : begin + self._lanes] if k is not None)
            if ks:
                yield ks

    def _lanes_of(self, row: int, column: int) -> tuple[int | None, ...]:
        """The k of each lane; A may stand on either side."""
        for first, second in ((row, column), (column, row)):
            try:
                left, right = matrix_lanes(self._table, first, self._a), matrix_lanes(self._table, second, self._b)
            except InvalidInputError:
                continue
            if left == right:
                return left
        raise StrangeError("a matrix step takes in other elements")

    def _product(self, x: int, y: int) -> int | None:
        for first, second in ((x, y), (y, x)):
            key = self._a.k_of(self._table, first)
            if key is not None and key == self._b.k_of(self._table, second):
                return key
        return None

    def _start(self, node: int) -> Start | None:
        """+0.0 or -0.0, if a node is one of them."""
        here = self._table.node(node)
        zeros = {0: Start.ZERO, 1 << 31: Start.FIRST}
        return zeros.get(here.attributes[0]) if here.name == "constant" and here.width == 4 else None


def chains_of(tree: Tree) -> Iterator[Chain]:
    """The chains that a tree adds up, in order."""
    match tree:
        case Chain():
            yield tree
        case Rounded(inner=inner):
            yield from chains_of(inner)
        case Sum(first=first, second=second):
            yield from chains_of(first)
            if not isinstance(second, Start):
                yield from chains_of(second)


def ks_of(tree: Tree) -> tuple[int, ...]:
    """Every k of a tree, in the order of its chains."""
    return tuple(k for chain in chains_of(tree) for ks in chain.steps for k in ks)
