"""Run any choice on CUDA tensors, on the current stream: rectangles, balanced slices, and what ``launch`` runs."""

from __future__ import annotations

import torch

from gemmdesc.kernels.balanced import BalancedChoice
from gemmdesc.kernels.beside import NOTHING, Beside
from gemmdesc.kernels.finished import FinishedChoice
from gemmdesc.kernels.launch import launch_here
from gemmdesc.kernels.launch_balanced import launch_balanced
from gemmdesc.kernels.launch_finished import launch_finished
from gemmdesc.kernels.tiled import Choice, TiledChoice


def launch_choice(
    choice: Choice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside = NOTHING
) -> None:
    """Launch ``choice`` on the tensors it was made for; their device is already the current one.

    Raises:
        InvalidInputError: the choice takes C or a bias, and ``beside`` has none.
    """
    match choice:
        case TiledChoice(parts=parts):
            for part in parts:
                rows, columns = slice(*part.rows), slice(*part.columns)
                launch_choice(part.choice, a[rows], b[:, columns], out[rows, columns], beside.part(rows, columns))
        case BalancedChoice():
            launch_balanced(choice, a, b, out)
        case FinishedChoice():
            launch_finished(choice, a, b, out, beside)
        case _:
            launch_here(choice, a, b, out)
