"""Hashed operands on a CUDA device in one kernel each, compiled by NVRTC from the traced program of their elements.

A kernel belongs to a family, a format and a role; sizes, seeds and draws are its parameters.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.nvrtc import Kernel, load_kernels, pointer, word
from gemmdesc.operands.families import Family, extent, hashed_bits
from gemmdesc.operands.traced import C_PRELUDE, Program, trace

if TYPE_CHECKING:
    import torch

KERNEL_NAME = "fill"
#: Threads of a block; those of one row that a block has, if the row is as long; elements that one thread makes there.
_THREADS = 256
_ROW_THREADS = 64
_ELEMENTS = 16
_MOST_BLOCKS = ((1 << 31) - 1, 65535)
_STORAGE = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

_KERNEL = """\
extern "C" __global__ void {name}({storage}* out, i64 outer, i64 k, u64 base, u64 length, u64 levels) {{
  const i64 down = (i64)gridDim.x * blockDim.y, across = (i64)gridDim.y * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.y + threadIdx.y; i < outer; i += down) {{
    {storage}* const row = out + i * k;
#pragma unroll 1
    for (i64 kk = (i64)blockIdx.y * blockDim.x + threadIdx.x; kk < k; kk += across)
      row[kk] = ({storage})element(base, (u64)i, (u64)kk, length, levels);
  }}
}}
"""


def fill(out: torch.Tensor, *, family: Family, dtype: DType, role: str, base: int) -> None:
    """Write the bit patterns of :func:`gemmdesc.operands.families.hashed_bits` for every (i, kk) to ``out``.

    ``out``: contiguous, shape (outer, k), on a CUDA device, elements of ``dtype``'s size.  The kernel is put on torch's
    current stream of that device; nothing waits for it.

    Raises:
        InvalidInputError: ``out`` is not such a tensor.
        LibraryError: NVRTC or the driver refuses the kernel.
        torch.OutOfMemoryError: the card has no room for it.
    """
    import torch

    if out.ndim != 2 or not out.is_cuda or not out.is_contiguous() or out.element_size() != dtype.itemsize:
        raise InvalidInputError(
            f"out must be contiguous, of two axes and {dtype.itemsize}-byte elements, on a CUDA device "
            f"(got {tuple(out.shape)}, strides {out.stride()}, {out.dtype}, {out.device})"
        )
    outer, k = out.shape
    if outer and k:
        stream = torch.cuda.current_stream(out.device).cuda_stream
        try:
            grid, block = launch_shape(outer, k)
            words = map(word, (outer, k, base, *extent(k)))
            kernel = _load(out.device.index, family, dtype, role)
            kernel.launch((*grid, 1), (*block, 1), (pointer(out.data_ptr()), *words), stream)
        except LibraryError:
            # The fault of an earlier kernel shows in any call; torch raises it as its callers know it.
            torch.cuda.synchronize(out.device)
            raise


def element_program(family: Family, dtype: DType, role: str) -> Program:
    """One element's bit pattern from ``base``, ``i``, ``kk``, ``length`` and ``levels``."""
    return trace(functools.partial(hashed_bits, family, dtype, role), ("base", "i", "kk", "length", "levels"))


def kernel_source(family: Family, dtype: DType, role: str) -> str:
    """CUDA C of the kernel ``fill(out, outer, k, base, length, levels)``, for any grid of two-dimensional blocks."""
    element = element_program(family, dtype, role).c_function("element")
    return C_PRELUDE + element + _KERNEL.format(name=KERNEL_NAME, storage=_STORAGE[dtype.itemsize])


def launch_shape(outer: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(grid, block) as (x, y): a block's x runs along k, its y over rows; a grid's x counts rows, its y along k."""
    along = min(_ROW_THREADS, _power_of_two(k))
    down = min(_THREADS // along, _power_of_two(outer))
    along = min(_THREADS // down, _power_of_two(k))
    wanted = (-(-outer // down), -(-k // (along * _ELEMENTS)))
    return (min(wanted[0], _MOST_BLOCKS[0]), min(wanted[1], _MOST_BLOCKS[1])), (along, down)


@functools.cache
def _load(device_index: int, family: Family, dtype: DType, role: str) -> Kernel:
    (kernel,) = load_kernels(device_index, kernel_source(family, dtype, role), [KERNEL_NAME])
    return kernel


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
