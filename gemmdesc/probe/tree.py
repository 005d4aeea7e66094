"""Recovering a summation tree without a model, by lowest common ancestors.

After FPRev (Xie, Gao, Yuan, Yang and Xue, USENIX ATC 2025), in our own form: with +L and -L at two sites and one unit
everywhere else, exactly the units outside the smallest subtree holding both sites come out.  That subtree's size for
all pairs fixes the tree, fused n-ary nodes included.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from gemmdesc.errors import GemmdescError

_T = TypeVar("_T")

#: A site number, or the subtrees that one operation joins (two for an addition, more for a fused step).
Tree = int | tuple["Tree", ...]
#: One site and several others, of which the sizes of the smallest subtrees holding both are asked.
Query = tuple[int, Sequence[int]]
#: For each of several queries the sizes, one for each of its other sites.  What is asked together is seen together.
Oracle = Callable[[Sequence[Query]], Sequence[Sequence[int]]]
_Sizes = Sequence[int]
#: Work that asks for the answers to several queries at a time.
_Asking = Generator[list[Query], list[_Sizes], _T]


class TreeError(GemmdescError):
    """The sizes read contradict every tree."""


def recover_tree(sites: Sequence[int], oracle: Oracle) -> Tree:
    """The tree over ``sites`` that explains the oracle; children stand in order of their first site.

    Raises:
        TreeError: the oracle's answers fit no tree.
    """
    sites = sorted(sites)
    if not sites:
        raise TreeError("sites must not be empty (got none)")
    work = _build(sites, None)
    try:
        asked = next(work)
        while True:
            asked = work.send(list(oracle(asked)))
    except StopIteration as done:
        tree: Tree = done.value
        return tree


def _build(sites: list[int], sizes: _Sizes | None) -> _Asking[Tree]:
    """The tree over ``sites``; ``sizes``: of the first one with each of the others, where they are known."""
    root, others = sites[0], sites[1:]
    if not others:
        return root
    if sizes is None:
        (sizes,) = yield [(root, others)]
    by_size: dict[int, list[int]] = {}
    for site, size in zip(others, sizes, strict=True):
        by_size.setdefault(int(size), []).append(site)
    covered = 1
    for size in sorted(by_size):
        covered += len(by_size[size])
        if covered != size:
            raise TreeError(f"sizes must add up to subtrees (got {covered} sites below a node of size {size})")
    joined = yield from _together([_children(by_size[size], size) for size in sorted(by_size)])
    tree: Tree = root
    for children in joined:
        tree = (tree, *children)
    return tree


def _children(sites: list[int], size: int) -> _Asking[list[Tree]]:
    """Split the sites that join at one node of ``size`` into that node's child subtrees."""
    builds: list[_Asking[Tree]] = []
    rest = sites
    while rest:
        first, others = rest[0], rest[1:]
        sizes: _Sizes = ()
        if others:
            (sizes,) = yield [(first, others)]
        below = [(s, n) for s, n in zip(others, sizes, strict=True) if n < size]
        rest = [s for s, n in zip(others, sizes, strict=True) if n >= size]
        builds.append(_build([first, *(s for s, _ in below)], [n for _, n in below]))
    return (yield from _together(builds))


def _together(works: Sequence[_Asking[_T]]) -> _Asking[list[_T]]:
    """The results of independent works, whose queries are asked together."""
    results: dict[int, _T] = {}
    asked: dict[int, list[Query]] = {}

    def advance(i: int, answers: list[_Sizes] | None) -> None:
        try:
            asked[i] = next(works[i]) if answers is None else works[i].send(answers)
        except StopIteration as done:
            results[i] = done.value

    for i in range(len(works)):
        advance(i, None)
    while asked:
        now = dict(asked)
        asked.clear()
        answers = iter((yield [query for queries in now.values() for query in queries]))
        for i, queries in now.items():
            advance(i, [next(answers) for _ in queries])
    return [results[i] for i in range(len(works))]


def leaves(tree: Tree) -> list[int]:
    """Sites in the order in which they stand."""
    if isinstance(tree, int):
        return [tree]
    return [leaf for child in tree for leaf in leaves(child)]


def chain_pairs(tree: Tree) -> list[tuple[int, int]]:
    """Pairs of sites of which the second may go on a chain that the first is in; those from smallest sums first."""
    found: list[tuple[int, int, int]] = []

    def visit(node: Tree) -> list[int]:
        if isinstance(node, int):
            return [node]
        below = [visit(child) for child in node]
        for child in below[1:]:
            if len(child) == 1:
                found.append((len(below[0]), below[0][-1], child[0]))
        return [site for child in below for site in child]

    visit(tree)
    return [(i, j) for _, i, j in sorted(found)]


def chain_items(tree: Tree) -> list[Tree]:
    """The items of an ascending binary chain ((x0 + x1) + x2) + ..., left spine flattened.

    Raises:
        TreeError: a node on the spine joins more than two subtrees.
    """
    items: list[Tree] = []
    while not isinstance(tree, int):
        if len(tree) != 2:
            raise TreeError(f"chain must join two at a time (got {len(tree)})")
        items.append(tree[1])
        tree = tree[0]
    items.append(tree)
    return items[::-1]


def chain_steps(tree: Tree) -> list[list[int]]:
    """The steps of an accumulator chain: fused nodes along the left spine, innermost first.

    Raises:
        TreeError: something other than the running value has structure of its own.
    """
    steps: list[list[int]] = []
    while not isinstance(tree, int):
        head, rest = tree[0], tree[1:]
        if not all(isinstance(x, int) for x in rest):
            raise TreeError("step must add single sites to one running value (got a nested operand)")
        step = [x for x in rest if isinstance(x, int)]
        if isinstance(head, int):
            steps.append([head, *step])
            return steps[::-1]
        steps.append(step)
        tree = head
    steps.append([tree])
    return steps[::-1]
