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


def launch_drawn(
    chain: DrawnChain,
    a: torch.Tensor,
    b: torch.Tensor,
    rows: torch.Tensor,
    cols: torch.Tensor,
    words: tuple[int, int, int],
    *,
    block: tuple[int, int] | None = None,
    num_warps: int = 4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Three samples (3, m, n) float32 and flags (m, n) int8 of ``a`` (m, k) times ``b`` (k, n), contiguous.

    ``a``, ``b``: of float32 or a type that it holds.  ``rows``, ``cols``: int64 places of the outputs in the whole D.
    ``words``: a 64-bit word, signed, for each sample.  ``block`` and ``num_warps`` never change a bit.
    """
    m, n = a.shape[0], b.shape[1]
    if block is None:
        block = (32, 32) if m > 16 else (16, 32)
    steps, inner = len(chain.ends), max(16, 1 << (chain.step - 1).bit_length())
    out = torch.empty((3, m, n), dtype=torch.float32, device=a.device)
    flags = torch.empty((m, n), dtype=torch.int8, device=a.device)
    bases, ends, folds = _on_device(words, chain, a.device)
    grid = (-(-m // block[0]), -(-n // block[1]))
    extents = [torch.empty((count, steps), dtype=torch.int32, device=a.device) for count in grid]
    sides = ((a, m, block[0], (a.stride(0), 1)), (b, n, block[1], (1, b.stride(0))))
    for (x, count, size, strides), into in zip(sides, extents, strict=True):
        drawn_extents_kernel[(steps, into.shape[0])](
            x, ends, into, count, steps, *strides, BLOCK=size, INNER=inner, num_warps=1, enable_fp_fusion=False
        )
    drawn_chain_kernel[grid](
        a, b, rows, cols, bases, ends, folds, *extents, out, flags, m, n, steps, a.stride(0), b.stride(0), m * n,
        BLOCK_M=block[0], BLOCK_N=block[1], STEP=chain.step, INNER=inner, FRACTION=chain.fraction_bits,
        WIDE=chain.wide, FOLDED=max(chain.folds) >= 0, OPPOSITE=chain.opposite, num_warps=num_warps,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out, flags


def _on_device(
    words: tuple[int, int, int], chain: DrawnChain, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The samples' words (int64), the ends and the folds of the steps (int32), in one copy."""
    steps = len(chain.ends)
    host = np.array((*words, *chain.ends, *chain.folds), dtype=np.int64)
    packed = np.concatenate((host[:3].view(np.int32), host[3:].astype(np.int32)))
    held = torch.from_numpy(packed).to(device)
    return held[:6].view(torch.int64), held[6 : 6 + steps], held[6 + steps :]
