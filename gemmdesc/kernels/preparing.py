"""From a choice to a program that is ready to run on a CUDA device, or why Triton's own launcher has to run it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from gemmdesc.dtypes import DType
from gemmdesc.kernels.beside import NOTHING, Beside
from gemmdesc.kernels.counters import Counters, device_counters
from gemmdesc.kernels.driver import Driver, cuda_driver
from gemmdesc.kernels.launch import matrix_meta
from gemmdesc.kernels.launch_kmajor import Scales
from gemmdesc.kernels.launch_tiled import launch_choice
from gemmdesc.kernels.loaded import LoadedKernel, NotPreparableError, load_step
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.kernels.program import MOST_NAMED, PLAIN_INPUTS, Input, Program, Step
from gemmdesc.kernels.recording import Named, NotRecordableError, recording, stand_in, torch_dtype
from gemmdesc.kernels.streams import current_stream, scratch_functions
from gemmdesc.kernels.tiled import Choice

#: Operands by name: how each lies over the product, None for a number.
NamedMetas = tuple[tuple[str, MatrixMeta | None], ...]
#: Programs of more steps than this are so long on the GPU that what a launch costs does not matter.
MOST_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a choice takes beside A and B.

    ``bias_axis``: the axis of the output along which the bias has its values, None without one; ``bias_dtype``: its
    type, the output's where it is None.  ``scales``: how many.
    ``named``: the operands of what follows the product, in the order in which calls give them: how each lies over it,
    None for a number.
    """

    c: bool = False
    bias_axis: int | None = None
    scales: int = 0
    bias_dtype: DType | None = None
    named: NamedMetas = ()


@dataclass(frozen=True, kw_only=True)
class Unprepared:
    """Launches go through Triton.  ``expected``: because they are better off there."""

    reason: str
    expected: bool = False

    @property
    def prepared(self) -> bool:
        return False


def record(choice: Choice, meta: KernelMeta, taken: Taken, device: torch.device, *, copies: bool = True) -> Program:
    """What launching ``choice`` on tensors of ``meta`` enqueues.

    ``copies``: whether tables may be copied to ``device`` now.

    Raises:
        NotRecordableError: launching does more than enqueue kernels on views of its tensors.
        TablesMissingError: tables have to be copied, and may not be.
    """
    unaligned = MatrixMeta(
        dtype=meta.out.dtype, row_stride=meta.out.row_stride, column_stride=meta.out.column_stride,
        alignment=meta.out.dtype.itemsize,
    )  # fmt: skip
    inputs = {
        Input.A: stand_in(meta.a, meta.m, meta.k), Input.B: stand_in(meta.b, meta.k, meta.n),
        Input.OUT: stand_in(meta.out, meta.m, meta.n),
    }  # fmt: skip
    if taken.c:
        inputs[Input.C] = stand_in(unaligned, meta.m, meta.n)
    bias = None
    if taken.bias_axis is not None:
        length = meta.m if taken.bias_axis == 0 else meta.n
        bias_type = torch_dtype(taken.bias_dtype or meta.out.dtype)
        # One element into its memory, for a bias need not be aligned.
        inputs[Input.BIAS] = torch.empty((length + 1,), dtype=bias_type, device="meta")[1:]
        bias = inputs[Input.BIAS].unsqueeze(1 - taken.bias_axis).expand(meta.m, meta.n)
    for source in (Input.SCALE, Input.OUTPUT_SCALE)[: taken.scales]:
        inputs[source] = torch.empty((2,), dtype=torch.float32, device="meta")[1:]
    beside = Beside(
        c=inputs.get(Input.C), bias=bias, alpha=Named.of(Input.ALPHA), beta=Named.of(Input.BETA),
        named=_named_stand_ins(taken.named, meta, inputs),
    )  # fmt: skip
    scales = Scales(scale=inputs.get(Input.SCALE), output=inputs.get(Input.OUTPUT_SCALE)) if taken.scales else None
    with recording(device, inputs, copies=copies) as recorder:
        launch_choice(choice, inputs[Input.A], inputs[Input.B], inputs[Input.OUT], beside, scales=scales)
    return recorder.program()


