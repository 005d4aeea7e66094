"""A device without a GPU: prepared programs launched on it run in Triton's interpreter, on the host's memory.

What a kernel is given is decoded from the words that ``cuLaunchKernelEx`` would read, through the very addresses, so
that bytes come out right only if recording, packing and tensor maps are.
"""

from __future__ import annotations

import ctypes
import inspect
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Self

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from gemmdesc.errors import LaunchError
from gemmdesc.kernels.beside import NOTHING, Beside
from gemmdesc.kernels.compiling import KERNELS, constants_of
from gemmdesc.kernels.driver import LaunchConfig, TensorMap
from gemmdesc.kernels.launch import TORCH_TYPES, matrix_meta
from gemmdesc.kernels.launch_loop import one_by_one
from gemmdesc.kernels.loaded import BoxFormat, LoadedKernel
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.prepared import PreparedProgram
from gemmdesc.kernels.preparing import Taken, Unprepared, named_metas, prepare, run_prepared
from gemmdesc.kernels.program import Box, Step, Word
from gemmdesc.kernels.tiled import Choice

CONTEXT = 77
NAMES = {d.value: t for t, d in TORCH_TYPES.items()}
_NUMBERS = {"i32": ("=i", 4), "i64": ("=q", 8), "fp32": ("=f", 4)}
_ANNOTATIONS = {"tl.int32": "i32", "tl.int64": "i64", "tl.float32": "fp32"}


def type_of(argument: Any, annotation: str) -> str:
    """The type of a parameter in a signature."""
    if isinstance(argument, Box):
        return f"tensordesc<{argument.element}{list(argument.block)}>"
    if annotation in _ANNOTATIONS:
        return _ANNOTATIONS[annotation]
    assert isinstance(argument, Word) or hasattr(argument, "data_ptr"), argument
    return "*any"


@dataclass
class FakeDevice:
    """In the place of :class:`gemmdesc.kernels.driver.Driver`; ``load`` gives it the kernels."""

    steps: dict[int, tuple[Step, LoadedKernel]] = field(default_factory=dict)
    maps: dict[int, tuple[int, str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)
    captured: dict[int, int] = field(default_factory=dict)
    cleared: list[tuple[int, int, int]] = field(default_factory=list)
    current: int = CONTEXT
    lock: Any = field(default_factory=Lock)
    launch_address: int | None = None
    entry: Any = None
    failures: list[BaseException] = field(default_factory=list)

    def in_c(self) -> Self:
        """With an entry for C, which launches by itself then; what a launch raises is kept, and its status is 999."""

        def launch(config: int, function: int, parameters: int, extra: None) -> int:
            try:
                return self.launch(config, function, parameters, extra)
            except BaseException as error:  # noqa: BLE001
                self.failures.append(error)
                return 999

        self.entry = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * 3, ctypes.c_void_p)(launch)
        self.launch_address = ctypes.cast(self.entry, ctypes.c_void_p).value
        return self

    def load(self, step: Step) -> LoadedKernel:
        """A kernel of its own for each step."""
        kernel: Any = KERNELS[step.variant.kernel]
        parameters = list(inspect.signature(kernel.fn).parameters.values())
        named = list(zip(step.arguments, parameters, strict=False))
        types = tuple(type_of(a, str(p.annotation)) for a, p in named if a is not None)
        boxes = tuple(
            BoxFormat(swizzle=3, element_bytes=NAMES[a.element].itemsize, block=a.block)
            for a in step.arguments
            if isinstance(a, Box)
        )
        function = 1000 + len(self.steps)
        made = LoadedKernel(function=function, types=types, boxes=boxes, threads=128, shared_bytes=64, owner=step)
        self.steps[function] = (step, made)
        return made

    def context(self) -> int:
        return self.current

    def primary_context(self, device_index: int) -> int:
        return CONTEXT

    def make_current(self, context: int) -> None:
        self.current = context

    def order_of(self, stream: int) -> tuple[int, int]:
        return self.captured.get(stream, 0), stream + 1000

    def clear(self, address: int, words: int, stream: int) -> None:
        """Of real memory, unless a test only notes what would be."""
        self.cleared.append((address, words, stream))
        if type(self) is FakeDevice:
            ctypes.memset(address, 0, 4 * words)

    def status_name(self, status: int) -> str:
        return f"CUDA_ERROR_{status}"

    def encode(
        self, address: int, element: str, element_bytes: int, shape: Any, strides: Any, block: Any, swizzle: int
    ) -> TensorMap:
        if self.current != CONTEXT:
            raise LaunchError("cuTensorMapEncodeTiled must succeed (got CUDA_ERROR_201)")
        assert address % 16 == 0
        assert swizzle == 3
        assert element_bytes == NAMES[element].itemsize
        made = TensorMap()
        with self.lock:
            number = len(self.maps) + 1
            self.maps[number] = (address, element, tuple(shape), tuple(strides))
        ctypes.memmove(made.address, struct.pack("=Q", number), 8)
        return made

    def launch_all(self, steps: int, first: int, count: int) -> int:
        return one_by_one(self.launch, steps, first, count)

    def launch(self, config: int, function: int, parameters: int, extra: None) -> int:
        """As ``cuLaunchKernelEx``."""
        if self.current != CONTEXT:
            return 201
        told = LaunchConfig.from_address(config)
        step, kernel = self.steps[function]
        assert (told.grid_y, told.grid_z, told.block_x, told.block_y, told.block_z) == (1, 1, 128, 1, 1)
        assert told.shared_bytes == 64
        assert told.attribute_count == 0
        self.streams.append(told.stream)
        self.run(step, told.grid_x, list(self._decoded(step, kernel, parameters)))
        return 0

    def run(self, step: Step, programs: int, arguments: list[Any]) -> None:
        """Run a kernel in Triton's interpreter."""
        launched: Any = KERNELS[step.variant.kernel]
        launched[(programs,)](*arguments, **constants_of(step.variant))

    def _decoded(self, step: Step, kernel: LoadedKernel, parameters: int) -> Iterator[Any]:
        places = (ctypes.c_uint64 * 256).from_address(parameters)
        at, types = 0, iter(kernel.types)
        for argument, stand_in in zip(step.arguments, step.stand_ins, strict=True):
            if argument is None:
                yield None
                continue
            kind = next(types)
            if isinstance(argument, Box):
                rank = len(argument.shape)
                (number,) = struct.unpack("=Q", ctypes.string_at(places[at], 8))
                address, element, shape, strides = self.maps[number]
                told = [_number(places[at + 1 + i], "i32" if i < rank else "i64") for i in range(2 * rank)]
                assert told == [*shape, *strides]
                base = _memory(address, NAMES[element])
                yield TensorDescriptor(base, list(shape), list(strides), list(argument.block))
                at += 1 + 2 * rank
            else:
                yield _value(places[at], kind, stand_in)
                at += 1
        # Triton's own two pointers.
        assert _number(places[at], "i64") == _number(places[at + 1], "i64") == 0


