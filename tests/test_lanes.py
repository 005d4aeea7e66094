"""Nests as lanes: which nests they are, what is launched for them, and what the compiled kernels add in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gemmdesc.descriptor import Balanced, Contiguous, Cut, GEMMDesc, Short, Start, Strided
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.choose_lanes import LaneChoice, Read, choose_lanes, choose_scalar, lane_us, nest_us
from gemmdesc.kernels.lanes import BLOCK_DIGITS, ENDLESS, IN_TURN, Lanes, as_lanes
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.nest import NestChoice, choose_nest
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants_lanes import enumerate_lane_variants, fold_code, lane_variant
from gemmdesc.schedule import fold_levels, make_schedule
from tests.lane_rows import scalar_rows
from tests.lane_samples import BLOCK_FOLD, butterfly, draw_cases, lane_cut, lanes_of
from tests.nest_samples import draw_nest

F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
BOUND = frozenset(enumerate_lane_variants())
PROFILE = Path(__file__).parents[1] / "arch_profiles" / "sm_90-132" / "cublaslt-13.1.0.parquet"


def meta(
    desc: GEMMDesc, m: int, n: int, k: int, layouts: str = "rrr", *, alignment: int = 256, pad: int = 0
) -> KernelMeta:
    """``pad``: elements between the end of a line and the next one."""
    found = []
    sizes = (desc.a_dtype, m, k), (desc.b_dtype, k, n), (desc.output_dtype, m, n)
    for (dtype, rows, columns), layout in zip(sizes, layouts, strict=True):
        row, column = (columns + pad, 1) if layout == "r" else (1, rows + pad)
        found.append(MatrixMeta(dtype=dtype, row_stride=row, column_stride=column, alignment=alignment))
    return KernelMeta(m=m, n=n, k=k, a=found[0], b=found[1], out=found[2], sm_count=132, shared_bytes=232448)


def chosen(desc: GEMMDesc, at: KernelMeta) -> LaneChoice:
    choice = choose_lanes(desc, at)
    assert isinstance(choice, LaneChoice), choice
    return choice


# Which nests are lanes.


def leaves_of(lanes: Lanes) -> set[tuple[int, ...]]:
    """The k of every chain, as :class:`Lanes` states them."""
    found = []
    for part in range(lanes.parts):
        begin = part * lanes.span
        end = min(begin + lanes.span, lanes.summed_k)
        for block in range(lanes.blocks):
            for lane in range(lanes.lanes):
                first = begin + block * lanes.lanes * lanes.unit + lane * lanes.unit
                ks = [t + v for t in range(first, end, lanes.turn) for v in range(min(lanes.unit, end - t))]
                found += [ks[i : i + lanes.chunk] for i in range(0, max(len(ks), 1), lanes.chunk)]
    return {tuple(ks) for ks in found}


@pytest.mark.parametrize("seed", range(20))
def test_lanes_sum_the_k_that_the_descriptors_leaves_do(seed: int) -> None:
    for case in draw_cases(np.random.default_rng(seed), F16):
        lanes = as_lanes(case.desc, case.k)
        assert lanes is not None, case
        schedule = make_schedule(case.desc, case.k)
        ends = schedule.leaf_offsets
        leaves = [tuple(schedule.order[b:e].tolist()) for b, e in pairwise(ends)]
        assert {x for x in leaves if x} == {x for x in leaves_of(lanes) if x}
        assert lanes.chain == max(
            sum(len(x) for x in group) for group in _chained(leaves, case.desc, case.k)
        ), case  # fmt: skip


def _chained(leaves: list[tuple[int, ...]], desc: GEMMDesc, k: int) -> Iterator[list[tuple[int, ...]]]:
    """Leaves that one lane's chunks are, each alone where there are none."""
    chunked = len(desc.cuts) > 1 and isinstance(desc.cuts[-1].layout, Contiguous)
    levels = fold_levels(desc, k)
    if not chunked:
        yield from ([leaf] for leaf in leaves)
        return
    for begin, end in pairwise(levels[-1]):
        yield leaves[begin:end]


