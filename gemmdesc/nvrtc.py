"""Kernels in CUDA C: compiled by NVRTC where they run, loaded and launched through cuda-bindings."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemmdesc.errors import LibraryError

#: Arguments of a kernel: values, and the ctypes type of each.
Arguments = Sequence[tuple[int | float, Any]]


@functools.cache
def available() -> bool:
    """Whether cuda-bindings and the NVRTC that belongs to it can be loaded."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return False
    return True


def compile_cubin(nvrtc: Any, source: str, architecture: str, options: Sequence[str] = ()) -> bytes:
    """Machine code of ``source`` for an architecture such as ``sm_90``, by the module ``cuda.bindings.nvrtc``.

    Raises:
        LibraryError: NVRTC refuses it; the message ends with its log.
    """
    (program,) = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"gemmdesc.cu", 0, [], []), "create a program")
    try:
        given = [f"--gpu-architecture={architecture}".encode(), *(x.encode() for x in options)]
        compiled = nvrtc.nvrtcCompileProgram(program, len(given), given)
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
class Kernel:
    """A loaded kernel: cuda-bindings' driver module, the function, and the primary context that it belongs to."""

    driver: Any
    function: Any
    context: Any

    def launch(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: Arguments, stream: int
    ) -> None:
        """Enqueue it on a stream's handle; nothing waits for it.

        Raises:
            LibraryError: the driver refuses the launch.
            torch.OutOfMemoryError: the card has no room for it.
        """
        values, types = tuple(v for v, _ in arguments), tuple(t for _, t in arguments)
        # A thread that has not called the CUDA runtime yet has no context, though torch hands it memory of its cache.
        _checked(self.driver.cuCtxPushCurrent(self.context), "make a context current")
        try:
            launched = self.driver.cuLaunchKernel(
                self.function, *grid, *block, 0, self.driver.CUstream(stream), (values, types), 0
            )
        finally:
            self.driver.cuCtxPopCurrent()
        _checked(launched, "launch a kernel")


def load_kernels(device_index: int, source: str, names: Sequence[str], options: Sequence[str] = ()) -> list[Kernel]:
    """Compile ``source`` for a CUDA device, as torch counts them, and load the kernels of these names.

    Raises:
        LibraryError: NVRTC or the driver refuses it.
    """
    import torch
    from cuda.bindings import driver, nvrtc

    major, minor = torch.cuda.get_device_capability(device_index)
    cubin = compile_cubin(nvrtc, source, f"sm_{major}{minor}", options)
    (device,) = _checked(driver.cuDeviceGet(device_index), "find a device")
    (context,) = _checked(driver.cuDevicePrimaryCtxRetain(device), "retain a primary context")
    _checked(driver.cuCtxPushCurrent(context), "make a context current")
    try:
        (module,) = _checked(driver.cuModuleLoadData(cubin), "load kernels")
        found = [_checked(driver.cuModuleGetFunction(module, n.encode()), "find a kernel") for n in names]
    finally:
        driver.cuCtxPopCurrent()
    return [Kernel(driver=driver, function=function, context=context) for (function,) in found]


def pointer(address: int) -> tuple[int, Any]:
    """A kernel's argument that is an address on the device; 0 for none."""
    return address, ctypes.c_void_p


def word(value: int) -> tuple[int, Any]:
    """A kernel's argument of 64 bits."""
    return value, ctypes.c_longlong


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
