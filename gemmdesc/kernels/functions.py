# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""gelu, silu and tanh in float32, operation by operation as eager PyTorch's CUDA kernels compute them.

Read from the machine code of torch 2.11, 2.12 and 2.13 for CUDA 13.0; ``docs/descriptor.md`` says what was found. The
last one is the gelu of a library's epilogues.
libdevice is not called: its ``erf`` has other coefficients in some copies that Triton brings along, and Triton has it
flush subnormals.
Contraction must be off; every fused operation says so itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Float32 values by their bits in gemmdesc.pointwise, which a test compares.
K0 = tl.constexpr(0.7978845834732056)
K1 = tl.constexpr(0.044714998453855515)
K01 = tl.constexpr(0.03567742556333542)


@triton.jit
def exp2_approx(x):
    """2 to the power of x by the special function unit."""
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal_approx(x):
    """1 / x by the special function unit."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def fma_saturate(x, y, z):
    """x y + z, rounded to nearest even, then clamped to [+0.0, 1.0]; of a NaN +0.0."""
    return tl.inline_asm_elementwise(
        "fma.rn.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", [x, y, z], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fma_down(x, y, z):
    """x y + z, rounded toward minus infinity."""
    return tl.inline_asm_elementwise(
        "fma.rm.f32 $0, $1, $2, $3;", "=f,f,f,f", [x, y, z], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def spread(like, value, DTYPE: tl.constexpr):
    """One number in DTYPE as a tensor shaped as ``like``, and in its layout where tensors have one."""
    _, found = tl.broadcast(like, tl.cast(value, DTYPE))
    return found


@triton.jit
def filled(like, value):
    """:func:`spread` in float32."""
    return spread(like, value, tl.float32)


@triton.jit
def copy_sign(size, sign):
    """The magnitude of ``size`` with the sign of ``sign``."""
    magnitude = size.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return (magnitude | (sign.to(tl.int32, bitcast=True) & -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def tanh(x):
    """CUDA's ``tanhf``: a polynomial below 0.6, 1 - 2 / (exp(2 |x|) + 1) above."""
    size = tl.abs(x)
    power = exp2_approx(size * 2.885390043258667) + 1.0
    far = tl.fma(reciprocal_approx(power), filled(x, -2.0), filled(x, 1.0))
    far = copy_sign(tl.where(size >= 9.010913848876953, 1.0, far), x)
    square = x * x
    near = tl.fma(square, filled(x, 0.01573968306183815), filled(x, -0.05230396240949631))
    near = tl.fma(square, near, filled(x, 0.13315297663211823))
    near = tl.fma(square, near, filled(x, -0.33332768082618713))
    near = tl.fma(square, near, filled(x, 0.0))
    return tl.where(size >= 0.6000000238418579, far, tl.fma(x, near, x))


@triton.jit
def erf(x):
    """CUDA 13.0's ``erff``: two polynomials of degree 6, the one for large |x| an exponent of two."""
    # Both polynomials are computed: selecting one's coefficients takes more instructions than the other one.
    size, square = tl.abs(x), x * x
    near = tl.fma(square, filled(x, 8.483494457323104e-05), filled(x, -0.0008213091641664505))
    near = tl.fma(square, near, filled(x, 0.005213488824665546))
    near = tl.fma(square, near, filled(x, -0.026868773624300957))
    near = tl.fma(square, near, filled(x, 0.11284004896879196))
    near = tl.fma(square, near, filled(x, -0.37612664699554443))
    near = tl.fma(square, near, filled(x, 0.12837915122509003))
    near = tl.fma(near, x, x)
    far = tl.fma(size, filled(x, 0.00011219871521461755), filled(x, -0.0013275252422317863))
    far = tl.fma(size, far, filled(x, 0.00839653518050909))
    far = tl.fma(size, far, filled(x, -0.04024658352136612))
    far = tl.fma(size, far, filled(x, 0.15950430929660797))
    far = tl.fma(size, far, filled(x, 0.9129176735877991))
    far = tl.fma(size, far, filled(x, 0.6290600299835205))
    end = size * -1.0
    far = copy_sign(1.0 - exp2_approx(tl.fma(far, end, end)), x)
    return tl.where(size >= 1.002959966659546, far, near)


