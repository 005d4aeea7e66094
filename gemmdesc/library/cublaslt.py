"""The real library: one cuBLASLt handle on one GPU, behind :class:`gemmdesc.library.interface.Library`."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.library.bindings import SUCCESS, load_functions, status_name
from gemmdesc.library.capture import capture_launch
from gemmdesc.library.device import device_id, place, selected
from gemmdesc.library.identity import find_library, library_id, with_digest
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window, require_inputs
from gemmdesc.library.query import Descriptors, Questions
from gemmdesc.library.side import SideBuffers
from gemmdesc.library.storage import Stored, aligned_offset, empty_d, result_of, store_a, store_b, store_c
from gemmdesc.library.unknown import names_unknown
from gemmdesc.operands import Operand
from gemmdesc.problem import (
    MAX_ALIGNMENT_BYTES,
    AlgoConfig,
    DeviceId,
    Failed,
    GemmProblem,
    Launch,
    LibraryId,
    Refused,
    ScalarClass,
)

if TYPE_CHECKING:
    import torch


#: Memory that torch's allocator may keep between runs.
_KEPT_BYTES = 1 << 30
#: Tries of a product for which memory is lacking, and seconds before each further one: others work beside this process.
_MEMORY_TRIES, _MEMORY_SECONDS = 5, 0.5


class CublasLt:
    """A cuBLASLt library on a CUDA device.

    One instance holds one handle, its descriptors and one workspace, so it serves one thread and one stream at a time;
    make one per thread.  A failed kernel launch may leave the CUDA context unusable, which later calls then report.

    Args:
        path: what :func:`gemmdesc.library.identity.find_library` takes: None for torch's, a path, or a package.
        device_index: the CUDA device, as torch counts.

    Raises:
        LibraryError: no such library, or no GPU.
    """

    def __init__(self, path: str | Path | None = None, *, device_index: int = 0) -> None:
        self._device_index = device_index
        self._device = device_id(device_index)
        self._place = place(device_index)
        found = find_library(path)
        self._identity = library_id(found)
        self._functions = load_functions(found)
        self._launch_matmul = self._functions["cublasLtMatmul"]
        handle = ctypes.c_void_p()
        with selected(device_index):
            status = self._functions["cublasLtCreate"](ctypes.byref(handle))
        if status != SUCCESS:
            raise LibraryError(
                f"cublasLtCreate must succeed on {self._device} with {found} (got {status_name(status)})"
            )
        self._handle: int | None = handle.value
        self._side = SideBuffers(self._place)
        self._descriptors = Descriptors(self._functions, self._side.pointers)
        self._questions = Questions(self._functions, handle.value or 0, self._descriptors)
        self._workspace: torch.Tensor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Destroy the handle and free the workspace; the instance is of no use afterwards."""
        if self._handle is not None:
            self._descriptors.close()
            self._functions["cublasLtDestroy"](self._handle)
            self._handle, self._workspace = None, None

    @property
    def identity(self) -> LibraryId:
        """Version, build-id, path and wheel; ``sha256`` is "" until :meth:`identity_with_digest` was called."""
        return self._identity

    def identity_with_digest(self) -> LibraryId:
        """:attr:`identity` with the file's sha256, computed on the first call."""
        if not self._identity.sha256:
            self._identity = with_digest(self._identity)
        return self._identity

    @property
    def device(self) -> DeviceId:
        return self._device

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        """The heuristic's first answer of one asked for, or the status that it refused with.

        Raises:
            InvalidInputError: a field of ``problem`` that this adapter cannot state to the library.
        """
        return self._questions.first_answer(problem)

    def answers(self, problems: Iterable[GemmProblem]) -> list[AlgoConfig | Refused]:
        """:meth:`answer` of each problem."""
        return [self._questions.first_answer(problem) for problem in problems]

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        """Whether the library accepts ``answer`` at ``problem`` within its workspace limit (alignments unseen)."""
        algo = self._questions.algo(problem, answer)
        if isinstance(algo, Refused):
            return False
        needed = self._questions.needed_workspace(problem, algo)
        return not isinstance(needed, Refused) and needed <= _workspace_bytes(problem, answer)

    def config(self, problem: GemmProblem, answer: AlgoConfig) -> AlgoConfig | Refused:
        """``answer`` rebuilt from its attributes alone, with the workspace that it needs here."""
        bare = replace(answer, opaque="", workspace_bytes=0)
        algo = self._questions.algo(problem, bare)
        if isinstance(algo, Refused):
            return algo
        needed = self._questions.needed_workspace(problem, algo)
        if isinstance(needed, Refused):
            return needed
        values = self._questions.read(ctypes.addressof(algo))
        return AlgoConfig(**values, opaque=bytes(algo).hex(), workspace_bytes=needed)

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        """What running ``answer`` would enqueue, captured on a side stream; None where that cannot be had.

        A, B and D are addresses with the declared alignments; only D and the workspace are allocated in full.
        """
        import torch

        try:
            d = empty_d(problem, self._place)
            scratch = torch.empty(8 * MAX_ALIGNMENT_BYTES, dtype=torch.uint8, device=self._place)
            a, b = (
                scratch.data_ptr() + offset + aligned_offset(scratch.data_ptr() + offset, alignment)
                for offset, alignment in ((0, problem.a_alignment_bytes), (1024, problem.b_alignment_bytes))
            )
            # Whatever is allocated on first need must be there before the capture.
            self._space(_workspace_bytes(problem, answer))
            self._descriptors.describe(problem)
            return capture_launch(
                lambda stream: self.matmul(problem, answer, a, b, d.pointer, stream=stream), self._device_index
            )
        except _cuda_errors() as error:
            names_unknown("launch capture", (str(error).splitlines() or [type(error).__name__])[0])
            return None

    def matmul(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a_pointer: int,
        b_pointer: int,
        d_pointer: int,
        *,
        c_pointer: int | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        stream: int | None = None,
    ) -> Failed | None:
        """Enqueue one ``cublasLtMatmul`` with ``answer`` on device addresses; does not wait.  None on success.

        ``c_pointer``: D itself if None.  ``alpha``, ``beta``: those that the problem's classes fix, else 1, if None.
        Scales and a bias are those that were set last.  ``stream``: a CUDA stream's handle; the current torch
        stream if None.

        Raises:
            InvalidInputError: a field of ``problem`` that this adapter cannot state to the library.
        """
        algo = self._questions.algo(problem, answer)
        if isinstance(algo, Refused):
            return Failed(status=algo.status)
        described = self._descriptors.describe(problem)
        kind = _scalar_type(problem)
        times, plus = (kind(_scalar(given, of)) for given, of in ((alpha, problem.alpha), (beta, problem.beta)))
        if c_pointer is None:
            # C of another type than D's is never read, and is not D.
            c_pointer = d_pointer if problem.c_dtype is problem.d_dtype else 0
        workspace_bytes = _workspace_bytes(problem, answer)
        with selected(self._device_index) as current:
            status = self._launch_matmul(
                *(self._handle, described.matmul, ctypes.byref(times), a_pointer, described.a, b_pointer, described.b),
                *(ctypes.byref(plus), c_pointer, described.c, d_pointer, described.d, ctypes.byref(algo)),
                *(self._space(workspace_bytes), workspace_bytes, current if stream is None else stream),
            )
        return None if status == SUCCESS else Failed(status=status_name(status))

    def set_inputs(self, problem: GemmProblem, inputs: Inputs) -> None:
        """Enqueue the scales and the bias that the next :meth:`matmul` of ``problem`` reads, on the current stream."""
        self._side.fill(problem, inputs)

    def run_on_device(self, problem: GemmProblem, answer: AlgoConfig, a: Stored, b: Stored, d: Stored) -> Failed | None:
        """:meth:`matmul` on matrices stored by :mod:`gemmdesc.library.storage`."""
        return self.matmul(problem, answer, a.pointer, b.pointer, d.pointer)

    def run(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window | None = None,
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed:
        """See :class:`~gemmdesc.library.interface.Library`: (d_outer, n) bit patterns of D, or the window of them.

        Raises:
            InvalidInputError: an operand's type is not the problem's, the inputs are not what it takes, or a field that
                this adapter cannot state.
        """
        require_inputs(problem, inputs)
        for name, operand, dtype in (("a", a, problem.a_dtype), ("b", b, problem.b_dtype)):
            if operand.dtype is not dtype:
                raise InvalidInputError(f"{name} must be of {dtype.value} (got {operand.dtype.value})")
        for attempt in range(_MEMORY_TRIES):
            time.sleep(attempt * _MEMORY_SECONDS)
            found = self._attempt(problem, answer, (a, b), window, inputs)
            if found is not None:
                return found
        return Failed(status="out of memory")

    def _attempt(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        operands: tuple[Operand, Operand],
        window: Window | None,
        inputs: Inputs,
    ) -> Bits | Failed | None:
        """One try of :meth:`run`; None where memory was lacking."""
        import torch

        a, b = operands
        try:
            stored_a = store_a(problem, a.torch_bits(problem.a_outer, problem.k, self._place))
            stored_b = store_b(problem, b.torch_bits(problem.b_outer, problem.k, self._place))
            d = empty_d(problem, self._place)
            if inputs is NO_INPUTS:
                self._side.fill(problem, inputs)
                failed = self.run_on_device(problem, answer, stored_a, stored_b, d)
            else:
                failed = self._run_with(problem, answer, (stored_a, stored_b, d), inputs)
            return failed if failed is not None else self._fetch(problem, d, window)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return None
        except _cuda_errors() as error:
            return Failed(status=(str(error).splitlines() or [type(error).__name__])[0])
        finally:
            self._release()

    def _run_with(
        self, problem: GemmProblem, answer: AlgoConfig, stored: tuple[Stored, Stored, Stored], inputs: Inputs
    ) -> Failed | None:
        a, b, d = stored
        self._side.fill(problem, inputs)
        c = None
        if inputs.c is not None:
            c = store_c(problem, inputs.c.torch_bits(problem.d_outer, problem.n, self._place))
        return self.matmul(
            problem, answer, a.pointer, b.pointer, d.pointer, c_pointer=None if c is None else c.pointer,
            alpha=inputs.alpha, beta=inputs.beta,
        )  # fmt: skip

    def _release(self) -> None:
        """Hand memory that torch keeps for later back to the card once it is much: others work beside this process."""
        import torch

        if torch.cuda.is_available() and torch.cuda.memory_reserved(self._device_index) > _KEPT_BYTES:
            torch.cuda.empty_cache()

    def _fetch(self, problem: GemmProblem, d: Stored, window: Window | None) -> Bits:
        import torch

        result = result_of(d)
        if window is not None:
            rows, columns = (torch.from_numpy(np.array(x)).to(self._place) for x in (window.rows, window.columns))
            result = result[rows[:, None], columns[None, :]]
        host: Bits = result.contiguous().cpu().numpy().view(bits_dtype(problem.d_dtype))
        return host

    def _space(self, size: int) -> int:
        import torch

        if size == 0:
            return 0
        if self._workspace is None or self._workspace.numel() < size:
            self._workspace = torch.empty(size, dtype=torch.uint8, device=self._place)
        address: int = self._workspace.data_ptr()
        return address


def _cuda_errors() -> tuple[type[Exception], ...]:
    import torch

    return (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", RuntimeError))


def _workspace_bytes(problem: GemmProblem, answer: AlgoConfig) -> int:
    return max(problem.workspace_limit_bytes, answer.workspace_bytes)


def _scalar_type(problem: GemmProblem) -> type[ctypes.c_float] | type[ctypes.c_double]:
    match problem.scale_dtype:
        case DType.FLOAT32:
            return ctypes.c_float
        case DType.FLOAT64:
            return ctypes.c_double
    raise InvalidInputError(f"scale_dtype must be float32 or float64 (got {problem.scale_dtype.value})")


def _scalar(given: float | None, kind: ScalarClass) -> float:
    if given is not None:
        return given
    return 0.0 if kind is ScalarClass.ZERO else 1.0
