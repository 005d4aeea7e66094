"""What a plan holds to run by: a program for each device that it ran on.  Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import Unprepared


class Programs:
    """By torch's index of the device, -1 for the host: a program that is ready there, or why there is none.

    ``runs``: runs that were made, by planner, device, and whether the result was new: how the tensors are stored, and
    what to do.  All of it belongs to this process: a copy made by pickling is empty.
    """

    __slots__ = ("by_device", "runs")

    def __init__(self) -> None:
        self.by_device: dict[int, PreparedProgram | Unprepared] = {}
        self.runs: dict[tuple[Any, int, bool], tuple[tuple[Any, ...], FrequentCall]] = {}

    def adopt(self, other: Programs) -> None:
        """Share the programs of a plan that launches the very same."""
        self.by_device = other.by_device

    def __reduce__(self) -> tuple[type[Programs], tuple[()]]:
        return Programs, ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrequentCall:
    """A plain product that was planned and prepared: its program, and what a call must bring.

    ``a_bytes``, ``b_bytes``, ``out_bytes``: from a tensor's first byte to behind its last.  ``shape``, ``strides``,
    ``dtype``, ``device``: a new result's.  ``beside``: what the program is given behind its first inputs.
    """

    program: PreparedProgram
    scratch_bytes: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    a_bytes: int
    b_bytes: int
    out_bytes: int
    beside: tuple[int, ...]
