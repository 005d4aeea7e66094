"""A card that launches compiled kernels over several draws, and says what one instruction gives.

Walks need none.  It is here to hold walks against hardware: ``Card.launch`` gives a kernel's bytes, ``instruction`` and
``matrix_step`` what the functions give that only hardware defines, assembled alone by the ptxas that Triton brings.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.functions import Bits, Function
from gemmdesc.equivalence.instructions import instruction_ptx, matrix_step_ptx
from gemmdesc.equivalence.operations import LITERAL
from gemmdesc.errors import LibraryError

Bytes = npt.NDArray[np.uint8]
#: What output memory holds before a launch.
UNTOUCHED = 0xA5
_BLOCK = 128
_RESULTS_KEPT = 512


class Card:
    """One GPU, in its primary context, which the calling thread gets as its current one."""

    def __init__(self, index: int = 0) -> None:
        """Raises:
        ImportError: cuda-bindings is not installed.
        LibraryError: there is no such GPU.
        """
        from cuda.bindings import driver

        self._driver: Any = driver
        self._done(driver.cuInit(0), "start")
        self._device = self._done(driver.cuDeviceGet(index), "find a device")[0]
        context = self._done(driver.cuDevicePrimaryCtxRetain(self._device), "retain a primary context")[0]
        self._done(driver.cuCtxSetCurrent(context), "make a context current")
        self._room: dict[str, tuple[Any, int]] = {}
        self._uploaded: dict[object, tuple[Any, int]] = {}
        self._instructions: dict[tuple[str, str], Any] = {}
        self._results: dict[bytes, Bits] = {}

    @property
    def name(self) -> str:
        """The card's name, its architecture and its number of multiprocessors."""
        d = self._driver
        (raw,) = self._done(d.cuDeviceGetName(128, self._device), "name itself")
        kind = d.CUdevice_attribute
        major, minor, count = (
            self._done(d.cuDeviceGetAttribute(what, self._device), "describe itself")[0]
            for what in (
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                kind.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        text = bytes(raw).split(b"\0")[0].decode()
        return f"{text} (sm_{major}{minor}, {count} SMs)"

    def upload(self, key: object, make: Callable[[], Bytes]) -> tuple[int, int]:
        """Address of the array that ``make`` gives, shape (draws, bytes), and the bytes from draw to draw.

        It stays on the card; ``key`` names it.
        """
        if key not in self._uploaded:
            data = np.ascontiguousarray(make())
            (pointer,) = self._done(self._driver.cuMemAlloc(data.nbytes), "allocate memory")
            self._done(self._driver.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes), "take data")
            self._uploaded[key] = pointer, data.shape[1]
        pointer, pitch = self._uploaded[key]
        return int(pointer), pitch

    def drop(self, key: object) -> None:
        """Free an array that :meth:`upload` left on the card."""
        pointer, _ = self._uploaded.pop(key)
        self._done(self._driver.cuMemFree(pointer), "free memory")

    def launch(
        self,
        cubin: bytes,
        name: str,
        *,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        arguments: Sequence[tuple[str, Any]],
        draws: int,
        outputs: Sequence[int],
    ) -> list[Bytes]:
        """Launch a kernel once for each draw.

        ``arguments``, in the order of the kernel's parameters: ("input", (address, pitch)), ("output", number),
        ("integer", (value, bytes)) or ("nothing", None), a null pointer.  ``outputs``: bytes of each output, which
        hold ``UNTOUCHED`` before.  Returns for each output its bytes, shape (draws, bytes).

        Raises:
            LibraryError: the driver reports an error.
        """
        d = self._driver
        (module,) = self._done(d.cuModuleLoadData(cubin), "load a kernel")
        try:
            (function,) = self._done(d.cuModuleGetFunction(module, name.encode()), "find a kernel")
            if shared > 48 * 1024:
                most = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._done(d.cuFuncSetAttribute(function, most, shared), "give shared memory")
            pitches = [-(-size // 256) * 256 for size in outputs]
            places = []
            for number, pitch in enumerate(pitches):
                pointer = self._buffer(f"output {number}", pitch * draws)
                self._done(d.cuMemsetD8(pointer, UNTOUCHED, pitch * draws), "fill memory")
                places.append(int(pointer))
            for draw in range(draws):
                values, kinds = _packed(arguments, places, pitches, draw)
                self._done(
                    d.cuLaunchKernel(function, *grid, *block, shared, d.CUstream(0), (values, kinds), 0),
                    "launch a kernel",
                )
            self._done(d.cuCtxSynchronize(), "finish a kernel")
            found = []
            for place, pitch, size in zip(places, pitches, outputs, strict=True):
                data = np.empty((draws, pitch), np.uint8)
                self._done(d.cuMemcpyDtoH(data.ctypes.data, d.CUdeviceptr(place), data.nbytes), "give data")
                found.append(data[:, :size])
            return found
        finally:
            d.cuModuleUnload(module)

    def instruction(self, name: str, target: str, version: str) -> Function:
        """The function of a node called ``name``, worked out on the card; ``target`` and ``version``: as in PTX.

        Raises:
            InvalidInputError: no kernel can be written for it.
            LibraryError: ptxas refuses it, or the driver reports an error.
        """
        if name.endswith(LITERAL):
            return self._of_literal(name.removesuffix(LITERAL), target, version)
        text = instruction_ptx(name, target, version)

        def run(*operands: Bits) -> Bits:
            given = np.broadcast_arrays(*operands)
            flat = np.ascontiguousarray(np.stack([x.ravel() for x in given]), np.uint64)
            distinct, back = np.unique(flat, axis=1, return_inverse=True) if len(flat) == 1 else (flat, None)
            made = self._remembered(text, target, distinct)
            whole = made if back is None else made[back.ravel()]
            return whole.reshape(given[0].shape)

        return run

    def _of_literal(self, name: str, target: str, version: str) -> Function:
        """A function whose last operand is one that ptxas knows: a text for each of its values."""

        def run(*operands: Bits) -> Bits:
            given = np.stack([x.ravel() for x in np.broadcast_arrays(*operands)]).astype(np.uint64)
            out = np.zeros(given.shape[1], np.uint64)
            for value in np.unique(given[-1]).tolist():
                here = given[-1] == value
                text = instruction_ptx(name, target, version, int(value))
                out[here] = self._remembered(text, target, given[:, here])
            return out.reshape(np.broadcast_shapes(*(x.shape for x in operands)))

        return run

    def matrix_step(self, target: str, version: str) -> Callable[..., Bits]:
        """A ``matrix_step`` that runs each pair of a row and a column in a matrix instruction of its own."""

        def run(name: str, rows: npt.NDArray[np.uint32], columns: npt.NDArray[np.uint32], before: Bits) -> Bits:
            text = matrix_step_ptx(name, rows.shape[1], target, version)
            words = np.concatenate([rows, columns], axis=1).astype(np.uint64).T
            operands = np.concatenate([words, before[None, :]])
            return self._remembered(text, target, operands, threads=32)

        return run

    def _remembered(self, text: str, target: str, operands: npt.NDArray[np.uint64], threads: int = 1) -> Bits:
        operands = np.ascontiguousarray(operands)
        key = hashlib.sha256(text.encode() + operands.tobytes()).digest()
        found = self._results.get(key)
        if found is None:
            if len(self._results) >= _RESULTS_KEPT:
                self._results.pop(next(iter(self._results)))
            found = self._results[key] = self._apply(text, target, operands, threads)
        return found

    def _apply(self, text: str, target: str, operands: npt.NDArray[np.uint64], threads: int) -> Bits:
        """Column i of ``operands`` (rows, n) through the kernel ``apply`` of ``text``, ``threads`` threads each."""
        d, count = self._driver, operands.shape[1]
        function = self._instructions.get((text, target))
        if function is None:
            (module,) = self._done(d.cuModuleLoadData(assemble(text, target)), "load a kernel")
            (function,) = self._done(d.cuModuleGetFunction(module, b"apply"), "find a kernel")
            self._instructions[(text, target)] = function
        source = self._buffer("operands", operands.nbytes)
        sink = self._buffer("results", 8 * count)
        self._done(d.cuMemcpyHtoD(source, operands.ctypes.data, operands.nbytes), "take data")
        blocks = -(-count * threads // _BLOCK)
        values = (int(source), int(sink), count)
        kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
        self._done(
            d.cuLaunchKernel(function, blocks, 1, 1, _BLOCK, 1, 1, 0, d.CUstream(0), (values, kinds), 0),
            "launch a kernel",
        )
        out = np.empty(count, np.uint64)
        self._done(d.cuMemcpyDtoH(out.ctypes.data, sink, out.nbytes), "give data")
        return out

    def _buffer(self, name: str, size: int) -> Any:
        """Memory of at least ``size`` bytes that keeps its place until more is asked for under this name."""
        pointer, held = self._room.get(name, (None, 0))
        if held < size:
            if pointer is not None:
                self._done(self._driver.cuMemFree(pointer), "free memory")
            held = max(2 * size, 1 << 20)
            (pointer,) = self._done(self._driver.cuMemAlloc(held), "allocate memory")
            self._room[name] = pointer, held
        return pointer

    @staticmethod
    def _done(result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        if int(result[0]) != 0:
            raise LibraryError(f"CUDA must {what} (got {getattr(result[0], 'name', result[0])})")
        return result[1:]


def _packed(
    arguments: Sequence[tuple[str, Any]], places: Sequence[int], pitches: Sequence[int], draw: int
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    values: list[int] = []
    kinds: list[Any] = []
    for kind, given in arguments:
        if kind == "integer":
            value, width = given
            values.append(value)
            kinds.append({1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}[width])
            continue
        if kind == "input":
            address, pitch = given
            values.append(address + draw * pitch)
        elif kind == "output":
            values.append(places[given] + draw * pitches[given])
        else:
            values.append(0)
        kinds.append(ctypes.c_void_p)
    return tuple(values), tuple(kinds)


@functools.cache
def find_ptxas(capability: int = 90) -> Path:
    """The ptxas that the installed Triton uses for a compute capability; it brings several.

    Raises:
        LibraryError: there is none.
    """
    from triton.backends.nvidia.compiler import get_ptxas

    found = Path(str(get_ptxas(capability).path))
    if not found.exists():
        raise LibraryError(f"Triton must bring a ptxas (got none at {found})")
    return found


def assemble(text: str, target: str) -> bytes:
    """Machine code of a PTX text for a target such as ``sm_90a``.

    Raises:
        LibraryError: ptxas refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "text.ptx", Path(folder) / "text.cubin"
        source.write_text(text, encoding="utf-8")
        capability = int("".join(filter(str.isdecimal, target)))
        command = [str(find_ptxas(capability)), f"--gpu-name={target}", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LibraryError(f"ptxas must assemble a text (got {done.stderr.strip()[:300]})")
        return made.read_bytes()
