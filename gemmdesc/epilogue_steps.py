"""Steps on the finished sum; ``gemmdesc.pointwise`` has those that are pointwise operators of eager PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmdesc.descriptor_fields import OPTIONAL, require_instance
from gemmdesc.dtypes import DType
from gemmdesc.errors import DescriptorError
from gemmdesc.pointwise import GeluTanhApprox, PointwiseStep


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Multiply by alpha, one float32 rounding.

    The scales of 8-bit operands are part of alpha: their product is formed in float32, then times alpha proper.
    """


@dataclass(frozen=True, kw_only=True)
class AddC:
    """Add beta x C: one float32 rounding if ``fused``, else one for the product and one for the sum."""

    fused: bool

    def __post_init__(self) -> None:
        require_instance("add_c.fused", self.fused, bool)


@dataclass(frozen=True, kw_only=True)
class AddBias:
    """Add a bias, one float32 rounding."""


@dataclass(frozen=True, kw_only=True)
class Relu:
    """max(x, +0.0); of a NaN that NaN, or +0.0 where not ``keeps_nan`` (PTX's ``max.NaN`` and ``max``)."""

    keeps_nan: bool = field(default=True, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        require_instance("relu.keeps_nan", self.keeps_nan, bool)


@dataclass(frozen=True, kw_only=True)
class CastTo:
    """Round the running value to ``dtype``, nearest even, and go on from there in float32.

    ``overflows``, of an 8-bit float: what lies beyond the largest finite value becomes infinity, or NaN with its sign
    where the type has no infinity; otherwise it becomes that value.
    """

    dtype: DType
    overflows: bool = field(default=False, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        require_instance("cast_to.dtype", self.dtype, DType)
        require_instance("cast_to.overflows", self.overflows, bool)
        if self.overflows and self.dtype not in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2):
            raise DescriptorError(f"cast_to.overflows must be False but for an 8-bit float (got {self.dtype.value})")


@dataclass(frozen=True, kw_only=True)
class ScaleOutput:
    """Multiply by the scale of an 8-bit output, one float32 rounding."""


EpilogueStep = Scale | AddC | AddBias | Relu | CastTo | ScaleOutput | GeluTanhApprox | PointwiseStep
