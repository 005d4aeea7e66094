"""Does an answer give the same bytes every time: alone, and while another stream keeps the card busy?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from gemmdesc.bits import bitwise_equal
from gemmdesc.errors import InvalidInputError
from gemmdesc.library.interface import NO_INPUTS, Inputs, Library, Window
from gemmdesc.operands import Operand
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem

_BUSY_SIZE = 1024
_BUSY_QUEUED = 8


@dataclass(frozen=True, kw_only=True)
class Stability:
    """Whether all of ``repeats`` runs gave the bytes of the first one, alone and beside a busy stream."""

    stable_alone: bool
    stable_busy: bool
    repeats: int

    @property
    def stable(self) -> bool:
        return self.stable_alone and self.stable_busy


@contextmanager
def busy_stream() -> Iterator[None]:
    """Keep a second CUDA stream multiplying matrices while the block runs; does nothing without a GPU."""
    import torch

    if not torch.cuda.is_available():
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_multiply_until, args=(stop, torch.cuda.current_device()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _multiply_until(stop: threading.Event, device_index: int) -> None:
    import torch

    stream = torch.cuda.Stream(device_index)
    with torch.cuda.device(device_index), torch.cuda.stream(stream):
        x = torch.ones(_BUSY_SIZE, _BUSY_SIZE, dtype=torch.float16, device="cuda")
        while not stop.is_set():
            for _ in range(_BUSY_QUEUED):
                torch.mm(x, x)
            stream.synchronize()


def run_to_run(
    library: Library,
    problem: GemmProblem,
    answer: AlgoConfig,
    a: Operand,
    b: Operand,
    *,
    repeats: int = 8,
    window: Window | None = None,
    inputs: Inputs = NO_INPUTS,
    busy: Callable[[], AbstractContextManager[None]] = busy_stream,
) -> Stability | Failed:
    """Run ``answer`` 1 + 2 x ``repeats`` times on the same operands and compare the bytes of D, or of ``window``.

    ``busy``: what keeps the card occupied during the second half.

    Raises:
        InvalidInputError: ``repeats`` is less than 1.
    """
    if repeats < 1:
        raise InvalidInputError(f"repeats must be at least 1 (got {repeats})")
    first = library.run(problem, answer, a, b, window, inputs=inputs)
    if isinstance(first, Failed):
        return first

    def all_equal() -> bool | Failed:
        for _ in range(repeats):
            again = library.run(problem, answer, a, b, window, inputs=inputs)
            if isinstance(again, Failed):
                return again
            if not bitwise_equal(first, again):
                return False
        return True

    alone = all_equal()
    if isinstance(alone, Failed):
        return alone
    with busy():
        beside = all_equal()
    if isinstance(beside, Failed):
        return beside
    return Stability(stable_alone=alone, stable_busy=beside, repeats=repeats)
