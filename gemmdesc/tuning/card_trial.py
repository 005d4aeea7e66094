"""A product's trials on a CUDA card: its operands, what competes launched on them, bytes and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmdesc.dtypes import DType
from gemmdesc.kernels.competing import TunableChoice
from gemmdesc.kernels.kmajor import KMajorChoice
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.tuning.graphs import captured, events_us, set_count

if TYPE_CHECKING:
    import torch

    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.prepared import PreparedProgram
    from gemmdesc.kernels.preparing import Unprepared


class CardTrial:
    """Input sets of one product on the current CUDA device; what competes runs on them.  See ``Trial``."""

    def __init__(self, meta: KernelMeta, *, seed: int, place: str = "cuda") -> None:
        import torch

        moved = meta.m * meta.k * meta.a.dtype.itemsize + meta.k * meta.n * meta.b.dtype.itemsize
        generator = torch.Generator(place).manual_seed(seed)
        count = set_count(moved) if place == "cuda" else 1
        self._sets = [_operands(meta, place, generator) for _ in range(count)]
        self._meta, self._place = meta, place
        self._programs: dict[TunableChoice, PreparedProgram | Unprepared] = {}
        self._graphs: dict[TunableChoice, tuple[torch.cuda.CUDAGraph, int]] = {}

    def output(self, choice: TunableChoice) -> Any:
        """The result's bytes on the first set, of operands whose exponents show the order; None if it cannot run."""
        import torch

        a, b, out = self._sets[0]
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[out.element_size()]
        out.view(kind).fill_(-1)
        try:
            self._launch(choice, a, b, out)
            return _Bytes(out.view(kind).clone())
        except Exception:  # noqa: BLE001  whatever a compiler or a driver says of it, it cannot be picked
            return None

    def microseconds(self, choice: TunableChoice) -> float:
        """One call's share of one replay."""
        if choice not in self._graphs:
            self._graphs[choice] = captured(lambda tensors: self._launch(choice, *tensors), self._sets)
        graph, count = self._graphs[choice]
        return events_us(graph.replay) / count

    def _launch(self, choice: TunableChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        """As products are launched: by a program, whose counters need no clearing, where there is one."""
        from gemmdesc.kernels.beside import NOTHING
        from gemmdesc.kernels.launch_tiled import launch_choice
        from gemmdesc.kernels.prepared import PreparedProgram
        from gemmdesc.kernels.preparing import run_prepared

        scales = _scales(choice, out)
        if self._place == "cuda":
            if choice not in self._programs:
                self._programs[choice] = _prepared(choice, self._meta)
            program = self._programs[choice]
            if isinstance(program, PreparedProgram):
                run_prepared(program, a, b, out, NOTHING, scales)
                return
        launch_choice(choice, a, b, out, NOTHING, scales=scales)

    def close(self) -> None:
        """Give up graphs and tensors."""
        self._graphs.clear()
        self._programs.clear()
        self._sets.clear()


@dataclass(frozen=True, eq=False)
class _Bytes:
    """Equal where every byte is."""

    bits: torch.Tensor

    def __eq__(self, other: object) -> bool:
        import torch

        return isinstance(other, _Bytes) and torch.equal(self.bits, other.bits)

    __hash__ = None  # type: ignore[assignment]


def _operands(meta: KernelMeta, place: str, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    import torch

    def side(rows: int, columns: int, row_stride: int, column_stride: int, dtype: DType, spread: int) -> torch.Tensor:
        size = (rows - 1) * row_stride + (columns - 1) * column_stride + 1
        values = torch.randn(size, device=place, generator=generator)
        exponents = torch.randint(-spread, spread + 1, (size,), device=place, generator=generator)
        kind = getattr(torch, dtype.value)
        memory = torch.ldexp(values, exponents).to(kind)
        return memory.as_strided((rows, columns), (row_stride, column_stride))

    a, b, out = meta.a, meta.b, meta.out
    return (
        side(meta.m, meta.k, a.row_stride, a.column_stride, a.dtype, 3),
        side(meta.k, meta.n, b.row_stride, b.column_stride, b.dtype, 3),
        side(meta.m, meta.n, out.row_stride, out.column_stride, out.dtype, 0),
    )


def _prepared(choice: TunableChoice, meta: KernelMeta) -> PreparedProgram | Unprepared:
    import torch

    from gemmdesc.kernels.preparing import Taken, prepare

    taken = Taken(scales=choice.scales if isinstance(choice, KMajorChoice) else 0)
    return prepare(choice, meta, taken, torch.device("cuda", torch.cuda.current_device()))


def _scales(choice: TunableChoice, out: torch.Tensor) -> Scales | None:
    import torch

    from gemmdesc.kernels.launch_kmajor import Scales

    if not isinstance(choice, KMajorChoice) or not choice.scales:
        return None
    one = torch.ones((), device=out.device)
    return Scales(scale=one, output=one if choice.scales > 1 else None)
