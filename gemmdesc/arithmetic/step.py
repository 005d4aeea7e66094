"""One step of an accumulator in Python integers and fractions: slow, obvious, and exact.

This module states what ``kernels`` computes; tests compare the two.  Numbers travel as integers holding bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gemmdesc.descriptor import FusedDot, OperandCast, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Number:
    """A decoded pattern.  ``kind`` is ``finite``, ``infinite`` or ``nan``; ``exponent`` is None for an exact zero."""

    kind: str
    negative: bool
    value: Fraction = Fraction(0)
    exponent: int | None = None


def decode_number(bits: int, dtype: DType) -> Number:
    """The number that ``bits`` spells; a subnormal's exponent is its format's minimum.

    Raises:
        InvalidInputError: ``bits`` is negative or too wide.
    """
    layout = dtype.format
    if not 0 <= bits < 1 << layout.storage_bits:
        raise InvalidInputError(f"bits must be a pattern of {layout.storage_bits} bits (got {bits})")
    width = _exponent_width(dtype)
    negative = bits >> (layout.storage_bits - 1) == 1
    magnitude = (bits >> (layout.storage_bits - 1 - width - layout.fraction_bits)) & (
        (1 << (width + layout.fraction_bits)) - 1
    )
    field, fraction = divmod(magnitude, 1 << layout.fraction_bits)
    if _has_infinity(dtype) and field == (1 << width) - 1:
        return Number(kind="nan" if fraction else "infinite", negative=negative)
    if magnitude == (1 << (width + layout.fraction_bits)) - 1:
        return Number(kind="nan", negative=negative)
    exponent = max(field, 1) - 1 + layout.min_exponent
    significand = fraction + ((1 << layout.fraction_bits) if field else 0)
    value = significand * Fraction(2) ** (exponent - layout.fraction_bits)
    return Number(
        kind="finite",
        negative=negative,
        value=-value if negative else value,
        exponent=exponent if significand else None,
    )


def encode_number(
    value: Fraction,
    dtype: DType,
    *,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    fraction_bits: int | None = None,
    negative_zero: bool = False,
) -> int:
    """A dyadic ``value`` rounded to ``fraction_bits`` (default: all) of ``dtype``.

    Subnormals are kept and overflow gives infinity, in every rounding.
    ``negative_zero``: the sign of a ``value`` that is exactly 0.  A non-zero value that rounds to zero keeps its sign.

    Raises:
        InvalidInputError: ``dtype`` is not float16, bfloat16 or float32.
    """
    if dtype not in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32):
        raise InvalidInputError(f"dtype must be float16, bfloat16 or float32 (got {dtype.value})")
    layout = dtype.format
    kept = layout.fraction_bits if fraction_bits is None else fraction_bits
    negative = value < 0 or (value == 0 and negative_zero)
    magnitude = abs(value)
    leading = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent = max(leading, layout.min_exponent) if magnitude else layout.min_exponent
    units = magnitude / Fraction(2) ** (exponent - kept)
    match rounding:
        case Rounding.NEAREST_EVEN:
            whole = round(units)
        case Rounding.NEAREST_AWAY:
            whole = int(units + Fraction(1, 2))
        case Rounding.TOWARD_ZERO:
            whole = int(units)
    # A carry out of the fraction runs into the exponent field, where it belongs.
    pattern = (whole << (layout.fraction_bits - kept)) + ((exponent - layout.min_exponent) << layout.fraction_bits)
    return _signed(min(pattern, _infinity(dtype)), negative, dtype)


def cast_operand_step(bits: int, cast: OperandCast) -> int:
    """The float32 pattern ``bits`` as a matrix instruction takes it: one of ``cast.dtype``, in 32 bits."""
    number = decode_number(bits, DType.FLOAT32)
    kept = cast.dtype.format.fraction_bits
    if number.kind != "finite":
        ignored = (1 << (23 - kept)) - 1
        toward_zero = cast.rounding is Rounding.TOWARD_ZERO or number.kind == "infinite"
        return (bits if toward_zero else 0x7FFFFFFF) & ~ignored
    return encode_number(
        number.value, DType.FLOAT32, rounding=cast.rounding, fraction_bits=kept, negative_zero=number.negative
    )


def fused_dot_step(
    step: FusedDot, a: Sequence[int], b: Sequence[int], c: int, *, a_dtype: DType, b_dtype: DType
) -> int:
    """Bits of ``step.accumulator_dtype`` after one matrix step: products ``a[i] b[i]`` and the accumulator ``c``."""
    terms = [_product(decode_number(x, a_dtype), decode_number(y, b_dtype)) for x, y in zip(a, b, strict=True)]
    terms.append(decode_number(c, step.accumulator_dtype))
    special = _special(terms, step.accumulator_dtype)
    if special is not None:
        return special
    largest = max(step.zero_exponent if t.exponent is None else t.exponent for t in terms)
    unit = Fraction(2) ** (largest - step.fraction_bits)
    total = sum(int(t.value / unit) for t in terms) * unit
    bits = encode_number(total, step.accumulator_dtype, rounding=step.rounding, fraction_bits=step.output_bits)
    return 0 if bits == _signed(0, True, step.accumulator_dtype) else bits


def scalar_step(step: ScalarStep, a: int, b: int, c: int, *, a_dtype: DType, b_dtype: DType) -> int:
    """Float32 bits of ``c + a b``: one rounding if ``step.fused``, else the product is rounded first."""
    product = _product(decode_number(a, a_dtype), decode_number(b, b_dtype))
    if not step.fused and product.kind == "finite":
        rounded = encode_number(product.value, DType.FLOAT32, negative_zero=product.negative)
        product = decode_number(rounded, DType.FLOAT32)
    return _sum(product, decode_number(c, DType.FLOAT32))


def add_float32(x: int, y: int) -> int:
    """Float32 bits of ``x + y``, nearest even."""
    return _sum(decode_number(x, DType.FLOAT32), decode_number(y, DType.FLOAT32))


def convert_float32(x: int, dtype: DType) -> int:
    """Bits of ``dtype`` nearest to the float32 ``x``, ties to even."""
    number = decode_number(x, DType.FLOAT32)
    special = _special([number], dtype)
    if special is not None:
        return special
    return encode_number(number.value, dtype, negative_zero=number.negative)


def widen_to_float32(x: int, dtype: DType) -> int:
    """Float32 bits of the ``dtype`` pattern ``x``, exact."""
    number = decode_number(x, dtype)
    special = _special([number], DType.FLOAT32)
    if special is not None:
        return special
    return encode_number(number.value, DType.FLOAT32, negative_zero=number.negative)


def _product(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    kinds = {a.kind, b.kind}
    if "nan" in kinds:
        return Number(kind="nan", negative=False)
    if "infinite" in kinds:
        other = b if a.kind == "infinite" else a
        undefined = other.kind == "finite" and other.value == 0
        return Number(kind="nan" if undefined else "infinite", negative=negative)
    if a.exponent is None or b.exponent is None:
        return Number(kind="finite", negative=negative)
    return Number(kind="finite", negative=negative, value=a.value * b.value, exponent=a.exponent + b.exponent)


def _special(terms: Sequence[Number], dtype: DType) -> int | None:
    """The bits of a sum whose terms are not all finite, else None."""
    signs = {t.negative for t in terms if t.kind == "infinite"}
    if len(signs) == 2 or any(t.kind == "nan" for t in terms):
        return (1 << (dtype.format.storage_bits - 1)) - 1
    if signs:
        return _signed(_infinity(dtype), signs.pop(), dtype)
    return None


def _sum(x: Number, y: Number) -> int:
    special = _special([x, y], DType.FLOAT32)
    if special is not None:
        return special
    return encode_number(x.value + y.value, DType.FLOAT32, negative_zero=x.negative and y.negative)


def _exponent_width(dtype: DType) -> int:
    return (1 - dtype.format.min_exponent).bit_length() + 1


def _has_infinity(dtype: DType) -> bool:
    return (1 << _exponent_width(dtype)) - 2 + dtype.format.min_exponent > dtype.format.max_exponent


def _infinity(dtype: DType) -> int:
    return ((1 << _exponent_width(dtype)) - 1) << dtype.format.fraction_bits


def _signed(pattern: int, negative: bool, dtype: DType) -> int:
    return pattern | (int(negative) << (dtype.format.storage_bits - 1))
