"""A descriptor in words."""

from __future__ import annotations

from collections.abc import Sequence

from gemmdesc.descriptor import (
    Add,
    AddBias,
    AddC,
    AtLeast,
    AtMost,
    Balanced,
    CastTo,
    Contiguous,
    Cut,
    Divide,
    EpilogueStep,
    FusedDot,
    Gelu,
    GeluTanhApprox,
    GEMMDesc,
    Layout,
    Multiply,
    Relu,
    ResidueFirst,
    Rounding,
    ScalarStep,
    Scale,
    ScaleOutput,
    Short,
    Sigmoid,
    Silu,
    Start,
    Strided,
    Tanh,
)
from gemmdesc.pointwise import PointwiseStep
from gemmdesc.regions import Region

_ROUNDED = {
    Rounding.TOWARD_ZERO: "toward zero",
    Rounding.NEAREST_EVEN: "to nearest even",
    Rounding.NEAREST_AWAY: "to nearest, ties away from zero",
}


def in_words(desc: GEMMDesc, k: int) -> tuple[str, ...]:
    """What ``desc`` does at inner size ``k``, one clause a line, in the order in which it happens to an element."""
    lines = []
    summed = min(k, desc.summed_k)
    if summed < k:
        lines.append(f"only the first {summed} of {k} k are summed: the library loses the last {k - summed}")
    length = summed
    for depth, cut in enumerate(desc.cuts):
        lines.append(_cut(cut, length, "k is" if depth == 0 else "each of them is"))
        length = min(length, cut.layout.span) if isinstance(cut.layout, Contiguous) else -(-length // cut.layout.count)
    for name, cast in (("A", desc.a_cast), ("B", desc.b_cast)):
        if cast is not None:
            lines.append(f"each element of {name} is rounded to {cast.dtype.value}, {_ROUNDED[cast.rounding]}")
    lines.append(_chain(desc))
    lines += [_fold(cut) for cut in reversed(desc.cuts)]
    lines += [_step(step) for step in desc.epilogue]
    lines.append(f"the result is rounded to {desc.output_dtype.value}, to nearest even")
    return tuple(lines)


def regions_in_words(regions: Sequence[Region], k: int) -> tuple[str, ...]:
    """:func:`in_words` of every order that D's rectangles have, each under a line that says where it holds."""
    if len(regions) == 1:
        return in_words(regions[0].descriptor, k)
    lines: list[str] = []
    for desc in dict.fromkeys(r.descriptor for r in regions):
        held = [
            f"rows {r.row_begin}..{r.row_end - 1} x columns {r.column_begin}..{r.column_end - 1}"
            for r in regions
            if r.descriptor == desc
        ]
        lines += [f"in {' and '.join(held)} of the library's D:", *in_words(desc, k)]
    return tuple(lines)


def _cut(cut: Cut, length: int, subject: str) -> str:
    layout = cut.layout
    if isinstance(layout, Balanced):
        ends = layout.ends(length)
        spans = sorted({end - begin for begin, end in zip((0, *ends), ends, strict=False)})
        return f"{subject} cut into {layout.count} parts of {spans[0]} to {spans[-1]} k, the longer ones last"
    if not isinstance(layout, Contiguous):
        return f"{subject} dealt in units of {layout.unit} to {layout.count} parts in turn"
    parts = -(-length // layout.span)
    rest = length - (parts - 1) * layout.span
    if parts <= 1:
        return f"{subject} one part of {length}"
    uneven = "" if rest == layout.span else f", the {'first' if layout.short is Short.FIRST else 'last'} one of {rest}"
    return f"{subject} cut into {parts} parts of {layout.span} consecutive k{uneven}"


def _chain(desc: GEMMDesc) -> str:
    accumulator = desc.accumulator
    where = "in each part" if desc.cuts else "over all k"
    match accumulator.step:
        case ScalarStep(fused=fused, start=start):
            how = "fused multiply-adds" if fused else "a multiplication and an addition, each rounded"
            opening = "" if start is Start.ZERO else ", from its first product on"
            text = f"{where} one ascending chain, {how} in float32{opening}"
        case FusedDot() as step:
            text = (
                f"{where} one ascending chain of matrix steps, {accumulator.instruction_k} products each: aligned, "
                f"cut to {step.fraction_bits} fraction bits, added exactly, rounded {_ROUNDED[step.rounding]} to "
                f"{step.output_bits} fraction bits of {step.accumulator_dtype.value}"
            )
    if isinstance(accumulator.residue, ResidueFirst):
        return f"{text}; what is left over from turns of {accumulator.residue.k_loop_step} k comes first"
    return f"{text}; the short step, if any, comes last"


def _fold(cut: Cut) -> str:
    start = "the first" if cut.start is Start.FIRST else "+0.0"
    groups = "".join(f", then {_group(layout)}" for layout in reversed(cut.fold))
    where = " in their groups" if groups else ""
    opening = "".join(f"; the first part's sum {_step(step)}" for step in cut.opening)
    held = f"{cut.merge_dtype.value}{', but for the last one' if cut.open_end else ''}"
    return (
        f"parts are stored as {cut.partial_dtype.value} and added in ascending order{where}, from {start} on, the "
        f"running sum held as {held}{groups}{opening}"
    )


def _group(layout: Layout) -> str:
    match layout:
        case Contiguous(span=span, short=short):
            return f"groups of {span} neighbours (the short one {short.value})"
        case Strided(count=count, unit=unit):
            return f"the {count} groups that take {unit} in turn"
        case Balanced(count=count):
            return f"{count} groups of neighbours, as even as can be, the larger ones last"


def _step(step: EpilogueStep) -> str:
    match step:
        case Scale():
            return "times alpha, rounded to float32"
        case AddC(fused=fused):
            return f"plus beta times C, {'one rounding' if fused else 'two roundings'} to float32"
        case AddBias():
            return "plus the bias, rounded to float32"
        case Relu(keeps_nan=keeps_nan):
            return f"the larger of it and +0.0{'' if keeps_nan else ', NaN made +0.0'}"
        case ScaleOutput():
            return "times the output's scale, rounded to float32"
        case CastTo(dtype=dtype, overflows=overflows):
            beyond = ", what is too large to infinity or NaN" if overflows else ""
            return f"rounded to {dtype.value}, to nearest even{beyond}"
        case GeluTanhApprox(argument=argument, result=result):
            return f"gelu by tanh.approx.f32 (argument={argument.value}, result={result.value}) in float32"
        case _:
            return _pointwise(step)


def _pointwise(step: PointwiseStep) -> str:
    match step:
        case Add(operand=operand):
            return f"plus {operand}, rounded to float32"
        case Multiply(operand=operand):
            return f"times {operand}, rounded to float32"
        case Divide(operand=operand):
            return f"divided by {operand}, rounded to float32"
        case AtLeast(operand=operand):
            return f"the larger of it and {operand}"
        case AtMost(operand=operand):
            return f"the smaller of it and {operand}"
        case Gelu(approximate=approximate):
            return f"gelu (approximate={approximate.value}) as eager torch computes it in float32"
        case Silu():
            return "silu as eager torch computes it in float32"
        case Sigmoid():
            return "sigmoid as eager torch computes it in float32"
        case Tanh():
            return "tanh as eager torch computes it in float32"