def _number(address: int, kind: str) -> Any:
    code, size = _NUMBERS[kind]
    return struct.unpack(code, ctypes.string_at(address, size))[0]


def _value(address: int, kind: str, stand_in: Any) -> Any:
    if not kind.startswith("*"):
        return _number(address, kind)
    return _memory(_number(address, "i64"), stand_in.dtype)


def _memory(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of one element at an address of the host."""
    held = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(held, dtype=torch.uint8).view(dtype)


def taken_of(beside: Beside, scales: Any) -> Taken:
    """What these stand beside; a bias is told by the axis along which it does not vary."""
    axis = None if beside.bias is None else int(beside.bias.stride(0) == 0)
    count = 0 if scales is None else 1 + (scales.output is not None)
    kind = None if beside.bias is None else TORCH_TYPES[beside.bias.dtype]
    return Taken(
        c=beside.c is not None, bias_axis=axis, scales=count, bias_dtype=kind, named=named_metas(beside.named)
    )  # fmt: skip


def prepared_on(
    device: FakeDevice, choice: Choice, a: Any, b: Any, out: Any, beside: Beside = NOTHING, scales: Any = None
) -> PreparedProgram:
    """``choice`` prepared for tensors that are stored as these are."""
    (m, k), n = a.shape, b.shape[1]
    meta = KernelMeta(
        m=m, n=n, k=k, a=matrix_meta(a), b=matrix_meta(b), out=matrix_meta(out), sm_count=3, shared_bytes=232448
    )
    found = prepare(
        choice, meta, taken_of(beside, scales), torch.device("cpu"), load=device.load, driver=lambda: device,
    )  # fmt: skip
    assert not isinstance(found, Unprepared), found.reason
    return found


def launch_prepared(
    choice: Choice, a: Any, b: Any, out: Any, beside: Beside = NOTHING, *, scales: Any = None
) -> None:
    """In the place of ``launch_choice``: prepared for such tensors, small ones run on others first, then on these."""
    device = FakeDevice().in_c()
    program = prepared_on(device, choice, a, b, out, beside, scales)
    others = [torch.zeros_like(t, memory_format=torch.preserve_format) for t in (a, b, out)]
    alike = all(x.data_ptr() % 16 == t.data_ptr() % 16 for x, t in zip(others, (a, b, out), strict=True))
    if alike and out.numel() < 1000:
        run_prepared(program, *others, beside, scales)
    run_prepared(program, a, b, out, beside, scales)
    if alike and out.numel() < 1000 and beside.c is None and all(x is not out for x in beside.named.values()):
        # Its tensor maps are there by now, so that C launches.
        out.copy_(torch.full(out.shape, 7.0).to(out.dtype))
        run_prepared(program, a, b, out, beside, scales)
    assert device.failures == []


def run_prepared_problem(plan: Any, a: Any, b: Any, out: Any, *, planner: Any, **beside: Any) -> None:
    """``run_problem`` but for the device, by the plan's program."""
    from gemmdesc.ops import problems
    from gemmdesc.ops.launching import taken_by
    from gemmdesc.plan.problems import every_matrix

    tensors = problems.ProblemTensors(a=a, b=b, out=out, **beside)
    problems.require_problem_tensors(plan, tensors)
    device, meta = FakeDevice(), every_matrix(plan.meta, plan.problem, transposed=plan.transposed)
    program = prepare(
        plan.kernel, meta, taken_by(plan), torch.device("cpu"), load=device.load, driver=lambda: device
    )  # fmt: skip
    assert not isinstance(program, Unprepared), program.reason
    problems.launch_problem(plan, tensors, program)
    assert device.streams
