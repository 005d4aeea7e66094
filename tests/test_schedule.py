"""Schedules: every k once, steps where the layouts put them, folds in their order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.schedule import ROUNDINGS, Op, fold_levels, make_schedule
from tests.arithmetic_reference import HOPPER, accumulators, descriptors, groups, split

CHAIN = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True))


def gemm(*layouts: Contiguous | Strided, summed_k: int = 1000, accumulator: Accumulator = CHAIN) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=DType.FLOAT16,
        b_dtype=DType.FLOAT16,
        output_dtype=DType.FLOAT16,
        summed_k=summed_k,
        cuts=tuple(
            Cut(layout=x, partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST) for x in layouts
        ),
        accumulator=accumulator,
    )


def leaves(desc: GEMMDesc, k: int) -> list[list[int]]:
    s = make_schedule(desc, k)
    offsets = s.leaf_offsets.tolist()
    return [s.order[i:j].tolist() for i, j in pairwise(offsets)]


def folded(desc: GEMMDesc, k: int) -> object:
    """The additions of the schedule as a nest of pairs over the first k of each leaf."""
    stack: list[object] = []
    parts = leaves(desc, k)
    for op, argument in make_schedule(desc, k).program.tolist():
        if op == Op.LEAF:
            stack.append(parts[argument][0])
        elif op == Op.ADD:
            right = stack.pop()
            stack.append((stack.pop(), right))
    (root,) = stack
    return root


@settings(max_examples=300, deadline=None)
@given(desc=descriptors(), k=st.integers(0, 60))
def test_a_schedule_sums_each_k_once_and_nothing_else(desc: GEMMDesc, k: int) -> None:
    s = make_schedule(desc, k)
    assert sorted(s.order.tolist()) == list(range(min(k, desc.summed_k)))
    assert s.leaf_offsets[0] == 0
    assert s.leaf_offsets[-1] == len(s.order)
    assert len(s.leaf_offsets) == len(s.step_offsets)
    assert s.step_offsets[-1] == len(s.step_ends)
    assert (np.diff(s.step_ends, prepend=0) > 0).all()
    assert np.isin(s.leaf_offsets[1:][np.diff(s.leaf_offsets) > 0], s.step_ends).all()


@settings(max_examples=300, deadline=None)
@given(desc=descriptors(), k=st.integers(0, 60))
def test_the_stack_program_leaves_one_value_within_its_depth(desc: GEMMDesc, k: int) -> None:
    s = make_schedule(desc, k)
    depth, deepest, used = 0, 0, []
    for op, argument in s.program.tolist():
        if op == Op.LEAF:
            depth += 1
            used.append(argument)
        elif op == Op.ADD:
            depth -= 1
        elif op == Op.ROUND:
            assert 0 < argument < len(ROUNDINGS)
        assert depth >= 1
        deepest = max(deepest, depth)
    assert depth == 1
    assert deepest <= s.stack_depth
    assert used == list(range(len(s.leaf_offsets) - 1))


@settings(max_examples=300, deadline=None)
@given(accumulator=accumulators(), length=st.integers(0, 60))
def test_steps_are_those_of_the_residue(accumulator: Accumulator, length: int) -> None:
    expected = np.cumsum([len(g) for g in groups(list(range(length)), accumulator)], dtype=np.int64)
    assert make_schedule(gemm(accumulator=accumulator), length).step_ends.tolist() == expected.tolist()


@settings(max_examples=300, deadline=None)
@given(
    first=st.builds(Contiguous, span=st.integers(1, 20), short=st.sampled_from(list(Short))),
    second=st.builds(Strided, count=st.integers(1, 6), unit=st.integers(1, 4)),
    k=st.integers(0, 60),
)
def test_leaves_are_the_parts_of_the_parts(first: Contiguous, second: Strided, k: int) -> None:
    ks = list(range(k))
    assert leaves(gemm(first, second), k) == [x for part in split(ks, first) for x in split(part, second)]
    assert leaves(gemm(second, first), k) == [x for part in split(ks, second) for x in split(part, first)]


@pytest.mark.parametrize(("k", "k_loop_step", "instruction_k"), [(100, 32, 8), (75, 32, 16), (64, 32, 16), (7, 64, 16)])
def test_residue_first_puts_the_short_step_at_the_end_of_the_leading_turn(
    k: int, k_loop_step: int, instruction_k: int
) -> None:
    residue = k % k_loop_step
    boundaries = [*range(0, residue, instruction_k), *range(residue, k + 1, instruction_k)]
    accumulator = Accumulator(instruction_k=instruction_k, residue=ResidueFirst(k_loop_step=k_loop_step), step=HOPPER)
    assert [0, *make_schedule(gemm(accumulator=accumulator), k).step_ends.tolist()] == sorted(set(boundaries))


@pytest.mark.parametrize(
    ("k_loop_step", "expected"),
    [
        (32, [8, 24, 40, 43, 59, 75]),
        # A turn that is no multiple of the step ends with a short step, each time.
        (20, [16, 20, 36, 40, 55, 71, 75]),
    ],
)
def test_each_slice_has_its_own_residue(k_loop_step: int, expected: list[int]) -> None:
    accumulator = Accumulator(instruction_k=16, residue=ResidueFirst(k_loop_step=k_loop_step), step=HOPPER)
    assert make_schedule(gemm(Contiguous(span=40), accumulator=accumulator), 75).step_ends.tolist() == expected


@pytest.mark.parametrize("levels", [1, 2, 3, 5])
def test_a_nest_of_strided_pairs_is_a_butterfly(levels: int) -> None:
    lanes = 1 << levels

    def butterfly(values: list[object]) -> object:
        # A count-down shuffle: lane l takes lane l + width / 2, until one is left.
        while len(values) > 1:
            half = len(values) // 2
            values = [(values[i], values[i + half]) for i in range(half)]
        return values[0]

    nest = gemm(*[Strided(count=2, unit=1)] * levels)
    reversed_bits = [int(f"{lane:0{levels}b}"[::-1], 2) for lane in range(lanes)]
    assert [x[0] for x in leaves(nest, lanes)] == reversed_bits
    assert folded(nest, lanes) == butterfly(list(range(lanes)))


def test_parts_are_folded_as_one_ascending_chain() -> None:
    assert folded(gemm(Contiguous(span=3)), 12) == (((0, 3), 6), 9)
    assert folded(gemm(Strided(count=4, unit=2)), 16) == (((0, 2), 4), 6)
    assert folded(gemm(Contiguous(span=6), Contiguous(span=2)), 12) == (((0, 2), 4), ((6, 8), 10))


def test_a_short_part_falls_where_it_is_told() -> None:
    assert leaves(gemm(Contiguous(span=4, short=Short.FIRST)), 10) == [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
    assert leaves(gemm(Contiguous(span=4, short=Short.LAST)), 10) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_empty_axes_and_parts_are_kept() -> None:
    assert leaves(gemm(Contiguous(span=4)), 0) == [[]]
    assert leaves(gemm(Strided(count=3, unit=2)), 2) == [[0, 1], [], []]
    assert leaves(gemm(Contiguous(span=4), summed_k=5), 9) == [[0, 1, 2, 3], [4]]


def test_a_negative_inner_size_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^k must be at least 0 \(got -1\)$"):
        make_schedule(gemm(), -1)


def nested_sums(program: np.ndarray) -> object:
    """The additions of a stack program, as nested sums of leaf numbers."""
    stack: list[object] = []
    for op, argument in program.tolist():
        if op == Op.LEAF:
            stack.append(argument)
        elif op == Op.ADD:
            right = stack.pop()
            stack.append((stack.pop(), right))
        elif op == Op.ADD_TO_ZERO:
            stack.append((0.0, stack.pop()))
    (whole,) = stack
    return whole


def folded_by_levels(desc: GEMMDesc, k: int) -> object:
    """The same by level: innermost folds first, each over consecutive sums."""
    levels = fold_levels(desc, k)
    sums: list[object] = list(range(len(make_schedule(desc, k).leaf_offsets) - 1))
    owners = [cut for cut in desc.cuts for _ in (*cut.fold, None)]
    for cut, offsets in zip(reversed(owners), reversed(levels), strict=True):
        following = []
        for begin, end in pairwise(offsets.tolist()):
            total = (0.0, sums[begin]) if cut.start is Start.ZERO else sums[begin]
            for other in sums[begin + 1 : end]:
                total = (total, other)
            following.append(total)
        sums = following
    (whole,) = sums
    return whole


@settings(max_examples=200, deadline=None)
@given(descriptors(), st.integers(0, 90))
def test_folds_level_by_level_are_those_of_the_program(desc: GEMMDesc, k: int) -> None:
    assert folded_by_levels(desc, k) == nested_sums(make_schedule(desc, k).program)


def test_fold_levels_refuse_a_negative_size() -> None:
    with pytest.raises(InvalidInputError, match=r"k must be at least 0 \(got -1\)"):
        fold_levels(gemm(), -1)


def test_parts_are_folded_in_groups_of_their_numbers() -> None:
    desc = gemm(Strided(count=5, unit=1))
    desc = replace(desc, cuts=(replace(desc.cuts[0], fold=(Strided(count=2, unit=1), Strided(count=2, unit=1))),))
    assert leaves(desc, 7) == [[0, 5], [4], [2], [1, 6], [3]]
    assert folded(desc, 7) == (((0, 4), 2), (1, 3))
    pairs = replace(desc, cuts=(replace(desc.cuts[0], fold=(Contiguous(span=2),)),))
    assert folded(pairs, 7) == (((0, 1), (2, 3)), 4)
    assert [x.tolist() for x in fold_levels(desc, 7)] == [[0, 2], [0, 2, 4], [0, 2, 3, 4, 5]]


def test_a_group_of_no_parts_counts_as_an_empty_part() -> None:
    desc = gemm(Strided(count=2, unit=1))
    desc = replace(desc, cuts=(replace(desc.cuts[0], fold=(Strided(count=3, unit=1),)),))
    assert leaves(desc, 4) == [[0, 2], [1, 3], []]


@given(desc=descriptors(), k=st.integers(0, 30))
def test_rows_of_the_program_tell_their_cut(desc: GEMMDesc, k: int) -> None:
    schedule = make_schedule(desc, k)
    assert len(schedule.levels) == len(schedule.program)
    for (op, _), level in zip(schedule.program.tolist(), schedule.levels.tolist(), strict=True):
        assert (level == len(desc.cuts)) == (op == Op.LEAF)
        assert 0 <= level <= len(desc.cuts)


def test_rounding_rows_belong_to_the_cut_whose_type_they_are() -> None:
    plain = gemm(Contiguous(span=8), Contiguous(span=2), Contiguous(span=1))
    types = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
    cuts = tuple(replace(cut, partial_dtype=t, merge_dtype=t) for cut, t in zip(plain.cuts, types, strict=True))
    schedule = make_schedule(replace(plain, cuts=cuts), 24)
    rounded = schedule.program[:, 0] == Op.ROUND
    assert [types[level] for level in schedule.levels[rounded]] == [ROUNDINGS[i] for i in schedule.program[rounded, 1]]
    added = schedule.levels[schedule.program[:, 0] == Op.ADD]
    assert np.bincount(added).tolist() == [2, 3 * 3, 3 * 4 * 1]
