"""Single-field mutants of a descriptor: the wrong answers that a comparison must be able to catch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmdesc.descriptor import Contiguous, Cut, GEMMDesc, ResidueFirst, ResidueLast, Short, Start
from gemmdesc.dtypes import DType
from gemmdesc.normal_form import normal_form


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``kind`` names what was changed.

    It is one of chunk, residue, partial_type, merge_type, instruction_k, start, slice_order and tail.
    """

    kind: str
    desc: GEMMDesc


def mutants(desc: GEMMDesc, k: int) -> tuple[Mutant, ...]:
    """The mutants of ``desc`` whose normal form differs from its own at inner size ``k``."""
    own = normal_form(desc, k)
    return tuple(m for m in _all(desc, k) if normal_form(m.desc, k) != own)


def _all(desc: GEMMDesc, k: int) -> Iterator[Mutant]:
    leaf = desc.accumulator
    for g in (leaf.instruction_k * 2, leaf.instruction_k // 2):
        residue = leaf.residue
        if g >= 2:
            if isinstance(residue, ResidueFirst) and residue.k_loop_step % g:
                residue = ResidueFirst(k_loop_step=g)
            changed = replace(leaf, instruction_k=g, residue=residue)
            yield Mutant(kind="instruction_k", desc=replace(desc, accumulator=changed))
    for residue in _other_residues(desc):
        yield Mutant(kind="residue", desc=replace(desc, accumulator=replace(leaf, residue=residue)))
    if desc.summed_k < k:
        yield Mutant(kind="tail", desc=replace(desc, summed_k=k))
    for i, cut in enumerate(desc.cuts):
        for kind, other in _cut_mutants(cut, desc.output_dtype):
            yield Mutant(kind=kind, desc=replace(desc, cuts=(*desc.cuts[:i], other, *desc.cuts[i + 1 :])))


def _other_residues(desc: GEMMDesc) -> tuple[ResidueLast | ResidueFirst, ...]:
    """The short step at the other end of the chain, and turns of the main loop twice and half as long."""
    g, residue = desc.accumulator.instruction_k, desc.accumulator.residue
    if not isinstance(residue, ResidueFirst):
        return (ResidueFirst(k_loop_step=4 * g),)
    turns = (2 * residue.k_loop_step, residue.k_loop_step // 2)
    return (ResidueLast(), *(ResidueFirst(k_loop_step=t) for t in turns if t >= g))


def _cut_mutants(cut: Cut, output: DType) -> Iterator[tuple[str, Cut]]:
    narrow = output if output is not DType.FLOAT32 else DType.FLOAT16
    layout = cut.layout
    if isinstance(layout, Contiguous):
        grain = 64 if layout.span % 64 == 0 else 8
        for span in (layout.span + grain, layout.span - grain):
            if span >= 1:
                yield "chunk", replace(cut, layout=replace(layout, span=span))
        # The short part at the other end: the slices meet in another order of sizes.
        other = Short.FIRST if layout.short is Short.LAST else Short.LAST
        yield "slice_order", replace(cut, layout=replace(layout, short=other))
    partial = narrow if cut.partial_dtype is DType.FLOAT32 else DType.FLOAT32
    yield "partial_type", replace(cut, partial_dtype=partial)
    merge = narrow if cut.merge_dtype is DType.FLOAT32 else DType.FLOAT32
    yield "merge_type", replace(cut, merge_dtype=merge)
    start = Start.ZERO if cut.start is Start.FIRST else Start.FIRST
    yield "start", replace(cut, start=start)
