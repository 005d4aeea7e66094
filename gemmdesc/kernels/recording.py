"""Recording a choice's launches: its launch functions run on stand-ins, tensors of sizes and strides without memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from gemmdesc.dtypes import DType
from gemmdesc.errors import GemmdescError
from gemmdesc.kernels.meta import MatrixMeta
from gemmdesc.kernels.program import Argument, Box, Input, Lifetime, Program, Step, Word, place_scratch
from gemmdesc.kernels.variant import Variant

#: What launches of this thread go to instead of the GPU, None where they are real.
RECORDER: ContextVar[Recorder | None] = ContextVar("RECORDER", default=None)
#: Tensor descriptors of both of Triton's languages.
DESCRIPTORS = (TensorDescriptor, GluonDescriptor)
#: What may be done to stand-ins beside taking views of them.
_ALLOCATIONS = ("aten::empty.memory_format", "aten::empty_strided", "aten::detach")


class NotRecordableError(GemmdescError):
    """Launching does something that a program cannot hold."""


class TablesMissingError(GemmdescError):
    """Launching needs tables that have yet to be copied to the device, where nothing may be copied now."""


class Named(float):
    """alpha or beta: a number while a launch is recorded, an input when the program runs."""

    input: Input

    @classmethod
    def of(cls, source: Input) -> Named:
        made = cls(1.0)
        made.input = source
        return made


class Placed(int):
    """The address of a tensor: a number while a launch is recorded, found anew when the program runs."""

    tensor: torch.Tensor


def address_of(tensor: torch.Tensor) -> int:
    """What a kernel is given that takes the address of ``tensor`` as a number."""
    if RECORDER.get() is None:
        return int(tensor.data_ptr())
    placed = Placed(tensor.data_ptr())
    placed.tensor = tensor
    return placed


@dataclass(eq=False)
class _Scratch:
    """Memory that a launch function allocated; holding the storage keeps its identity."""

    storage: torch.UntypedStorage
    first: int
    last: int


@dataclass(eq=False)
class Recorder:
    """Takes what would be enqueued.

    ``device``: where the program is to run.  ``copies``: whether tables may be copied there now.  ``inputs``: the
    stand-ins that the program's inputs are recorded as.
    """

    device: torch.device
    copies: bool
    inputs: dict[Input, torch.Tensor]
    _steps: list[tuple[Variant, int, tuple[Any, ...]]] = field(default_factory=list)
    _scratch: list[_Scratch] = field(default_factory=list)
    _counted: int = 0

    def add(self, variant: Variant, programs: int, arguments: tuple[Any, ...]) -> None:
        """One kernel on a grid of ``programs``."""
        for argument in arguments:
            tensor = argument.base if isinstance(argument, DESCRIPTORS) else argument
            tensor = tensor.tensor if isinstance(tensor, Placed) else tensor
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self._use(tensor.untyped_storage())
        self._steps.append((variant, programs, arguments))

    def _use(self, storage: torch.UntypedStorage) -> None:
        if any(storage is given.untyped_storage() for given in self.inputs.values()):
            return
        here = len(self._steps)
        for known in self._scratch:
            if known.storage is storage:
                known.last = here
                return
        self._scratch.append(_Scratch(storage, here, here))

    def counters(self, count: int) -> torch.Tensor:
        """A stand-in for ``count`` words that are zero whenever no kernel uses them; steps may share them."""
        self._counted = max(self._counted, count)
        if Input.COUNTERS not in self.inputs:
            self.inputs[Input.COUNTERS] = torch.empty((1,), dtype=torch.int32, device="meta")
        return self.inputs[Input.COUNTERS]

    def program(self) -> Program:
        """What was recorded."""
        pieces = [Lifetime(size=s.storage.nbytes(), first=s.first, last=s.last) for s in self._scratch]
        starts, total = place_scratch(pieces)
        steps = tuple(
            Step(
                variant=variant, programs=programs,
                stand_ins=tuple(int(a) if isinstance(a, Placed) else a for a in arguments),
                arguments=tuple(self._argument(a, starts) for a in arguments),
            )
            for variant, programs, arguments in self._steps
        )  # fmt: skip
        return Program(steps=steps, scratch_bytes=total, counters=self._counted)

    def _argument(self, argument: Any, starts: Sequence[int]) -> Argument:
        if isinstance(argument, Named):
            return Word(input=argument.input)
        if isinstance(argument, DESCRIPTORS):
            return box_of(argument, self._word(argument.base, starts))
        if isinstance(argument, Placed):
            return self._word(argument.tensor, starts)
        if isinstance(argument, torch.Tensor) and argument.is_meta:
            return self._word(argument, starts)
        if argument is None or isinstance(argument, bool | int | float | torch.Tensor):
            return argument
        raise NotRecordableError(f"an argument must be a number, a tensor or a descriptor (got {argument!r})")

    def _word(self, tensor: torch.Tensor, starts: Sequence[int]) -> Word:
        storage = tensor.untyped_storage()
        # The data_ptr of a tensor without memory is its offset into its storage, in bytes.
        for source, given in self.inputs.items():
            if given.untyped_storage() is storage:
                return Word(input=source, offset=tensor.data_ptr() - given.data_ptr())
        for start, scratch in zip(starts, self._scratch, strict=True):
            if scratch.storage is storage:
                return Word(input=Input.SCRATCH, offset=start + tensor.data_ptr())
        raise NotRecordableError("an argument must be an input or scratch (got other memory)")


def box_of(described: TensorDescriptor | GluonDescriptor, start: Word) -> Box:
    """A tensor descriptor as programs hold it, over the tensor that begins at ``start``.

    Raises:
        NotRecordableError: it does more than fill with zeros.
    """
    if described.padding != "zero" or getattr(described, "round_f32_to_tf32", False):
        raise NotRecordableError(f"a tensor descriptor must be plain (got {described})")
    return Box(
        start=start, element=str(described.base.dtype).removeprefix("torch."),
        shape=tuple(map(int, described.shape)), strides=tuple(map(int, described.strides)),
        block=tuple(map(int, described.block_shape)),
    )  # fmt: skip


class _OnlyViews(TorchDispatchMode):
    """Refuses to compute with stand-ins: what a launch function computes by torch is no step of the program."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        lists = [x for g in given if isinstance(g, list | tuple) for x in g]
        touched = any(
            x.is_meta if isinstance(x, torch.Tensor) else isinstance(x, torch.device) and x.type == "meta"
            for x in (*given, *lists)
        )
        if touched and not func.is_view and func.name() not in _ALLOCATIONS:
            raise NotRecordableError(f"launching must only enqueue kernels on views of tensors (got {func.name()})")
        return func(*args, **(kwargs or {}))


