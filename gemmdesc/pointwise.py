"""Epilogue steps that are one pointwise operator of eager PyTorch each, or a library's gelu.

``docs/descriptor.md`` specifies them.

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


class GeluArgument(Enum):
    """How the tangent's argument is summed: (k0 z) (1 + k1 z^2), or z (k0 + k01 z^2), and what is squared first.

    FACTORED: (k0 z) fma(k1 z, z, 1).  FACTORED_SQUARE: (k0 z) fma(k1, z z, 1).  EXPANDED: z fma(k01 z, z, k0).
    EXPANDED_SQUARE: z fma(k01, z z, k0).
    """

    FACTORED = "factored"
    EXPANDED = "expanded"
    FACTORED_SQUARE = "factored_square"
    EXPANDED_SQUARE = "expanded_square"

    @property
    def factored(self) -> bool:
        return self in (GeluArgument.FACTORED, GeluArgument.FACTORED_SQUARE)

    @property
    def squares(self) -> bool:
        """Whether z z is formed first, not the constant times z."""
        return self in (GeluArgument.FACTORED_SQUARE, GeluArgument.EXPANDED_SQUARE)


class GeluResult(Enum):
    """What follows the tangent t: (0.5 z) (1 + t), or fma(0.5 z, t, 0.5 z), whose zero is positive where t is -1."""

    PRODUCT = "product"
    FUSED = "fused"


#: sqrt(2 / pi), the cubic's factor 0.044715, and what stands for their product, as bits of float32.
GELU_K0, GELU_K1, GELU_K01 = 0x3F4C422A, 0x3D372713, 0x3D12227E


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


@dataclass(frozen=True, kw_only=True)
class GeluTanhApprox:
    """gelu by PTX's ``tanh.approx.f32``, as cuBLASLt's epilogues compute it; every operation rounds to float32 once."""

    argument: GeluArgument
    result: GeluResult

    def __post_init__(self) -> None:
        for name, kind in (("argument", GeluArgument), ("result", GeluResult)):
            if not isinstance(getattr(self, name), kind):
                got = getattr(self, name)
                raise DescriptorError(f"gelu_tanh_approx.{name} must be a {kind.__name__} (got {got!r})")


BinaryStep = Add | Multiply | Divide | AtLeast | AtMost
#: Steps that use the approximations of a GPU's special function unit.
FunctionStep = Gelu | Silu | Sigmoid | Tanh
PointwiseStep = BinaryStep | FunctionStep
#: Steps that no CPU does without a card to ask.
CardStep = FunctionStep | GeluTanhApprox


def require_name(name: str, value: object) -> None:
    """Raise DescriptorError unless ``value`` is what a text can call an operand."""
    if not isinstance(value, str) or not (value.isidentifier() and value.isascii()) or iskeyword(value):
        raise DescriptorError(f"{name} must be an identifier (got {value!r})")
