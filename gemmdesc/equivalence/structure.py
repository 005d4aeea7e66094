"""The link to descriptors: the sum behind one output element as a GEMMDesc.

The expression is read as chains of steps over k, chains are put together by the additions above them, and the nest of
cuts that this suggests is spelled out again and compared with the expression, node by node.  A descriptor that comes
out is therefore exactly what the kernel computes; where the suggestion fails there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueLast,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.equivalence.printing import output_node
from gemmdesc.equivalence.spelling import Column, Spelling, matrix_k
from gemmdesc.equivalence.table import Table
from gemmdesc.equivalence.walk import Walked
from gemmdesc.errors import Declined
from gemmdesc.normal_form import normal_form

_ROUNDINGS = {
    ("cvt.f32.f16", "cvt.rn.f16.f32"): DType.FLOAT16,
    ("cvt.f32.bf16", "cvt.rn.bf16.f32"): DType.BFLOAT16,
}
_STORED = {DType.FLOAT16: "cvt.rn.f16.f32", DType.BFLOAT16: "cvt.rn.bf16.f32"}


@dataclass(frozen=True, slots=True)
class _Chain:
    """Steps over ``ks``, in order, from +0.0; ``name``: the instruction of a matrix step, or empty."""

    ks: tuple[int, ...]
    name: str
    fused: bool


@dataclass(frozen=True, slots=True)
class _Sum:
    """One addition; ``second`` None stands for +0.0."""

    first: _Tree
    second: _Tree | None


@dataclass(frozen=True, slots=True)
class _Rounded:
    inner: _Tree
    dtype: DType


_Tree = _Chain | _Sum | _Rounded


class _StrangeError(Exception):
    """The expression is no sum of products over k."""


def structure(
    walked: Walked,
    *,
    parameter: int,
    offset: int,
    a: Column,
    b: Column,
    output_dtype: DType,
    k: int,
    step: FusedDot | None = None,
    instruction_k: int = 1,
) -> GEMMDesc | Declined:
    """The descriptor of the element stored at byte ``offset`` behind ``parameter``.

    ``a`` and ``b``: where the element's row and column lie; ``k``: how many products they hold.  ``step`` and
    ``instruction_k``: the accumulator model of the matrix instruction that the kernel uses, if any.
    """
    try:
        root = output_node(walked, parameter, offset)
        if output_dtype in _STORED:
            here = walked.table.node(root)
            if here.name != _STORED[output_dtype]:
                raise _StrangeError(f"the element is no {output_dtype.value}")
            (root,) = here.children
        tree = _Reader(walked.table, a, b).tree(root)
    except _StrangeError as error:
        return Declined(code="out_of_scope", reason=f"the element is no sum of products over k: {error}")
    chain = _first_chain(tree)
    leaf = Accumulator(
        instruction_k=instruction_k if chain.name else 1,
        residue=ResidueLast(),
        step=step if chain.name and step is not None else ScalarStep(fused=chain.fused),
    )
    spelling = Spelling(walked.table, a, b, chain.name)
    for cuts in _nests(tree, {key: i for i, key in enumerate(sorted(_ks(tree)))}):
        desc = GEMMDesc(
            a_dtype=a.dtype, b_dtype=b.dtype, output_dtype=output_dtype, summed_k=k, cuts=cuts, accumulator=leaf
        )
        if spelling.node(desc, k) == root:
            return desc
    return Declined(code="out_of_scope", reason="the element's additions are no nest of cuts")


def implements(
    walked: Walked,
    desc: GEMMDesc,
    *,
    parameter: int,
    offset: int,
    a: Column,
    b: Column,
    k: int,
) -> bool | Declined:
    """Whether the element stored at byte ``offset`` has the bits that ``desc`` describes, by normal form."""
    step = desc.accumulator.step
    found = structure(
        walked,
        parameter=parameter,
        offset=offset,
        a=a,
        b=b,
        output_dtype=desc.output_dtype,
        k=k,
        step=step if isinstance(step, FusedDot) else None,
        instruction_k=desc.accumulator.instruction_k,
    )
    return found if isinstance(found, Declined) else normal_form(found, k) == normal_form(desc, k)


class _Reader:
    def __init__(self, table: Table, a: Column, b: Column) -> None:
        self._table, self._a, self._b = table, a, b

    def tree(self, node: int) -> _Tree:
        """What a node sums."""
        steps, at = [], node
        while (found := self._step(at)) is not None:
            steps.append(found)
            at = found[2]
        if steps:
            if not self._is_zero(at):
                raise _StrangeError("a chain goes on from a sum that is not +0.0")
            kinds = {(name, fused) for _, (name, fused), _ in steps}
            if len(kinds) != 1:
                raise _StrangeError("one chain has steps of two kinds")
            ((name, fused),) = kinds
            return _Chain(tuple(key for keys, _, _ in reversed(steps) for key in keys), name, fused)
        here = self._table.node(node)
        if here.name == "add.f32":
            one, other = here.children
            if self._is_zero(one) or self._is_zero(other):
                return _Sum(self.tree(other if self._is_zero(one) else one), None)
            first, second = sorted((self.tree(one), self.tree(other)), key=lambda t: min(_ks(t)))
            return _Sum(first, second)
        if here.children:
            inner = self._table.node(here.children[0])
            dtype = _ROUNDINGS.get((here.name, inner.name))
            if dtype is not None:
                return _Rounded(self.tree(inner.children[0]), dtype)
        raise _StrangeError(f"{here.name} is no addition")

    def _step(self, node: int) -> tuple[tuple[int, ...], tuple[str, bool], int] | None:
        """The k, the kind and the accumulator of a step, or of a chain of matrix steps."""
        here = self._table.node(node)
        if here.name == "fma.rn.f32":
            x, y, rest = here.children
            key = self._product(x, y)
            return None if key is None else ((key,), ("", True), rest)
        if here.name == "add.f32":
            for product, rest in (here.children, here.children[::-1]):
                factors = self._table.node(product)
                if factors.name == "mul.f32":
                    key = self._product(*factors.children)
                    if key is not None:
                        return (key,), ("", False), rest
        if here.name.startswith("mma."):
            found: list[int] = []
            for row, column in self._table.matrix_steps(node):
                keys = matrix_k(self._table, row, self._a), matrix_k(self._table, column, self._b)
                if keys[0] is None or keys[0] != keys[1]:
                    raise _StrangeError("a matrix step takes in other elements")
                found += keys[0]
            return tuple(found), (here.name, True), here.children[2]
        return None

    def _product(self, x: int, y: int) -> int | None:
        for first, second in ((x, y), (y, x)):
            key = self._a.k_of(self._table, first)
            if key is not None and key == self._b.k_of(self._table, second):
                return key
        return None

    def _is_zero(self, node: int) -> bool:
        here = self._table.node(node)
        return here.name == "constant" and here.attributes[0] == 0


def _ks(tree: _Tree) -> tuple[int, ...]:
    match tree:
        case _Chain(ks=ks):
            return ks
        case _Rounded(inner=inner):
            return _ks(inner)
        case _Sum(first=first, second=second):
            return _ks(first) + (() if second is None else _ks(second))


def _first_chain(tree: _Tree) -> _Chain:
    while not isinstance(tree, _Chain):
        tree = tree.inner if isinstance(tree, _Rounded) else tree.first
    return tree


def _nests(tree: _Tree, rank: dict[int, int]) -> list[tuple[Cut, ...]]:
    """Nests of cuts that may spell ``tree``, over the k's places in ``rank``; the right one is found by spelling."""
    if isinstance(tree, _Chain):
        return [()]
    found: list[tuple[Cut, ...]] = []
    for parts, merge, start in _foldings(tree):
        bare = [part.inner if isinstance(part, _Rounded) else part for part in parts]
        partial = parts[0].dtype if isinstance(parts[0], _Rounded) else DType.FLOAT32
        places = [sorted(rank[key] for key in _ks(part)) for part in bare]
        longest = max(bare, key=lambda part: len(_ks(part)))
        inner_rank = {key: i for i, key in enumerate(sorted(_ks(longest)))}
        for inner in _nests(longest, inner_rank):
            for layout in _layouts(places):
                found.append((Cut(layout=layout, partial_dtype=partial, merge_dtype=merge, start=start), *inner))
    return found


