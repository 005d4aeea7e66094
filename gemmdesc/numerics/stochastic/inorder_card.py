"""Draws inside a product on a card: the samples of ``inorder`` bit for bit, for the orders that the kernel knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemmdesc.descriptor import Contiguous, FusedDot, GEMMDesc, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.numerics.stochastic.sites import number_sites, sample_word
from gemmdesc.schedule import Op, make_schedule

if TYPE_CHECKING:
    import torch

    from gemmdesc.kernels.launch_drawn import DrawnChain, HeldChain

#: Types whose products span few enough exponents that two float64 hold any sum of a step: 2^-48 to 2^32 for float16.
_NARROW = (DType.FLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)


def drawn_chain(desc: GEMMDesc, k: int, *, antithetic: bool = True) -> DrawnChain | Declined:
    """The kernel's plan for three samples with all sites drawn, up to the rounding to the output type.

    Declines orders other than one chain, or one cut into contiguous parts folded in float32, of matrix steps with a
    float32 accumulator and no epilogue.
    """
    step = desc.accumulator.step
    if not isinstance(step, FusedDot) or step.accumulator_dtype is not DType.FLOAT32:
        return _declined("matrix steps with a float32 accumulator")
    if desc.epilogue or len(desc.cuts) > 1 or any(cut.opening or cut.fold for cut in desc.cuts):
        return _declined("one chain or one plain cut, and no epilogue")
    for cut in desc.cuts:
        kinds = {cut.partial_dtype, cut.merge_dtype}
        if not isinstance(cut.layout, Contiguous) or kinds != {DType.FLOAT32} or cut.start is not Start.FIRST:
            return _declined("contiguous parts folded in float32 from the first")
    schedule = make_schedule(desc, k)
    lengths = np.diff(schedule.step_ends, prepend=0)
    if not len(lengths):
        return _declined("at least one step")
    folds = np.full(len(lengths), -1, dtype=np.int64)
    first_row = number_sites(desc, schedule).program
    leaf = 0
    for i, (op, argument) in enumerate(schedule.program.tolist()):
        if op == Op.LEAF:
            leaf = argument
        last = schedule.step_offsets[leaf + 1] - 1
        folds[last] = first_row + i if op == Op.ADD else -2
    from gemmdesc.kernels.launch_drawn import DrawnChain

    return DrawnChain(
        ends=tuple(schedule.step_ends.tolist()),
        folds=tuple(folds.tolist()),
        step=int(lengths.max()),
        fraction_bits=step.output_bits,
        wide=desc.a_dtype not in _NARROW or desc.b_dtype not in _NARROW,
        opposite=antithetic,
    )


def draw_sums(
    chain: DrawnChain | HeldChain,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    rows: torch.Tensor,
    cols: torch.Tensor,
    seed: int = 0,
    block: tuple[int, int] | None = None,
    num_warps: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three samples of the sums (3, m, n) float32 before the output type, as ``InOrderSamples.before``.

    ``a``: (m, k) the chosen rows' operand values, float32 or a type that it holds, ``b``: (k, n); both as the
    accumulator takes them.  ``chain``: on the host, or held on the operands' device by
    :func:`~gemmdesc.kernels.launch_drawn.hold_chain`, so that the call copies nothing there and can be captured in a
    CUDA graph.  ``block``: rows and columns of a tile, powers of two from 16, and its ``num_warps``; they never change
    a bit.
    ``rows``, ``cols``: int64, their places in the whole D.  Also bool (m, n): where no rounding lost anything, that to
    the output type not counted (``InOrderSamples.gaps == 0``; its ``exact`` counts that rounding too), and where a sum
    was not held exactly, so that those elements are to be drawn on the CPU (never, for float16 and 8-bit operands).
    """
    from gemmdesc.kernels.launch_drawn import DrawnChain, hold_chain, launch_drawn

    words = (sample_word(seed, 0), sample_word(seed, 1), sample_word(seed, 2))
    held = hold_chain(chain, a.device) if isinstance(chain, DrawnChain) else chain
    out, flags = launch_drawn(
        held, a.contiguous(), b.contiguous(), rows, cols, words, block=block, num_warps=num_warps
    )
    return out, (flags & 1) == 0, (flags & 2) != 0


def _declined(what: str) -> Declined:
    return Declined(code="kernel", reason=f"the kernel of drawn chains takes {what}")
