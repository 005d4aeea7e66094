"""Products of drawn operands on a device: made, multiplied by the library, replayed beside it, and fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from gemmdesc import nvrtc
from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window, require_inputs
from gemmdesc.library.replayed import replay_problem, replay_problem_on_device
from gemmdesc.library.side import SideBuffers
from gemmdesc.library.storage import Stored, empty_d, result_of, store_a, store_b, store_c
from gemmdesc.operands import Operand
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem
from gemmdesc.regions import Region

if TYPE_CHECKING:
    import torch

#: Memory that torch's allocator may keep between runs.
_KEPT_BYTES = 1 << 30
#: Tries of a product for which memory is lacking, and seconds before each further one: others work beside this process.
_MEMORY_TRIES, _MEMORY_SECONDS = 5, 0.5

T = TypeVar("T")


class Matmul(Protocol):
    """:meth:`gemmdesc.library.cublaslt.CublasLt.matmul`."""

    def __call__(
        self, problem: GemmProblem, answer: AlgoConfig, a_pointer: int, b_pointer: int, d_pointer: int, *,
        c_pointer: int | None = None, alpha: float | None = None, beta: float | None = None,
    ) -> Failed | None: ...  # fmt: skip


class Products:
    """What one library multiplies on one device; ``side`` takes scales and a bias."""

    def __init__(self, matmul: Matmul, side: SideBuffers, place: torch.device) -> None:
        self._matmul, self._side, self._place = matmul, side, place

    def run(
        self, problem: GemmProblem, answer: AlgoConfig, operands: tuple[Operand, Operand], window: Window | None,
        inputs: Inputs,
    ) -> Bits | Failed:  # fmt: skip
        """:meth:`gemmdesc.library.cublaslt.CublasLt.run`."""
        _require_operands(problem, operands, inputs)

        def attempt() -> Bits | Failed:
            found = self._multiplied(problem, answer, self._made(problem, operands), inputs)
            return found if isinstance(found, Failed) else self._fetched(problem, found, window)

        return self._tried(attempt)

    def run_and_replay(
        self, problem: GemmProblem, answer: AlgoConfig, operands: tuple[Operand, Operand], window: Window,
        orders: Sequence[Sequence[Region]], inputs: Inputs,
    ) -> tuple[Bits, tuple[Bits, ...]] | Failed:  # fmt: skip
        """:meth:`gemmdesc.library.cublaslt.CublasLt.run_and_replay`."""
        _require_operands(problem, operands, inputs)

        def attempt() -> tuple[Bits, tuple[Bits, ...]] | Failed:
            made = self._made(problem, operands)
            found = self._multiplied(problem, answer, made, inputs)
            if isinstance(found, Failed):
                return found
            if nvrtc.available():
                replayed = [replay_problem_on_device(x, problem, *made, window, inputs=inputs) for x in orders]
            else:
                # Without a compiler for its kernels the device replays nothing; the CPU gives the same bytes.
                replayed = [replay_problem(x, problem, *operands, window, inputs=inputs) for x in orders]
            return self._fetched(problem, found, window), tuple(replayed)

        return self._tried(attempt)

    def _tried(self, attempt: Callable[[], T | Failed]) -> T | Failed:
        """``attempt`` again where memory was lacking."""
        import torch

        for count in range(_MEMORY_TRIES):
            time.sleep(count * _MEMORY_SECONDS)
            try:
                return attempt()
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            except cuda_errors() as error:
                return Failed(status=(str(error).splitlines() or [type(error).__name__])[0])
            finally:
                self._release()
        return Failed(status="out of memory")

    def _made(self, problem: GemmProblem, operands: tuple[Operand, Operand]) -> tuple[torch.Tensor, torch.Tensor]:
        """The operands' patterns, (a_outer, k) and (b_outer, k)."""
        a, b = operands
        return (
            a.torch_bits(problem.a_outer, problem.k, self._place), b.torch_bits(problem.b_outer, problem.k, self._place)
        )  # fmt: skip

    def _multiplied(
        self, problem: GemmProblem, answer: AlgoConfig, made: tuple[torch.Tensor, torch.Tensor], inputs: Inputs
    ) -> Stored | Failed:
        """D, once what computes it is enqueued."""
        a, b, d = store_a(problem, made[0]), store_b(problem, made[1]), empty_d(problem, self._place)
        self._side.fill(problem, inputs)
        if inputs is NO_INPUTS:
            failed = self._matmul(problem, answer, a.pointer, b.pointer, d.pointer)
        else:
            c = None
            if inputs.c is not None:
                c = store_c(problem, inputs.c.torch_bits(problem.d_outer, problem.n, self._place))
            failed = self._matmul(
                problem, answer, a.pointer, b.pointer, d.pointer, c_pointer=None if c is None else c.pointer,
                alpha=inputs.alpha, beta=inputs.beta,
            )  # fmt: skip
        return d if failed is None else failed

    def _fetched(self, problem: GemmProblem, d: Stored, window: Window | None) -> Bits:
        import torch

        result = result_of(d)
        if window is not None:
            rows, columns = (torch.from_numpy(np.array(x)).to(self._place) for x in (window.rows, window.columns))
            result = result[rows[:, None], columns[None, :]]
        host: Bits = result.contiguous().cpu().numpy().view(bits_dtype(problem.d_dtype))
        return host

    def _release(self) -> None:
        """Hand memory that torch keeps for later back to the card once it is much: others work beside this process."""
        import torch

        if torch.cuda.is_available() and torch.cuda.memory_reserved(self._place) > _KEPT_BYTES:
            torch.cuda.empty_cache()


def cuda_errors() -> tuple[type[Exception], ...]:
    """What torch raises where the device fails."""
    import torch

    return (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", RuntimeError))


def _require_operands(problem: GemmProblem, operands: tuple[Operand, Operand], inputs: Inputs) -> None:
    require_inputs(problem, inputs)
    for name, operand, dtype in zip("ab", operands, (problem.a_dtype, problem.b_dtype), strict=True):
        if operand.dtype is not dtype:
            raise InvalidInputError(f"{name} must be of {dtype.value} (got {operand.dtype.value})")
