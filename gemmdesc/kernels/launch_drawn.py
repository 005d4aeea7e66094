"""Run the kernel of drawn chains on tensors, on the current stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gemmdesc.kernels.drawn_chain import drawn_chain_kernel, drawn_extents_kernel


@dataclass(frozen=True, kw_only=True)
class DrawnChain:
    """What fixes the bits: ``ends`` and ``folds`` as the kernel takes them (int32, host), products a step,
    fraction bits of a step's result, whether operands need three float64, and whether the third sample is the
    second's opposite.
    """

    ends: tuple[int, ...]
    folds: tuple[int, ...]
    step: int
    fraction_bits: int
    wide: bool
    opposite: bool

    def is_even(self, inner: int) -> bool:
        """Whether every step has ``inner`` products."""
        return self.ends == tuple(range(inner, inner * len(self.ends) + 1, inner))


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldChain:
    """A chain with its ``ends`` and ``folds`` (int32) on the device of the operands."""

    chain: DrawnChain
    ends: torch.Tensor
    folds: torch.Tensor


def hold_chain(chain: DrawnChain, device: torch.device) -> HeldChain:
    """``chain`` for launches on ``device``: a launch of what is held copies nothing, so that it can be captured."""
    held = torch.from_numpy(np.array((chain.ends, chain.folds), dtype=np.int32)).to(device)
    return HeldChain(chain=chain, ends=held[0], folds=held[1])


def launch_drawn(
    held: HeldChain,
    a: torch.Tensor,
    b: torch.Tensor,
    rows: torch.Tensor,
    cols: torch.Tensor,
    words: tuple[int, int, int],
    *,
    block: tuple[int, int] | None = None,
    num_warps: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Three samples (3, m, n) float32 and flags (m, n) int8 of ``a`` (m, k) times ``b`` (k, n), contiguous.

    ``a``, ``b``: of float32 or a type that it holds.  ``rows``, ``cols``: int64 places of the outputs in the whole D.
    ``words``: a 64-bit word, signed, for each sample.  ``block`` and ``num_warps`` never change a bit; without them a
    warp has 128 elements.
    """
    chain = held.chain
    m, n = a.shape[0], b.shape[1]
    if block is None:
        block = (16, 32)
    if num_warps is None:
        num_warps = max(1, block[0] * block[1] // 128)
    # Only steps that are not tight ask for more, and few are; with 128, 16 warps stay on a multiprocessor.
    registers = 128 if block[0] * block[1] <= 128 * num_warps else 255
    steps, inner = len(chain.ends), max(16, 1 << (chain.step - 1).bit_length())
    out = torch.empty((3, m, n), dtype=torch.float32, device=a.device)
    flags = torch.empty((m, n), dtype=torch.int8, device=a.device)
    grid = (-(-m // block[0]), -(-n // block[1]))
    extents = [torch.empty((count, steps), dtype=torch.int32, device=a.device) for count in grid]
    sides = ((a, m, block[0], (a.stride(0), 1)), (b, n, block[1], (1, b.stride(0))))
    for (x, count, size, strides), into in zip(sides, extents, strict=True):
        blocks = max(1, 512 // size)
        drawn_extents_kernel[(steps, -(-into.shape[0] // blocks))](
            x, held.ends, into, count, steps, *strides, BLOCK=size, BLOCKS=blocks, INNER=inner, num_warps=4,
            enable_fp_fusion=False,
        )
    drawn_chain_kernel[grid](
        a, b, rows, cols, held.ends, held.folds, *extents, out, flags, *words, m, n, steps, a.stride(0), b.stride(0),
        m * n, BLOCK_M=block[0], BLOCK_N=block[1], STEP=chain.step, INNER=inner, FRACTION=chain.fraction_bits,
        WIDE=chain.wide, FOLDED=max(chain.folds) >= 0, OPPOSITE=chain.opposite, EVEN=chain.is_even(inner),
        num_warps=num_warps, maxnreg=registers, enable_fp_fusion=False,
    )  # fmt: skip
    return out, flags
