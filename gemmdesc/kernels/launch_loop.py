"""Functions in C for what the host does at each call (``host.c``), built by Triton's own means, which need a compiler.

Each call through ctypes costs the host about a tenth of a launch, and what surrounds it in Python as much again.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_NAME = "gemmdesc_host"
#: As in ``host.c``: what a program has at most that is launched from memory of the call's own.
MOST_WORDS, MOST_MAPS = 2048, 32


def one_by_one(launch: Callable[[int, int, int, None], int], steps: int, first: int, count: int) -> int:
    """What :func:`launch_loop` gives, in Python; ``launch``: the function itself."""
    words = (ctypes.c_uint64 * (3 * count)).from_address(steps)
    for at in range(first, count):
        status = launch(words[3 * at], words[3 * at + 1], words[3 * at + 2], None)
        if status:
            return at << 32 | status
    return 0


def order_by_ctypes(
    capture: Callable[..., int], number: Callable[[int, int], int], stream: int
) -> tuple[int, int, int]:
    """What :func:`stream_order` gives, in Python; ``capture`` and ``number``: the functions themselves."""
    captured, capture_id, stream_id = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    found = ctypes.addressof(captured), ctypes.addressof(capture_id)
    status = capture(stream, *found, None, None, None)
    if status == 0 and not captured.value:
        status = number(stream, ctypes.addressof(stream_id))
    return status, capture_id.value + 1 if captured.value else 0, stream_id.value


@cache
def launch_loop() -> Callable[[int, int, int, int], int] | None:
    """``launch_all(launch, steps, first, count)``, or None where it cannot be built.

    ``launch``: the address of ``cuLaunchKernelEx``.  ``steps``: that of three words for each step: its configuration,
    its function, its parameters.  Steps ``first`` to ``count`` are launched; the result is 0, or of the first that
    fails its place times 2^32, plus its status.
    """
    found: Callable[[int, int, int, int], int] | None = host_function("launch_all")
    return found


@cache
def stream_order() -> Callable[[int, int, int], tuple[int, int, int]] | None:
    """``order_of(capture, number, stream)``, or None where it cannot be built.

    ``capture``, ``number``: the addresses of ``cuStreamGetCaptureInfo_v2`` and ``cuStreamGetId``.  The result is a
    status; the number of the capture that ``stream`` is in, plus 1, and 0 where it is in none; and else the stream's.
    """
    found: Callable[[int, int, int], tuple[int, int, int]] | None = host_function("order_of")
    return found


@cache
def program_runner() -> Callable[[int, bytes, int, tuple[int, ...], tuple[Any, ...]], int | None] | None:
    """``run_program(launch, packed, stream, inputs, maps)``, or None where it cannot be built.

    ``packed``: see :func:`packed_program`.  ``maps``: for each of its tensor maps a dict by address.  The result is
    that of :func:`launch_loop`, or None, with nothing launched, where a map is lacking.
    """
    found: Callable[[int, bytes, int, tuple[int, ...], tuple[Any, ...]], int | None] | None
    found = host_function("run_program")
    return found


def packed_program(
    words: Sequence[int], pointers: Sequence[tuple[int, int]], addresses: Sequence[tuple[int, int, int]],
    maps: Sequence[tuple[int, int, int]], streams: Sequence[int], steps_word: int, launches: int,
) -> bytes | None:  # fmt: skip
    """A program for :func:`program_runner`, None where it is too large.

    ``words``: of its arguments and steps.  ``pointers``: (word, the word whose address it holds).  ``addresses``,
    ``maps``: (word, input, offset).  ``streams``: words of the stream.  ``steps_word``: the first word of ``launches``
    steps.
    """
    if len(words) > MOST_WORDS or len(maps) > MOST_MAPS:
        return None
    head = (len(words), len(pointers), len(addresses), len(maps), len(streams), steps_word, launches)
    patches = [number for patch in (*pointers, *addresses, *maps) for number in patch]
    rest = (*patches, *streams)
    return struct.pack(f"={len(head)}q{len(words)}Q{len(rest)}q", *head, *words, *rest)


def host_function(name: str) -> Any:
    """The function of ``host.c``, or None where it cannot be built."""
    try:
        return getattr(_module(), name)
    except (ImportError, TypeError, RuntimeError, OSError, subprocess.SubprocessError):
        return None


def _module() -> Any:
    from triton.runtime.build import compile_module_from_src

    return compile_module_from_src(Path(__file__).with_name("host.c").read_text(), _NAME)
