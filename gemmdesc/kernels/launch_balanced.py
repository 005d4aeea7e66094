"""Run a BalancedChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

import torch

from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.launch import enqueue, launch_chain
from gemmdesc.kernels.launch_nest import fold_all, fold_tables
from gemmdesc.kernels.recording import tables_place


def launch_balanced(choice: BalancedChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Every slice's sums go to scratch and are folded from there."""
    folds = fold_tables(choice.descriptor, choice.k, tables_place(a.device))
    sums = balanced_sums(choice, a, b)
    if choice.swapped:
        out = out.T
    fold_all(choice.folds, folds, sums, out, choice.output_dtype, 0, enqueue)


def balanced_sums(choice: BalancedChoice, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Float32 (slices, outputs) of the product, or of its transpose where ``choice.swapped``."""
    if choice.swapped:
        a, b = b.T, a.T
    m, n = a.shape[0], b.shape[1]
    count = sum(run.count for run in choice.runs)
    sums = torch.empty((count, m, n), dtype=torch.float32, device=a.device)
    for run in choice.runs:
        ks = slice(run.begin, run.end)
        launch_chain(run.chain, a[:, ks], b[ks], sums[run.first], slice_stride=m * n)
    return sums.view(count, m * n)
