"""The formats that stochastic arithmetic rounds to: an exponent range and a number of stored significand bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmdesc.dtypes import DType, parse_dtype
from gemmdesc.errors import InvalidInputError

#: Formats whose conversions clamp instead of giving infinity (``cvt.rn.satfinite``), and their largest value.
_SATURATED = {DType.FLOAT8_E4M3FN: 448.0, DType.FLOAT8_E5M2: 57344.0}


@dataclass(frozen=True, kw_only=True)
class RoundingFormat:
    """Values m 2^e with 1 + ``fraction_bits`` bits, subnormals included, whose samples are kept in float64.

    ``largest``: the largest finite magnitude.  Beyond it lies infinity, or ``largest`` itself where the format
    ``saturates``.
    """

    fraction_bits: int
    min_exponent: int
    largest: float
    saturates: bool = False

    @property
    def decimal_digits(self) -> float:
        """Digits that a number of this format can hold: 7.22 for float32."""
        return (self.fraction_bits + 1) * math.log10(2.0)


def ieee_format(exponent_bits: int, fraction_bits: int) -> RoundingFormat:
    """The format with IEEE 754's layout: (8, 23) is float32, (11, 52) is float64.

    Raises:
        InvalidInputError: ``exponent_bits`` is outside 2..11 or ``fraction_bits`` outside 1..52.
    """
    for name, value, low, high in (("exponent_bits", exponent_bits, 2, 11), ("fraction_bits", fraction_bits, 1, 52)):
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidInputError(f"{name} must be an integer from {low} to {high} (got {value!r})")
    top = (1 << (exponent_bits - 1)) - 1
    return RoundingFormat(
        fraction_bits=fraction_bits,
        min_exponent=1 - top,
        largest=math.ldexp(2.0 - 2.0**-fraction_bits, top),
    )


def format_of(dtype: DType) -> RoundingFormat:
    """The format of a storage type."""
    layout = dtype.format
    largest = _SATURATED.get(dtype)
    return RoundingFormat(
        fraction_bits=layout.fraction_bits,
        min_exponent=layout.min_exponent,
        largest=math.ldexp(2.0 - 2.0**-layout.fraction_bits, layout.max_exponent) if largest is None else largest,
        saturates=largest is not None,
    )


def parse_format(spelling: str | DType | tuple[int, int] | RoundingFormat) -> RoundingFormat:
    """A format from a type, its name (``"bfloat16"``), or (exponent bits, stored significand bits).

    Raises:
        InvalidInputError: the spelling is of no known format.
    """
    match spelling:
        case RoundingFormat():
            return spelling
        case DType():
            return format_of(spelling)
        case str():
            return format_of(parse_dtype(spelling))
        case (exponent_bits, fraction_bits):
            return ieee_format(exponent_bits, fraction_bits)
    raise InvalidInputError(f"format must be a type's name or (exponent bits, significand bits) (got {spelling!r})")
