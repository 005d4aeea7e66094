"""Run any choice on CUDA tensors, on the current stream: rectangles, balanced slices, and what ``launch`` runs."""

from __future__ import annotations

import torch

from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.fma import FmaChoice
from gemmdesc.kernels.kmajor import KMajorChoice
from gemmdesc.kernels.launch import enqueue, launch_chain, launch_here
from gemmdesc.kernels.launch_fma import launch_fma
from gemmdesc.kernels.launch_kmajor import Scales, launch_kmajor
from gemmdesc.kernels.launch_nest import fold_all, fold_tables
from gemmdesc.kernels.tiled import Choice, TiledChoice


def launch_choice(
    choice: Choice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, scales: Scales | None = None
) -> None:
    """Launch ``choice`` on the tensors it was made for; their device is already the current one.

    ``scales``: what the epilogue of a choice that has one multiplies by.

    Raises:
        InvalidInputError: the choice has an epilogue, and ``scales`` lacks what it takes.
    """
    match choice:
        case TiledChoice(parts=parts):
            for part in parts:
                rows, columns = slice(*part.rows), slice(*part.columns)
                launch_choice(part.choice, a[rows], b[:, columns], out[rows, columns], scales=scales)
        case BalancedChoice():
            _launch_balanced(choice, a, b, out)
        case KMajorChoice():
            launch_kmajor(choice, a, b, out, scales)
        case FmaChoice():
            launch_fma(choice, a, b, out)
        case _:
            launch_here(choice, a, b, out)


def _launch_balanced(choice: BalancedChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Every slice's sums go to float32 scratch, (slices, m, n), and are folded from there."""
    folds = fold_tables(choice.descriptor, choice.k, a.device)
    if choice.swapped:
        a, b, out = b.T, a.T, out.T
    m, n = out.shape
    count = sum(run.count for run in choice.runs)
    sums = torch.empty((count, m, n), dtype=torch.float32, device=a.device)
    for run in choice.runs:
        ks = slice(run.begin, run.end)
        launch_chain(run.chain, a[:, ks], b[ks], sums[run.first], slice_stride=m * n)
    fold_all(choice.folds, folds, sums.view(count, m * n), out, choice.output_dtype, 0, enqueue)