@triton.jit
def gelu(x):
    """torch's gelu, ``approximate="none"``."""
    return (x * 0.5) * (erf(x * 0.7071067690849304) + 1.0)


@triton.jit
def gelu_tanh(x):
    """torch's gelu, ``approximate="tanh"``: x + 0.0447 x^3 is one fused operation, as nvcc contracts it."""
    inner = tl.fma(x * (x * x), filled(x, 0.044714998453855515), x)
    return (x * 0.5) * (tanh(inner * 0.7978845834732056) + 1.0)


@triton.jit
def one_and_power(x):
    """1 + exp(-x) by CUDA's ``expf``: its last product and the sum are one fused operation."""
    # A product's sign is in the constant: a negated operand of inline PTX would be an instruction.
    whole = fma_saturate(x, filled(x, -0.005724980030208826), filled(x, 0.5))
    whole = fma_down(whole, filled(x, 252.0), filled(x, 12582913.0))
    rest = tl.fma(x, filled(x, -1.4426950216293335), 12583039.0 - whole)
    rest = tl.fma(x, filled(x, -1.925963033500011e-08), rest)
    power = (whole.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    return tl.fma(power, exp2_approx(rest), filled(x, 1.0))


@triton.jit
def silu(x):
    """torch's silu, x / (1 + exp(-x))."""
    return tl.div_rn(x, one_and_power(x))


@triton.jit
def sigmoid(x):
    """torch's sigmoid, 1 / (1 + exp(-x)), the quotient rounded to nearest."""
    return tl.div_rn(filled(x, 1.0), one_and_power(x))


@triton.jit
def improved(quotient, over, under, inverse):
    """The quotient of ``over`` and ``under`` after one step of Newton's method; ``inverse`` is nearly 1 / ``under``."""
    rest = tl.fma(under * -1.0, quotient, over)
    # A step by nothing would make +0.0 of -0.0, and where something is infinite the rest is a NaN.
    return tl.where(tl.abs(rest) > 0.0, tl.fma(rest, inverse, quotient), quotient)


@triton.jit
def silu_between(x, SCALE: tl.constexpr):
    """:func:`silu` of a 16-bit value, to be rounded to the same type: not always the same float32, the same 16 bits.

    A quotient rounded to nearest is a subroutine and a branch of its own for each element, and no two overlap.  One
    step of Newton's method on the quotient by ``rcp.approx`` has the same bits after the second rounding, whatever
    ``rcp.approx`` and ``ex2.approx`` give within the errors that PTX promises; ``tests/test_functions_between.py`` goes
    through all of that.  SCALE: 1, or for bfloat16, which holds quotients where 1 / (1 + exp(-x)) would be flushed to
    zero, 1 / 8.
    """
    total = one_and_power(x)
    if SCALE != 1.0:
        x, total = x * SCALE, total * SCALE
    inverse = reciprocal_approx(total)
    return improved(x * inverse, x, total, inverse)


@triton.jit
def sigmoid_between(x, SCALE: tl.constexpr):
    """:func:`sigmoid` of a 16-bit value, to be rounded to the same type, as :func:`silu_between`."""
    total = one_and_power(x)
    if SCALE != 1.0:
        total = total * SCALE
    inverse = reciprocal_approx(total)
    found = improved(inverse, filled(x, 1.0), total, inverse)
    if SCALE != 1.0:
        found = found * SCALE
    return found


@triton.jit
def tanh_approx(x):
    """PTX's ``tanh.approx.f32``, whose bits only the card knows."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def gelu_tanh_approx(z, expanded, square, fused):
    """A library's gelu; run-time flags say how the tangent's argument and the result are formed."""
    cubic, constant = tl.where(expanded, K01, K1), tl.where(expanded, K0, 1.0)
    if square:
        inner = tl.fma(filled(z, 1.0) * cubic, z * z, filled(z, 1.0) * constant)
    else:
        inner = tl.fma(z * cubic, z, filled(z, 1.0) * constant)
    t = tanh_approx(tl.where(expanded, z, z * K0) * inner)
    half = z * 0.5
    if fused:
        found = tl.fma(half, t, half)
    else:
        found = half * (t + 1.0)
    return found
