"""Hashed operands on a CUDA device in one kernel each, compiled by NVRTC from the traced program of their elements.

A kernel belongs to a family, a format and a role; sizes, seeds and draws are its parameters.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
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
extern "C" __global__ void {name}({storage}* out, i64 outer, i64 k, u64 base, u64 length, u64 levels,
                                  i64 per, i64 matrix, i64 row, i64 step, i64 by_rows) {{
  const i64 rows_wide = by_rows ? blockDim.x : blockDim.y, k_wide = by_rows ? blockDim.y : blockDim.x;
  const i64 first_row = (i64)blockIdx.x * rows_wide + (by_rows ? threadIdx.x : threadIdx.y);
  const i64 first_k = (i64)blockIdx.y * k_wide + (by_rows ? threadIdx.y : threadIdx.x);
  const i64 down = (i64)gridDim.x * rows_wide, across = (i64)gridDim.y * k_wide;
  for (i64 i = first_row; i < outer; i += down) {{
    {storage}* const line = out + (i < per ? i * row : i / per * matrix + i % per * row);
#pragma unroll 1
    for (i64 kk = first_k; kk < k; kk += across)
      line[kk * step] = ({storage})element(base, (u64)i, (u64)kk, length, levels);
  }}
}}
"""


def fill(out: torch.Tensor, *, family: Family, dtype: DType, role: str, base: int) -> None:
    """Write the bit patterns of :func:`gemmdesc.operands.families.hashed_bits` for every (i, kk) to ``out``.

    ``out``: shape (outer, k), or (matrices, rows, k) for matrices below one another, with any strides that give every
    element a place of its own, on a CUDA device, elements of ``dtype``'s size.  The kernel is put on torch's current
    stream of that device; nothing waits for it.

    Raises:
        InvalidInputError: ``out`` is not such a tensor.
        LibraryError: NVRTC or the driver refuses the kernel.
        torch.OutOfMemoryError: the card has no room for it.
    """
    import torch

    if out.ndim not in (2, 3) or not out.is_cuda or not _apart(out) or out.element_size() != dtype.itemsize:
        raise InvalidInputError(
            f"out must be of two or three axes and {dtype.itemsize}-byte elements, each in a place of its own, on a "
            f"CUDA device (got {tuple(out.shape)}, strides {out.stride()}, {out.dtype}, {out.device})"
        )
    places = Places.of(tuple(out.shape), out.stride())
    if places.outer and places.k:
        stream = torch.cuda.current_stream(out.device).cuda_stream
        try:
            grid, block = launch_shape(places.outer, places.k, by_rows=places.by_rows)
            words = map(word, (places.outer, places.k, base, *extent(places.k), *places.words))
            kernel = _load(out.device.index, family, dtype, role)
            kernel.launch((*grid, 1), (*block, 1), (pointer(out.data_ptr()), *words), stream)
        except LibraryError:
            # The fault of an earlier kernel shows in any call; torch raises it as its callers know it.
            torch.cuda.synchronize(out.device)
            raise


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the elements of ``outer`` rows of ``k`` lie: ``per`` rows to a matrix; distances in elements.

    ``by_rows``: neighbouring rows lie closer than neighbouring k, so that threads side by side take rows.
    """

    outer: int
    k: int
    per: int
    matrix: int
    row: int
    step: int

    @classmethod
    def of(cls, shape: tuple[int, ...], strides: tuple[int, ...]) -> Places:
        """Of a tensor (outer, k) or (matrices, rows, k)."""
        (matrices, per, k), (matrix, row, step) = (shape, strides) if len(shape) == 3 else ((1, *shape), (0, *strides))
        return cls(outer=matrices * per, k=k, per=per, matrix=matrix, row=row, step=step)

    @property
    def by_rows(self) -> bool:
        return self.row < self.step

    @property
    def words(self) -> tuple[int, ...]:
        """The kernel's last arguments."""
        return self.per, self.matrix, self.row, self.step, int(self.by_rows)


def _apart(out: torch.Tensor) -> bool:
    """Whether no stride steps onto what a shorter one reaches."""
    reach = 1
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1 and stride < reach:
            return False
        reach = stride * (size - 1) + reach if size > 1 else reach
    return True


def element_program(family: Family, dtype: DType, role: str) -> Program:
    """One element's bit pattern from ``base``, ``i``, ``kk``, ``length`` and ``levels``."""
    return trace(functools.partial(hashed_bits, family, dtype, role), ("base", "i", "kk", "length", "levels"))


def kernel_source(family: Family, dtype: DType, role: str) -> str:
    """CUDA C of the kernel ``fill(out, outer, k, base, length, levels, per, matrix, row, step, by_rows)``.

    For any grid of two-dimensional blocks; what follows ``levels`` is :attr:`Places.words`.
    """
    element = element_program(family, dtype, role).c_function("element")
    return C_PRELUDE + element + _KERNEL.format(name=KERNEL_NAME, storage=_STORAGE[dtype.itemsize])


def launch_shape(outer: int, k: int, *, by_rows: bool = False) -> tuple[tuple[int, int], tuple[int, int]]:
    """(grid, block) as (x, y): a grid's x counts rows, its y runs along k.

    A block's x runs along k and its y over rows, or the other way round where ``by_rows``.
    """
    near, far = (outer, k) if by_rows else (k, outer)
    along = min(_ROW_THREADS, _power_of_two(near))
    down = min(_THREADS // along, _power_of_two(far))
    along = min(_THREADS // down, _power_of_two(near))
    rows, columns = (along, down) if by_rows else (down, along)
    wanted = (-(-outer // rows), -(-k // (columns * _ELEMENTS)))
    return (min(wanted[0], _MOST_BLOCKS[0]), min(wanted[1], _MOST_BLOCKS[1])), (along, down)


@functools.cache
def _load(device_index: int, family: Family, dtype: DType, role: str) -> Kernel:
    (kernel,) = load_kernels(device_index, kernel_source(family, dtype, role), [KERNEL_NAME])
    return kernel


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
