"""Nests of lanes of every kind that vector kernels have, for the tests of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, Layout, ResidueLast, ScalarStep, Start, Strided
from gemmdesc.dtypes import DType

F32 = DType.FLOAT32
#: The fold of a dot kernel's blocks.
BLOCK_FOLD: tuple[Layout, ...] = tuple(Strided(count=count, unit=1) for count in (4, 8, 2, 2))


def lane_cut(layout: Layout, fold: tuple[Layout, ...] = ()) -> Cut:
    return Cut(layout=layout, partial_dtype=F32, merge_dtype=F32, start=Start.FIRST, fold=fold)


def butterfly(bits: int, unit: int) -> tuple[Cut, ...]:
    return tuple(lane_cut(Strided(count=2, unit=unit)) for _ in range(bits))


def lanes_of(
    k: int, *cuts: Cut, dtype: DType = DType.FLOAT16, output: DType = F32, fused: bool = True, start: Start = Start.ZERO
) -> GEMMDesc:
    leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=fused, start=start))
    return GEMMDesc(a_dtype=dtype, b_dtype=dtype, output_dtype=output, summed_k=k, cuts=cuts, accumulator=leaf)


@dataclass(frozen=True, kw_only=True)
class LaneCase:
    """``layouts``: of a, b and out: ``r`` for rows of unit stride, ``c`` for columns."""

    name: str
    desc: GEMMDesc
    m: int
    n: int
    k: int
    layouts: str


def _kinds(rng: np.random.Generator, k: int) -> list[tuple[str, tuple[Cut, ...], bool]]:
    """(name, cuts, whether several columns may be computed) of every kind at inner size ``k``."""
    split = lane_cut(Contiguous(span=int(rng.integers(max(1, k // 5), k + 1))))
    aligned = lane_cut(Contiguous(span=max(8, k // 24 * 8)))
    unit = int(rng.choice([2, 3, 4, 7, 11, 27]))
    turn, blocks, dealt = lane_cut(Strided(count=16, unit=1)), int(rng.choice([3, 31, 130])), butterfly(7, 2)
    found = [
        ("chain", (), True),
        ("parts", (split,), True),
        ("parts of chunks", (split, lane_cut(Contiguous(span=int(rng.integers(1, 20))))), True),
        ("in turn", (turn, lane_cut(Contiguous(span=int(rng.choice([1, 4, 16, 32]))))), True),
        ("parts in turn", (aligned, turn, lane_cut(Contiguous(span=4))), True),
        ("dealt", (lane_cut(Strided(count=blocks, unit=128), BLOCK_FOLD), *butterfly(7, 1)), False),
        (
            "dealt in pairs",
            (lane_cut(Strided(count=int(rng.choice([2, 31])), unit=256), BLOCK_FOLD), *dealt, *butterfly(1, 1)),
            False,
        ),
    ]
    for bits in range(1, 6):
        found += [
            (f"butterfly {bits}", butterfly(bits, 1), False),
            (f"butterfly {bits} of runs", butterfly(bits, unit), False),
            (f"parts of butterfly {bits}", (aligned if bits % 2 else split, *butterfly(bits, 1)), False),
            (f"parts of butterfly {bits} of runs", (split, *butterfly(bits, unit)), False),
        ]
    return found


def draw_cases(rng: np.random.Generator, dtype: DType) -> list[LaneCase]:
    """One case of every kind, at sizes that leave tails, or none."""
    found = []
    sizes = [1, 5, 16, 37, 64, 128, 131, 300]
    for name, _, several in _kinds(rng, 8):
        k = int(rng.choice([520, 700, 1300])) if name.startswith("dealt") else int(rng.choice(sizes))
        cuts = next(cuts for known, cuts, _ in _kinds(rng, k) if known == name)
        columns = int(rng.choice([1, 1, 3, 7])) if several else 1
        m, n = (int(rng.choice([1, 2, 40, 136, 200])), columns)
        if name.startswith("dealt"):
            m = int(rng.choice([1, 3, 17]))
        if rng.integers(2):
            m, n = n, m
        desc = lanes_of(
            k - int(rng.integers(2)) if k > 1 else k, *cuts, dtype=dtype, output=dtype if rng.integers(2) else F32,
            fused=bool(rng.integers(3)), start=list(Start)[int(rng.integers(2))],
        )  # fmt: skip
        found.append(LaneCase(name=name, desc=desc, m=m, n=n, k=k, layouts="".join(rng.choice(["r", "c"], 3))))
    return found