def test_what_is_no_lanes() -> None:
    pair = butterfly(1, 1)
    narrow = replace(pair[0], merge_dtype=F16)
    others: list[tuple[Cut, ...]] = [
        (replace(pair[0], start=Start.ZERO),),
        (narrow,),
        (replace(pair[0], partial_dtype=BF16),),
        (lane_cut(Strided(count=3, unit=1)),),
        (lane_cut(Strided(count=8, unit=1)),),
        (lane_cut(Strided(count=2, unit=4)), lane_cut(Strided(count=2, unit=1))),
        (lane_cut(Strided(count=2, unit=1)), lane_cut(Strided(count=2, unit=4))),
        (lane_cut(Contiguous(span=16, short=Short.FIRST)),),
        (lane_cut(Balanced(count=4, unit=1)),),
        (lane_cut(Contiguous(span=50)), lane_cut(Contiguous(span=10)), lane_cut(Contiguous(span=5))),
        (*butterfly(2, 1), lane_cut(Contiguous(span=4))),
        (lane_cut(Strided(count=16, unit=2)),),
        butterfly(6, 1),
        butterfly(7, 1),
        (lane_cut(Strided(count=31, unit=128), BLOCK_FOLD[:3]), *butterfly(7, 1)),
        (lane_cut(Strided(count=31, unit=64), BLOCK_FOLD), *butterfly(7, 1)),
        (lane_cut(Strided(count=31, unit=256), BLOCK_FOLD), *butterfly(7, 1)),
        (lane_cut(Strided(count=1, unit=128), BLOCK_FOLD), *butterfly(7, 1)),
    ]
    for cuts in others:
        assert as_lanes(lanes_of(300, *cuts), 300) is None, cuts
    assert as_lanes(lanes_of(300, lane_cut(Contiguous(span=300, short=Short.FIRST))), 300) is not None
    assert as_lanes(lanes_of(300), 0) is None


def test_a_butterfly_folds_its_highest_bit_first() -> None:
    lanes = as_lanes(lanes_of(100, *butterfly(3, 4)), 100)
    assert lanes is not None
    assert (lanes.unit, lanes.turn, lanes.digits) == (4, 32, ((2, 1), (1, 1), (0, 1)))
    assert fold_code(lanes.digits) == 0x01_09_11
    pairs = (lane_cut(Strided(count=31, unit=256), BLOCK_FOLD), *butterfly(7, 2), *butterfly(1, 1))
    dealt = as_lanes(lanes_of(100, *pairs), 100)
    assert dealt is not None
    assert (dealt.unit, dealt.blocks, dealt.turn) == (1, 31, 31 * 256)
    assert dealt.digits == ((0, 1), *((bit, 1) for bit in reversed(range(7))))


def test_the_code_of_the_fold_over_blocks_is_the_kernels() -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    from gemmdesc.kernels import lane_folds, lane_nest

    assert int(lane_folds.BLOCK_DIGITS.value) == fold_code(BLOCK_DIGITS)
    assert {r.name: r.value for r in Read} == {r.name: getattr(lane_nest, r.name).value for r in Read}


def test_most_drawn_nests_are_something_else() -> None:
    rng = np.random.default_rng(3)
    found = [as_lanes(draw_nest(rng, F16, 60), 60) for _ in range(300)]
    assert 10 < sum(x is not None for x in found) < 150


# What is launched.


@pytest.mark.parametrize("seed", range(30))
def test_every_choice_is_a_variant_that_is_enumerated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for case in draw_cases(rng, (F16, BF16, F32)[seed % 3]):
        m = int(2 ** rng.uniform(0, 16)) if case.n == 1 else case.m
        stored = {"alignment": int(rng.choice([4, 16])), "pad": int(rng.integers(9))}
        at = meta(case.desc, m, case.n, case.k, case.layouts, **stored)
        choice = choose_lanes(case.desc, at)
        if isinstance(choice, Declined):
            assert "tiles" in choice.reason, (case, choice)
            continue
        assert lane_variant(choice) in BOUND, (choice.form, case)
        assert choice.form.joins == (choice.lanes.parts > 1 or choice.lanes.blocks > 1)


def test_loads_are_wide_where_every_one_is_aligned() -> None:
    desc = lanes_of(4096, *butterfly(3, 1))
    for layouts, read in (("crr", Read.ACROSS), ("rrr", Read.ALONG)):
        sizes = (8192, 1, 4096, layouts)
        assert chosen(desc, meta(desc, *sizes)).form.read is read
        assert chosen(desc, meta(desc, *sizes)).form.width == 8
        assert chosen(desc, meta(desc, *sizes, alignment=8)).form.width == 1
        assert chosen(desc, meta(desc, *sizes, pad=3)).form.width == 1
    odd = lanes_of(4095, *butterfly(3, 1))
    assert chosen(odd, meta(odd, 8192, 1, 4095, "rrr", pad=1)).form.width == 1
    few = lanes_of(4096, *butterfly(2, 1))
    assert chosen(few, meta(few, 8192, 1, 4096, "rrr")).form.width == 1
    split = lanes_of(4096, lane_cut(Contiguous(span=1028)), *butterfly(3, 1))
    assert chosen(split, meta(split, 8192, 1, 4096, "rrr")).form.width == 1
    assert chosen(split, meta(split, 8192, 1, 4096, "crr")).form.width == 8


