# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""A kernel that applies one form of gelu to a vector, for tests on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["expanded", "square", "fused"])
def one_kernel(x_ptr, y_ptr, size, expanded, square, fused, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(x_ptr + index, mask=index < size, other=0.0)
    tl.store(y_ptr + index, FUNCTION(z, expanded != 0, square != 0, fused != 0), mask=index < size)


def apply_form(function, x, expanded: bool, square: bool, fused: bool):
    """``function`` of gemmdesc.kernels.functions on a float32 vector, compiled as finishing kernels are."""
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 1024),)
    one_kernel[grid](x, y, x.numel(), int(expanded), int(square), int(fused), function, 1024, enable_fp_fusion=False)
    return y