def _named_stand_ins(
    named: NamedMetas, meta: KernelMeta, inputs: dict[Input, torch.Tensor]
) -> dict[str, torch.Tensor | float]:
    """What stands for the operands by name; tensors become inputs."""
    if len(named) > MOST_NAMED:
        raise NotRecordableError(f"at most {MOST_NAMED} operands by name (got {len(named)})")
    found: dict[str, torch.Tensor | float] = {}
    for i, (name, lies) in enumerate(named):
        source = Input(Input.NAMED + i)
        if lies is None:
            found[name] = Named.of(source)
        else:
            found[name] = inputs[source] = stand_in(lies, meta.m, meta.n)
    return found


def named_metas(named: Mapping[str, torch.Tensor | float]) -> NamedMetas:
    """How each operand lies over the product, or over every product of a batch; numbers are only told as such."""
    return tuple((name, _lies(x) if isinstance(x, torch.Tensor) else None) for name, x in named.items())


def _lies(operand: torch.Tensor) -> MatrixMeta:
    if operand.dim() == 2:
        return matrix_meta(operand)
    first, step = matrix_meta(operand[0]), operand.stride(0) * operand.element_size()
    return replace(first, alignment=min(first.alignment, step & -step)) if step else first


def prepare(
    choice: Choice,
    meta: KernelMeta,
    taken: Taken,
    device: torch.device,
    *,
    copies: bool = True,
    load: Callable[[Step], LoadedKernel] = load_step,
    driver: Callable[[], Driver] = cuda_driver,
    counters: Callable[[torch.device], Counters] = device_counters,
) -> PreparedProgram | Unprepared:
    """``choice`` ready to run on ``device``, the current one, on tensors of ``meta``; nothing is enqueued.

    Kernels that are not compiled yet are.

    Raises:
        TablesMissingError: tables have to be copied, and may not be (``copies``).
        LaunchError: there is no CUDA driver, or it refuses.
    """
    try:
        program = record(choice, meta, taken, device, copies=copies)
        if len(program.steps) > MOST_STEPS:
            reason = f"a product of {len(program.steps)} launches"
            return Unprepared(reason=reason, expected=True)
        # Counters have to be cleared once, which is no part of what a graph captures.
        known = counters(device) if program.counters and copies else None
        if known is not None:
            known.top_up()
        return PreparedProgram(
            program, [load(step) for step in program.steps], driver(), device.index or 0, known
        )  # fmt: skip
    except (NotRecordableError, NotPreparableError) as error:
        return Unprepared(reason=str(error))


def run_prepared(
    program: PreparedProgram, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside, scales: Scales | None
) -> None:
    """Enqueue ``program`` on checked tensors of the current device, on its current stream."""
    beyond: tuple[int, ...] = ()
    if program.needs > PLAIN_INPUTS:
        scale, output = (None, None) if scales is None else (scales.scale, scales.output)
        addresses = map(_address, (beside.c, beside.bias, scale, output))
        named = (
            x.data_ptr() if isinstance(x, torch.Tensor) else float32_bits(x) for x in beside.named.values()
        )
        beyond = (*addresses, float32_bits(beside.alpha), float32_bits(beside.beta), *named)
    stream, at = current_stream()(out.get_device()), (a.data_ptr(), b.data_ptr(), out.data_ptr())
    functions = scratch_functions() if program.scratch_bytes and out.is_cuda else None
    if functions is None:
        scratch = new_scratch(program, out.device)
        program(stream, (*at, _address(scratch), *beyond))
        return
    take, give_back = functions
    address = take(program.scratch_bytes, stream)
    try:
        program(stream, (*at, address, *beyond))
    finally:
        give_back(address)


def plain_inputs(program: PreparedProgram) -> tuple[int, ...]:
    """What follows the first inputs of a program that runs a product with nothing beside its operands."""
    if program.needs <= PLAIN_INPUTS:
        return ()
    return (0, 0, 0, 0, float32_bits(NOTHING.alpha), float32_bits(NOTHING.beta))


def new_scratch(program: PreparedProgram, device: torch.device) -> torch.Tensor | None:
    """Memory for one run, from torch's allocator, and so of the current stream or of the graph that captures it."""
    if not program.scratch_bytes:
        return None
    return torch.empty((program.scratch_bytes,), dtype=torch.uint8, device=device)


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def float32_bits(value: float) -> int:
    """The pattern of a float32 value."""
    return int(struct.unpack("=I", struct.pack("=f", value))[0])
