"""What only a CUDA device can say: its ``tanh.approx.f32``, asked element by element."""

from __future__ import annotations

import functools

import numpy as np

from gemmdesc.arithmetic.pointwise import Float32Array, TanhApprox
from gemmdesc.nvrtc import Kernel, load_kernels, pointer, word

_NAME = "tanh_approx"
_THREADS, _MOST_BLOCKS = 256, 1 << 16
_SOURCE = """\
extern "C" __global__ void tanh_approx(float* out, const float* x, long long n) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x[i]));
    out[i] = y;
  }
}
"""


@functools.cache
def card_tanh_approx(device_index: int) -> TanhApprox:
    """``tanh.approx.f32`` of a CUDA device, as torch counts them, for float32 arrays in host memory of one axis.

    What it returns copies to the device and back, on torch's current stream there, and waits.

    Raises:
        LibraryError: NVRTC or the driver refuses the kernel.
    """
    (kernel,) = load_kernels(device_index, _SOURCE, (_NAME,))
    return functools.partial(_asked, device_index, kernel)


def _asked(device_index: int, kernel: Kernel, values: Float32Array) -> Float32Array:
    import torch

    place = torch.device("cuda", device_index)
    x = torch.from_numpy(np.array(values, dtype=np.float32)).to(place)
    out = torch.empty_like(x)
    if x.numel():
        grid = (min(-(-x.numel() // _THREADS), _MOST_BLOCKS), 1, 1)
        arguments = (pointer(out.data_ptr()), pointer(x.data_ptr()), word(x.numel()))
        kernel.launch(grid, (_THREADS, 1, 1), arguments, torch.cuda.current_stream(place).cuda_stream)
    found: Float32Array = out.cpu().numpy()
    return found
