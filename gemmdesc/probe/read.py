"""Reading one answer on one of its problems, all walks in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from gemmdesc.dtypes import DType
from gemmdesc.probe.calibrate import calibrate_merge, calibrate_step, calibrate_zero
from gemmdesc.probe.courses import has_epilogue, hides_zeros
from gemmdesc.probe.epilogues import plan_beside
from gemmdesc.probe.experiments import Reader, magnitudes_of
from gemmdesc.probe.formats import read_formats, read_fused_products
from gemmdesc.probe.reading import Beside, MergeTypes, OperandFormat, Reading, StepArithmetic, StepWindow
from gemmdesc.probe.tree import Tree, TreeError, chain_items, leaves
from gemmdesc.probe.walks import (
    read_element_tree,
    read_fused,
    read_negative_zero,
    read_part_ends,
    read_part_tree,
    read_sampled_tree,
    read_steps,
    read_summed,
)
from gemmdesc.problem import AlgoConfig, GemmProblem

#: How many k a window of step boundaries spans; longer than two turns of any main loop met so far.
WINDOW_K = 288


def read_answer(
    reader: Reader, problem: GemmProblem, answer: AlgoConfig, *, cuda_cores: bool = True
) -> Reading:
    """Everything that the walks can see of ``answer`` on ``problem``.

    ``cuda_cores``: whether to read the order of an answer that adds its products one by one, which takes many launches.

    Raises:
        ReferenceFailed: the library did not run the answer.
    """
    size = magnitudes_of(problem)
    summed_k, holes = read_summed(reader)
    anomalies = [f"k = {h} is not summed" for h in holes]
    fused = read_fused(reader, summed_k, size)
    a_format, b_format = _formats(reader, problem, summed_k)
    if not fused:
        tree = read_sampled_tree(reader, summed_k, size) if cuda_cores else None
        return Reading(
            problem=problem, answer=answer, summed_k=summed_k, part_ends=(summed_k,), part_tree=0, windows=(),
            arithmetic=StepArithmetic(), merge=MergeTypes(), fused=fused, element_tree=tree,
            negative_zero=read_negative_zero(reader, summed_k) if cuda_cores and not hides_zeros(problem) else None,
            a_format=a_format, b_format=b_format,
            fused_products=_fused_products(reader, problem, tree), beside=_beside(reader, problem, (summed_k,)),
            anomalies=tuple(anomalies),
        )  # fmt: skip
    tree = read_element_tree(reader, summed_k, size)
    part_ends = read_part_ends(reader, summed_k, size)
    bounds = [(0, min(WINDOW_K, summed_k)), *_further_windows(part_ends)]
    windows = [read_steps(reader, begin, end, size) for begin, end in bounds]
    part_tree, trouble = read_part_tree(reader, part_ends, size)
    arithmetic = _calibrate(reader, problem, windows, part_ends)
    merge = calibrate_merge(
        reader, _fold_starts(part_tree, part_ends), problem.a_dtype, problem.d_dtype, size,
        everywhere=_of_every_part(part_tree, part_ends), carried=arithmetic.output_bits,
    )  # fmt: skip
    if hides_zeros(problem):
        merge = replace(merge, starts_at_zero=None)
    return Reading(
        problem=problem, answer=answer, summed_k=summed_k, part_ends=part_ends, part_tree=part_tree,
        windows=tuple(windows), arithmetic=arithmetic, merge=merge, fused=True,
        element_tree=tree, a_format=a_format, b_format=b_format, beside=_beside(reader, problem, part_ends),
        anomalies=(*anomalies, *trouble),
    )  # fmt: skip


def _formats(
    reader: Reader, problem: GemmProblem, summed_k: int
) -> tuple[OperandFormat | None, OperandFormat | None]:
    """What is multiplied of A and of B, where both are of float32."""
    if not summed_k or {problem.a_dtype, problem.b_dtype, problem.d_dtype} != {DType.FLOAT32}:
        return None, None
    walked, steady = read_formats(reader)
    return (walked, steady) if reader.along_m else (steady, walked)


def _fused_products(reader: Reader, problem: GemmProblem, tree: Tree | None) -> bool | None:
    if tree is None or {problem.a_dtype, problem.b_dtype, problem.d_dtype} != {DType.FLOAT32}:
        return None
    return read_fused_products(reader, tree)


def _beside(reader: Reader, problem: GemmProblem, part_ends: Sequence[int]) -> tuple[Beside, ...]:
    summed_k = part_ends[-1]
    if not summed_k or not has_epilogue(problem):
        return ()
    # The last part's sum is added last: what is rounded after that shows.
    second = part_ends[-2] if len(part_ends) > 1 else min(1, summed_k - 1)
    return reader.outputs(plan_beside(problem, second))


def _further_windows(part_ends: Sequence[int]) -> list[tuple[int, int]]:
    """Windows at the end of the first part, at both ends of the second and of the last, none of them twice."""
    bounds = [0, *part_ends]
    wanted: list[tuple[int, int]] = []
    for part in sorted({0, 1, len(part_ends) - 1}):
        if part >= len(part_ends):
            continue
        begin, end = bounds[part], bounds[part + 1]
        for low, high in ((begin, min(end, begin + WINDOW_K)), (max(begin, end - WINDOW_K), end)):
            if (low, high) not in wanted and not (low == 0 and high <= WINDOW_K):
                wanted.append((low, high))
    return wanted


def _fold_starts(tree: Tree, part_ends: Sequence[int]) -> list[int]:
    """First k of the parts in fold order, one for each item of the outermost chain."""
    starts = [0, *part_ends[:-1]]
    try:
        return [starts[min(leaves(item))] for item in chain_items(tree)]
    except TreeError:
        return [starts[0]]


def _of_every_part(tree: Tree, part_ends: Sequence[int]) -> list[int]:
    """One k of each item of the outermost chain, with parts that no tree was read for, and a last one that hides."""
    try:
        flat = all(isinstance(x, int) for x in chain_items(tree))
    except TreeError:
        flat = False
    starts = [0, *part_ends[:-1]] if flat else _fold_starts(tree, part_ends)
    return sorted({*starts, part_ends[-1] - 1})


def _calibrate(
    reader: Reader, problem: GemmProblem, windows: Sequence[StepWindow], part_ends: Sequence[int]
) -> StepArithmetic:
    """Calibrate on the first step of three or more products that another step of its accumulator follows, if any."""
    step = _calibration_step(windows, part_ends)
    if step is None:
        return StepArithmetic()
    (begin, end), later = step
    measured = calibrate_step(reader, (begin, end), later, magnitudes_of(problem))
    if problem.d_dtype is DType.FLOAT32 and problem.a_dtype.format.min_exponent <= -126:
        return replace(measured, zero_exponent=calibrate_zero(reader, begin, measured.fraction_bits))
    return measured


def _calibration_step(
    windows: Sequence[StepWindow], part_ends: Sequence[int]
) -> tuple[tuple[int, int], int | None] | None:
    for window in windows:
        ends = [e for e in window.ends if e not in part_ends]
        for begin, end in pairwise(ends):
            if end - begin >= 3 and not any(begin < p < end for p in part_ends):
                return (begin, end), end
    whole = min([*windows[0].ends, part_ends[0]])
    if whole < 3:
        return None
    return (0, whole), whole if whole < part_ends[0] else None
