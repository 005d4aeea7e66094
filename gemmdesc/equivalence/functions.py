"""What PTX instructions compute, on arrays of bit patterns.

Only instructions whose result the PTX manual fixes to the bit are here: IEEE operations in float32, conversions,
selections, comparisons, also of integers, and bit operations.  A NaN result is the canonical one, 0x7fffffff for
float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import from_float32, to_float32
from gemmdesc.dtypes import DType

Bits = npt.NDArray[np.uint64]
Float = npt.NDArray[np.float32]
Function = Callable[..., Bits]

_NAN = np.uint64(0x7FFFFFFF)


def _value(bits: Bits) -> Float:
    return bits.astype(np.uint32).view(np.float32)


def _pattern(values: Float) -> Bits:
    out = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(values), _NAN, out)


def _float32(function: Callable[..., Float]) -> Function:
    """A function of float32 values as one of patterns."""

    def run(*bits: Bits) -> Bits:
        with np.errstate(all="ignore"):
            return _pattern(function(*(_value(b) for b in bits)))

    return run


def fused_multiply_add(a: Float, b: Float, c: Float) -> Float:
    """a b + c with one rounding: the float64 sum is made odd where it is inexact, then rounded to float32."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = c.astype(np.float64)
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)
        bits = total.view(np.int64)
        away = np.where((error > 0) == (total > 0), 1, -1)
        inexact = np.isfinite(total) & (error != 0) & np.isfinite(error) & ((bits & 1) == 0)
        return np.where(inexact, bits + away, bits).view(np.float64).astype(np.float32)


def _maximum(a: Float, b: Float) -> Float:
    """The larger one, +0.0 above -0.0, a NaN below everything."""
    first = np.where(np.isnan(b) | (a > b) | ((a == b) & ~np.signbit(a)), a, b)
    return np.where(np.isnan(a), b, first).astype(np.float32)


def _minimum(a: Float, b: Float) -> Float:
    first = np.where(np.isnan(b) | (a < b) | ((a == b) & np.signbit(a)), a, b)
    return np.where(np.isnan(a), b, first).astype(np.float32)


def _keeping_nan(function: Callable[[Float, Float], Float]) -> Callable[[Float, Float], Float]:
    def run(a: Float, b: Float) -> Float:
        return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), function(a, b))

    return run


def _widen(dtype: DType) -> Function:
    def run(bits: Bits) -> Bits:
        return _pattern(to_float32(bits, dtype))

    return run


def _narrow(dtype: DType) -> Function:
    def run(bits: Bits) -> Bits:
        return from_float32(_value(bits), dtype).astype(np.uint64)

    return run


def _compare(function: Callable[[Float, Float], npt.NDArray[np.bool_]], unordered: bool) -> Function:
    def run(a: Bits, b: Bits) -> Bits:
        x, y = _value(a), _value(b)
        nan = np.isnan(x) | np.isnan(y)
        return (function(x, y) & ~nan | (nan if unordered else False)).astype(np.uint64)

    return run


