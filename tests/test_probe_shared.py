"""Launches that share out k: the family's expressions against tiles dealt by hand, and rules found from simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from gemmdesc.descriptor import (
    Accumulator,
    Balanced,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueLast,
    Rounding,
    Short,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.expressions import Const, Var, evaluate
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe.answers import answer_key
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.launch_shares import shares_of
from gemmdesc.probe.outcomes import ClassOutcome
from gemmdesc.probe.records import outcome_from_plain, outcome_to_plain
from gemmdesc.probe.scan import Example
from gemmdesc.probe.shared import SharedReading, infer_shared, part_tree
from gemmdesc.probe.sharing import Sizes, made_examples
from gemmdesc.probe.solve_shared import solve_shared
from gemmdesc.problem import (
    AlgoConfig,
    ComputeType,
    Epilogue,
    GemmProblem,
    KernelNode,
    Launch,
    ScalarClass,
    Transpose,
    dense_problem,
    environment,
)
from gemmdesc.regions import evaluate_regions, same_regions
from gemmdesc.rule import Rule, choose_rule, make_rule
from tests.probe_samples import DEVICE, IDENTITY

PROGRAMS, TILE_M, TILE_N, UNIT = 10, 32, 16, 16
SIZES = Sizes(sides=(18, 120), depths=(40, 220), drawn=80)
ANSWER = AlgoConfig(
    algo_id=41, tile_id=21, splitk_num=2**32 - 1, reduction_scheme=2, cta_swizzling=0, custom_option=0, stages_id=35,
    inner_shape_id=0, cluster_shape_id=2,
)  # fmt: skip
FOLD = tuple(Contiguous(span=2**i, short=Short.FIRST) for i in range(6, 0, -1))
STEP = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)


def ceil(x: int, y: int) -> int:
    return -(-x // y)


def places(slices: int) -> int:
    """Places of a tree over so many slices, level by level."""
    found = 0
    while slices > 1:
        slices = ceil(slices, 2)
        found += slices
    return found


def shared_launch(p: GemmProblem, answer: AlgoConfig, *, off: bool = False) -> Launch:
    """Dealt by hand: every tile of a launch that does not fill the programs is cut, else what is left at the end."""
    tiles, units = ceil(p.m, TILE_M) * ceil(p.n, TILE_N), ceil(p.k, UNIT)
    left = tiles % PROGRAMS
    slices = PROGRAMS // left if left else 1
    if tiles > PROGRAMS:
        # The fewest slices that are as short as these.
        slices = ceil(units, ceil(units, slices))
    slices = min(slices, units)
    on = slices > 1 and not off
    grid = tiles * slices if on and tiles < PROGRAMS else min(tiles, PROGRAMS)
    name = f"sm90_xmma_gemm_tilesize{TILE_N}x{TILE_M}x{UNIT}_execute_segment_k_{'on' if on else 'off'}_kernel"
    node = KernelNode(name=name, grid=(grid, 1, 1), block=(256, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
    return Launch(kernels=(node,), memset_bytes=(4, 4 * left * places(slices)) if on else (4,))


def body() -> Rule:
    desc = GEMMDesc(
        a_dtype=DType.FLOAT16, b_dtype=DType.FLOAT16, output_dtype=DType.FLOAT32, summed_k=1, cuts=(),
        accumulator=Accumulator(instruction_k=16, residue=ResidueLast(), step=STEP),
    )  # fmt: skip
    return make_rule(desc, {"summed_k": Var("k"), "accumulator.instruction_k": Const(16)})


def hidden(along_n: bool | tuple[int, int], fold: tuple[Contiguous, ...] = FOLD) -> Rule:
    shares = shares_of(TILE_M, TILE_N, UNIT, most=128, along_n=along_n)
    plain = body()
    cut = Cut(
        layout=Balanced(count=1, unit=1), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST,
        fold=tuple(replace(f, span=1) for f in fold),
    )  # fmt: skip
    integers = dict(plain.integers) | {"cuts.0.layout.count": shares.count, "cuts.0.layout.unit": Const(UNIT)}
    integers |= {f"cuts.0.fold.{i}.span": Const(f.span) for i, f in enumerate(fold)}
    return choose_rule(shares.cut, make_rule(replace(plain.structure, cuts=(cut,)), integers), plain)


def library(rule: Rule) -> SimulatedLibrary:
    return SimulatedLibrary(
        identity=IDENTITY, device=DEVICE, heuristic=lambda p: ANSWER, rules={ANSWER: rule}, launches=shared_launch
    )


def examples() -> list[Example]:
    sizes = [(150, 40, 300), (34, 150, 220), (100, 100, 200), (40, 40, 250)]
    return [
        Example(problem=dense_problem(m, n, k, DType.FLOAT16, d_dtype=DType.FLOAT32), answer=ANSWER)
        for m, n, k in sizes
    ]


def numbered(m: int, n: int, along_n: bool) -> Mapping[tuple[int, int], int]:
    """Tiles in the order in which they are dealt: there along one axis, back along the next line."""
    rows, columns = ceil(m, TILE_M), ceil(n, TILE_N)
    outer, inner = (rows, columns) if along_n else (columns, rows)
    order = [(o, i) for o in range(outer) for i in (range(inner) if o % 2 == 0 else range(inner - 1, -1, -1))]
    return {((o, i) if along_n else (i, o)): number for number, (o, i) in enumerate(order)}


@pytest.mark.parametrize("along_n", [False, True])
def test_the_tiles_left_at_the_end_are_cut(along_n: bool) -> None:
    shares = shares_of(TILE_M, TILE_N, UNIT, most=128, along_n=along_n)
    rule = hidden(along_n)
    rng, kinds = np.random.default_rng(1), set()
    for _ in range(120):
        m, n, k = (int(x) for x in rng.integers((2, 1, UNIT), (400, 200, 900)))
        p = dense_problem(m, n, k, DType.FLOAT16, d_dtype=DType.FLOAT32)
        launch = shared_launch(p, ANSWER)
        values = environment(p, ANSWER, launch)
        tiles = numbered(m, n, along_n)
        left = len(tiles) % PROGRAMS
        cut = {tile for tile, number in tiles.items() if number >= len(tiles) - left} if values["segment_k"] else set()
        regions = evaluate_regions(rule, values)
        assert not isinstance(regions, Declined)
        assert sum(r.elements for r in regions) == m * n
        found = np.zeros((m, n), dtype=int)
        for r in regions:
            found[r.row_begin : r.row_end, r.column_begin : r.column_end] += 2 if r.descriptor.cuts else 1
        wanted = [[2 if (i // TILE_M, j // TILE_N) in cut else 1 for j in range(n)] for i in range(m)]
        assert found.tolist() == wanted
        if cut:
            assert shares.holds(values)
            slices = evaluate(shares.count, values)
            assert slices * len(tiles) == values["grid_x"] or 4 * left * places(slices) == launch.memset_bytes[-1]
            kinds.add((len(tiles) < PROGRAMS, slices % 2))
    assert kinds == {(True, 0), (True, 1), (False, 0), (False, 1)}


@pytest.mark.parametrize(
    "change",
    [
        {"memset_bytes": 4 * 7 * 5}, {"kernel_count": 2}, {"m": 1}, {"grid_x": 9}, {"memset_bytes": 0}, {"grid_x": 0},
    ],
)  # fmt: skip
def test_a_launch_of_another_family_declines(change: dict[str, int]) -> None:
    p = dense_problem(150, 40, 300, DType.FLOAT16, d_dtype=DType.FLOAT32)
    values = environment(p, ANSWER, shared_launch(p, ANSWER))
    assert values["segment_k"] == 1
    assert not isinstance(evaluate_regions(hidden(False), values), Declined)
    assert isinstance(evaluate_regions(hidden(False), values | change), Declined)
    without = {name: value for name, value in values.items() if name != "segment_k"}
    missing = evaluate_regions(hidden(False), without)
    assert isinstance(missing, Declined)
    assert "segment_k" in missing.reason


def test_the_tree_over_slices_has_the_odd_one_first() -> None:
    cut = Cut(
        layout=Contiguous(span=1), partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST, fold=FOLD
    )
    assert part_tree(cut, 3) == (0, (1, 2))
    assert part_tree(cut, 5) == (0, ((1, 2), (3, 4)))
    assert part_tree(cut, 12) == (((0, 1), (2, 3)), (((4, 5), (6, 7)), ((8, 9), (10, 11))))


@pytest.fixture(scope="module", params=[False, (4, 2)], ids=str)
def solved(request: pytest.FixtureRequest) -> tuple[Rule, ClassOutcome]:
    """A hidden rule, and what was found of it."""
    rule = hidden(request.param)
    return rule, solve_shared(library(rule), "a class", examples(), 0, None, SIZES)


def test_hidden_rules_are_found(solved: tuple[Rule, ClassOutcome]) -> None:
    rule, outcome = solved
    assert outcome.rule is not None, outcome.reason
    assert outcome.checked >= 4
    rng = np.random.default_rng(2)
    for _ in range(40):
        m, n, k = (int(x) for x in rng.integers((2, 1, 40), (170, 170, 900)))
        p = dense_problem(m, n, k, DType.FLOAT16, d_dtype=DType.FLOAT32)
        values = environment(p, ANSWER, shared_launch(p, ANSWER))
        found, wanted = evaluate_regions(outcome.rule, values), evaluate_regions(rule, values)
        assert not isinstance(found, Declined)
        assert not isinstance(wanted, Declined)
        assert same_regions(found, wanted, k)
    key = answer_key(examples()[0].problem, ANSWER)
    assert outcome_from_plain(outcome_to_plain(key, outcome)) == (key, outcome)


def test_what_no_tile_explains_has_no_rule() -> None:
    """Tiles of 24 rows are none of those sought."""
    shares = shares_of(24, TILE_N, UNIT, most=128, along_n=False)
    plain = body()
    good = hidden(False)
    assert good.otherwise is not None
    strange = choose_rule(shares.cut, replace(good, when=None, otherwise=None), plain)
    outcome = solve_shared(library(strange), "a class", examples(), 0, None, SIZES)
    assert outcome.rule is None
    assert "segment-k" in outcome.reason


def test_nothing_can_be_said_of_one_kind_of_elements(solved: tuple[Rule, ClassOutcome]) -> None:
    found = solved[1].shared
    with_tail = [r for r in found if r.tail is not None]
    alone: list[SharedReading] = [replace(r, body=None) for r in with_tail]
    assert isinstance(infer_shared(alone, None), Unexplained)
    # A tail that ends elsewhere is foretold by no rule.
    tail = with_tail[0].tail
    assert tail is not None
    moved = replace(tail, part_ends=tuple(e - 1 for e in tail.part_ends[:-1]) + tail.part_ends[-1:])
    assert isinstance(infer_shared([*found, replace(with_tail[0], tail=moved)], None), Unexplained)


def test_made_problems_are_of_the_kind_whose_answer_they_get() -> None:
    """TF32, an epilogue and scalars stay; sizes and leading dimensions are their own; a batch has no other sizes."""
    like = dense_problem(60, 40, 80, DType.FLOAT32, transa=Transpose.T)
    cast = replace(like, compute_type=ComputeType.COMPUTE_32F_FAST_TF32)
    kind = replace(cast, epilogue=Epilogue.RELU, alpha=ScalarClass.OTHER)
    made = made_examples(library(hidden(False)), [Example(problem=kind, answer=ANSWER)], 1, SIZES)
    assert len({(e.problem.m, e.problem.n, e.problem.k) for e in made}) > 20
    for e in made:
        p = e.problem
        assert replace(p, **{f: getattr(kind, f) for f in ("m", "n", "k", "lda", "ldb", "ldd")}) == kind
        assert (p.lda, p.ldb, p.ldd) == (p.k, p.k, p.m)
    batch = replace(like, batch_count=2, a_batch_stride=4800, b_batch_stride=3200, d_batch_stride=2400)
    assert made_examples(library(hidden(False)), [Example(problem=batch, answer=ANSWER)], 1, SIZES) == []
