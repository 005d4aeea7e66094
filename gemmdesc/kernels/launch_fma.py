"""Run an FmaChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

import torch

from gemmdesc.descriptor import Start
from gemmdesc.kernels.fma import FmaChoice
from gemmdesc.kernels.kmajor import FINISH_BLOCK
from gemmdesc.kernels.launch import enqueue
from gemmdesc.kernels.variants_fma import fma_chain_variant, fma_variants


def launch_fma(choice: FmaChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Launch ``choice`` on the tensors it was made for; their device is already the current one."""
    m, n = out.shape
    sums = None
    if choice.count > 1:
        sums = torch.empty((choice.count, m, n), dtype=torch.float32, device=a.device)
    target = out if sums is None else sums[0]
    enqueue(
        fma_chain_variant(choice), choice.config.tiles(m, n) * choice.count, a, b, target, m, n, choice.summed_k,
        choice.span, choice.opening, *a.stride(), *b.stride(), m * n, *target.stride(),
    )  # fmt: skip
    if sums is not None:
        start = -0.0 if choice.merge.start is Start.FIRST else 0.0
        enqueue(
            fma_variants(choice)[1], -(-m * n // FINISH_BLOCK), sums, out, sums, sums, m * n, n, choice.count, start,
            *out.stride(),
        )  # fmt: skip
