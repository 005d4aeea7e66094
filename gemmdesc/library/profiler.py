"""Cross-check of captured launches: the kernels that torch.profiler sees when the same call really runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gemmdesc.library.unknown import names_unknown
from gemmdesc.problem import Launch


class Agreement(Enum):
    """Captured kernel names against executed ones."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, kw_only=True)
class CrossCheck:
    """``captured`` and ``executed`` are demangled kernel names in launch order."""

    agreement: Agreement
    captured: tuple[str, ...]
    executed: tuple[str, ...]


def executed_kernels(call: Callable[[], object]) -> tuple[str, ...] | None:
    """Names of the CUDA kernels that ``call`` launches, in start order; None where the profiler sees nothing.

    Runs ``call`` twice: once to load the kernels, once under the profiler.  Where a profiler of torch's is on already,
    ``call`` is not made, as a second one would end the first; where another tool holds CUPTI, nothing is seen.  Both
    are warned of once in a process (:class:`gemmdesc.library.unknown.KernelNamesUnknownWarning`).
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if torch.autograd._profiler_enabled():
        names_unknown("torch.profiler", "it is on already, and a second one would end it")
        return None
    if not torch.cuda.is_available():
        return None
    call()
    torch.cuda.synchronize()
    try:
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
            call()
            torch.cuda.synchronize()
        names = _kernel_names(profiler)
    except RuntimeError as error:
        # A failure of the card itself is told by the next synchronisation, and not taken for one of the profiler's.
        torch.cuda.synchronize()
        names_unknown("torch.profiler", (str(error).splitlines() or [type(error).__name__])[0])
        return None
    if not names:
        names_unknown("torch.profiler", "it saw no kernel; another tool may hold CUPTI")
    return names or None


def _kernel_names(profiler: Any) -> tuple[str, ...]:
    import torch

    on_device = [e for e in profiler.events() or () if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [e for e in on_device if not e.name.lower().startswith(("memset", "memcpy"))]
    kernels.sort(key=lambda e: e.time_range.start)
    return tuple(normalised(e.name) for e in kernels)


def cross_check(launch: Launch | None, call: Callable[[], object]) -> CrossCheck:
    """Compare ``launch`` with what ``call``, the same product, executes."""
    captured = tuple(normalised(name) for name in launch.names) if launch is not None else ()
    executed = executed_kernels(call) if launch is not None else None
    if executed is None:
        return CrossCheck(agreement=Agreement.UNAVAILABLE, captured=captured, executed=())
    agreement = Agreement.EQUAL if captured == executed else Agreement.DIFFERENT
    return CrossCheck(agreement=agreement, captured=captured, executed=executed)


def normalised(name: str) -> str:
    """``name`` demangled where it is a mangled C++ name, without spaces and without a leading return type."""
    text = _demangled(name) if name.startswith("_Z") else name
    return text.removeprefix("void ").replace(" ", "")


def _demangled(name: str) -> str:
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        demangle, free = runtime.__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return name
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    free.argtypes, free.restype = (ctypes.c_void_p,), None
    status = ctypes.c_int()
    address = demangle(name.encode(), None, None, ctypes.byref(status))
    if not address:
        return name
    try:
        return ctypes.string_at(address).decode()
    finally:
        free(address)
