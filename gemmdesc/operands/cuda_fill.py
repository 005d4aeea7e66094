"""Hashed operands on a CUDA device in one kernel each, compiled by NVRTC from the traced program of their elements.

A kernel belongs to a family, a format and a role; sizes, seeds and draws are its parameters.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.operands.families import Family, extent, hashed_bits
from gemmdesc.operands.traced import C_PRELUDE, Program, trace

if TYPE_CHECKING:
    import torch

KERNEL_NAME = "fill"
#: Threads of a block; those of one row that a block has, if the row is as long; elements that one thread makes there.
_THREADS = 256
_ROW_THREADS = 64
_ELEMENTS = 16
_MOST_BLOCKS = ((1 << 31) - 1, 65535)
_STORAGE = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

_KERNEL = """\
extern "C" __global__ void {name}({storage}* out, i64 outer, i64 k, u64 base, u64 length, u64 levels) {{
  const i64 down = (i64)gridDim.x * blockDim.y, across = (i64)gridDim.y * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.y + threadIdx.y; i < outer; i += down) {{
    {storage}* const row = out + i * k;
#pragma unroll 1
    for (i64 kk = (i64)blockIdx.y * blockDim.x + threadIdx.x; kk < k; kk += across)
      row[kk] = ({storage})element(base, (u64)i, (u64)kk, length, levels);
  }}
}}
"""


@functools.cache
def available() -> bool:
    """Whether cuda-bindings and the NVRTC that belongs to it can be loaded."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return False
    return True


def fill(out: torch.Tensor, *, family: Family, dtype: DType, role: str, base: int) -> None:
    """Write the bit patterns of :func:`gemmdesc.operands.families.hashed_bits` for every (i, kk) to ``out``.

    ``out``: contiguous, shape (outer, k), on a CUDA device, elements of ``dtype``'s size.  The kernel is put on torch's
    current stream of that device; nothing waits for it.

    Raises:
        InvalidInputError: ``out`` is not such a tensor.
        LibraryError: NVRTC or the driver refuses the kernel.
        torch.OutOfMemoryError: the card has no room for it.
    """
    import torch

    if out.ndim != 2 or not out.is_cuda or not out.is_contiguous() or out.element_size() != dtype.itemsize:
        raise InvalidInputError(
            f"out must be contiguous, of two axes and {dtype.itemsize}-byte elements, on a CUDA device "
            f"(got {tuple(out.shape)}, strides {out.stride()}, {out.dtype}, {out.device})"
        )
    outer, k = out.shape
    if outer and k:
        stream = torch.cuda.current_stream(out.device).cuda_stream
        try:
            _load(out.device.index, family, dtype, role).launch(out.data_ptr(), outer, k, base, stream)
        except LibraryError:
            # The fault of an earlier kernel shows in any call; torch raises it as its callers know it.
            torch.cuda.synchronize(out.device)
            raise


def element_program(family: Family, dtype: DType, role: str) -> Program:
    """One element's bit pattern from ``base``, ``i``, ``kk``, ``length`` and ``levels``."""
    return trace(functools.partial(hashed_bits, family, dtype, role), ("base", "i", "kk", "length", "levels"))


def kernel_source(family: Family, dtype: DType, role: str) -> str:
    """CUDA C of the kernel ``fill(out, outer, k, base, length, levels)``, for any grid of two-dimensional blocks."""
    element = element_program(family, dtype, role).c_function("element")
    return C_PRELUDE + element + _KERNEL.format(name=KERNEL_NAME, storage=_STORAGE[dtype.itemsize])


def launch_shape(outer: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(grid, block) as (x, y): a block's x runs along k, its y over rows; a grid's x counts rows, its y along k."""
    along = min(_ROW_THREADS, _power_of_two(k))
    down = min(_THREADS // along, _power_of_two(outer))
    along = min(_THREADS // down, _power_of_two(k))
    wanted = (-(-outer // down), -(-k // (along * _ELEMENTS)))
    return (min(wanted[0], _MOST_BLOCKS[0]), min(wanted[1], _MOST_BLOCKS[1])), (along, down)


def compile_cubin(nvrtc: Any, source: str, architecture: str) -> bytes:
    """Machine code of ``source`` for an architecture such as ``sm_90``, by the module ``cuda.bindings.nvrtc``.

    Raises:
        LibraryError: NVRTC refuses it; the message ends with its log.
    """
    (program,) = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"gemmdesc_fill.cu", 0, [], []), "create a program")
    try:
        options = [f"--gpu-architecture={architecture}".encode()]
        compiled = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(compiled[0]):
            (size,) = _checked(nvrtc.nvrtcGetProgramLogSize(program), "size a log")
            log = b" " * size
            _checked(nvrtc.nvrtcGetProgramLog(program, log), "read a log")
            text = log.rstrip(b"\0 \n").decode(errors="replace")
            raise LibraryError(f"NVRTC must compile a kernel for {architecture} (got {_name(compiled)}):\n{text}")
        (size,) = _checked(nvrtc.nvrtcGetCUBINSize(program), "size machine code")
        cubin: bytes = b" " * size
        _checked(nvrtc.nvrtcGetCUBIN(program, cubin), "read machine code")
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kernel:
    """A loaded kernel: cuda-bindings' driver module, the function, and the primary context that it belongs to."""

    driver: Any
    function: Any
    context: Any

    def launch(self, pointer: int, outer: int, k: int, base: int, stream: int) -> None:
        grid, block = launch_shape(outer, k)
        words = (outer, k, base, *extent(k))
        arguments = (pointer, *words), (ctypes.c_void_p, *(ctypes.c_longlong for _ in words))
        # A thread that has not called the CUDA runtime yet has no context, though torch hands it memory of its cache.
        _checked(self.driver.cuCtxPushCurrent(self.context), "make a context current")
        try:
            launched = self.driver.cuLaunchKernel(
                self.function, *grid, 1, *block, 1, 0, self.driver.CUstream(stream), arguments, 0
            )
        finally:
            self.driver.cuCtxPopCurrent()
        _checked(launched, "launch a kernel")


@functools.cache
def _load(device_index: int, family: Family, dtype: DType, role: str) -> _Kernel:
    import torch
    from cuda.bindings import driver, nvrtc

    major, minor = torch.cuda.get_device_capability(device_index)
    cubin = compile_cubin(nvrtc, kernel_source(family, dtype, role), f"sm_{major}{minor}")
    (device,) = _checked(driver.cuDeviceGet(device_index), "find a device")
    (context,) = _checked(driver.cuDevicePrimaryCtxRetain(device), "retain a primary context")
    _checked(driver.cuCtxPushCurrent(context), "make a context current")
    try:
        (module,) = _checked(driver.cuModuleLoadData(cubin), "load a kernel")
        (function,) = _checked(driver.cuModuleGetFunction(module, KERNEL_NAME.encode()), "find a kernel")
    finally:
        driver.cuCtxPopCurrent()
    return _Kernel(driver=driver, function=function, context=context)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _name(result: tuple[Any, ...]) -> str:
    return str(getattr(result[0], "name", result[0]))


def _checked(result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """What a call of cuda-bindings returned besides its status."""
    if int(result[0]) == 0:
        return result[1:]
    if _name(result) == "CUDA_ERROR_OUT_OF_MEMORY":
        import torch

        raise torch.OutOfMemoryError(f"CUDA must {what} (got {_name(result)})")
    raise LibraryError(f"CUDA must {what} (got {_name(result)})")
