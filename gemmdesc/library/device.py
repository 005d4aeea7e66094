"""Which card answers: its architecture, SM count and driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.problem import DeviceId

if TYPE_CHECKING:
    import torch

_DRIVER_VERSION = Path("/sys/module/nvidia/version")
_DRIVER_LINE = Path("/proc/driver/nvidia/version")


def device_id(index: int = 0) -> DeviceId:
    """The CUDA device ``index`` as torch sees it.

    Raises:
        LibraryError: no torch, or no CUDA device that it can use.
        InvalidInputError: there are devices, but not this one.
    """
    try:
        import torch
    except ImportError:
        raise LibraryError("torch must be installed to talk to a GPU (got no torch)") from None
    if not torch.cuda.is_available():
        raise LibraryError(
            "device must be a CUDA GPU that torch can use; without one, replay recorded answers on the CPU or use "
            f"SimulatedLibrary (got torch {torch.__version__}, CUDA {torch.version.cuda or 'not built in'})"
        )
    if not 0 <= index < torch.cuda.device_count():
        raise InvalidInputError(
            f"device_index must be at least 0 and below the {torch.cuda.device_count()} devices (got {index})"
        )
    card = torch.cuda.get_device_properties(index)
    return DeviceId(
        sm=f"sm_{card.major}{card.minor}",
        sm_count=card.multi_processor_count,
        mig="MIG" in card.name,
        name=card.name,
        driver=driver_version(),
    )


def place(index: int) -> torch.device:
    """Where tensors for CUDA device ``index`` live."""
    import torch

    return torch.device("cuda", index)


@contextmanager
def selected(index: int) -> Iterator[int]:
    """Make CUDA device ``index`` current, its context initialised; gives torch's current stream there, as a handle."""
    import torch

    torch.cuda.init()
    with torch.cuda.device(index):
        yield int(torch.cuda.current_stream().cuda_stream)


def driver_version() -> str:
    """The NVIDIA driver's version such as ``580.159.04``, or "" where the system does not say."""
    for path, column in ((_DRIVER_VERSION, 0), (_DRIVER_LINE, None)):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        if column is not None and words:
            return words[column]
        numbers = [w for w in words if w.replace(".", "").isdigit() and "." in w]
        if numbers:
            return numbers[0]
    return _nvml_driver_version()


def _nvml_driver_version() -> str:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        done = nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) == 0
    except (OSError, AttributeError):
        return ""
    return text.value.decode() if done else ""
