"""What the current CUDA device does in a second, measured: bytes moved, and operations of the library's products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gemmdesc.dtypes import DType
from gemmdesc.tuning.graphs import events_us

#: Sizes of the square products that rates are measured of.
RATE_SIZES = (4096, 8192)
_RATE_RUNS = 12


def bandwidth() -> float:
    """Bytes a second: the faster of reading and of copying 2 GiB."""
    import torch

    x, y = (torch.zeros(1 << 29, dtype=torch.float32, device="cuda") for _ in range(2))
    size = x.numel() * x.element_size()
    read, copied = _fastest(partial(torch.sum, x)), _fastest(partial(torch.add, x, 1, out=y))
    return float(max(size / read, 2 * size / copied))


def _fastest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of some runs."""
    return min(events_us(call) for _ in range(_RATE_RUNS)) / 1e6


def rate_of(dtype: DType, n: int) -> float:
    """Operations a second of the library's product of two n x n matrices of ``dtype``."""
    import torch

    kind = getattr(torch, dtype.value)
    a, b = (torch.randn((n, n), device="cuda").to(kind) for _ in range(2))
    one = torch.ones((), device="cuda")
    call: Callable[[], Any] = partial(torch.mm, a, b)
    if dtype is DType.FLOAT8_E4M3FN:
        call = partial(torch._scaled_mm, a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    return float(2 * n**3) / _fastest(call)
