"""Run by test_kernels_drawn.py in a process of its own, with TRITON_INTERPRET=1: drawn chains, kernel against CPU."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, ResidueFirst, ResidueLast, Short, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels import drawn_chain as kernels
from gemmdesc.numerics.stochastic.inorder import draw_inside
from gemmdesc.numerics.stochastic.inorder_card import draw_sums, drawn_chain
from tests.arithmetic_reference import HOPPER, draw_bits
from tests.interpreted_directed import patch_directed

FLOAT8 = replace(HOPPER, fraction_bits=13, output_bits=13)


def descriptor(dtype: DType, k: int, span: int, short: Short, residue: bool) -> GEMMDesc:
    single = DType.FLOAT32
    layout = Contiguous(span=max(1, span), short=short)
    cut = Cut(layout=layout, partial_dtype=single, merge_dtype=single, start=Start.FIRST)
    narrow = dtype.itemsize == 1
    accumulator = Accumulator(
        instruction_k=8 if narrow else 4, step=FLOAT8 if narrow else HOPPER,
        residue=ResidueFirst(k_loop_step=8) if residue else ResidueLast(),
    )  # fmt: skip
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=single, summed_k=k, cuts=(cut,) if span else (),
        accumulator=accumulator,
    )  # fmt: skip


def counted(name: str, calls: Counter[str]) -> None:
    """Count the calls of one of the kernel's functions, which the interpreter looks up by name."""
    function = getattr(kernels, name)

    def call(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    setattr(kernels, name, call)


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, int], dtype: DType, along: int) -> Any:
    """Bits of a kind of the tests', or of what the bounds of a step are for; ``along``: the axis of k."""
    signs = rng.choice([-1.0, 1.0], shape)
    if kind == "powers":
        # Sums of a few bits more than a float64 holds, all but one far under the grid.
        numbers = signs * 2.0 ** rng.choice([-15, -14, 13, 14], shape) * (rng.random(shape) < 0.5)
    elif kind == "turning":
        # Sums that leave float32's numbers and would come back, in bfloat16.
        half = np.arange(shape[along]) < shape[along] // 2
        signs = np.where(half, 1.0, -1.0) if along else np.ones(shape[0])
        least, most = (0, 3) if dtype is DType.FLOAT16 else (60, 62)
        numbers = (signs if along else signs[:, None]) * 2.0 ** rng.uniform(least, most, shape)
    elif kind in ("least", "under"):
        # Products about float32's least numbers, or under them.
        numbers = rng.standard_normal(shape) * 2.0 ** (-70 if kind == "least" else -74)
    else:
        return draw_bits(rng, kind, shape, dtype)
    return from_float32(numbers.astype(np.float32), dtype)


def main() -> None:
    patch_directed()
    calls: Counter[str] = Counter()
    counted("tight_stepped", calls)
    counted("stepped", calls)
    rng = np.random.default_rng(0)
    counts, bad, unsure_total = 0, [], 0
    cases = [(DType.FLOAT16, kind) for kind in ("narrow", "any", "tiny", "zeros")]
    cases += [(DType.BFLOAT16, kind) for kind in ("narrow", "finite", "any")]
    cases += [(DType.FLOAT8_E4M3FN, "any"), (DType.FLOAT8_E5M2, "finite"), (DType.FLOAT8_E5M2, "any")]
    cases += [(dtype, kind) for dtype in (DType.FLOAT16, DType.BFLOAT16) for kind in ("powers", "turning")]
    cases += [(DType.BFLOAT16, kind) for kind in ("least", "under")]
    for number, (dtype, kind) in enumerate(cases):
        k, span = int(rng.integers(1, 40)), int(rng.choice([0, 5, 16]))
        k, span = (96, 0) if kind == "turning" else (k, span)
        desc = descriptor(dtype, k, span, Short.FIRST if number % 3 == 0 else Short.LAST, number % 2 == 0)
        a, b = drawn(rng, kind, (9, k), dtype, 1), drawn(rng, kind, (k, 21), dtype, 0)
        rows, cols = np.array([0, 2, 3, 8]), np.arange(3, 21)
        antithetic = number % 5 != 0
        found = draw_inside(desc, a, b, rows=rows, cols=cols, seed=number, antithetic=antithetic)
        chain = drawn_chain(desc, k, antithetic=antithetic)
        assert not isinstance(chain, Declined), chain
        left = torch.from_numpy(np.ascontiguousarray(to_float32(a, dtype)[rows]))
        right = torch.from_numpy(np.ascontiguousarray(to_float32(b, dtype)[:, cols]))
        place = (torch.from_numpy(rows), torch.from_numpy(cols))
        sums, exact, unsure = draw_sums(chain, left, right, rows=place[0], cols=place[1], seed=number)
        sure = ~unsure.numpy()
        unsure_total += int(unsure.sum())
        ours, theirs = (from_float32(x, DType.FLOAT32) for x in (found.before, sums.numpy()))
        same = bool((ours == theirs)[:, sure].all()) and bool((found.exact == exact.numpy())[sure].all())
        counts += int(sure.sum())
        if not same or (unsure.any() and dtype is not DType.BFLOAT16):
            bad.append([dtype.value, kind, k, span])
    sys.stdout.write(json.dumps({"counts": counts, "bad": bad, "unsure": unsure_total, "calls": calls}) + "\n")


if __name__ == "__main__":
    main()
