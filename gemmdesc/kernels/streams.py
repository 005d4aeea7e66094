"""What torch says of its current stream and device, and memory of its allocator, cheaply.  Needs no Triton.

torch's public functions check their arguments, or make objects, which costs as much as a launch; these are what lies
behind them, or they themselves where a release has no such thing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch


@cache
def current_stream() -> Callable[[int], int]:
    """Gives torch's current stream on a device, by index, as a handle.

    torch's public way makes a stream object at each call, which costs as much as a launch.
    """
    found: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return found or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


@cache
def current_device() -> Callable[[], int]:
    """Gives torch's current CUDA device, which is initialised already."""
    found: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
    return found


@cache
def is_capturing() -> Callable[[], bool]:
    """Whether a CUDA graph is captured on the current stream."""
    public = torch.cuda.is_current_stream_capturing
    found: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", public)
    return found


@cache
def scratch_functions() -> tuple[Callable[[int, int], int], Callable[[int], None]] | None:
    """What takes memory of the current device by bytes and stream, and gives it back by address; None without them.

    They are what :func:`torch.cuda.caching_allocator_alloc` and ``caching_allocator_delete`` call: torch's own
    allocator, so that memory given back is reused in the stream's order, and belongs to the graph that is captured.
    """
    take = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
    give_back = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)
    return None if take is None or give_back is None else (take, give_back)


def new_tensor(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """Makes tensors like ``torch.empty_strided`` of these, on the current device of that type, at half the cost.

    What torch's own compiled code allocates by; a release without it has the public function.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found = getattr(guards, f"_empty_strided_{device.type}", None)
    if found is None:
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    return partial(found, shape, strides, dtype)
