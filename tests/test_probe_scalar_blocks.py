"""Orders of CUDA-core kernels that few sites show: blocks folded by number, lanes that the launch sets."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from gemmdesc.descriptor import Contiguous, GEMMDesc, Layout, Short, Strided
from gemmdesc.expressions import call
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.normal_form import same_bits
from gemmdesc.probe.allowed import Allowed
from gemmdesc.probe.induced import induced_tree
from gemmdesc.probe.outcomes import ClassOutcome, ClassTask
from gemmdesc.probe.pieces import Piece, flatten, take_apart, take_groups, whole
from gemmdesc.probe.scalar_rule import scalar_descriptor
from gemmdesc.probe.scalar_sets import groups_allowed, spans_allowed, units_allowed
from gemmdesc.probe.scan import Example
from gemmdesc.probe.sites import sampled_sites
from gemmdesc.probe.solve import solve_class
from gemmdesc.problem import AlgoConfig, GemmProblem, KernelNode, Launch, Transpose, dense_problem, environment
from gemmdesc.rule import Rule, choose_rule, evaluate_rule, parse_rule
from tests.probe_samples import DEVICE, FP16, FP32, IDENTITY, sample_answer

PLAIN = "partial_dtype=float32, merge_dtype=float32, start=first"


def hidden(*layouts: str, fold: str = "") -> Rule:
    folds = [f", fold=[{fold}]" if fold and not i else "" for i in range(len(layouts))]
    cuts = ", ".join(f"cut(layout={x}, {PLAIN}{f})" for x, f in zip(layouts, folds, strict=True))
    return parse_rule(
        f"gemm(a_dtype=float16, b_dtype=float16, output_dtype=float32, summed_k=k, cuts=[{cuts}], "
        "accumulator=accumulator(instruction_k=1, residue=residue_last(), "
        "step=scalar_step(fused=True, start=zero)), epilogue=[])"
    )


def blocks(elements: int) -> Rule:
    """Blocks take tiles of k in turn; 8 threads of a block ``elements`` at a time; blocks fold by number modulo 4."""
    threads = [f"strided(count=2, unit={elements})"] * 3
    within = ["strided(count=2, unit=1)"] if elements > 1 else []
    fold = "strided(count=4, unit=1), strided(count=2, unit=1)"
    return hidden(f"strided(count=splitk_num, unit={8 * elements})", *threads, *within, fold=fold)


def block_examples() -> tuple[Example, ...]:
    rng = Random(6)
    layouts = [(transa, transb) for transa in Transpose for transb in Transpose]
    found = []
    for i in range(16):
        k, (transa, transb) = int(100 * 16 ** rng.random()), layouts[i % 4]
        problem = dense_problem(1, rng.choice((70, 90)), k, FP16, d_dtype=FP32, transa=transa, transb=transb)
        found.append(Example(problem=problem, answer=sample_answer(splitk_num=rng.choice((5, 12, 21)))))
    return tuple(found)


def solved(
    rule: Rule, of: tuple[Example, ...], launches: Callable[[GemmProblem, AlgoConfig], Launch] | None = None
) -> ClassOutcome:
    library = SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=lambda p: of[0].answer, rules=lambda p, a: rule, launches=launches
    )
    outcome = solve_class(library, ClassTask(label="one", examples=of, known=(), hints=(), seed=1))
    assert outcome.rule is not None, outcome.reason
    for e in of:
        values = environment(e.problem, e.answer, None if launches is None else launches(e.problem, e.answer))
        one, other = evaluate_rule(outcome.rule, values), evaluate_rule(rule, values)
        assert isinstance(one, GEMMDesc)
        assert isinstance(other, GEMMDesc)
        assert same_bits(one, other, e.problem.k), (outcome.rule.text, values)
    return outcome


@pytest.mark.slow
def test_blocks_folded_by_number_in_two_kernels_are_found() -> None:
    """One element at a time where B is not stored along k, two where it is."""
    rule = choose_rule(call("min", "a_unit_k", "b_unit_k"), blocks(2), blocks(1))
    outcome = solved(rule, block_examples())
    assert len(outcome.readings) <= 14


def lanes_of(outputs: int) -> int:
    return 32 if outputs <= 400 else 26 if outputs <= 500 else 24


def launches(problem: GemmProblem, answer: AlgoConfig) -> Launch:
    lanes = lanes_of(problem.m)
    beside = 1024 // lanes
    grid = (-(-problem.m // beside), 1, 1)
    kernel = KernelNode(name="lanes", grid=grid, block=(lanes, beside, 1), cluster=(1, 1, 1), shared_bytes=0)
    return Launch(kernels=(kernel,))


def test_where_the_answer_does_not_fix_the_lanes_the_launch_does() -> None:
    """Of many outputs fewer lanes fit the card; the kernel is the same."""
    fold = ", ".join(["strided(count=2, unit=1)"] * 4)
    rule = hidden("strided(count=block_x, unit=4)", fold=fold)
    rng = Random(4)
    of = []
    # Those of fewer lanes are few, and cost most to read.
    for m in (450, 520, 60, 90, 120, 300, 380, 100, 70, 200):
        k = int(200 * 4 ** rng.random()) if m < 401 else 2100
        problem = dense_problem(m, 1, k, FP16, d_dtype=FP32, transa=list(Transpose)[m % 4 == 0])
        of.append(Example(problem=problem, answer=sample_answer()))
    outcome = solved(rule, tuple(of), launches)
    assert outcome.rule is not None
    assert "block_x" in outcome.rule.variables
    assert {lanes_of(r.problem.m) for r in outcome.readings} == {24, 26, 32}
    assert all(r.launch is not None for r in outcome.readings)


def piece_of(layouts: tuple[Layout, ...], k: int, most: int) -> Piece:
    desc = scalar_descriptor(dense_problem(64, 8, k, FP16), layouts)
    return whole(flatten(induced_tree(desc, k, sampled_sites(k, most))), k)


PIECES = [
    piece_of((Contiguous(span=37), Strided(count=2, unit=3)), 300, 120),
    piece_of((Contiguous(span=50, short=Short.FIRST),), 210, 70),
    piece_of((Strided(count=2, unit=5), Strided(count=2, unit=5)), 180, 90),
    piece_of((Strided(count=7, unit=2), Contiguous(span=4)), 160, 160),
    piece_of((), 90, 30),
]


def allowed(values: Allowed, piece: Piece) -> set[int]:
    return {v for v in range(1, piece.length + 9) if values.holds(v)}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("short", list(Short))
def test_spans_allowed_are_those_that_take_the_piece_apart(piece: Piece, short: Short) -> None:
    wanted = {
        v for v in range(1, piece.length + 9) if take_apart(piece, Contiguous(span=v, short=short)) is not None
    }
    assert allowed(spans_allowed([piece], short), piece) == wanted


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("count", [2, 3, 7])
def test_units_allowed_are_those_that_take_the_piece_apart(piece: Piece, count: int) -> None:
    found = allowed(units_allowed([piece], count), piece)
    wanted = {
        v for v in range(1, piece.length + 9) if take_apart(piece, Strided(count=count, unit=v)) is not None
    }
    # Of more than two parts, and many units, those that suit the root are not tried further.
    assert found >= wanted
    assert count != 2 or found == wanted


def test_units_of_groups_are_those_whose_parts_are_subtrees() -> None:
    piece = PIECES[3]
    wanted = {v for v in range(1, piece.length + 9) if take_groups(piece, Strided(count=7, unit=v)) is not None}
    assert allowed(groups_allowed([piece], 7), piece) == wanted
    assert 2 in wanted


def test_what_all_pieces_allow() -> None:
    both = spans_allowed([PIECES[0], piece_of((Contiguous(span=37),), 180, 60)], Short.LAST)
    assert both.holds(37)
    assert not both.holds(36)
    assert both.closed.high == len(both.table)
    assert both.room == sum(both.holds(v) for v in range(1, len(both.table) + 1))


def test_a_table_of_allowed_values() -> None:
    one = Allowed.among(np.array([False, True, False]))
    assert [v for v in range(-1, 7) if one.holds(v)] == [2, 4, 5, 6]
    assert one.sole == 2
    assert not one.closed.holds(4)
    assert Allowed.exactly(7).sole == 7
    assert Allowed.at_least(7).sole is None


@pytest.mark.parametrize(("k", "most"), [(71, 70), (500, 420), (200_000, 420), (200_000, 70), (100_003, 128)])
def test_sites_hold_multiples_of_every_power_of_two(k: int, most: int) -> None:
    sites = sampled_sites(k, most)
    assert len(set(sites)) == most
    assert sites == sorted(sites)
    assert set(range(most // 3)) <= set(sites)
    assert set(range(k - most // 8, k)) <= set(sites)
    assert {2**e for e in range(18) if 2**e < k - most // 8} <= set(sites) or k < 2 * most
