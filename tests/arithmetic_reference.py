"""What the arithmetic tests share: an interpreter of descriptors that uses none of the fast code, and strategies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from gemmdesc.arithmetic import step as exact
from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    OperandCast,
    ResidueFirst,
    ResidueLast,
    Rounding,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType

HOPPER = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
STORED = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def interpret(desc: GEMMDesc, a_row: Sequence[int], b_column: Sequence[int]) -> int:
    """Bits of one output element, straight from the descriptor's definition, without an epilogue."""
    ks = list(range(min(len(a_row), desc.summed_k)))
    if desc.a_cast is not None:
        a_row = [exact.cast_operand_step(x, desc.a_cast) for x in a_row]
    if desc.b_cast is not None:
        b_column = [exact.cast_operand_step(x, desc.b_cast) for x in b_column]
    return exact.convert_float32(_node(desc, ks, desc.cuts, a_row, b_column), desc.output_dtype)


def _node(desc: GEMMDesc, ks: list[int], cuts: tuple[Cut, ...], a: Sequence[int], b: Sequence[int]) -> int:
    if not cuts:
        return _leaf(desc, ks, a, b)
    cut = cuts[0]
    partials = [_through(_node(desc, part, cuts[1:], a, b), cut.partial_dtype) for part in split(ks, cut.layout)]
    missing = _through(_node(desc, [], cuts[1:], a, b), cut.partial_dtype)
    return _fold(cut, partials, cut.fold, missing, open_end=cut.open_end)


def _fold(
    cut: Cut, partials: list[int], fold: tuple[Contiguous | Strided, ...], missing: int, *, open_end: bool
) -> int:
    """One chain, or a chain over groups of the partials' numbers; a group of none counts as one missing part."""
    terms = partials or [missing]
    if fold:
        groups_of = split(list(range(len(partials))), fold[0])
        terms = [_fold(cut, [partials[i] for i in group], fold[1:], missing, open_end=False) for group in groups_of]
    running = 0
    for j, term in enumerate(terms):
        starts_here = j == 0 and cut.start is Start.FIRST
        running = term if starts_here else exact.add_float32(running, term)
        if not open_end or j < len(terms) - 1:
            running = _through(running, cut.merge_dtype)
    return running


def _through(bits: int, dtype: DType) -> int:
    return exact.widen_to_float32(exact.convert_float32(bits, dtype), dtype)