def test_runs_are_read_as_runs_only_along_k() -> None:
    desc = lanes_of(512, *butterfly(2, 64))
    assert chosen(desc, meta(desc, 900, 1, 512, "rrr")).form.read is Read.RUNS
    across = chosen(desc, meta(desc, 900, 1, 512, "crr")).form
    assert (across.read, across.units) == (Read.ACROSS, True)


def test_the_long_side_is_read_whichever_it_is() -> None:
    desc = lanes_of(512, *butterfly(2, 1))
    tall, wide = chosen(desc, meta(desc, 900, 1, 512, "rrr")), chosen(desc, meta(desc, 1, 900, 512, "rcr"))
    assert (tall.swapped, wide.swapped) == (False, True)
    assert tall.form == wide.form


def test_blocks_without_k_run_no_program() -> None:
    desc = lanes_of(1000, lane_cut(Strided(count=496, unit=128), BLOCK_FOLD), *butterfly(7, 1))
    assert chosen(desc, meta(desc, 1, 1, 1000)).programs == 8
    assert chosen(replace(desc, summed_k=10**6), meta(desc, 1, 1, 10**6)).programs == 496


def test_lanes_that_no_card_has_compared_are_launched_where_they_are_asked_for() -> None:
    desc = lanes_of(500, *butterfly(2, 1))
    single = replace(desc, a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, output_dtype=DType.FLOAT32)
    for d, kind in ((desc, LaneChoice), (single, NestChoice)):
        at = meta(d, 900, 1, 500, "rrr")
        assert isinstance(choose_scalar(d, at), kind)
        assert isinstance(choose_scalar(d, at, Structure.LANE_NEST), LaneChoice)


def test_what_no_lane_kernel_computes_goes_to_a_nest() -> None:
    desc = lanes_of(500, *butterfly(2, 1))
    wide = meta(desc, 40, 50, 500)
    assert choose_scalar(desc, wide) == choose_nest(desc, wide)
    at = meta(desc, 900, 1, 500, "rrr")
    loose = replace(at, a=replace(at.a, row_stride=1000, column_stride=2))
    assert isinstance(choose_lanes(desc, loose), Declined)
    assert isinstance(choose_scalar(desc, loose), NestChoice)
    assert isinstance(choose_scalar(desc, at), LaneChoice)
    assert isinstance(choose_scalar(desc, at, Structure.LANE_NEST), LaneChoice)
    assert isinstance(choose_scalar(desc, at, Structure.SCALAR_NEST), NestChoice)
    assert isinstance(choose_scalar(desc, at, Structure.FMA_CHAIN), Declined)
    split = lanes_of(10**5, lane_cut(Contiguous(span=10**4)))
    assert "tiles" in getattr(choose_lanes(split, meta(split, 10**6, 3, 10**5)), "reason", "")


def test_an_empty_product_and_an_epilogue_decline() -> None:
    desc = lanes_of(500)
    assert isinstance(choose_lanes(desc, meta(desc, 0, 1, 500)), Declined)
    assert isinstance(choose_lanes(replace(desc, output_dtype=F16), meta(desc, 9, 1, 500)), Declined)


# The model.


def test_the_model_counts_launches_bytes_and_turns() -> None:
    desc = lanes_of(4096, *butterfly(5, 1))
    small, large = meta(desc, 8, 1, 4096, "crr"), meta(desc, 1 << 20, 1, 4096, "crr")
    us = lane_us(chosen(desc, large), large)
    assert us > (1 << 20) * 4096 * 2 / 4.8e6
    assert us < 2 * (1 << 20) * 4096 * 2 / 4.0e6
    assert lane_us(chosen(desc, small), small) < 10
    nest = choose_nest(desc, small)
    assert isinstance(nest, NestChoice)
    lanes = chosen(desc, small).lanes
    assert nest_us(nest, lanes, small) > 6 * 2.0
    assert isinstance(choose_scalar(desc, small), LaneChoice)


def test_more_outputs_of_a_program_where_there_are_many() -> None:
    desc = lanes_of(2000, *butterfly(5, 1))
    outputs = [chosen(desc, meta(desc, m, 1, 2000, "crr")).form.outputs for m in (20, 2000, 200000)]
    assert outputs == sorted(outputs)
    assert outputs[0] < outputs[-1]


