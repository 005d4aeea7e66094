"""Run a FinishedChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.beside import Beside
from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.kernels.launch import enqueue, launch_chain
from gemmdesc.kernels.launch_balanced import balanced_sums
from gemmdesc.kernels.launch_lanes import launch_lanes
from gemmdesc.kernels.launch_nest import fold_inner, fold_tables, nest_sums
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.recording import tables_place
from gemmdesc.kernels.steps import StepProgram, rounding_code
from gemmdesc.kernels.variants import FINISH_BLOCK, finish_is_wide, finish_variant

_NO_STEPS = StepProgram()


def launch_finished(
    choice: FinishedChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside
) -> None:
    """``out``, of the sums of ``a @ b`` and what is beside them; C may be ``out`` itself.

    Raises:
        InvalidInputError: the choice takes C or a bias that ``beside`` lacks, or one of another type or shape.
    """
    for name, taken in (("c", choice.takes_c), ("bias", choice.takes_bias)):
        tensor = getattr(beside, name)
        if taken and (tensor is None or tensor.shape != out.shape or tensor.dtype != out.dtype):
            got = None if tensor is None else (tuple(tensor.shape), tensor.dtype)
            raise InvalidInputError(f"{name} must be {tuple(out.shape)} of {out.dtype} (got {got})")
    turned = (out.T, beside.transposed) if choice.swapped else (out, beside)
    for first, sums in _sums(choice, a, b):
        _finish(choice, sums, first, *turned)


def _sums(choice: FinishedChoice, a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(first output, float32 (parts of the innermost fold, outputs)), outputs counted along rows of the product."""
    match choice.sums:
        case NestChoice() as nest:
            yield from nest_sums(nest, a, b, enqueue)
        case LaneChoice() as lanes:
            whole = torch.empty((a.shape[0], b.shape[1]), dtype=torch.float32, device=a.device)
            launch_lanes(lanes, a, b, whole, enqueue)
            yield 0, whole.view(1, -1)
        case BalancedChoice() as balanced:
            yield 0, balanced_sums(balanced, a, b)
        case KernelChoice() as chain:
            if choice.swapped:
                a, b = b.T, a.T
            m, n = a.shape[0], b.shape[1]
            sums = torch.empty((chain.slices.count, m, n), dtype=torch.float32, device=a.device)
            launch_chain(chain, a, b, sums[0], slice_stride=m * n)
            yield 0, sums.view(-1, m * n)


def _finish(choice: FinishedChoice, sums: torch.Tensor, first: int, out: torch.Tensor, beside: Beside) -> None:
    """Everything from the innermost fold on, for some outputs of ``out``."""
    inner = choice.sums
    if not isinstance(inner, KernelChoice | LaneChoice):
        # Groups are those of the outermost cut, whose parts the inner cuts of a nest have to give first.
        offsets = fold_tables(inner.descriptor, inner.k, tables_place(sums.device))
        before = len(inner.folds) - 1 - len(inner.descriptor.cuts[0].fold) if inner.descriptor.cuts else 0
        sums = fold_inner(inner.folds[:before], offsets[:before], sums, enqueue)
        if choice.opens_early:
            _enqueue(choice, sums[:1], first, out, beside, in_place=True)
        sums = fold_inner(inner.folds[before:-1], offsets[before:-1], sums, enqueue)
    _enqueue(choice, sums, first, out, beside, in_place=False)


def _enqueue(
    choice: FinishedChoice, sums: torch.Tensor, first: int, out: torch.Tensor, beside: Beside, *, in_place: bool
) -> None:
    """The finishing kernel; ``in_place``: only what opens the first part's sum, which goes back where it was."""
    fold, opening, steps = choice.fold, choice.opening, choice.steps
    target, rows, columns = out, out.stride(0), out.stride(1)
    if in_place:
        steps, target, rows, columns = _NO_STEPS, sums, out.shape[1], 1
    elif choice.opens_early:
        opening = _NO_STEPS
    parts, size = sums.shape
    c = out if beside.c is None else beside.c
    bias = out if beside.bias is None else beside.bias
    reaches = [(t.shape[0] - 1) * t.stride(0) + (t.shape[1] - 1) * t.stride(1) for t in (out, c, bias)]
    variant = finish_variant(
        beside=choice.output_dtype, stored=DType.FLOAT32 if in_place else choice.output_dtype,
        wide_offsets=finish_is_wide(out.shape[0] * out.shape[1], *reaches),
    )  # fmt: skip
    takes_c, takes_bias = opening.takes_c or steps.takes_c, opening.takes_bias or steps.takes_bias
    enqueue(
        variant, -(-size // FINISH_BLOCK), sums, target, c, bias, first, size, out.shape[1], parts,
        -0.0 if fold.start is Start.FIRST else 0.0, rounding_code(fold.partial_dtype),
        rounding_code(fold.merge_dtype), int(choice.open_end and not in_place), opening.codes, opening.count,
        steps.codes, steps.count, beside.alpha, beside.beta, int(takes_c), int(takes_bias), *c.stride(),
        *bias.stride(), rows, columns, first if in_place else 0,
        int(choice.canonical),
    )  # fmt: skip
