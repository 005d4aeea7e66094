"""The real library: one cuBLASLt handle on one GPU, behind :class:`gemmdesc.library.interface.Library`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gemmdesc import nvrtc
from gemmdesc.arithmetic.device_functions import card_tanh_approx
from gemmdesc.arithmetic.pointwise import TanhApprox
from gemmdesc.bits import Bits
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.library.bindings import SUCCESS, load_functions, status_name
from gemmdesc.library.capture import capture_launch
from gemmdesc.library.descriptors import Descriptors
from gemmdesc.library.device import device_id, place, selected
from gemmdesc.library.identity import find_library, library_id, with_digest
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window
from gemmdesc.library.products import Products, cuda_errors
from gemmdesc.library.query import Questions
from gemmdesc.library.side import SideBuffers
from gemmdesc.library.storage import Stored, aligned_offset, empty_d
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
from gemmdesc.regions import Region

if TYPE_CHECKING:
    import torch


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
        self._products = Products(self.matmul, self._side, self._place)
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

    @property
    def tanh_approx(self) -> TanhApprox | None:
        """``tanh.approx.f32`` of the card; None where NVRTC, which compiles what asks for it, cannot be loaded."""
        return card_tanh_approx(self._device_index) if nvrtc.available() else None

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
        except cuda_errors() as error:
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
        return self._products.run(problem, answer, (a, b), window, inputs)

    def run_and_replay(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window,
        orders: Sequence[Sequence[Region]],
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> tuple[Bits, tuple[Bits, ...]] | Failed:
        """See :class:`~gemmdesc.library.interface.Replaying`; raises as :meth:`run`, and as the replay."""
        return self._products.run_and_replay(problem, answer, (a, b), window, orders, inputs)

    def _space(self, size: int) -> int:
        import torch

        if size == 0:
            return 0
        if self._workspace is None or self._workspace.numel() < size:
            self._workspace = torch.empty(size, dtype=torch.uint8, device=self._place)
        address: int = self._workspace.data_ptr()
        return address


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