_ORDERS: dict[str, Callable[[Float, Float], npt.NDArray[np.bool_]]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


def _compare_integers(function: Callable[..., npt.NDArray[np.bool_]], kind: str) -> Function:
    unsigned = np.dtype(f"u{int(kind[1:]) // 8}")
    wanted = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{unsigned.itemsize}")

    def run(a: Bits, b: Bits) -> Bits:
        return function(a.astype(unsigned).view(wanted), b.astype(unsigned).view(wanted)).astype(np.uint64)

    return run


def _compare_halves(
    function: Callable[[Float, Float], npt.NDArray[np.bool_]], unordered: bool, dtype: DType
) -> Function:
    compare, widen = _compare(function, unordered), _widen(dtype)
    return lambda a, b: compare(widen(a), widen(b))


def _shift(left: bool, bits: int) -> Function:
    """A logical shift; by as many bits as there are, or more, nothing is left."""

    def run(a: Bits, b: Bits) -> Bits:
        amount = np.minimum(b, np.uint64(63))
        return np.where(b >= np.uint64(bits), np.uint64(0), a << amount if left else a >> amount)

    return run


def _select(a: Bits, b: Bits, p: Bits) -> Bits:
    return np.where(p != 0, a, b)


def _e4m3_to_float16(bits: Bits) -> Bits:
    """Exact; NaN (0x7f, 0xff) becomes the canonical one."""
    sign, magnitude = (bits & np.uint64(0x80)) << np.uint64(8), (bits & np.uint64(0x7F)).astype(np.int64)
    exponent, fraction = magnitude >> 3, magnitude & 7
    scale = np.ldexp(np.where(exponent == 0, fraction, fraction + 8).astype(np.float64), np.maximum(exponent, 1) - 10)
    out = scale.astype(np.float16).view(np.uint16).astype(np.uint64) | sign
    return np.where(magnitude == 0x7F, np.uint64(0x7FFF), out)


_BITS = (16, 32, 64)
_HALVES = {"f16": DType.FLOAT16, "bf16": DType.BFLOAT16}

#: By the name that a node carries.
NAMED: dict[str, Function] = {
    "add.f32": _float32(lambda a, b: a + b),
    "sub.f32": _float32(lambda a, b: a - b),
    "mul.f32": _float32(lambda a, b: a * b),
    "fma.rn.f32": _float32(fused_multiply_add),
    "div.rn.f32": _float32(lambda a, b: a / b),
    "sqrt.rn.f32": _float32(np.sqrt),
    "rcp.rn.f32": _float32(lambda a: np.float32(1.0) / a),
    "max.f32": _float32(_maximum),
    "min.f32": _float32(_minimum),
    "redux.sync.max.f32": _float32(_maximum),
    "redux.sync.min.f32": _float32(_minimum),
    "max.NaN.f32": _float32(_keeping_nan(_maximum)),
    "min.NaN.f32": _float32(_keeping_nan(_minimum)),
    "neg.f32": _float32(np.negative),
    "abs.f32": _float32(np.abs),
    "cvt.f32.f16": _widen(DType.FLOAT16),
    "cvt.f32.bf16": lambda a: a << np.uint64(16),
    "cvt.rn.f16.f32": _narrow(DType.FLOAT16),
    "cvt.rn.bf16.f32": _narrow(DType.BFLOAT16),
    "cvt.rn.f16.e4m3": _e4m3_to_float16,
    "selp.b16": _select,
    "selp.b32": _select,
    "selp.b64": _select,
    "and.pred": lambda a, b: a & b,
    "or.pred": lambda a, b: a | b,
    "xor.pred": lambda a, b: a ^ b,
    "not.pred": lambda a: a ^ np.uint64(1),
    **{f"setp.{name}.f32": _compare(order, name == "ne") for name, order in _ORDERS.items() if name != "ne"},
    **{f"setp.{name}u.f32": _compare(order, True) for name, order in _ORDERS.items()},
    "setp.ne.f32": _compare(_ORDERS["ne"], False),
    "setp.nan.f32": _compare(lambda x, y: x != x, True),
    "setp.num.f32": _compare(lambda x, y: x == x, False),
    **{f"add.{k}{w}": lambda a, b: a + b for k in "su" for w in _BITS},
    **{f"setp.{n}.{k}{w}": _compare_integers(f, f"{k}{w}") for n, f in _ORDERS.items() for k in "su" for w in _BITS},
    **{f"setp.{n}.b{w}": _compare_integers(_ORDERS[n], f"u{w}") for n in ("eq", "ne") for w in _BITS},
    **{f"setp.{n}.{k}": _compare_halves(f, False, d) for n, f in _ORDERS.items() for k, d in _HALVES.items()},
    **{f"setp.{n}u.{k}": _compare_halves(f, True, d) for n, f in _ORDERS.items() for k, d in _HALVES.items()},
    **{f"setp.nan.{k}": _compare_halves(lambda x, y: x != x, True, d) for k, d in _HALVES.items()},
    **{f"setp.num.{k}": _compare_halves(lambda x, y: x == x, False, d) for k, d in _HALVES.items()},
    **{f"shl.b{w}": _shift(True, w) for w in _BITS},
    **{f"shr.{k}{w}": _shift(False, w) for k in "bu" for w in _BITS},
    **{f"and.b{8 * w}": lambda a, b: a & b for w in (2, 4, 8)},
    **{f"or.b{8 * w}": lambda a, b: a | b for w in (2, 4, 8)},
    **{f"xor.b{8 * w}": lambda a, b: a ^ b for w in (2, 4, 8)},
}
