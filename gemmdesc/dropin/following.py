"""From an epilogue and its operands to the steps of a descriptor, as eager torch types and rounds them.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gemmdesc.descriptor import (
    Add,
    AtLeast,
    AtMost,
    CastTo,
    Divide,
    EpilogueStep,
    Gelu,
    Multiply,
    Relu,
    Sigmoid,
    Silu,
    Tanh,
)
from gemmdesc.dropin.epilogue import EagerStep, Epilogue, Operator
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.plan import Following
from gemmdesc.routes import Release

#: Releases of torch whose pointwise kernels were read, and the CUDA toolkit that they were built with.
READ = (Release(major=2, minor=11), Release(major=2, minor=12), Release(major=2, minor=13))
READ_TOOLKIT = "13.0"
#: From here on torch's conversion to float8_e4m3fn saturates.
_SATURATES_FROM = Release(major=2, minor=13)
_NARROW = (DType.FLOAT16, DType.BFLOAT16)
_FLOATS = (DType.FLOAT32, *_NARROW)
_FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
_BINARY: Mapping[Operator, type[Add] | type[Multiply] | type[Divide]] = {
    Operator.ADD: Add, Operator.MULTIPLY: Multiply, Operator.DIVIDE: Divide,
}  # fmt: skip
_FUNCTIONS = (Operator.GELU, Operator.SILU, Operator.SIGMOID, Operator.TANH)
#: How the operands are called that are numbers.
_NUMBER = "number_"


@dataclass(frozen=True, kw_only=True)
class OperandMeta:
    """``scalar``: it has no axes; ``number``: the value of one that is on a CPU beside a GPU's product, which torch
    takes as a number."""

    dtype: DType
    scalar: bool = False
    number: float | None = None


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """``following``: the steps.  ``numbers``: operands that are numbers; ``read``: the others, each with the caller's
    name of it and the type that it is rounded to first, as torch does with a tensor that has no axes."""

    following: Following
    numbers: Mapping[str, float]
    read: Mapping[str, tuple[str, DType]]


@dataclass(kw_only=True)
class _Lowering:
    held: DType
    between: bool
    operands: Mapping[str, OperandMeta]
    release: Release
    steps: list[EpilogueStep] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    read: dict[str, tuple[str, DType]] = field(default_factory=dict)
    unread: str = ""

    def number(self, value: float) -> str:
        """The name of a float32 number."""
        name = f"{_NUMBER}{len(self.numbers)}"
        with np.errstate(over="ignore"):
            self.numbers[name] = float(np.float32(value))
        return name

    def rounded(self, dtype: DType) -> None:
        """What the last step gave becomes a ``dtype``."""
        if self.between:
            self.held = dtype
            if dtype is not DType.FLOAT32:
                self.steps.append(CastTo(dtype=dtype))

    def binary(self, step: EagerStep) -> None:
        operand = step.operand
        given = None if isinstance(operand, float) else self.operands[str(operand)]
        value = operand if isinstance(operand, float) else given.number if given else None
        kind = _BINARY[step.operator]
        if value is not None:
            if step.operator is Operator.DIVIDE:
                kind, value = Multiply, _reciprocal(value)
            self.steps.append(_step(kind, self.number(value)))
            self.rounded(self.held)
            return
        assert given is not None
        name, dtype = str(operand), given.dtype
        if given.scalar and given.dtype is not self.held:
            name, dtype = f"{operand}_as_{self.held.value}", self.held
        self.read[name] = (str(operand), dtype)
        self.steps.append(_step(kind, name))
        self.rounded(self.held if given.scalar or given.dtype is self.held else DType.FLOAT32)

    def clamp(self, step: EagerStep) -> None:
        low, high = step.limits
        if low is not None:
            self.steps.append(AtLeast(operand=self.number(low)))
        if high is not None:
            self.steps.append(AtMost(operand=self.number(high)))
        self.rounded(self.held)

    def convert(self, dtype: DType) -> None:
        if dtype is self.held:
            return
        if dtype in _FLOAT8:
            overflows = dtype is DType.FLOAT8_E5M2 or self.release < _SATURATES_FROM
            self.steps.append(CastTo(dtype=dtype, overflows=overflows))
        else:
            self.steps.append(CastTo(dtype=dtype))
        self.held = dtype

    def add(self, step: EagerStep) -> None:
        match step.operator:
            case Operator.ADD | Operator.MULTIPLY | Operator.DIVIDE:
                self.binary(step)
            case Operator.CLAMP:
                self.clamp(step)
            case Operator.TO:
                assert step.dtype is not None
                self.convert(step.dtype)
            case Operator.RELU | Operator.RELU_WITHOUT_NAN:
                self.steps.append(Relu(keeps_nan=step.operator is Operator.RELU))
                self.rounded(self.held)
            case Operator.GELU:
                self.steps.append(Gelu(approximate=step.approximate))
                self.rounded(self.held)
            case Operator.SILU:
                self.steps.append(Silu())
                self.rounded(self.held)
            case Operator.SIGMOID:
                if self.held is DType.FLOAT32:
                    self.unread = "sigmoid of float32 values; that of 16-bit ones was compared pattern by pattern"
                self.steps.append(Sigmoid())
                self.rounded(self.held)
            case Operator.TANH:
                self.steps.append(Tanh())
                self.rounded(self.held)


def lowered(
    epilogue: Epilogue, product_dtype: DType, operands: Mapping[str, OperandMeta], *, release: Release,
    toolkit: str | None,
) -> Lowered | Declined:  # fmt: skip
    """The steps of ``epilogue`` on a product of ``product_dtype``, as torch ``release``, built with a CUDA ``toolkit``,
    does them one by one.

    Declines releases and toolkits whose kernels were not read, and sigmoid of float32 values (``out_of_scope``).

    Raises:
        InvalidInputError: an operand is no float of 16 or 32 bits, or has a name that numbers have.
    """
    for name, meta in operands.items():
        if name.startswith(_NUMBER):
            raise InvalidInputError(f"operands must not be called {_NUMBER}... (got {name})")
        if meta.dtype not in _FLOATS and not meta.scalar:
            raise InvalidInputError(f"{name} must be float16, bfloat16 or float32 (got {meta.dtype.value})")
    if product_dtype not in _FLOATS:
        return Declined(code="out_of_scope", reason=f"steps after a product of {product_dtype.value}")
    unread = _unread(epilogue, release, toolkit)
    if unread is not None:
        return unread
    between = epilogue.rounds_product
    work = _Lowering(
        held=product_dtype if between else DType.FLOAT32, between=between, operands=operands, release=release
    )
    for step in epilogue.steps:
        work.add(step)
    if work.unread:
        return Declined(code="out_of_scope", reason=work.unread)
    ends = work.held if between or any(s.operator is Operator.TO for s in epilogue.steps) else product_dtype
    steps = tuple(work.steps)
    if steps[-1:] == (CastTo(dtype=ends),) and len(steps) > 1 and ends is not DType.FLOAT32:
        steps = steps[:-1]
    following = Following(steps=steps, output_dtype=ends, rounded=between)
    return Lowered(following=following, numbers=work.numbers, read=work.read)


def _step(kind: type[Add] | type[Multiply] | type[Divide], name: str) -> EpilogueStep:
    return kind(operand=name)


def _unread(epilogue: Epilogue, release: Release, toolkit: str | None) -> Declined | None:
    used = {step.operator for step in epilogue.steps}
    if release not in READ and not used <= set(_BINARY):
        known = ", ".join(map(str, READ))
        reason = f"torch {release}, whose pointwise kernels were not read; those of {known} were"
        return Declined(code="out_of_scope", reason=reason)
    functions = [op.value for op in _FUNCTIONS if op in used]
    if functions and toolkit != READ_TOOLKIT:
        reason = f"{functions[0]} of a torch built with CUDA {toolkit}; the functions of {READ_TOOLKIT} were read"
        return Declined(code="out_of_scope", reason=reason)
    return None


def _reciprocal(value: float) -> float:
    """1 / value in float32, as torch takes it once on the host."""
    with np.errstate(all="ignore"):
        return float(np.float32(1.0) / np.float32(value))
