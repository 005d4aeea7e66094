"""Random epilogues, openings and open ends, for the tests of the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemmdesc.descriptor import (
    Accumulator,
    AddBias,
    AddC,
    Balanced,
    CastTo,
    Contiguous,
    Cut,
    EpilogueStep,
    FusedDot,
    GEMMDesc,
    Relu,
    ResidueFirst,
    ResidueLast,
    Scale,
    Start,
)
from gemmdesc.dtypes import DType
from tests.gelu_samples import FORMS
from tests.nest_samples import draw_nest


def draw_steps(rng: np.random.Generator, output: DType, most: int = 5) -> tuple[EpilogueStep, ...]:
    """Up to ``most`` steps in any order."""
    choices: list[EpilogueStep] = [
        Scale(), AddC(fused=False), AddC(fused=True), AddBias(), Relu(), Relu(keeps_nan=False), CastTo(dtype=output),
        CastTo(dtype=DType.BFLOAT16), CastTo(dtype=DType.FLOAT16), FORMS[int(rng.integers(len(FORMS)))],
    ]  # fmt: skip
    return tuple(choices[int(i)] for i in rng.integers(0, len(choices), int(rng.integers(most + 1))))


def draw_finished(rng: np.random.Generator, number: int, k: int, step: FusedDot) -> GEMMDesc:
    """A chain, slices, slices folded in groups, or a nest, by ``number`` modulo 4; what follows is drawn."""
    dtype = (DType.FLOAT16, DType.BFLOAT16)[number // 4 % 2]
    output = (dtype, DType.FLOAT32)[int(rng.integers(2))]
    cuts: tuple[Cut, ...] = ()
    roundings = [(DType.FLOAT32, dtype)[int(rng.integers(2))] for _ in range(2)]
    common = {
        "merge_dtype": roundings[1], "open_end": bool(rng.integers(2)),
        "opening": draw_steps(rng, output, 2) if rng.integers(2) else (),
    }  # fmt: skip
    start = (Start.FIRST, Start.ZERO)[int(rng.integers(2))]
    if number % 4 == 1:
        layout = Contiguous(span=int(rng.choice([k + 3, 64, 24, 37])))
        cuts = (Cut(layout=layout, partial_dtype=roundings[0], start=start, **common),)  # type: ignore[arg-type]
    if number % 4 == 2:
        fold = tuple(Contiguous(span=s) for s in [4, 2][: int(rng.integers(3))])
        layout = Balanced(count=int(rng.integers(2, 6)), unit=16)
        cuts = (Cut(layout=layout, partial_dtype=DType.FLOAT32, start=Start.FIRST, fold=fold, **common),)  # type: ignore[arg-type]
    leaf = Accumulator(
        instruction_k=(8, 16)[int(rng.integers(2))], step=step,
        residue=(ResidueLast(), ResidueFirst(k_loop_step=32))[int(rng.integers(2))],
    )  # fmt: skip
    if number % 4 == 3:
        nest = draw_nest(rng, dtype, k)
        output = nest.output_dtype
        if nest.cuts:
            outer = replace(nest.cuts[0], **common)
            if outer.fold and outer.opening:
                outer = replace(outer, partial_dtype=DType.FLOAT32, start=Start.FIRST)
            nest = replace(nest, cuts=(outer, *nest.cuts[1:]))
        return replace(nest, epilogue=draw_steps(rng, output))
    return GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=output, summed_k=k - int(rng.integers(3)), cuts=cuts,
        accumulator=leaf, epilogue=draw_steps(rng, output),
    )  # fmt: skip
