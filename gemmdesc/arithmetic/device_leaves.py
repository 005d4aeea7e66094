"""The leaves of a replay on a CUDA device: chains of any accumulator, a thread for each, from operands stored there.

The kernels are :mod:`gemmdesc.arithmetic.leaf_source`; what follows the leaves stays on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.decode import decode
from gemmdesc.arithmetic.leaf_source import (
    CAST_NEAREST_AWAY,
    CAST_NEAREST_EVEN,
    CAST_NONE,
    CAST_TOWARD_ZERO,
    KERNEL_NAMES,
    OPTIONS,
    SOURCE,
    THREADS,
)
from gemmdesc.arithmetic.parameters import step_parameters
from gemmdesc.bits import bits_dtype
from gemmdesc.descriptor import FusedDot, OperandCast, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.nvrtc import Kernel, load_kernels, pointer, word
from gemmdesc.schedule import Schedule

if TYPE_CHECKING:
    import torch

Index = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

_MOST_BLOCKS = 1 << 20
_CASTS = {
    Rounding.TOWARD_ZERO: CAST_TOWARD_ZERO,
    Rounding.NEAREST_AWAY: CAST_NEAREST_AWAY,
    Rounding.NEAREST_EVEN: CAST_NEAREST_EVEN,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceSide:
    """One operand on a CUDA device: (rows, k) patterns, k contiguous, of which the ``chosen`` rows are wanted."""

    bits: torch.Tensor
    dtype: DType
    cast: OperandCast | None
    chosen: Index


def leaf_sums(step: FusedDot | ScalarStep, schedule: Schedule, left: DeviceSide, right: DeviceSide) -> Float32Array:
    """(leaves, len(left.chosen), len(right.chosen)) sums of all leaves, on torch's current stream of the device.

    Raises:
        InvalidInputError: the sum of a step does not fit 53 bits, as :func:`gemmdesc.arithmetic.replay.replay`.
        LibraryError: NVRTC or the driver refuses a kernel.
        torch.OutOfMemoryError: the card has no room for it.
    """
    import torch

    place = left.bits.device
    parameters = step_parameters(step, schedule)
    m, n, count = len(left.chosen), len(right.chosen), len(schedule.leaf_offsets) - 1
    tables = _uploaded(
        place, [left.chosen, right.chosen, schedule.leaf_offsets, schedule.step_ends, schedule.step_offsets]
    )
    order = None if _ascending(schedule) else _uploaded(place, [schedule.order])[0]
    gather, leaves = _load(place.index)
    stream = torch.cuda.current_stream(place).cuda_stream
    length = len(schedule.order)
    a, b = (
        _gathered(gather, side, rows, order, length, stream)
        for side, rows in ((left, tables[0]), (right, tables[1]))
    )
    out = torch.empty((count, m, n), dtype=torch.float32, device=place)
    kind = 0 if isinstance(step, FusedDot) else 1 if step.fused else 2
    target = parameters.target
    arguments = [
        *(pointer(x.data_ptr()) for x in (out, a, b, *tables[2:])), *map(word, (count, m, n, kind)),
        (step.opening if isinstance(step, ScalarStep) else 0.0, ctypes.c_float),
        *map(word, (parameters.fraction_bits, parameters.zero_exponent, parameters.zero_enters, parameters.nearest)),
        *map(word, (target.fraction_bits, target.min_exponent)), (target.infinity, ctypes.c_double),
        *(word(_storage(s).format.min_exponent) for s in (left, right)),
    ]  # fmt: skip
    if out.numel():
        leaves.launch(_grid(out.numel()), (THREADS, 1, 1), arguments, stream)
    sums: Float32Array = out.cpu().numpy()
    return sums


def _gathered(
    gather: Kernel, side: DeviceSide, rows: torch.Tensor, order: torch.Tensor | None, length: int, stream: int
) -> torch.Tensor:
    """(length, len(side.chosen)) float32 values of the chosen rows, k in schedule order."""
    import torch

    count = len(side.chosen)
    out = torch.empty((length, count), dtype=torch.float32, device=side.bits.device)
    how, spare = CAST_NONE, 0
    if side.cast is not None:
        how, spare = _CASTS[side.cast.rounding], 23 - side.cast.dtype.format.fraction_bits
    elif side.dtype is DType.TFLOAT32:
        how, spare = CAST_TOWARD_ZERO, 23 - side.dtype.format.fraction_bits
    table = None if side.dtype.itemsize > 2 else _table(side.bits.device, side.dtype)
    arguments = [
        pointer(out.data_ptr()), pointer(side.bits.data_ptr()), pointer(0 if table is None else table.data_ptr()),
        pointer(rows.data_ptr()), pointer(0 if order is None else order.data_ptr()),
        *map(word, (count, length, side.bits.stride(0), side.dtype.itemsize, how, spare)),
    ]  # fmt: skip
    if out.numel():
        gather.launch(_grid(out.numel()), (THREADS, 1, 1), arguments, stream)
    return out


def _storage(side: DeviceSide) -> DType:
    return side.dtype if side.cast is None else side.cast.dtype


def _grid(threads: int) -> tuple[int, int, int]:
    return min(-(-threads // THREADS), _MOST_BLOCKS), 1, 1


def _ascending(schedule: Schedule) -> bool:
    return bool((schedule.order == np.arange(len(schedule.order))).all())


def _uploaded(place: torch.device, arrays: Sequence[Index]) -> list[torch.Tensor]:
    """The arrays on the device, by one copy."""
    import torch

    whole = torch.from_numpy(np.concatenate([*arrays, np.zeros(1, np.int64)])).to(place)
    ends = np.cumsum([len(x) for x in arrays]).tolist()
    return [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@functools.cache
def _load(device_index: int) -> tuple[Kernel, Kernel]:
    gather, leaves = load_kernels(device_index, SOURCE, KERNEL_NAMES, OPTIONS)
    return gather, leaves


@functools.cache
def _table(place: Any, dtype: DType) -> torch.Tensor:
    """The values of all patterns of a format of at most 16 bits."""
    import torch

    patterns = np.arange(1 << dtype.format.storage_bits, dtype=bits_dtype(dtype))
    return torch.from_numpy(decode(patterns, dtype)[0]).to(place)