@pytest.mark.parametrize("path", [PROFILE])
def test_every_scalar_row_of_the_profile_is_lanes(path: Path) -> None:
    rows = scalar_rows(path)
    assert rows
    for row, desc in rows:
        problem = row.evidence.example.problem
        lanes = as_lanes(desc, problem.k)
        assert lanes is not None, desc
        assert lanes.chunk == ENDLESS or lanes.digits in ((), IN_TURN)


# Compiled.

FLOAT_ARITHMETIC = re.compile(r"\b(fma|mul|add|sub)(?:\.rn)?(?:\.ftz)?\.f32\b")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)




@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("every", [633, pytest.param(7, marks=pytest.mark.slow)])
def test_lanes_multiply_and_add_as_their_step_says_and_nothing_else(every: int) -> None:
    from gemmdesc.kernels.compiling import compile_variant

    for variant in sorted(BOUND, key=repr)[::every]:
        constants = dict(variant.constants)
        ptx = compile_variant(variant, capability=90).asm["ptx"]
        folds = constants["COUNT"] or constants["CHUNKED"] or variant.kernel == "lane_join"
        steps = {"fma"} if constants["FUSED"] else {"mul", "add"}
        assert set(FLOAT_ARITHMETIC.findall(ptx)) == steps | ({"add"} if folds else set()), variant
        assert not re.search(r"\.ftz|mma|\.local\b|\bred\.|redux", ptx), variant
        # The -0.0 that stands for B beyond the end of a chain, as which some releases of Triton write +0.0.
        assert re.search(r"0x8000\b|-32768|-2147483648|0[fF]80000000", ptx), variant
        size = variant.loaded.itemsize
        if constants["WIDTH"] != 1 and constants["LANES"] * constants["OUTPUTS"] >= 32 * 128 // (8 * size):
            assert re.search(r"ld\.global\S*\.v[24]\.b32", ptx), variant


def whole_nests() -> list[tuple[str, GEMMDesc, str, int, int | None]]:
    """(name, descriptor, layouts of a and b, columns, outputs of a program); every turn of a loop is a whole one."""
    return [
        ("chain across", lanes_of(64, dtype=BF16), "cr", 1, None),
        ("chain in a run", lanes_of(37, dtype=BF16), "rr", 1, None),
        ("lanes across", lanes_of(128, *butterfly(2, 1), dtype=BF16), "cr", 1, None),
        ("lanes along", lanes_of(256, *butterfly(2, 1), dtype=BF16), "rr", 1, None),
        ("eight lanes", lanes_of(128, *butterfly(3, 1), dtype=BF16), "cr", 1, 16),
        ("runs across", lanes_of(256, *butterfly(2, 32), dtype=BF16), "cr", 1, None),
        ("runs along", lanes_of(108, *butterfly(2, 27), dtype=BF16), "rr", 1, None),
        ("three columns", lanes_of(32, dtype=BF16), "rr", 3, None),
        ("chunks", lanes_of(128, *(lane_cut(Contiguous(span=s)) for s in (128, 64)), dtype=BF16), "cr", 1, None),
    ]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("nest", whole_nests(), ids=lambda nest: nest[0])
def test_the_code_is_the_descriptor(
    nest: tuple[str, GEMMDesc, str, int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the PTX's dataflow: these k in this order, these folds; and no other nest of the list at that size."""
    from gemmdesc.equivalence.structure import implements
    from gemmdesc.kernels import launch as launching
    from gemmdesc.normal_form import normal_form
    from tests.test_equivalence_kernels import Recorded, call, elements, read

    _, desc, layouts, columns, outputs = nest
    on = call(5, columns, desc.summed_k, desc.a_dtype, F32, layouts)
    choice = choose_lanes(desc, on.meta, outputs)
    assert isinstance(choice, LaneChoice), choice
    found: list[Recorded] = []
    monkeypatch.setattr(launching, "enqueue", lambda v, programs, *given: found.append(Recorded(v, programs, given)))
    launching.launch_here(choice, on.a, on.b, on.out)
    walked, out = read(found, 90)
    others = [replace(d, summed_k=desc.summed_k) for _, d, *_ in whole_nests()]
    others.append(replace(desc, cuts=(lane_cut(Contiguous(span=8)), *desc.cuts)))
    for element in elements(on, found, out):
        assert implements(walked, desc, element) is True
        for other in others:
            same = normal_form(other, desc.summed_k) == normal_form(desc, desc.summed_k)
            assert implements(walked, other, element) is same, other