def _foldings(tree: _Sum | _Rounded) -> list[tuple[list[_Tree], DType, Start]]:
    """Ways to see a tree as parts folded in order: from two parts to as many as its spine has."""
    merge = DType.FLOAT32
    if isinstance(tree, _Rounded):
        merge = tree.dtype
    ways: list[tuple[list[_Tree], DType, Start]] = []
    tail: list[_Tree] = []
    at: _Tree = tree
    while True:
        body = at.inner if isinstance(at, _Rounded) and at.dtype is merge else at
        if not isinstance(body, _Sum):
            return ways
        if body.second is None:
            ways.append(([body.first, *tail], merge, Start.ZERO))
            return ways
        tail = [body.second, *tail]
        ways.append(([body.first, *tail], merge, Start.FIRST))
        at = body.first


def _layouts(places: list[list[int]]) -> list[Contiguous | Strided]:
    first, last = places[0], places[-1]
    run = int(np.argmax(np.diff([*first, first[-1] + 2]) != 1)) + 1
    layouts: list[Contiguous | Strided] = [Contiguous(span=len(first))]
    if len(first) < len(last):
        layouts.append(Contiguous(span=len(last), short=Short.FIRST))
    if len(places) > 1:
        layouts.append(Strided(count=len(places), unit=run))
    return layouts
