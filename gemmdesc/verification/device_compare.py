"""Whether two buffers on a device hold the same bytes: one kernel, whose answer stays there until somebody reads it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gemmdesc import nvrtc
from gemmdesc.errors import LibraryError
from gemmdesc.nvrtc import Kernel, load_kernels, pointer, word

if TYPE_CHECKING:
    import torch

KERNEL_NAME = "flag_difference"
_THREADS = 256
#: Words of 16 bytes that one thread compares where there are many, and blocks beyond which each takes more.
_WORDS, _MOST_BLOCKS = 4, 1 << 16
_WORD_BYTES = 16

KERNEL_SOURCE = """\
typedef long long i64;
extern "C" __global__ void flag_difference(const uint4* expected, uint4* got, i64 words, i64 bytes, int* flag) {
  const uint4 ones = {~0u, ~0u, ~0u, ~0u};
  const i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  int differs = 0;
  for (i64 i = first; i < words; i += step) {
    const uint4 x = expected[i], y = got[i];
    differs |= (x.x != y.x) | (x.y != y.y) | (x.z != y.z) | (x.w != y.w);
    got[i] = ones;
  }
  const unsigned char* x = (const unsigned char*)expected;
  unsigned char* y = (unsigned char*)got;
  for (i64 i = 16 * words + first; i < bytes; i += step) {
    differs |= x[i] != y[i];
    y[i] = 0xff;
  }
  if (__syncthreads_or(differs) && threadIdx.x == 0) *flag = 1;
}
"""


def flag_difference(expected: torch.Tensor, got: torch.Tensor, flag: torch.Tensor) -> None:
    """Set ``flag`` to 1 where the two differ in any byte, and leave ``got`` filled with all-ones bytes.

    ``expected``, ``got``: whole buffers of one size and integer type; ``flag``: one int32, left alone where they are
    equal.  All on one device, on its current stream; nothing waits.

    Raises:
        LibraryError: NVRTC or the driver refuses the kernel.
    """
    import torch

    if not _kernel_takes(expected, got):
        flag.logical_or_((expected != got).any())
        got.fill_(-1)
        return
    size = expected.numel() * expected.element_size()
    words = size // _WORD_BYTES
    blocks = min(_MOST_BLOCKS, -(-max(1, words) // (_THREADS * _WORDS)))
    arguments = (pointer(expected.data_ptr()), pointer(got.data_ptr()), word(words), word(size))
    stream = torch.cuda.current_stream(got.device).cuda_stream
    try:
        kernel = _load(got.device.index)
        kernel.launch((blocks, 1, 1), (_THREADS, 1, 1), (*arguments, pointer(flag.data_ptr())), stream)
    except LibraryError:
        # The fault of an earlier kernel shows in any call; torch raises it as its callers know it.
        torch.cuda.synchronize(got.device)
        raise


def _kernel_takes(expected: torch.Tensor, got: torch.Tensor) -> bool:
    aligned = (expected.data_ptr() | got.data_ptr()) % _WORD_BYTES == 0
    return got.is_cuda and aligned and expected.is_contiguous() and got.is_contiguous() and nvrtc.available()


@functools.cache
def _load(device_index: int) -> Kernel:
    (kernel,) = load_kernels(device_index, KERNEL_SOURCE, [KERNEL_NAME])
    return kernel
