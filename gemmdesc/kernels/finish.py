# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""The last fold of a sum, and every step that opens or follows it, on float32 scratch: one kernel for all of them.

Which steps those are, and which types the fold rounds to, are run-time values; multiplications and additions must not
be contracted (``fp_fusion`` off), and a fused step says so itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.functions import gelu_tanh_approx
from gemmdesc.kernels.merge import round_to
from gemmdesc.kernels.tile import RUN_TIME

# The codes of gemmdesc.kernels.steps, which a test compares.
SCALE = tl.constexpr(1)
ADD_C = tl.constexpr(2)
ADD_C_FUSED = tl.constexpr(3)
ADD_BIAS = tl.constexpr(4)
RELU = tl.constexpr(5)
RELU_WITHOUT_NAN = tl.constexpr(6)
ROUND_FLOAT16 = tl.constexpr(7)
ROUND_BFLOAT16 = tl.constexpr(8)
GELU = tl.constexpr(16)
GELU_EXPANDED = tl.constexpr(1)
GELU_SQUARE = tl.constexpr(2)
GELU_FUSED = tl.constexpr(4)

_RUN_TIME = (
    *RUN_TIME, "c_ptr", "bias_ptr", "parts", "partial_code", "merge_code", "open_end", "opening", "opening_steps",
    "steps", "step_count", "alpha", "beta", "has_c", "has_bias", "stride_cm", "stride_cn", "stride_vm", "stride_vn",
    "stored_from", "canonical",
)  # fmt: skip


@triton.jit
def round_by(value, code):
    """``value`` rounded to the type that ``code`` names, held in float32 again; any other code leaves it."""
    if code == ROUND_FLOAT16:
        value = round_to(value, tl.float16)
    elif code == ROUND_BFLOAT16:
        value = round_to(value, tl.bfloat16)
    return value


@triton.jit
def relu(value):
    """``value`` where it is above zero or a NaN, whose pattern stays; else +0.0."""
    # By integers: of a comparison and a selection of floats ptxas makes a maximum, whose NaN is canonical.
    pattern = value.to(tl.int32, bitcast=True)
    kept = (pattern > 0) | ((pattern & 0x7FFFFFFF) > 0x7F800000)
    return tl.where(kept, pattern, 0).to(tl.float32, bitcast=True)


@triton.jit
def apply_steps(value, program, count, alpha, beta, c, bias):
    """``value`` after ``count`` steps, whose codes are the lowest bits of ``program``, five each."""
    for place in range(count):
        code = ((program >> (5 * place)) & 31).to(tl.int32)
        if code == SCALE:
            value = value * alpha
        elif code == ADD_C:
            value = value + beta * c
        elif code == ADD_C_FUSED:
            value = tl.fma(tl.full(value.shape, 1.0, dtype=tl.float32) * beta, c, value)
        elif code == ADD_BIAS:
            value = value + bias
        elif code == RELU:
            value = relu(value)
        elif code == RELU_WITHOUT_NAN:
            value = tl.where(value > 0.0, value, 0.0)
        elif code >= GELU:
            value = gelu_tanh_approx(
                value, (code & GELU_EXPANDED) != 0, (code & GELU_SQUARE) != 0, (code & GELU_FUSED) != 0
            )
        else:
            value = round_by(value, code)
    return value


@triton.jit(do_not_specialize=_RUN_TIME)
def finish_kernel(
    sums_ptr, out_ptr, c_ptr, bias_ptr,
    first: tl.int64, size: tl.int64, N: tl.int32, parts: tl.int32, start: tl.float32,
    partial_code: tl.int32, merge_code: tl.int32, open_end: tl.int32,
    opening: tl.int64, opening_steps: tl.int32, steps: tl.int64, step_count: tl.int32,
    alpha: tl.float32, beta: tl.float32, has_c: tl.int32, has_bias: tl.int32,
    stride_cm: tl.int64, stride_cn: tl.int64, stride_vm: tl.int64, stride_vn: tl.int64,
    stride_om: tl.int64, stride_on: tl.int64, stored_from: tl.int64, canonical: tl.int32,
    WIDE_OFFSETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Outputs ``first`` .. ``first + size`` of the product, counted along its rows of N, from float32 [parts, size].

    The running sum opens with ``start`` (-0.0 leaves the first part as it is), meets the ``opening`` steps, and is
    rounded by ``merge_code`` after every part, but not after the last one where ``open_end`` is 1; then come ``steps``.
    C and the bias lie as the product does, by their own strides; what is absent is not read.  ``out_ptr`` is where the
    product's element number ``stored_from`` goes.  ``canonical``: 0 where a NaN keeps its pattern.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    if WIDE_OFFSETS:
        place = first + index
        row, column = place // N, place % N
    else:
        place = (first + index).to(tl.int32)
        row, column = place // N, place % N
        stride_cm, stride_cn = stride_cm.to(tl.int32), stride_cn.to(tl.int32)
        stride_vm, stride_vn = stride_vm.to(tl.int32), stride_vn.to(tl.int32)
        stride_om, stride_on = stride_om.to(tl.int32), stride_on.to(tl.int32)
        stored_from = stored_from.to(tl.int32)
    c_ptrs, bias_ptrs = c_ptr + row * stride_cm + column * stride_cn, bias_ptr + row * stride_vm + column * stride_vn
    c = tl.load(c_ptrs, mask=index < size * has_c, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptrs, mask=index < size * has_bias, other=0.0).to(tl.float32)
    total = tl.full((BLOCK,), start, dtype=tl.float32)
    total = total + round_by(tl.load(sums_ptr + index, mask=inside, other=0.0), partial_code)
    total = apply_steps(total, opening, opening_steps, alpha, beta, c, bias)
    # The last part may leave the sum as it is; no other one does.
    if (parts > 1) | (open_end == 0):
        total = round_by(total, merge_code)
    for part in range(1, parts):
        total = total + round_by(tl.load(sums_ptr + part * size + index, mask=inside, other=0.0), partial_code)
        if (part + 1 < parts) | (open_end == 0):
            total = round_by(total, merge_code)
    total = apply_steps(total, steps, step_count, alpha, beta, c, bias)
    nan = tl.full((BLOCK,), 0x7FFFFFFF, dtype=tl.int32).to(tl.float32, bitcast=True)
    total = tl.where((total != total) & (canonical != 0), nan, total)
    out_ptrs = out_ptr + (row * stride_om + column * stride_on - stored_from)
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside)
