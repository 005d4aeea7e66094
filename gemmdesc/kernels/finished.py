"""Choosing the kernels of a product with an epilogue, an opening or an open end: sums into scratch, then what follows.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmdesc.descriptor import Cut, GEMMDesc, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.balanced import BalancedChoice, choose_balanced, is_balanced
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, structures_for
from gemmdesc.kernels.choose_lanes import LaneChoice, choose_scalar
from gemmdesc.kernels.config import THIN_SIDE
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.nest import MOST_SUMS, NestChoice, choose_nest, cut_merges
from gemmdesc.kernels.slices import Merge, declined, output_dtypes, slice_up
from gemmdesc.kernels.steps import StepProgram, step_program
from gemmdesc.kernels.structure import Structure

_PLAIN = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)
#: What torch's allocator aligns scratch to, in bytes.
_SCRATCH_ALIGNMENT = 256


@dataclass(frozen=True, kw_only=True)
class FinishedChoice:
    """What to launch: the float32 sums of ``sums``, all of their folds but the last, then that fold and the steps.

    ``fold``: the last fold, whose last sum is not rounded where ``open_end``.  ``opening``: what the first part meets,
    in the last fold or, where ``opens_early``, before the parts are folded in groups.  ``swapped``: the sums of
    a chain are those of the transposed product.  ``canonical``: whether every NaN becomes the canonical one.
    Lanes are folded to their end, and ``fold`` takes one sum then.
    """

    sums: KernelChoice | NestChoice | LaneChoice | BalancedChoice
    fold: Merge
    open_end: bool
    opening: StepProgram
    opens_early: bool
    steps: StepProgram
    output_dtype: DType
    swapped: bool
    canonical: bool = True

    @property
    def structure(self) -> Structure:
        return Structure.FINISHED

    @property
    def takes_c(self) -> bool:
        return self.opening.takes_c or self.steps.takes_c

    @property
    def takes_bias(self) -> bool:
        return self.opening.takes_bias or self.steps.takes_bias


def needs_finish(desc: GEMMDesc) -> bool:
    """Whether more than roundings happens to sums of ``desc``, so that :func:`choose_finished` computes it."""
    opens = any(c.opening or (c.open_end and c.merge_dtype is not DType.FLOAT32) for c in desc.cuts)
    return opens or bool(desc.epilogue)


def choose_finished(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> FinishedChoice | Declined:
    """The kernels that compute ``desc``, with its epilogue and whatever opens its fold, bit for bit.

    C and the bias have the output's type.
    """
    if meta.out.dtype is not desc.output_dtype:
        return declined(f"out must have the descriptor's type {desc.output_dtype.value} (got {meta.out.dtype.value})")
    if desc.output_dtype not in output_dtypes(desc.a_dtype):
        return declined(f"the output must be of the operands' type or float32 (got {desc.output_dtype.value})")
    if min(meta.m, meta.n, meta.out.row_stride + 1, meta.out.column_stride + 1) < 1:
        return declined(f"sizes must be positive and strides not negative (got {meta})")
    cut = desc.cuts[0] if desc.cuts else None
    opening, steps = step_program(cut.opening if cut else ()), step_program(desc.epilogue)
    if isinstance(opening, Declined):
        return opening
    if isinstance(steps, Declined):
        return steps
    early = bool(cut and cut.fold and cut.opening)
    if cut and early and (cut.partial_dtype is not DType.FLOAT32 or cut.start is not Start.FIRST):
        return declined("a first part that is opened before groups are folded must be float32 and fold from itself")
    swapped = meta.m < meta.n and meta.m <= THIN_SIDE
    sums = _sums(desc, cut, meta, card, swapped)
    if isinstance(sums, Declined):
        return sums
    # A nest has no transposed product; balanced slices say whether theirs is.
    turned = sums.swapped if isinstance(sums, BalancedChoice) else swapped and isinstance(sums, KernelChoice)
    return FinishedChoice(
        sums=sums, fold=cut_merges(cut)[-1] if cut and not isinstance(sums, LaneChoice) else _PLAIN,
        open_end=bool(cut and cut.open_end) and not isinstance(sums, LaneChoice), opening=opening,
        opens_early=early, steps=steps, output_dtype=desc.output_dtype, swapped=turned,
        canonical=not desc.keeps_nan_patterns,
    )  # fmt: skip


def _sums(
    desc: GEMMDesc, cut: Cut | None, meta: KernelMeta, card: CardArithmetic, swapped: bool
) -> KernelChoice | NestChoice | LaneChoice | BalancedChoice | Declined:
    """Kernels for the sums of ``desc`` in float32, before its last fold."""
    cuts = () if cut is None else (replace(cut, opening=(), open_end=False), *desc.cuts[1:])
    bare = replace(desc, cuts=cuts, epilogue=(), output_dtype=DType.FLOAT32)
    if isinstance(desc.accumulator.step, ScalarStep):
        scratch = replace(meta, out=_scratch(meta))
        # What is taken in with the first part, or with the last sum, is so in the last fold.
        within = cut is not None and (cut.opening or (cut.open_end and cut.merge_dtype is not DType.FLOAT32))
        return choose_nest(bare, scratch) if within or meta.m * meta.n > MOST_SUMS else choose_scalar(bare, scratch)
    if is_balanced(bare):
        return choose_balanced(bare, replace(meta, out=_scratch(meta)), card)
    turned = meta.swapped if swapped else meta
    return _chain(bare, replace(turned, out=_scratch(turned)), card)


def _scratch(meta: KernelMeta) -> MatrixMeta:
    """Where one slice's sums go: rows one after another."""
    return MatrixMeta(dtype=DType.FLOAT32, row_stride=meta.n, column_stride=1, alignment=_SCRATCH_ALIGNMENT)


def _chain(bare: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> KernelChoice | Declined:
    """The chain kernel that stores each slice; the slices' roundings are left to the fold that follows."""
    plain = tuple(
        replace(c, partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST) for c in bare.cuts
    )
    chained = replace(bare, cuts=plain)
    slices = slice_up(chained, meta, card)
    if isinstance(slices, Declined):
        return slices
    found: KernelChoice | Declined = declined("no chain kernel stores its slices")
    for structure in structures_for(slices, meta):
        if structure.folds:
            continue
        chosen = choose_kernel(chained, meta, card, structure=structure, unasked=frozenset())
        if isinstance(chosen, KernelChoice) and not chosen.swapped:
            return chosen
        if isinstance(chosen, Declined):
            found = chosen
    return found
