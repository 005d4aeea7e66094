"""From nests of cuts over scalar chains to summation trees and back, without a list of recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemmdesc.descriptor import Contiguous, GEMMDesc, Layout, Short, Strided
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.expressions import Const, Expr
from gemmdesc.normal_form import same_bits
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.experiments import magnitudes
from gemmdesc.probe.induced import induced_tree
from gemmdesc.probe.pieces import ScalarNestError, explains, flatten, whole
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.scalar_cuts import FIRST, LAST, STRIDED, Kind
from gemmdesc.probe.scalar_rule import scalar_descriptor
from gemmdesc.probe.scalar_search import Chosen, GivenUp, Option, Search, Work
from gemmdesc.probe.tree import Tree, leaves, recover_tree
from gemmdesc.probe.walks import read_element_tree
from gemmdesc.problem import dense_problem
from gemmdesc.rule import evaluate_rule, make_rule
from gemmdesc.schedule import Op, make_schedule
from tests.probe_samples import FP16, FP32, Order, library_of, sample_answer, sample_problem
from tests.test_probe_tree import exact_oracle

layouts = st.one_of(
    st.builds(Contiguous, span=st.integers(1, 40), short=st.sampled_from(Short)),
    st.builds(Strided, count=st.integers(1, 8), unit=st.integers(1, 16)),
)
nests = st.lists(layouts, max_size=3).map(tuple)


def descriptor(nest: Sequence[Layout], k: int) -> GEMMDesc:
    return scalar_descriptor(dense_problem(64, 8, k, DType.FLOAT16), nest)


def tree_of(nest: Sequence[Layout], k: int, sites: Sequence[int] | None = None) -> Tree:
    return induced_tree(descriptor(nest, k), k, range(k) if sites is None else sites)


class Constants:
    """Integers of one tree: every value that it allows, as far as they are few."""

    def options(self, seen: Mapping[int, Allowed], given: Sequence[Expr]) -> list[Option]:
        low, high = max(a.low for a in seen.values()), min(a.high for a in seen.values())
        fitting = (v for v in range(low, min(high, low + 1000) + 1) if all(a.holds(v) for a in seen.values()))
        return [Option(values=(v,), expressions=(Const(v),)) for v in islice(fitting, 41)]

    def variables(self) -> list[Option]:
        return []


def compress_tree(tree: Tree, k: int) -> list[tuple[Chosen, ...]]:
    """The nests of the fewest runs of one cut that one tree allows, none where there are none."""
    piece = whole(flatten(tree), k)
    for runs in range(5):
        try:
            search = Search(Constants(), Work(20_000), 20_000)
            found = search.some(search.nests(((piece,),), runs), 48, 20_000)
        except GivenUp:
            continue
        if found:
            return found
    return []


def layouts_of(nest: Sequence[Chosen]) -> tuple[Layout, ...]:
    return tuple(c.kind.layout([option.values[0] for option in c.integers]) for c in nest)


def run_count(nest: tuple[Layout, ...]) -> int:
    return len(list(groupby(nest)))


def shown(nest: tuple[Layout, ...], k: int) -> tuple[Layout, ...]:
    """The nest without the cuts that leave no trace in the tree."""
    tree = tree_of(nest, k)
    for i in range(len(nest)):
        rest = (*nest[:i], *nest[i + 1 :])
        if tree_of(rest, k) == tree:
            return shown(rest, k)
    return nest


def chain(items: Sequence[Tree]) -> Tree:
    tree = items[0]
    for item in items[1:]:
        tree = (tree, item)
    return tree


@given(nests, st.integers(1, 120))
@settings(max_examples=100, deadline=None)
def test_an_induced_tree_is_what_lowest_common_ancestors_show(nest: tuple[Layout, ...], k: int) -> None:
    tree = tree_of(nest, k)
    assert sorted(leaves(tree)) == list(range(k))
    assert recover_tree(range(k), exact_oracle(tree)) == tree
    assert explains(nest, whole(flatten(tree), k))


@given(nests, st.integers(2, 200), st.data())
@settings(max_examples=100, deadline=None)
def test_a_sample_of_sites_induces_the_tree_between_them(nest: tuple[Layout, ...], k: int, data: st.DataObject) -> None:
    sites = sorted(data.draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=24)))

    def between(tree: Tree) -> Tree | None:
        if isinstance(tree, int):
            return tree if tree in sites else None
        kept = sorted((t for t in map(between, tree) if t is not None), key=lambda t: min(leaves(t)))
        return tuple(kept) if len(kept) > 1 else next(iter(kept), None)

    tree = tree_of(nest, k, sites)
    assert tree == between(tree_of(nest, k))
    assert explains(nest, whole(flatten(tree), k))


@given(nests, st.integers(2, 40))
@settings(max_examples=25, deadline=None)
def test_a_simulated_library_shows_the_induced_tree(nest: tuple[Layout, ...], k: int) -> None:
    problem, answer = sample_problem(k, FP16, FP32), sample_answer()
    desc = scalar_descriptor(problem, nest)
    reader = LibraryReader(library_of(make_rule(desc, {}), answer), problem, answer)
    assert read_element_tree(reader, k, magnitudes(FP16, FP32)) == induced_tree(desc, k, range(k))


def test_products_of_one_fused_step_meet_in_one_node() -> None:
    made = evaluate_rule(Order(spans=("6",), instruction_k=4).rule(), {"k": 9})
    assert isinstance(made, GEMMDesc)
    assert induced_tree(made, 9, range(9)) == (((0, 1, 2, 3), 4, 5), (6, 7, 8))
    assert induced_tree(made, 9, [1, 3, 4, 8]) == (((1, 3), 4), 8)


@pytest.mark.parametrize("sites", [[], [3, 3], [-1, 2], [9]])
def test_sites_that_are_not_summed(sites: list[int]) -> None:
    with pytest.raises(InvalidInputError, match=r"^sites must be distinct k below 9"):
        tree_of((), 9, sites)


@given(nests, st.integers(1, 150))
@settings(max_examples=200, deadline=None)
def test_a_nest_comes_back_from_its_tree(nest: tuple[Layout, ...], k: int) -> None:
    least = shown(nest, k)
    found = compress_tree(tree_of(nest, k), k)
    assert all(tree_of(layouts_of(f), k) == tree_of(nest, k) for f in found)
    assert run_count(layouts_of(found[0])) <= run_count(least)
    # With exact products and no narrower type the tree fixes the bits; normal forms agree where leaves are the same.
    if run_count(layouts_of(found[0])) == run_count(least):
        assert any(same_bits(descriptor(layouts_of(f), k), descriptor(least, k), k) for f in found)


@given(nests, st.integers(100, 900), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_found_from_a_sample_explains_it(nest: tuple[Layout, ...], k: int, data: st.DataObject) -> None:
    middle = data.draw(st.sets(st.integers(40, k - 30), max_size=40))
    sites = sorted({*range(40), *middle, *range(k - 30, k)})
    tree = tree_of(nest, k, sites)
    found = compress_tree(tree, k)
    assume(found)
    assert all(tree_of(layouts_of(f), k, sites) == tree for f in found)


BUTTERFLY = (Strided(count=2, unit=3), Strided(count=2, unit=3), Strided(count=2, unit=3))


@pytest.mark.parametrize(
    ("nest", "k", "found"),
    [
        ((), 70, [()]),
        ((Contiguous(span=31),), 124, [(LAST,)]),
        ((Contiguous(span=31, short=Short.FIRST),), 120, [(FIRST,)]),
        (BUTTERFLY, 100, [(STRIDED,) * 3]),
        ((Strided(count=16, unit=1), Contiguous(span=4)), 200, [(STRIDED, LAST)]),
        ((Contiguous(span=50), *BUTTERFLY), 190, [(LAST, STRIDED, STRIDED, STRIDED)]),
        ((Contiguous(span=60), Contiguous(span=20)), 170, [(LAST, LAST)]),
    ],
)
def test_known_nests(nest: tuple[Layout, ...], k: int, found: list[tuple[Kind, ...]]) -> None:
    nests = compress_tree(tree_of(nest, k), k)
    kinds = {tuple(x.kind for x in n) for n in nests}
    assert set(found) <= kinds
    assert nest in [layouts_of(n) for n in nests]


@pytest.mark.parametrize(
    ("tree", "k", "message"),
    [((0, 1, 2), 3, r"join two at a time \(got a node of 3\)"), (((0, 1), 5), 5, "sites must lie below k = 5")],
)
def test_trees_that_sum_something_else(tree: Tree, k: int, message: str) -> None:
    with pytest.raises(ScalarNestError, match=message):
        compress_tree(tree, k)


@pytest.mark.parametrize(
    ("tree", "k"),
    [
        # 7 k that no cut deals so: 0 with 3, 1 with 2, 4 with 6.
        ((((0, 3), (1, 2)), ((4, 6), 5)), 7),
        # A butterfly over 8 lanes in which 3 and 5 have changed places.
        ((((0, 4), (2, 6)), ((1, 3), (5, 7))), 8),
    ],
)
def test_trees_that_are_no_nest(tree: Tree, k: int) -> None:
    assert not compress_tree(tree, k)


@given(nests, st.integers(8, 80), st.data())
@settings(max_examples=60, deadline=None)
def test_another_nest_is_caught(nest: tuple[Layout, ...], k: int, data: st.DataObject) -> None:
    other = data.draw(nests)
    tree = tree_of(nest, k)
    assert explains(other, whole(flatten(tree), k)) == (tree_of(other, k) == tree)


def test_blocks_of_a_turn_that_a_nest_cannot_deal() -> None:
    """Units are dealt to 3 blocks in turn and the blocks folded 0 with 2 first: no cut deals units 0, 2, 3, 5, ... ."""
    blocks = [[u for u in range(12) if u % 3 == b] for b in range(3)]
    tree: Tree = ((chain(blocks[0]), chain(blocks[2])), chain(blocks[1]))
    assert not compress_tree(tree, 12)


folds = st.lists(
    st.one_of(
        st.builds(Contiguous, span=st.integers(1, 4), short=st.sampled_from(Short)),
        st.builds(Strided, count=st.integers(1, 5), unit=st.integers(1, 2)),
    ),
    max_size=2,
).map(tuple)


@given(nests, folds, st.integers(1, 120), st.data())
@settings(max_examples=150, deadline=None)
def test_the_induced_tree_is_that_of_the_schedule(
    nest: tuple[Layout, ...], fold: tuple[Layout, ...], k: int, data: st.DataObject
) -> None:
    desc = descriptor(nest, k)
    desc = replace(desc, cuts=tuple(replace(cut, fold=fold if i == 0 else ()) for i, cut in enumerate(desc.cuts)))
    sites = sorted(data.draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=40)))
    assert induced_tree(desc, k, sites) == by_schedule(desc, k, sites)


def by_schedule(desc: GEMMDesc, k: int, sites: Sequence[int]) -> Tree:
    """The tree over ``sites``, from the program of additions."""
    schedule = make_schedule(desc, k)

    def join(one: Tree | None, other: Tree | None) -> Tree | None:
        if one is None or other is None:
            return one if other is None else other
        return tuple(sorted((one, other), key=lambda t: min(leaves(t))))

    stack: list[Tree | None] = []
    for op, argument in schedule.program.tolist():
        if op == Op.LEAF:
            begin, end = schedule.leaf_offsets[argument : argument + 2]
            chain_of: Tree | None = None
            for t in schedule.order[begin:end].tolist():
                chain_of = join(chain_of, t if t in sites else None)
            stack.append(chain_of)
        elif op == Op.ADD:
            right = stack.pop()
            stack.append(join(stack.pop(), right))
    (root,) = stack
    assert root is not None
    return root


BLOCKS = (Strided(count=4, unit=1), Strided(count=8, unit=1), Strided(count=2, unit=1))


def test_blocks_folded_by_their_own_numbers_are_one_cut() -> None:
    """37 blocks take units of 4 in turn; a tree over their numbers folds them."""
    desc = descriptor((Strided(count=37, unit=4), Strided(count=2, unit=1), Strided(count=2, unit=1)), 700)
    desc = replace(desc, cuts=(replace(desc.cuts[0], fold=BLOCKS), *desc.cuts[1:]))
    piece = whole(flatten(induced_tree(desc, 700, range(700))), 700)
    assert not compress_tree(induced_tree(desc, 700, range(700)), 700)
    search = Search(Constants(), Work(20_000), 20_000)
    (nest, *_) = search.some(search.grouped(((piece,),), 3), 1, 0)
    assert layouts_of(nest) == (Strided(count=37, unit=4), Strided(count=2, unit=1), Strided(count=2, unit=1))
    # Of 37 blocks no more than two are left in the last groups, in which a chain does what a cut in two would.
    assert layouts_of(nest[0].fold) == BLOCKS[:2]