@contextmanager
def recording(device: torch.device, inputs: dict[Input, torch.Tensor], *, copies: bool) -> Iterator[Recorder]:
    """Launches of this thread go to the recorder inside."""
    recorder = Recorder(device=device, copies=copies, inputs=inputs)
    token = RECORDER.set(recorder)
    try:
        with torch.no_grad(), _OnlyViews():
            yield recorder
    finally:
        RECORDER.reset(token)


def tables_place(device: torch.device) -> torch.device:
    """Where tables for kernels on ``device`` are to lie: there, or where what is recorded will run.

    Raises:
        TablesMissingError: a launch is recorded while nothing may be copied.
    """
    recorder = RECORDER.get()
    if recorder is None:
        return device
    if not recorder.copies:
        raise TablesMissingError("tables must have been copied before (got a time at which nothing may be copied)")
    return recorder.device


def zero_counters(count: int, device: torch.device) -> torch.Tensor:
    """``count`` int32 that are zero, for a kernel that leaves them so; a program's are given to it when it runs."""
    recorder = RECORDER.get()
    if recorder is None:
        return torch.zeros((count,), dtype=torch.int32, device=device)
    return recorder.counters(count)


def stand_in(meta: MatrixMeta, rows: int, columns: int) -> torch.Tensor:
    """A tensor without memory that is stored and aligned as ``meta`` says."""
    dtype = torch_dtype(meta.dtype)
    # An address that 256 divides is as good as 0; less aligned ones show by their offset.
    offset = meta.alignment // dtype.itemsize if meta.alignment < _WELL_ALIGNED else 0
    size = offset + meta.last_offset(rows, columns) + 1
    whole = torch.empty((size,), dtype=dtype, device="meta")
    return whole.as_strided((rows, columns), (meta.row_stride, meta.column_stride), offset)


def torch_dtype(dtype: DType) -> torch.dtype:
    """torch's type of that name."""
    found: torch.dtype = getattr(torch, dtype.value)
    return found


#: From here on more alignment means nothing to a compiler.
_WELL_ALIGNED = 256
