"""Epilogue steps that are one pointwise operator of eager PyTorch each; ``docs/descriptor.md`` specifies them.

They compute in float32 on the running value, as eager's CUDA kernels do.  Where eager then rounds to a narrower type, a
``cast_to`` follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from keyword import iskeyword

from gemmdesc.errors import DescriptorError


class Approximate(Enum):
    """Which gelu: with the error function, or with a hyperbolic tangent in its place."""

    NONE = "none"
    TANH = "tanh"


@dataclass(frozen=True, kw_only=True)
class _Binary:
    operand: str

    def __post_init__(self) -> None:
        require_name(f"{type(self).__name__.lower()}.operand", self.operand)


@dataclass(frozen=True, kw_only=True)
class Add(_Binary):
    """Add the operand called so, one float32 rounding."""


@dataclass(frozen=True, kw_only=True)
class Multiply(_Binary):
    """Multiply by the operand, one float32 rounding."""


@dataclass(frozen=True, kw_only=True)
class Divide(_Binary):
    """Divide by the operand, one float32 rounding."""


@dataclass(frozen=True, kw_only=True)
class AtLeast(_Binary):
    """The larger of it and the operand, which is no NaN; +0.0 is larger than -0.0, and a NaN stays."""


@dataclass(frozen=True, kw_only=True)
class AtMost(_Binary):
    """The smaller of it and the operand, which is no NaN; -0.0 is smaller than +0.0, and a NaN stays."""


@dataclass(frozen=True, kw_only=True)
class Gelu:
    """x times the normal distribution's cumulative function of x, by CUDA's ``erff`` or ``tanhf``."""

    approximate: Approximate

    def __post_init__(self) -> None:
        if not isinstance(self.approximate, Approximate):
            raise DescriptorError(f"gelu.approximate must be an Approximate (got {self.approximate!r})")


@dataclass(frozen=True, kw_only=True)
class Silu:
    """x / (1 + exp(-x)), by CUDA's ``expf``."""


@dataclass(frozen=True, kw_only=True)
class Sigmoid:
    """1 / (1 + exp(-x)), by CUDA's ``expf``."""


@dataclass(frozen=True, kw_only=True)
class Tanh:
    """CUDA's ``tanhf``."""


BinaryStep = Add | Multiply | Divide | AtLeast | AtMost
#: Steps that use the approximations of a GPU's special function unit.
FunctionStep = Gelu | Silu | Sigmoid | Tanh
PointwiseStep = BinaryStep | FunctionStep


def require_name(name: str, value: object) -> None:
    """Raise DescriptorError unless ``value`` is what a text can call an operand."""
    if not isinstance(value, str) or not (value.isidentifier() and value.isascii()) or iskeyword(value):
        raise DescriptorError(f"{name} must be an identifier (got {value!r})")
