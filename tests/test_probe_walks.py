"""Walks and calibrations on simulated answers: what is read is what the descriptor says."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from gemmdesc.arithmetic.models import find_model
from gemmdesc.descriptor import FusedDot, GEMMDesc, Rounding, ScalarStep, Short, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe.calibrate import calibrate_merge, calibrate_step, calibrate_zero
from gemmdesc.probe.experiments import ReferenceFailed, magnitudes, to_entries
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import MergeTypes, Reading, StepArithmetic, reading_from_plain, reading_to_plain
from gemmdesc.probe.tree import Tree, chain_steps, leaves
from gemmdesc.probe.walks import (
    MOST_SITES,
    read_element_tree,
    read_fused,
    read_part_ends,
    read_part_tree,
    read_sampled_tree,
    read_steps,
    read_summed,
)
from gemmdesc.problem import environment
from gemmdesc.rule import evaluate_rule
from gemmdesc.schedule import Schedule, make_schedule
from tests.probe_samples import (
    AMPERE,
    BF16,
    FP16,
    FP32,
    HOPPER,
    SCALAR,
    Order,
    library_of,
    reader_of,
    sample_answer,
    sample_problem,
)


def schedule_of(order: Order, k: int, splitk: int = 1) -> Schedule:
    values = environment(sample_problem(k), sample_answer(splitk_num=splitk), None)
    desc = evaluate_rule(order.rule(), values)
    assert isinstance(desc, GEMMDesc)
    return make_schedule(desc, k)


def true_ends(order: Order, k: int) -> list[int]:
    return [int(x) for x in schedule_of(order, k).leaf_offsets[1:]]


def true_boundaries(order: Order, k: int) -> list[int]:
    """Every b at which a step begins that is not the first one."""
    schedule = schedule_of(order, k)
    return [int(e) for e in schedule.step_ends[:-1]]


def chain(steps: list[list[int]]) -> Tree:
    tree: Tree | None = None
    for step in steps:
        items: list[Tree] = [*([] if tree is None else [tree]), *step]
        tree = items[0] if len(items) == 1 else tuple(items)
    assert tree is not None
    return tree


@pytest.mark.parametrize("k", [1, 2, 191, 192, 193, 700, 1500])
def test_all_of_k_is_summed(k: int) -> None:
    reader, _ = reader_of(Order(), k)
    assert read_summed(reader) == (k, ())


@pytest.mark.parametrize(
    ("k", "splitk", "grain", "summed"),
    [(1000, 7, 64, 1000), (1031, 8, 64, 1024), (1500, 11, 8, 1496), (300, 2, 1, 300)],
)
def test_a_lost_tail_is_found(k: int, splitk: int, grain: int, summed: int) -> None:
    span = f"round_up(floordiv(k, splitk_num), {grain})"
    reader, _ = reader_of(Order(spans=(span,), summed=f"min(k, mul({span}, splitk_num))"), k, splitk=splitk)
    assert read_summed(reader) == (summed, ())


@pytest.mark.parametrize("summed", [0, 1, 2, 500, 999])
def test_any_number_of_leading_k_may_be_summed(summed: int) -> None:
    reader, _ = reader_of(Order(summed=str(summed)), 1000)
    assert read_summed(reader)[0] == summed


@pytest.mark.parametrize("short", list(Short))
@pytest.mark.parametrize(
    ("k", "span"),
    [(512, 64), (500, 64), (514, 64), (100, 100), (101, 200), (1500, 8), (65, 33), (1300, 1000), (64, 32), (2, 1024)],
)
def test_part_ends(k: int, span: int, short: Short) -> None:
    order = Order(spans=(str(span),), short=short)
    reader, size = reader_of(order, k)
    assert list(read_part_ends(reader, k, size)) == true_ends(order, k)


@pytest.mark.parametrize(("parts", "span"), [(1, 64), (3, 64), (20, 17)])
def test_a_last_part_of_one_k_hides_in_the_one_before(parts: int, span: int) -> None:
    k = parts * span + 1
    order = Order(spans=(str(span),))
    reader, size = reader_of(order, k)
    ends = true_ends(order, k)
    assert ends[-2:] == [k - 1, k]
    assert list(read_part_ends(reader, k, size)) == [*ends[:-2], k]


@pytest.mark.parametrize("along_n", [False, True])
@pytest.mark.parametrize("instruction_k", [8, 16, 32])
@pytest.mark.parametrize("loop_step", [None, 32, 64, 128])
def test_steps(instruction_k: int, loop_step: int | None, along_n: bool) -> None:
    order = Order(instruction_k=instruction_k, loop_step=loop_step)
    k = 307
    reader, size = reader_of(order, k, along_n=along_n)
    expected = true_boundaries(order, k)
    whole = read_steps(reader, 0, k, size)
    assert list(whole.ends) == [b for b in expected if b >= 2]
    part = read_steps(reader, 90, 200, size)
    assert (part.begin, part.end) == (90, 200)
    assert list(part.ends) == [b for b in expected if 92 <= b < 200]


def test_steps_across_parts() -> None:
    order = Order(spans=("100",), loop_step=64)
    reader, size = reader_of(order, 290)
    assert list(read_steps(reader, 0, 290, size).ends) == true_boundaries(order, 290)


@pytest.mark.parametrize(
    ("order", "fused"),
    [
        (Order(step=AMPERE, instruction_k=8), True),
        (Order(step=HOPPER, instruction_k=16), True),
        (Order(step=HOPPER, instruction_k=16, loop_step=64), True),
        (Order(step=HOPPER, spans=("40",)), True),
        (SCALAR, False),
        (replace(SCALAR, step=ScalarStep(fused=False)), False),
        (replace(SCALAR, spans=("40",)), False),
    ],
)
@pytest.mark.parametrize(("dtype", "output"), [(FP16, FP16), (FP16, FP32), (BF16, BF16), (BF16, FP32)])
def test_fused(order: Order, fused: bool, dtype: DType, output: DType) -> None:
    reader, size = reader_of(order, 130, dtype, output)
    assert read_fused(reader, 130, size) is fused


def test_two_products_do_not_tell() -> None:
    reader, size = reader_of(Order(), 2)
    assert read_fused(reader, 2, size) is None


@pytest.mark.parametrize("k", [2, 3, 8, 9, 63, 80, 96])
@pytest.mark.parametrize(("instruction_k", "loop_step"), [(8, None), (16, None), (8, 32), (16, 64)])
def test_the_element_tree_is_the_chain_of_steps(k: int, instruction_k: int, loop_step: int | None) -> None:
    order = Order(instruction_k=instruction_k, loop_step=loop_step)
    reader, size = reader_of(order, k)
    bounds = [0, *true_boundaries(order, k), k]
    steps = [list(range(a, b)) for a, b in pairwise(bounds)]
    tree = read_element_tree(reader, k, size)
    assert tree == chain(steps)
    if len(steps[0]) > 1:
        assert tree is not None
        assert chain_steps(tree) == steps


def test_the_element_tree_of_a_split_and_of_a_scalar_chain() -> None:
    reader, size = reader_of(Order(spans=("24",), instruction_k=8), 60)
    part = [chain([list(range(b, b + 8)) for b in range(s, s + 24, 8)]) for s in (0, 24)]
    last = chain([list(range(48, 56)), list(range(56, 60))])
    assert read_element_tree(reader, 60, size) == ((part[0], part[1]), last)
    reader, size = reader_of(SCALAR, 20)
    assert read_element_tree(reader, 20, size) == chain([[i] for i in range(20)])


def test_no_element_tree_beyond_the_sites() -> None:
    reader, size = reader_of(Order(), MOST_SITES + 1)
    assert read_element_tree(reader, MOST_SITES + 1, size) is None
    assert reader.launches == 0


def test_the_part_tree() -> None:
    reader, size = reader_of(Order(spans=("64",)), 300)
    assert read_part_tree(reader, (64, 128, 192, 256, 300), size) == (chain([[i] for i in range(5)]), ())
    reader, size = reader_of(Order(spans=("96", "32")), 250)
    ends = read_part_ends(reader, 250, size)
    assert ends == (32, 64, 96, 128, 160, 192, 224, 250)
    assert read_part_tree(reader, ends, size) == (((((0, 1), 2), ((3, 4), 5)), (6, 7)), ())
    assert read_part_tree(reader, (250,), size) == (0, ())


def test_the_part_tree_of_many_parts_is_that_of_some() -> None:
    k, span = 1000, 8
    reader, size = reader_of(Order(spans=(str(span),), instruction_k=8), k)
    ends = read_part_ends(reader, k, size)
    assert len(ends) == 125
    tree, trouble = read_part_tree(reader, ends, size)
    assert not trouble
    sites = []
    while not isinstance(tree, int):
        tree, last = tree
        assert isinstance(last, int)
        sites.append(last)
    sites = [tree, *sites[::-1]]
    assert len(sites) == MOST_SITES
    assert (sites[0], sites[-1]) == (0, 124)
    assert sites == sorted(set(sites))


MODELS = [
    ("Volta", "mma", FP16),
    ("Turing", "mma", FP16),
    ("Ampere", "mma", FP16),
    ("Ampere", "mma", BF16),
    ("Hopper", "wgmma", FP16),
    ("Hopper", "wgmma", BF16),
]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("architecture", "instruction", "dtype"), MODELS)
def test_the_step_of_a_model_is_recovered(architecture: str, instruction: str, dtype: DType, wide: bool) -> None:
    model = find_model(
        architecture=architecture, instruction=instruction, a_dtype=dtype, b_dtype=dtype, accumulator_dtype=FP32
    )
    g = model.instruction_k
    reader, size = reader_of(Order(step=model.step, instruction_k=g), 64, dtype, FP32 if wide else dtype)
    assert calibrate_step(reader, (g, 2 * g), 2 * g, size) == StepArithmetic(
        fraction_bits=model.fraction_bits, output_bits=model.output_bits, toward_zero=True
    )
    alone = calibrate_step(reader, (g, 2 * g), None, size)
    assert alone == StepArithmetic(fraction_bits=model.fraction_bits)


@pytest.mark.parametrize(("fraction", "output"), [(20, 12), (25, 22), (18, 18), (30, 23)])
def test_made_up_steps_are_recovered(fraction: int, output: int) -> None:
    step = FusedDot(fraction_bits=fraction, output_bits=output, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
    reader, size = reader_of(Order(step=step), 64)
    got = calibrate_step(reader, (0, 16), 16, size)
    assert (got.fraction_bits, got.output_bits, got.toward_zero) == (fraction, output, True)


def test_a_step_that_rounds_to_nearest_is_not_taken_to_truncate() -> None:
    step = replace(HOPPER, output_bits=12, rounding=Rounding.NEAREST_EVEN)
    reader, size = reader_of(Order(step=step), 64)
    got = calibrate_step(reader, (0, 16), 16, size)
    assert (got.fraction_bits, got.output_bits) == (25, 12)
    assert got.toward_zero is not True


@pytest.mark.parametrize(("fraction", "zero"), [(23, -131), (24, -132), (25, -133), (25, -131), (24, -133)])
def test_the_exponent_of_zero_is_recovered(fraction: int, zero: int) -> None:
    step = replace(HOPPER, fraction_bits=fraction, zero_exponent=zero)
    reader, _ = reader_of(Order(step=step), 64, BF16, FP32)
    assert calibrate_zero(reader, 16, fraction) == zero
    assert calibrate_zero(reader, 16, None) is None


BITS = {FP32: 23, FP16: 10, BF16: 7}


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("narrow_partial", [False, True])
@pytest.mark.parametrize("narrow_merge", [False, True])
@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_merge_types(dtype: DType, narrow_partial: bool, narrow_merge: bool, parts: int, start: Start) -> None:
    partial, merge = (dtype if narrow else FP32 for narrow in (narrow_partial, narrow_merge))
    order = Order(spans=("64",), partial=partial, merge=merge, start=start)
    reader, size = reader_of(order, 64 * parts, dtype)
    got = calibrate_merge(reader, [64 * i for i in range(parts)], dtype, dtype, size)
    assert got.partial_bits == BITS[partial]
    # Of two parts stored in a narrow type the running sum shows nothing more.
    assert got.running_bits == (None if parts == 2 and narrow_partial else BITS[merge])
    assert got.nearest == (True if narrow_partial else None)
    # Partials in float32 are never -0.0.
    assert got.starts_at_zero == ((start is Start.ZERO) if narrow_partial else None)


def test_merge_of_one_part_shows_nothing() -> None:
    reader, size = reader_of(Order(), 64)
    assert calibrate_merge(reader, [0], FP16, FP16, size) == MergeTypes()


def test_parts_too_short_for_the_experiments_show_nothing() -> None:
    reader, size = reader_of(Order(spans=("1",), instruction_k=8), 8)
    assert calibrate_merge(reader, list(range(8)), FP16, FP16, size) == MergeTypes()


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize(("k", "span"), [(129, 64), (1000, 8), (193, 64)])
def test_the_start_shows_beside_parts_that_hide_or_that_no_tree_was_read_for(k: int, span: int, start: Start) -> None:
    order = Order(spans=(str(span),), instruction_k=8, partial=FP16, start=start)
    problem, answer = sample_problem(k), sample_answer()
    reading = read_answer(LibraryReader(library_of(order.rule(), answer), problem, answer), problem, answer)
    assert reading.merge.starts_at_zero == (start is Start.ZERO)


def readings() -> list[Reading]:
    """Of a split, a split in two levels, a small chain, and a CUDA-core chain."""
    cases = [
        (Order(spans=("round_up(floordiv(k, splitk_num), 32)",), loop_step=64), 300, 3, FP16),
        (Order(spans=("96", "32")), 250, 1, FP16),
        (Order(), 40, 1, BF16),
        (SCALAR, 40, 1, FP16),
    ]
    out = []
    for order, k, splitk, dtype in cases:
        problem, answer = sample_problem(k, dtype, FP32), sample_answer(splitk_num=splitk)
        reader = LibraryReader(library_of(order.rule(dtype, FP32), answer), problem, answer)
        out.append(read_answer(reader, problem, answer))
    return out


def test_readings_survive_json() -> None:
    made = readings()
    assert [r.fused for r in made] == [True, True, True, False]
    for reading in made:
        text = json.dumps(reading_to_plain(reading))
        assert reading_from_plain(json.loads(text)) == reading
    assert made[1].part_tree == ((((0, 1), 2), ((3, 4), 5)), (6, 7))
    assert made[2].arithmetic == StepArithmetic(
        fraction_bits=25, output_bits=23, toward_zero=True, zero_exponent=-133
    )
    assert made[3].element_tree == chain([[i] for i in range(40)])


def test_a_reading_with_a_field_too_few_or_too_many() -> None:
    plain = reading_to_plain(readings()[2])
    for broken in ({k: v for k, v in plain.items() if k != "windows"}, plain | {"other": 1}):
        with pytest.raises(InvalidInputError, match=r"^reading must hold the fields of Reading"):
            reading_from_plain(broken)


def test_an_answer_that_does_not_run() -> None:
    problem, answer = sample_problem(64), sample_answer()
    plain = library_of(Order().rule(), answer)
    library = SimulatedLibrary(
        identity=plain.identity, device=plain.device, heuristic=plain.heuristic, rules=plain.rules,
        failures=lambda p, x: "CUBLAS_STATUS_EXECUTION_FAILED",
    )  # fmt: skip
    with pytest.raises(ReferenceFailed, match="CUBLAS_STATUS_EXECUTION_FAILED"):
        read_answer(LibraryReader(library, problem, answer), problem, answer)


def test_magnitudes_and_exact_values() -> None:
    assert magnitudes(FP16, FP32).big == 2.0**15
    assert magnitudes(FP16, FP32).tiny == 2.0**-24
    assert magnitudes(BF16, BF16).countable == 2**7
    assert magnitudes(DType.FLOAT8_E4M3FN, FP16).big == 2.0**8
    with pytest.raises(InvalidInputError, match=r"^value must be exact in float16"):
        to_entries([((0, 1.0 + 2.0**-11),)], FP16)


def test_a_sampled_tree_holds_the_edges_of_slices() -> None:
    """Slices of 5,003, whose ends no sampled site would hit."""
    order = Order(spans=("5003",), instruction_k=1, step=ScalarStep(fused=True))
    reader, size = reader_of(order, 40_000, FP16, FP32)
    tree = read_sampled_tree(reader, 40_000, size)
    assert tree is not None
    sites = set(leaves(tree))
    assert {x for edge in range(5003, 40_000, 5003) for x in (edge - 1, edge)} <= sites
    assert len(sites) <= 420
