"""A descriptor as the kernels see it: equal slices of k, a chain inside each, one fold over them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmdesc.descriptor import Contiguous, Cut, FusedDot, GEMMDesc, ResidueFirst, Short, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.meta import KernelMeta

#: Types of operands that the kernels multiply.
OPERAND_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
#: Lanes of k that the kernels write for one matrix step of 16-bit operands.
LANES = 16
#: Real products that a step may hold, the rest of its lanes being zero.
STEP_SIZES = (8, LANES)
#: Stands for a main loop longer than any slice: the short step comes last.
NO_LOOP_STEP = 2**30


@dataclass(frozen=True, kw_only=True)
class Merge:
    """The fold that follows the slices."""

    partial_dtype: DType
    merge_dtype: DType
    start: Start


@dataclass(frozen=True, kw_only=True)
class Slices:
    """``count`` slices of ``span`` k, the last one short; in each, steps of ``instruction_k``, partial turn first."""

    summed_k: int
    span: int
    count: int
    instruction_k: int
    k_loop_step: int
    merge: Merge | None

    @property
    def plain(self) -> bool:
        """Whether every slice is a chain of full steps from its first k on, a short one at most at its end."""
        lengths = {self.span, self.summed_k - (self.count - 1) * self.span}
        leads = {(length, length % self.k_loop_step) for length in lengths}
        return self.instruction_k == LANES and all(lead % LANES == 0 or lead == length for length, lead in leads)

    @property
    def lanes(self) -> int:
        """Lanes of matrix steps that a full slice takes."""
        return -(-self.span // self.instruction_k) * LANES


def output_dtypes(operand_dtype: DType) -> tuple[DType, ...]:
    """The types that a product of ``operand_dtype`` may be stored as."""
    return tuple(dict.fromkeys((operand_dtype, DType.FLOAT32)))


def declined(reason: str) -> Declined:
    return Declined(code="kernel", reason=reason)


def misfit(
    desc: GEMMDesc, meta: KernelMeta, operand_dtypes: tuple[DType, ...] = OPERAND_DTYPES
) -> Declined | None:
    """What any kernel of ``operand_dtypes`` declines: types not the descriptor's or not known, and an epilogue."""
    for name, got, want in (
        ("a", meta.a.dtype, desc.a_dtype),
        ("b", meta.b.dtype, desc.b_dtype),
        ("out", meta.out.dtype, desc.output_dtype),
    ):
        if got is not want:
            return declined(f"{name} must have the descriptor's type {want.value} (got {got.value})")
    if desc.a_dtype is not desc.b_dtype or desc.a_dtype not in operand_dtypes:
        known = " or ".join(d.value for d in operand_dtypes)
        return declined(f"operands must be {known} alike (got {desc.a_dtype.value} and {desc.b_dtype.value})")
    if desc.output_dtype not in output_dtypes(desc.a_dtype):
        return declined(f"the output must be of the operands' type or float32 (got {desc.output_dtype.value})")
    if desc.a_cast is not None or desc.b_cast is not None:
        return declined("operands must be multiplied as they are stored (got a cast to tfloat32)")
    if any(cut.open_end and cut.merge_dtype is not DType.FLOAT32 for cut in desc.cuts):
        return declined("the last running sum must be rounded as the others are (got an open end)")
    if any(cut.opening for cut in desc.cuts):
        return declined("nothing may be taken in with the first part (got an opening)")
    if desc.epilogue:
        return declined(f"the epilogue must be empty (got {len(desc.epilogue)} steps)")
    return None


def slice_up(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> Slices | Declined:
    """The descriptor as the kernels see it, at the sizes of ``meta``, or why no kernel computes it."""
    trouble = misfit(desc, meta)
    if trouble is not None:
        return trouble
    steps = _steps(desc, card)
    if isinstance(steps, Declined):
        return steps
    summed_k = min(meta.k, desc.summed_k)
    if not 1 <= summed_k <= NO_LOOP_STEP:
        return declined(f"summed_k must be from 1 to {NO_LOOP_STEP} (got {summed_k})")
    if len(desc.cuts) > 1:
        return declined(f"no kernel has nested cuts (got {len(desc.cuts)})")
    one = Slices(summed_k=summed_k, span=summed_k, count=1, instruction_k=steps[0], k_loop_step=steps[1], merge=None)
    if not desc.cuts:
        return one
    return _cut(one, desc.cuts[0], desc.output_dtype)


def _steps(desc: GEMMDesc, card: CardArithmetic) -> tuple[int, int] | Declined:
    """(instruction_k, k_loop_step) where the card's matrix steps realise the accumulator."""
    accumulator = desc.accumulator
    step = accumulator.step
    if not isinstance(step, FusedDot):
        return declined("a chain of scalar steps is no chain of matrix steps")
    realised = card.step_for(desc.a_dtype)
    if realised is None:
        return declined(f"the card's matrix steps for {desc.a_dtype.value} are not known")
    if realised.step != step or step.accumulator_dtype is not DType.FLOAT32:
        return declined(f"the accumulator must be the card's {realised.step} (got {step})")
    if realised.lanes != LANES:
        return declined(f"matrix steps must have {LANES} lanes (got {realised.lanes})")
    k = accumulator.instruction_k
    if k not in STEP_SIZES:
        return declined(f"instruction_k must be 8 or {LANES} (got {k})")
    if not isinstance(accumulator.residue, ResidueFirst):
        return k, NO_LOOP_STEP
    turn = accumulator.residue.k_loop_step
    if turn % k:
        return declined(f"k_loop_step must be a multiple of instruction_k {k} (got {turn})")
    return k, min(turn, NO_LOOP_STEP)


def _cut(one: Slices, cut: Cut, output_dtype: DType) -> Slices | Declined:
    if not isinstance(cut.layout, Contiguous):
        return declined("no single chain kernel has strided or balanced cuts over matrix steps")
    if cut.fold:
        return declined("no kernel folds slices of matrix steps in groups")
    span = min(cut.layout.span, one.summed_k)
    if cut.layout.short is Short.FIRST and one.summed_k % span:
        return declined("no kernel has the short slice first")
    merge = Merge(partial_dtype=cut.partial_dtype, merge_dtype=cut.merge_dtype, start=cut.start)
    count = -(-one.summed_k // span)
    if count == 1 and _invisible(merge, output_dtype):
        return one
    return replace(one, span=span, count=count, merge=merge)


def _invisible(merge: Merge, output_dtype: DType) -> bool:
    """Whether folding a single partial shows in no output: matrix steps never give -0.0, and rounding twice is once."""
    return merge.partial_dtype is DType.FLOAT32 and merge.merge_dtype in (DType.FLOAT32, output_dtype)
