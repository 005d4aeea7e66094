"""Simulated libraries with one rule, and readers on them, for the tests of ``gemmdesc.probe``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    Rounding,
    ScalarStep,
    Short,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.expressions import Const, Expr, parse_expression
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe.experiments import Magnitudes, magnitudes
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.problem import (
    AlgoConfig,
    DeviceId,
    GemmProblem,
    LibraryId,
    LibraryVersion,
    Transpose,
    dense_problem,
)
from gemmdesc.rule import Rule, make_rule

FP16, BF16, FP32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
WIDE = 320
IDENTITY = LibraryId(
    version=LibraryVersion(major=13, minor=1, patch=0), build_id="ab", path="simulated", sha256="cd", wheel="none"
)
DEVICE = DeviceId(sm="sm_90", sm_count=132, name="simulated", driver="none")
HOPPER = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
AMPERE = FusedDot(fraction_bits=24, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-132)


def sample_answer(**changes: int) -> AlgoConfig:
    values = {
        "algo_id": 7, "tile_id": 1, "splitk_num": 1, "reduction_scheme": 0, "cta_swizzling": 0, "custom_option": 0,
        "stages_id": 3, "inner_shape_id": 0, "cluster_shape_id": 0,
    }  # fmt: skip
    return AlgoConfig(**(values | changes))


@dataclass(frozen=True, kw_only=True)
class Order:
    """One hidden order: ``spans`` outermost first, as expressions; the types and the start are the outermost cut's."""

    spans: tuple[str, ...] = ()
    summed: str = "k"
    instruction_k: int = 16
    loop_step: int | None = None
    step: FusedDot | ScalarStep = HOPPER
    partial: DType = FP32
    merge: DType = FP32
    start: Start = Start.FIRST
    short: Short = Short.LAST

    def rule(self, dtype: DType = FP16, output: DType | None = None) -> Rule:
        def cut(level: int) -> Cut:
            layout = Contiguous(span=1, short=self.short if level == 0 else Short.LAST)
            if level:
                return Cut(layout=layout, partial_dtype=FP32, merge_dtype=FP32, start=Start.FIRST)
            return Cut(layout=layout, partial_dtype=self.partial, merge_dtype=self.merge, start=self.start)

        residue = ResidueLast() if self.loop_step is None else ResidueFirst(k_loop_step=self.loop_step)
        desc = GEMMDesc(
            a_dtype=dtype, b_dtype=dtype, output_dtype=output or dtype, summed_k=1,
            cuts=tuple(cut(i) for i in range(len(self.spans))),
            accumulator=Accumulator(instruction_k=self.instruction_k, residue=residue, step=self.step),
        )  # fmt: skip
        integers: dict[str, Expr] = {f"cuts.{i}.layout.span": parse_expression(s) for i, s in enumerate(self.spans)}
        integers |= {"summed_k": parse_expression(self.summed), "accumulator.instruction_k": Const(self.instruction_k)}
        if self.loop_step is not None:
            integers["accumulator.residue.k_loop_step"] = Const(self.loop_step)
        return make_rule(desc, integers)


SCALAR = Order(instruction_k=1, step=ScalarStep(fused=True))


def library_of(rule: Rule, answer: AlgoConfig | None = None) -> SimulatedLibrary:
    """A library that gives one answer and follows one rule."""
    given = answer or sample_answer()
    return SimulatedLibrary(identity=IDENTITY, device=DEVICE, heuristic=lambda p: given, rules=lambda p, x: rule)


def sample_problem(
    k: int, dtype: DType = FP16, output: DType | None = None, *, along_n: bool = False, transa: Transpose = Transpose.N
) -> GemmProblem:
    m, n = (8, WIDE) if along_n else (WIDE, 8)
    return dense_problem(m, n, k, dtype, d_dtype=output, transa=transa)


def reader_of(
    order: Order, k: int, dtype: DType = FP16, output: DType | None = None, *, along_n: bool = False, splitk: int = 1
) -> tuple[LibraryReader, Magnitudes]:
    rule = order.rule(dtype, output)
    problem = sample_problem(k, dtype, output, along_n=along_n)
    answer = sample_answer(splitk_num=splitk)
    return LibraryReader(library_of(rule, answer), problem, answer), magnitudes(dtype, output or dtype)


def environments(ks: Sequence[int], splits: Sequence[int] = (1,)) -> list[dict[str, int]]:
    """All combinations with every way of storing the operands."""
    return [
        {"m": 64, "n": 8, "k": k, "splitk_num": s, "transa": ta, "transb": tb, "k_contiguous": ta + 1 - tb}
        for k in ks
        for s in splits
        for ta in (0, 1)
        for tb in (0, 1)
    ]


def random_order(rng: np.random.Generator) -> Order:
    """An order of the space that the probe searches."""

    def pick(*choices: str) -> str:
        return choices[int(rng.integers(len(choices)))]

    grain = pick("32", "64", "128")
    share = pick("floordiv", "ceildiv")
    spans = (
        pick(
            f"round_up({share}(k, splitk_num), {grain})", "ceildiv(k, splitk_num)",
            f"round_up({share}(k, splitk_num), select(mod(k, 8), 8, {grain}))", "128", "",
        ),
    )  # fmt: skip
    instruction_k = int(pick("8", "16"))
    loop_step = {"none": None, "32": 32, "64": 64, "128": 128}[pick("none", "none", "32", "64", "128")]
    if not spans[0]:
        return Order(instruction_k=instruction_k, loop_step=loop_step)
    loses = spans[0].startswith("round_up(floordiv") and pick("lost", "whole") == "lost"
    partial, merge = (FP32 if pick("wide", "wide", "narrow") == "wide" else FP16 for _ in range(2))
    return Order(
        spans=spans, summed=f"min(k, mul(splitk_num, {spans[0]}))" if loses else "k", instruction_k=instruction_k,
        loop_step=loop_step, partial=partial, merge=merge, start=Start(pick("first", "zero")),
    )  # fmt: skip