def split(ks: list[int], layout: Contiguous | Strided) -> list[list[int]]:
    """The parts of ``ks`` by the words of the layout's docstring."""
    if isinstance(layout, Strided):
        return [[k for i, k in enumerate(ks) if i // layout.unit % layout.count == j] for j in range(layout.count)]
    if not ks:
        return [[]]
    head = len(ks) % layout.span if layout.short is Short.FIRST else 0
    rest = ks[head:]
    parts = [ks[:head]] if head else []
    return parts + [rest[i : i + layout.span] for i in range(0, len(rest), layout.span)]


def groups(ks: list[int], accumulator: Accumulator) -> list[list[int]]:
    """The products of each step, by the words of the residue's docstring."""
    g = accumulator.instruction_k
    turns = [ks]
    if isinstance(accumulator.residue, ResidueFirst):
        turn = accumulator.residue.k_loop_step
        head = len(ks) % turn
        turns = [ks[:head], *(ks[i : i + turn] for i in range(head, len(ks), turn))]
    return [t[i : i + g] for t in turns for i in range(0, len(t), g)]


def _leaf(desc: GEMMDesc, ks: list[int], a: Sequence[int], b: Sequence[int]) -> int:
    step = desc.accumulator.step
    running = 0x80000000 if isinstance(step, ScalarStep) and step.start is Start.FIRST else 0
    for group in groups(ks, desc.accumulator):
        if isinstance(step, ScalarStep):
            (k,) = group
            running = exact.scalar_step(step, a[k], b[k], running, a_dtype=desc.a_dtype, b_dtype=desc.b_dtype)
        else:
            x, y = [a[k] for k in group], [b[k] for k in group]
            running = exact.fused_dot_step(step, x, y, running, a_dtype=desc.a_dtype, b_dtype=desc.b_dtype)
    if isinstance(step, FusedDot):
        return exact.widen_to_float32(running, step.accumulator_dtype)
    return running


def draw_bits(rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: DType) -> Bits:
    """Adversarial patterns: ``any`` bits at all, ``narrow`` exponents near 1, ``tiny`` subnormals.

    ``middle``: exponents near half of the least, so that products straddle the least float32.  ``zeros``: both signs.
    """
    unsigned = bits_dtype(dtype)
    layout = dtype.format
    bits = rng.integers(0, 1 << layout.storage_bits, shape, dtype=np.uint64)
    low = layout.storage_bits - 2 - (1 - layout.min_exponent).bit_length()
    sign = np.uint64(1 << (layout.storage_bits - 1))
    fraction = np.uint64((1 << low) - 1)
    one = np.uint64((1 - layout.min_exponent) << low)
    if kind == "narrow":
        spread = rng.integers(0, 4, shape, dtype=np.uint64) << np.uint64(low)
        bits = (bits & (sign | fraction)) | (one - spread)
    elif kind == "finite":
        spread = rng.integers(0, layout.max_exponent, shape).astype(np.uint64) << np.uint64(low)
        bits = (bits & (sign | fraction)) | (one - spread)
    elif kind == "middle":
        spread = rng.integers(0, 12, shape) - layout.min_exponent // 2
        bits = (bits & (sign | fraction)) | (one - (spread.astype(np.uint64) << np.uint64(low)))
    elif kind == "tiny":
        bits = bits & (sign | fraction)
    elif kind == "zeros":
        bits = np.where(rng.random(shape) < 0.7, bits & sign, (bits & sign) | one)
    return bits.astype(unsigned)


def paired_bits(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Bits:
    """Rows of small values with one huge value and its negative: what lies between the two in the order is lost."""
    layout = dtype.format
    rows = np.arange(shape[0])
    low = layout.storage_bits - 2 - (1 - layout.min_exponent).bit_length()
    one = (1 - layout.min_exponent) << low
    bits = draw_bits(rng, "narrow", shape, dtype) - np.asarray(4 << low, bits_dtype(dtype))
    if shape[1] < 2:
        return bits
    first = rng.integers(0, shape[1], shape[0])
    second = (first + rng.integers(1, shape[1], shape[0])) % shape[1]
    huge = one + (min(10, layout.max_exponent - 1) << low)
    bits[rows, first] = huge
    bits[rows, second] = huge | (1 << (layout.storage_bits - 1))
    return bits


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    if draw(st.booleans()):
        layout: Contiguous | Strided = Contiguous(
            span=draw(st.integers(1, 12)), short=draw(st.sampled_from(list(Short)))
        )
    else:
        layout = Strided(count=draw(st.integers(1, 4)), unit=draw(st.integers(1, 3)))
    groups = st.builds(Strided, count=st.integers(1, 3), unit=st.integers(1, 2))
    return Cut(
        layout=layout,
        fold=tuple(draw(st.lists(groups, max_size=2))) if draw(st.booleans()) else (),
        partial_dtype=draw(st.sampled_from(STORED)),
        merge_dtype=draw(st.sampled_from(STORED)),
        start=draw(st.sampled_from(list(Start))),
        open_end=draw(st.booleans()),
    )


scalar_steps = st.builds(ScalarStep, fused=st.booleans(), start=st.sampled_from(list(Start)))


@st.composite
def accumulators(draw: st.DrawFn) -> Accumulator:
    residue: ResidueLast | ResidueFirst = ResidueLast()
    if draw(st.booleans()):
        residue = ResidueFirst(k_loop_step=draw(st.integers(1, 9)))
    if draw(st.booleans()):
        return Accumulator(instruction_k=1, residue=residue, step=draw(scalar_steps))
    dtype = draw(st.sampled_from([DType.FLOAT32, DType.FLOAT16]))
    step = FusedDot(
        fraction_bits=draw(st.integers(1, 30)),
        output_bits=draw(st.integers(1, dtype.format.fraction_bits)),
        rounding=draw(st.sampled_from([Rounding.TOWARD_ZERO, Rounding.NEAREST_EVEN])),
        zero_exponent=draw(st.sampled_from([-5000, -133, -126, -21, -14, -3, 0, 7, 5000])),
        accumulator_dtype=dtype,
    )
    return Accumulator(instruction_k=draw(st.integers(1, 9)), residue=residue, step=step)


OPERANDS = [d for d in DType if d is not DType.FLOAT64]


@st.composite
def descriptors(draw: st.DrawFn) -> GEMMDesc:
    """Any descriptor without an epilogue, of sizes that suit an inner size of up to 30."""
    a_dtype, b_dtype = draw(st.sampled_from(OPERANDS)), draw(st.sampled_from(OPERANDS))
    casts = st.builds(OperandCast, dtype=st.just(DType.TFLOAT32), rounding=st.sampled_from(Rounding))
    return GEMMDesc(
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        output_dtype=draw(st.sampled_from(STORED)),
        summed_k=draw(st.integers(0, 32)),
        cuts=tuple(draw(st.lists(cuts(), max_size=3))),
        accumulator=draw(accumulators()),
        a_cast=draw(st.none() | casts) if a_dtype is DType.FLOAT32 else None,
        b_cast=draw(st.none() | casts) if b_dtype is DType.FLOAT32 else None,
    )


KINDS = ("any", "narrow", "finite", "middle", "tiny", "zeros")
