"""What a plan holds to run by: a program for each device that it ran on.  Importable without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import NamedMetas, Unprepared

#: Ways in which the operands of what follows a product lie, of each plan.
_MOST_KEPT = 64


class Programs:
    """By torch's index of the device, -1 for the host: a program that is ready there, or why there is none.

    ``by_operands``: the same of a plan whose kernels take operands by name, by device and how those lie.  ``runs``:
    runs that were made, by planner, device, and whether the result was new: how the tensors are stored, and what to do.
    All of it belongs to this process: a copy made by pickling is empty.
    """

    __slots__ = ("by_device", "by_operands", "runs")

    def __init__(self) -> None:
        self.by_device: dict[int, PreparedProgram | Unprepared] = {}
        self.by_operands: dict[tuple[int, NamedMetas], PreparedProgram | Unprepared] = {}
        self.runs: dict[tuple[Any, int, bool], tuple[tuple[Any, ...], FrequentCall]] = {}

    def adopt(self, other: Programs) -> None:
        """Share the programs of a plan that launches the very same."""
        self.by_device, self.by_operands = other.by_device, other.by_operands

    def find(self, device_index: int, named: NamedMetas) -> PreparedProgram | Unprepared | None:
        """The program on a device for operands that lie so, or why there is none; None where none was made."""
        return self.by_operands.get((device_index, named)) if named else self.by_device.get(device_index)

    def keep(self, device_index: int, named: NamedMetas, found: PreparedProgram | Unprepared) -> None:
        """Hold what :meth:`find` gives from now on; of operands that lie in many ways the first ones are forgotten."""
        if not named:
            self.by_device[device_index] = found
            return
        self.by_operands[device_index, named] = found
        while len(self.by_operands) > _MOST_KEPT:
            self.by_operands.pop(next(iter(self.by_operands)), None)

    def __reduce__(self) -> tuple[type[Programs], tuple[()]]:
        return Programs, ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrequentCall:
    """A plain product that was planned and prepared: its program, and what a call must bring.

    ``a_bytes``, ``b_bytes``, ``out_bytes``: from a tensor's first byte to behind its last.  ``new_result``: makes a
    result on ``device``, the current one.  ``beside``: what the program is given behind its first inputs.
    """

    program: PreparedProgram
    scratch_bytes: int
    new_result: Callable[[], torch.Tensor]
    device: torch.device
    a_bytes: int
    b_bytes: int
    out_bytes: int
    beside: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RepeatedCall:
    """One product that a function of several tensors comes down to, with what follows it, planned and prepared.

    ``operator``: torch's, for the ledger.  ``new_result``: makes a result on ``device``, the current one.  ``inputs``:
    of the call's addresses, the result's, the scratch's and ``constants``, one behind the other, what the program is
    given, in its order.  ``quick``: for a program without scratch and counters, what C makes the call by: new_result,
    the same order and constants as bytes, the program's ``quick``, and a list of the count of such calls.
    """

    program: PreparedProgram
    operator: str
    scratch_bytes: int
    new_result: Callable[[], torch.Tensor]
    device: torch.device
    inputs: Callable[[tuple[int, ...]], tuple[int, ...]]
    constants: tuple[int, ...]
    quick: tuple[Any, ...] | None
