"""What eager torch would do after a product, as a value: the steps of a fused product, with operands by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gemmdesc.descriptor import Approximate
from gemmdesc.dtypes import DType, parse_dtype
from gemmdesc.errors import InvalidInputError
from gemmdesc.pointwise import require_name

if TYPE_CHECKING:
    import torch

#: Types that a step may convert to.
CONVERTED = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
_FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)


class Operator(Enum):
    """The operator of torch's that a step is."""

    ADD = "add"
    MULTIPLY = "mul"
    DIVIDE = "div"
    RELU = "relu"
    RELU_WITHOUT_NAN = "relu_without_nan"
    GELU = "gelu"
    SILU = "silu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    CLAMP = "clamp"
    TO = "to"


@dataclass(frozen=True, kw_only=True)
class EagerStep:
    """One call of eager torch's.

    ``operand``: of the first three, the name of a tensor or a number.  ``limits``: of a clamp.
    """

    operator: Operator
    operand: str | float | None = None
    approximate: Approximate = Approximate.NONE
    limits: tuple[float | None, float | None] = (None, None)
    dtype: DType | None = None


@dataclass(frozen=True)
class Epilogue:
    """What follows a product, step by step, as eager torch does it: every step rounds to the type that it has there.

    Made by calling its methods, each of which gives a longer one::

        gelu = Epilogue().add("bias").gelu()             # gelu(x @ w + bias)
        gated = Epilogue().silu().multiply("up")         # silu(x @ w1) * up
        small = Epilogue().to(torch.float32).multiply("scale").clamp(-448, 448).to(torch.float8_e4m3fn)

    Called with a tensor and the operands by name, it does those steps by torch's own operators: what a fused product
    gives, bit for bit.

    ``rounds_product``: whether the steps meet the product as torch stores it.  Otherwise they meet the float32 value
    before that, nothing is rounded between them, and the result is once: what cuBLASLt's own epilogues do, in the order
    of the product without one.
    """

    steps: tuple[EagerStep, ...] = ()
    rounds_product: bool = True

    @classmethod
    def before_rounding(cls) -> Epilogue:
        """One without steps whose steps will meet the product before it is rounded."""
        return cls(rounds_product=False)

    def add(self, operand: str | float) -> Epilogue:
        """``y + operand``, of the tensor called so or a number.

        Raises:
            InvalidInputError: the name is no identifier; of any method: nothing may follow an 8-bit float.
        """
        return self._then(EagerStep(operator=Operator.ADD, operand=_operand(operand)))

    def multiply(self, operand: str | float) -> Epilogue:
        """``y * operand``: a gate, a scale, a scale for each row (m, 1) or column (n,)."""
        return self._then(EagerStep(operator=Operator.MULTIPLY, operand=_operand(operand)))

    def divide(self, operand: str | float) -> Epilogue:
        """``y / operand``; torch multiplies by the reciprocal of a number, and so does this."""
        return self._then(EagerStep(operator=Operator.DIVIDE, operand=_operand(operand)))

    def relu(self, *, keeps_nan: bool = True) -> Epilogue:
        """``torch.relu(y)``; without ``keeps_nan``, a NaN becomes 0 as in cuBLASLt's own epilogue."""
        return self._then(EagerStep(operator=Operator.RELU if keeps_nan else Operator.RELU_WITHOUT_NAN))

    def gelu(self, approximate: str = "none") -> Epilogue:
        """``torch.nn.functional.gelu(y, approximate=approximate)``."""
        try:
            kind = Approximate(approximate)
        except ValueError:
            raise InvalidInputError(f"approximate must be 'none' or 'tanh' (got {approximate!r})") from None
        return self._then(EagerStep(operator=Operator.GELU, approximate=kind))

    def silu(self) -> Epilogue:
        """``torch.nn.functional.silu(y)``."""
        return self._then(EagerStep(operator=Operator.SILU))

    def sigmoid(self) -> Epilogue:
        """``torch.sigmoid(y)``; of float32 values it is declined."""
        return self._then(EagerStep(operator=Operator.SIGMOID))

    def tanh(self) -> Epilogue:
        """``torch.tanh(y)``."""
        return self._then(EagerStep(operator=Operator.TANH))

    def softcap(self, cap: float) -> Epilogue:
        """``cap * torch.tanh(y / cap)``."""
        return self.divide(cap).tanh().multiply(cap)

    def clamp(self, min: float | None = None, max: float | None = None) -> Epilogue:
        """``torch.clamp(y, min, max)``."""
        limits = tuple(None if x is None else float(x) for x in (min, max))
        if limits == (None, None) or any(x is not None and math.isnan(x) for x in limits):
            raise InvalidInputError(f"min or max must be a number that is no NaN (got {min!r}, {max!r})")
        return self._then(EagerStep(operator=Operator.CLAMP, limits=(limits[0], limits[1])))

    def to(self, dtype: torch.dtype | DType | str) -> Epilogue:
        """``y.to(dtype)``, to a float of 8, 16 or 32 bits; an 8-bit one comes last."""
        kind = dtype if isinstance(dtype, DType) else parse_dtype(str(dtype).removeprefix("torch."))
        if kind not in CONVERTED:
            raise InvalidInputError(f"dtype must be one of {', '.join(d.value for d in CONVERTED)} (got {kind.value})")
        return self._then(EagerStep(operator=Operator.TO, dtype=kind))

    def _then(self, step: EagerStep) -> Epilogue:
        if self.steps and self.steps[-1].dtype in _FLOAT8:
            raise InvalidInputError(f"an 8-bit float must come last (got {step.operator.value} after it)")
        return replace(self, steps=(*self.steps, step))

    @cached_property
    def spelled(self) -> str:
        """All of it as text, in which numbers differ that have other bits."""
        return repr(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors that it reads."""
        return tuple(dict.fromkeys(s.operand for s in self.steps if isinstance(s.operand, str)))

    def __call__(self, y: torch.Tensor, **operands: torch.Tensor) -> torch.Tensor:
        """The steps on ``y`` by torch's own operators.

        Raises:
            InvalidInputError: operands are missing or superfluous, or torch has no such sequence.
        """
        if not self.rounds_product:
            raise InvalidInputError("epilogue must follow the rounding for torch to do its steps (got one before it)")
        self.require_names(operands)
        for step in self.steps:
            other = operands[step.operand] if isinstance(step.operand, str) else step.operand
            y = _done(step, y, other)
        return y

    def require_names(self, operands: Mapping[str, Any]) -> None:
        """Raise InvalidInputError unless ``operands`` are those that the steps read."""
        if set(operands) != set(self.names):
            wanted, got = ", ".join(self.names) or "none", ", ".join(operands) or "none"
            raise InvalidInputError(f"operands must be the epilogue's, {wanted} (got {got})")


def _operand(operand: str | float) -> str | float:
    if isinstance(operand, bool) or not isinstance(operand, str | int | float):
        raise InvalidInputError(f"operand must be a name or a number (got {operand!r})")
    if isinstance(operand, str):
        require_name("operand", operand)
        return operand
    return float(operand)


def _done(step: EagerStep, y: torch.Tensor, other: Any) -> torch.Tensor:
    import torch

    match step.operator:
        case Operator.ADD:
            return y + other
        case Operator.MULTIPLY:
            return y * other
        case Operator.DIVIDE:
            return y / other
        case Operator.RELU:
            return torch.relu(y)
        case Operator.RELU_WITHOUT_NAN:
            return torch.where(y > 0, y, torch.zeros_like(y))
        case Operator.GELU:
            return torch.nn.functional.gelu(y, approximate=step.approximate.value)
        case Operator.SILU:
            return torch.nn.functional.silu(y)
        case Operator.SIGMOID:
            return torch.sigmoid(y)
        case Operator.TANH:
            return torch.tanh(y)
        case Operator.CLAMP:
            return torch.clamp(y, *step.limits)
        case Operator.TO:
            assert step.dtype is not None
            return y.to(getattr(torch, step.dtype.value))
