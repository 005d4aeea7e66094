"""Random nests of cuts over CUDA-core chains, for the tests of the kernels."""

from __future__ import annotations

import numpy as np

from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    GEMMDesc,
    ResidueLast,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType


def draw_nest(rng: np.random.Generator, dtype: DType, k: int) -> GEMMDesc:
    """Up to four cuts of any layout over a chain of scalar steps."""

    def cut() -> Cut:
        layout: Contiguous | Strided = Contiguous(span=int(rng.integers(1, k + 9)), short=list(Short)[rng.integers(2)])
        if rng.integers(2):
            layout = Strided(count=int(rng.integers(1, 6)), unit=int(rng.integers(1, 9)))
        partial, merge = ((DType.FLOAT32, dtype)[int(rng.integers(4)) == 0] for _ in range(2))
        groups = int(rng.integers(3)) if rng.integers(3) == 0 else 0
        fold = tuple(Strided(count=int(rng.integers(1, 5)), unit=int(rng.integers(1, 3))) for _ in range(groups))
        start = list(Start)[rng.integers(2)]
        return Cut(layout=layout, partial_dtype=partial, merge_dtype=merge, start=start, fold=fold)

    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=(dtype, DType.FLOAT32)[int(rng.integers(2))],
        summed_k=max(1, k - int(rng.integers(3))), cuts=tuple(cut() for _ in range(int(rng.integers(5)))),
        accumulator=Accumulator(
            instruction_k=1, residue=ResidueLast(),
            step=ScalarStep(fused=bool(rng.integers(2)), start=list(Start)[rng.integers(2)]),
        ),
    )  # fmt: skip
