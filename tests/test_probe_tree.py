"""Recovering trees without a model, and compressing them into nests of cuts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.descriptor import Short
from gemmdesc.probe.nest import Level, NestError, compress_parts
from gemmdesc.probe.tree import (
    Oracle,
    Query,
    Tree,
    TreeError,
    chain_items,
    chain_pairs,
    chain_steps,
    leaves,
    recover_tree,
)


def canonical(tree: Tree) -> Tree:
    """Children in order of their first site, as ``recover_tree`` gives them."""
    if isinstance(tree, int):
        return tree
    return tuple(sorted((canonical(t) for t in tree), key=lambda t: min(leaves(t))))


def exact_oracle(tree: Tree) -> Oracle:
    """The size of the smallest subtree with both sites, read off the tree itself."""

    def size(node: Tree, one: int, other: int) -> int:
        if not isinstance(node, int):
            for child in node:
                inside = leaves(child)
                if one in inside and other in inside:
                    return size(child, one, other)
        return len(leaves(node))

    return lambda queries: [[size(tree, one, other) for other in others] for one, others in queries]


@st.composite
def trees(draw: st.DrawFn, arity: int) -> Tree:
    """A tree of up to 24 sites, joined from a shuffled forest ``arity`` or fewer at a time."""
    forest: list[Tree] = list(draw(st.permutations(range(draw(st.integers(1, 24))))))
    while len(forest) > 1:
        count = draw(st.integers(2, min(arity, len(forest))))
        chosen = [forest.pop(draw(st.integers(0, len(forest) - 1))) for _ in range(count)]
        forest.append(tuple(chosen))
    return forest[0]


@given(trees(2))
@settings(max_examples=150)
def test_binary_trees_come_back(tree: Tree) -> None:
    assert recover_tree(leaves(tree), exact_oracle(tree)) == canonical(tree)


@given(trees(6))
@settings(max_examples=150)
def test_fused_trees_come_back(tree: Tree) -> None:
    assert recover_tree(leaves(tree), exact_oracle(tree)) == canonical(tree)


def test_sites_need_not_be_consecutive() -> None:
    tree: Tree = ((3, 90), (7, 8, 40))
    assert recover_tree([90, 7, 3, 40, 8], exact_oracle(tree)) == tree


@given(trees(4).filter(lambda t: len(leaves(t)) > 2), st.data())
@settings(max_examples=60)
def test_one_wrong_size_of_the_first_site_is_never_explained(tree: Tree, data: st.DataObject) -> None:
    exact = exact_oracle(tree)
    others = sorted(leaves(tree))[1:]
    sizes = dict(zip(others, exact([(0, others)])[0], strict=True))
    victim = data.draw(st.sampled_from(others))
    # -1: the output was no count at all; or one site too many below every node.
    wrong = data.draw(st.sampled_from([-1, len(others) + 2]))

    def oracle(queries: Sequence[Query]) -> Sequence[Sequence[int]]:
        return [
            [wrong if one == 0 and o == victim else n for o, n in zip(asked, sizes, strict=True)]
            for (one, asked), sizes in zip(queries, exact(queries), strict=True)
        ]

    assert sizes[victim] != wrong
    with pytest.raises(TreeError):
        recover_tree(leaves(tree), oracle)


def test_sizes_that_do_not_add_up() -> None:
    with pytest.raises(TreeError, match=r"^sizes must add up to subtrees \(got 2 sites below a node of size 3\)"):
        recover_tree(range(3), lambda queries: [[3 if o == 1 else 4 for o in others] for _, others in queries])
    with pytest.raises(TreeError, match=r"^sites must not be empty"):
        recover_tree([], lambda queries: [[] for _ in queries])


def test_chain_items() -> None:
    assert chain_items(4) == [4]
    assert chain_items((((0, 1), 2), 3)) == [0, 1, 2, 3]
    assert chain_items(((0, 1), (2, 3))) == [0, 1, (2, 3)]
    assert chain_items((((0, (4, 5)), 2), 3)) == [0, (4, 5), 2, 3]
    with pytest.raises(TreeError, match=r"two at a time \(got 3\)"):
        chain_items(((0, 1, 2), 3))


def test_pairs_of_a_chain() -> None:
    assert chain_pairs(0) == []
    assert chain_pairs(((0, 1), 2)) == [(0, 1), (1, 2)]
    assert chain_pairs((((0, 4096), 1), (64, 65))) == [(0, 4096), (64, 65), (4096, 1)]


def test_chain_steps() -> None:
    assert chain_steps(5) == [[5]]
    assert chain_steps((0, 1, 2)) == [[0, 1, 2]]
    assert chain_steps((((0, 1, 2), 3, 4), 5)) == [[0, 1, 2], [3, 4], [5]]
    with pytest.raises(TreeError, match="nested operand"):
        chain_steps(((0, 1), (2, 3)))


def chain(items: Sequence[Tree]) -> Tree:
    tree = items[0]
    for item in items[1:]:
        tree = (tree, item)
    return tree


def ends(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


@pytest.mark.parametrize(
    ("lengths", "level"),
    [
        ([64, 64, 64], Level(span=64, short=Short.LAST)),
        ([64, 64, 13], Level(span=64, short=Short.LAST)),
        ([13, 64, 64], Level(span=64, short=Short.FIRST)),
        ([13, 64], Level(span=64, short=Short.FIRST)),
        ([64, 13], Level(span=64, short=Short.LAST)),
        # The last part of a single k is not seen and counts to the one before.
        ([64, 64, 65], Level(span=64, short=Short.LAST)),
        ([64, 65], Level(span=64, short=Short.LAST)),
    ],
)
def test_one_level(lengths: list[int], level: Level) -> None:
    assert compress_parts(chain(range(len(lengths))), ends(lengths)) == (level,)


def test_one_part_is_no_cut() -> None:
    assert compress_parts(0, [1000]) == ()


def test_two_levels() -> None:
    tree = chain([chain([0, 1, 2]), chain([3, 4, 5]), chain([6, 7])])
    lengths = [32, 32, 32, 32, 32, 32, 32, 10]
    expected = (Level(span=96, short=Short.LAST), Level(span=32, short=Short.LAST))
    assert compress_parts(tree, ends(lengths)) == expected
    # A shorter last or first outer part: the other one's chain lies flat on the spine.
    shorter = chain([chain([0, 1, 2, 3]), chain([4, 5, 6])])
    expected = (Level(span=512, short=Short.LAST), Level(span=128, short=Short.LAST))
    assert compress_parts(shorter, ends([128, 128, 128, 128, 128, 128, 9])) == expected
    first = (Level(span=12, short=Short.FIRST), Level(span=8, short=Short.LAST))
    assert compress_parts((0, (1, 2)), ends([8, 8, 4])) == first
    uneven = chain([chain([0, 1]), chain([2, 3])])
    with_short = (Level(span=40, short=Short.LAST), Level(span=32, short=Short.LAST))
    assert compress_parts(uneven, ends([32, 8, 32, 8])) == with_short


def test_some_parts_stand_for_all() -> None:
    lengths = [16] * 200
    assert compress_parts(chain([0, 1, 99, 150, 199]), ends(lengths)) == (Level(span=16, short=Short.LAST),)
    with pytest.raises(NestError, match="groups of parts must be equal"):
        compress_parts(chain([0, 1, chain([2, 3, 4]), 199]), ends(lengths))
    with pytest.raises(NestError, match="equal but for one"):
        compress_parts(chain([0, 1, 99, 199]), ends([16] * 100 + [17] + [16] * 99))


def test_some_parts_of_a_nest_stand_for_all() -> None:
    """123 blocks of 128 k in six slices, read through 96 of them: as on an H200, whose 8-bit products close blocks."""
    inner, most = Level(span=128, short=Short.LAST), 0
    for count, slice_parts, step in ((123, 21, 1), (123, 21, 2), (2000, 300, 97)):
        seen = sorted({*range(32), *range(32, count, step), *range(count - 20, count)})
        groups = [[p for p in seen if p // slice_parts == g] for g in range(-(-count // slice_parts))]
        tree = chain([*groups[0], *(chain(g) for g in groups[1:])])
        outer, found = compress_parts(tree, ends([128] * (count - 1) + [112]))
        assert found == inner
        assert outer.span <= 128 * slice_parts <= outer.longest
        most = max(most, outer.longest - outer.span)
        if step < 97:
            assert outer.longest == outer.span
    assert 0 < most <= 128 * 97


@pytest.mark.parametrize(
    ("tree", "lengths", "message"),
    [
        (((0, 2), 1), [8, 8, 8], "ascending order"),
        ((1, 0), [8, 8], "ascending order"),
        ((0, 1, 2), [8, 8, 8], "two at a time"),
        (((0, 1), 2), [8, 4, 8], "equal but for one"),
        (((0, 1), 2), [4, 8, 4], "equal but for one"),
        (((0, 1), (2, (3, 4))), [8] * 5, "at most twice|first group"),
        (((0, 1), (2, 3)), [8, 4, 4, 8], "cut alike"),
    ],
)
def test_what_is_no_nest(tree: Tree, lengths: list[int], message: str) -> None:
    with pytest.raises(NestError, match=message):
        compress_parts(tree, ends(lengths))
