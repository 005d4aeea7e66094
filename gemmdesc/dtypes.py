"""The number formats that a descriptor may name, one row each, in ml_dtypes spelling.

``float32_m13`` style types do not exist here: how many fraction bits an accumulator keeps is a property of the
accumulator, not of a storage format.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gemmdesc.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Format:
    """``fraction_bits``: stored bits of the significand.  Exponents are those of 1.f values."""

    storage_bits: int
    fraction_bits: int
    min_exponent: int
    max_exponent: int


class DType(Enum):
    """A storage format.  ``DType.FLOAT16.value`` is the spelling used in text, JSON and Parquet."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    TFLOAT32 = "tfloat32"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"

    @property
    def format(self) -> Format:
        return _FORMATS[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element."""
        return self.format.storage_bits // 8


_FORMATS = {
    DType.FLOAT16: Format(storage_bits=16, fraction_bits=10, min_exponent=-14, max_exponent=15),
    DType.BFLOAT16: Format(storage_bits=16, fraction_bits=7, min_exponent=-126, max_exponent=127),
    DType.FLOAT32: Format(storage_bits=32, fraction_bits=23, min_exponent=-126, max_exponent=127),
    DType.FLOAT64: Format(storage_bits=64, fraction_bits=52, min_exponent=-1022, max_exponent=1023),
    DType.TFLOAT32: Format(storage_bits=32, fraction_bits=10, min_exponent=-126, max_exponent=127),
    DType.FLOAT8_E4M3FN: Format(storage_bits=8, fraction_bits=3, min_exponent=-6, max_exponent=8),
    DType.FLOAT8_E5M2: Format(storage_bits=8, fraction_bits=2, min_exponent=-14, max_exponent=15),
}


def parse_dtype(name: str) -> DType:
    """The DType called ``name``.

    Raises:
        InvalidInputError: ``name`` is no spelling of a known format.
    """
    try:
        return DType(name)
    except ValueError:
        known = ", ".join(d.value for d in DType)
        raise InvalidInputError(f"dtype must be one of {known} (got {name!r})") from None


def represents(wide: DType, narrow: DType) -> bool:
    """Whether every finite value of ``narrow`` is a value of ``wide``, so that casting to ``wide`` changes nothing."""
    w, n = wide.format, narrow.format
    smallest = n.min_exponent - n.fraction_bits
    return (
        w.fraction_bits >= n.fraction_bits
        and w.max_exponent >= n.max_exponent
        and w.min_exponent - w.fraction_bits <= smallest
    )
