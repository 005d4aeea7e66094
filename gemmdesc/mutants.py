"""Single-field mutants of a descriptor: the wrong answers that a comparison must be able to catch."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from gemmdesc.descriptor import (
    Balanced,
    Contiguous,
    Cut,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    Rounding,
    ScalarStep,
    Short,
    Start,
    Strided,
)
from gemmdesc.dtypes import DType
from gemmdesc.normal_form import normal_form

#: Turns of the main loop that a kernel might have: its instruction_k, and up to 2^(this - 1) times that.
_TURNS = 5


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``kind`` names what was changed, ``change`` also how.

    The kind is one of chunk, lanes, fold, residue, partial_type, merge_type, instruction_k, start, slice_order, tail,
    fused and operand_cast.
    """

    kind: str
    change: str
    desc: GEMMDesc


def mutants(desc: GEMMDesc, k: int, but: Container[str] = ()) -> tuple[Mutant, ...]:
    """The mutants of ``desc`` whose normal form differs from its own at inner size ``k``.

    Those whose ``change`` is in ``but`` are left out, and cost nothing.
    """
    asked = [m for m in _all(desc, k) if m.change not in but]
    own = normal_form(desc, k) if asked else None
    return tuple(m for m in asked if normal_form(m.desc, k) != own)


def _all(desc: GEMMDesc, k: int) -> Iterator[Mutant]:
    yield from _leaf_mutants(desc)
    yield from _cast_mutants(desc)
    if desc.summed_k < k:
        yield Mutant(kind="tail", change="tail", desc=replace(desc, summed_k=k))
    for i, cut in enumerate(desc.cuts):
        for kind, how, other in _cut_mutants(cut, desc.output_dtype):
            cuts = (*desc.cuts[:i], other, *desc.cuts[i + 1 :])
            yield Mutant(kind=kind, change=f"cuts.{i}.{kind}={how}", desc=replace(desc, cuts=cuts))


def _cast_mutants(desc: GEMMDesc) -> Iterator[Mutant]:
    """Operands that are cast to tfloat32, cast with the other roundings."""
    for name in ("a_cast", "b_cast"):
        cast = getattr(desc, name)
        for rounding in Rounding if cast is not None else ():
            if rounding is not cast.rounding:
                other = replace(desc, **{name: replace(cast, rounding=rounding)})
                yield Mutant(kind="operand_cast", change=f"{name}={rounding.value}", desc=other)


def _leaf_mutants(desc: GEMMDesc) -> Iterator[Mutant]:
    """Of the accumulator; a scalar step has no size, and its products no turns, but it fuses them or not."""
    leaf = desc.accumulator
    if isinstance(leaf.step, ScalarStep):
        other = Start.ZERO if leaf.step.start is Start.FIRST else Start.FIRST
        steps = {"fused": replace(leaf.step, fused=not leaf.step.fused), "start": replace(leaf.step, start=other)}
        for kind, step in steps.items():
            changed = replace(desc, accumulator=replace(leaf, step=step))
            yield Mutant(kind=kind, change=f"accumulator.{kind}", desc=changed)
        return
    for g in (leaf.instruction_k * 2, leaf.instruction_k // 2):
        residue = leaf.residue
        if g >= 2:
            if isinstance(residue, ResidueFirst) and residue.k_loop_step % g:
                residue = ResidueFirst(k_loop_step=g)
            stepped = replace(leaf, instruction_k=g, residue=residue)
            yield Mutant(kind="instruction_k", change=f"instruction_k={g}", desc=replace(desc, accumulator=stepped))
    for residue in _other_residues(desc):
        turned = replace(leaf, residue=residue)
        yield Mutant(kind="residue", change=str(residue), desc=replace(desc, accumulator=turned))


def _other_residues(desc: GEMMDesc) -> tuple[ResidueLast | ResidueFirst, ...]:
    """The short step at the other end of the chain, and turns of the main loop twice and half as long, and others."""
    g, residue = desc.accumulator.instruction_k, desc.accumulator.residue
    turns = [ResidueFirst(k_loop_step=g << i) for i in range(_TURNS)]
    if not isinstance(residue, ResidueFirst):
        return tuple(turns[1:])
    near = [ResidueFirst(k_loop_step=t) for t in (2 * residue.k_loop_step, residue.k_loop_step // 2) if t >= g]
    return (ResidueLast(), *dict.fromkeys(t for t in (*near, *turns) if t != residue))


def _other_deals(layout: Strided | Balanced) -> Iterator[Strided | Balanced]:
    """Twice and half as many parts, and of balanced ones one more and less; other units, by half and by one."""
    near = (layout.count + 1, layout.count - 1) if isinstance(layout, Balanced) else ()
    for count in dict.fromkeys((2 * layout.count, layout.count // 2, *near)):
        if count >= 1 and count != layout.count:
            yield replace(layout, count=count)
    for unit in dict.fromkeys((2 * layout.unit, layout.unit // 2, layout.unit + 1, layout.unit - 1)):
        if unit >= 1 and unit != layout.unit:
            yield replace(layout, unit=unit)


def _other_folds(cut: Cut) -> Iterator[tuple[str, str, Cut]]:
    """One of the layouts that group the parts left out, or dealing them otherwise."""
    for i, layout in enumerate(cut.fold):
        before, after = cut.fold[:i], cut.fold[i + 1 :]
        yield "fold", f"{i} left out", replace(cut, fold=(*before, *after))
        if not isinstance(layout, Contiguous):
            for other in _other_deals(layout):
                yield "fold", f"{i} {other.count}x{other.unit}", replace(cut, fold=(*before, other, *after))
        else:
            for span in dict.fromkeys((2 * layout.span, layout.span // 2, layout.span + 1)):
                if span >= 1:
                    other_span = replace(layout, span=span)
                    yield "fold", f"{i} span {span}", replace(cut, fold=(*before, other_span, *after))


def _cut_mutants(cut: Cut, output: DType) -> Iterator[tuple[str, str, Cut]]:
    narrow = output if output in (DType.FLOAT16, DType.BFLOAT16) else DType.FLOAT16
    layout = cut.layout
    if isinstance(layout, Contiguous):
        grain = 64 if layout.span % 64 == 0 else 8
        for off in (grain, -grain):
            if layout.span + off >= 1:
                yield "chunk", f"{off:+}", replace(cut, layout=replace(layout, span=layout.span + off))
        # The short part at the other end: the slices meet in another order of sizes.
        other = Short.FIRST if layout.short is Short.LAST else Short.LAST
        yield "slice_order", other.value, replace(cut, layout=replace(layout, short=other))
    else:
        for changed in _other_deals(layout):
            yield "lanes", f"{changed.count}x{changed.unit}", replace(cut, layout=changed)
    yield from _other_folds(cut)
    partial = narrow if cut.partial_dtype is DType.FLOAT32 else DType.FLOAT32
    yield "partial_type", partial.value, replace(cut, partial_dtype=partial)
    merge = narrow if cut.merge_dtype is DType.FLOAT32 else DType.FLOAT32
    yield "merge_type", merge.value, replace(cut, merge_dtype=merge)
    start = Start.ZERO if cut.start is Start.FIRST else Start.FIRST
    yield "start", start.value, replace(cut, start=start)
