"""Run any choice on CUDA tensors, on the current stream, whichever structure it has."""

from __future__ import annotations

from functools import partial

import torch

from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.beside import NOTHING, Beside
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.kernels.fma import FmaChoice
from gemmdesc.kernels.fused import FusedChoice
from gemmdesc.kernels.kmajor import KMajorChoice
from gemmdesc.kernels.launch import launch_here
from gemmdesc.kernels.launch_balanced import launch_balanced
from gemmdesc.kernels.launch_finished import launch_finished
from gemmdesc.kernels.launch_fma import launch_fma
from gemmdesc.kernels.launch_fused import launch_fused
from gemmdesc.kernels.launch_kmajor import Scales, launch_kmajor
from gemmdesc.kernels.tiled import Choice, TiledChoice


def launch_choice(
    choice: Choice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside = NOTHING,
    *, scales: Scales | None = None,
) -> None:  # fmt: skip
    """Launch ``choice`` on the tensors it was made for; their device is already the current one.

    ``scales``: what the epilogue of 8-bit operands multiplies by.

    Raises:
        InvalidInputError: the choice takes C or a bias, and ``beside`` has none; or scales, and there are none.
    """
    match choice:
        case TiledChoice(parts=parts):
            for part in parts:
                rows, columns = slice(*part.rows), slice(*part.columns)
                inner = a[rows], b[:, columns], out[rows, columns]
                launch_choice(part.choice, *inner, beside.part(rows, columns), scales=scales)
        case BalancedChoice():
            launch_balanced(choice, a, b, out)
        case FinishedChoice():
            launch_finished(choice, a, b, out, beside)
        case KMajorChoice():
            launch_kmajor(choice, a, b, out, scales)
        case FusedChoice():
            launch_fused(choice, a, b, out, beside, partial(launch_choice, scales=scales))
        case FmaChoice():
            launch_fma(choice, a, b, out)
        case _:
            launch_here(choice, a, b, out)
