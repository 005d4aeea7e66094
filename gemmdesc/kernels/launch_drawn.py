"""Run the kernel of drawn chains on tensors, on the current stream."""

from __future__ import annotations

from dataclasses import dataclass

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


def launch_drawn(
    chain: DrawnChain,
    a: torch.Tensor,
    b: torch.Tensor,
    rows: torch.Tensor,
    cols: torch.Tensor,
    bases: torch.Tensor,
    *,
    block: tuple[int, int] = (16, 32),
    num_warps: int = 4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Three samples (3, m, n) float32 and flags (m, n) int8 of ``a`` (m, k) times ``b`` (k, n), float32, contiguous.

    ``rows``, ``cols``: int64 places of the outputs in the whole D.  ``bases``: three int64 words.  ``block`` and
    ``num_warps`` never change a bit.
    """
    m, n = a.shape[0], b.shape[1]
    out = torch.empty((3, m, n), dtype=torch.float32, device=a.device)
    flags = torch.empty((m, n), dtype=torch.int8, device=a.device)
    steps, inner = len(chain.ends), max(16, 1 << (chain.step - 1).bit_length())
    ends, folds = torch.tensor((chain.ends, chain.folds), dtype=torch.int32).to(a.device)
    grid = (-(-m // block[0]), -(-n // block[1]))
    extents = [torch.empty((count, steps), dtype=torch.int32, device=a.device) for count in grid]
    for x, many, size, strides, into in (
        (a, m, block[0], (a.stride(0), 1), extents[0]), (b, n, block[1], (1, b.stride(0)), extents[1])
    ):  # fmt: skip
        drawn_extents_kernel[(into.shape[0], steps)](
            x, ends, into, many, steps, *strides, BLOCK=size, INNER=inner, num_warps=1, enable_fp_fusion=False
        )
    drawn_chain_kernel[grid](
        a, b, rows, cols, bases, ends, folds, *extents, out, flags, m, n, steps, a.stride(0), b.stride(0), m * n,
        BLOCK_M=block[0], BLOCK_N=block[1], STEP=chain.step, INNER=inner, FRACTION=chain.fraction_bits,
        WIDE=chain.wide, FOLDED=max(chain.folds) >= 0, OPPOSITE=chain.opposite, num_warps=num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out, flags
