"""Kinds of problems that campaigns are about, and what each asks of a problem beside its sizes and layout.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from gemmdesc.dtypes import DType
from gemmdesc.problem import ComputeType, Epilogue, ScalarClass


class Kind(Enum):
    """What kind of product a campaign is about; all of its problems are of one kind.

    PLAIN: one product, alpha one, beta zero, nothing after it.  TF32: the same on float32 operands that may be rounded
    to tfloat32.  FLOAT8, FLOAT8_FAST: 8-bit operands of either format, without and with fast accumulation; outputs of
    float16, bfloat16, float32 and of 8 bits.  BATCH: strided batches.  BIAS to GELU_BIAS: an epilogue of that name.
    ADD_C, ADD_BETA_C: C added, as it is or times a beta other than one.  ALPHA: the sum times an alpha other than one.
    The others are several of these at once, in the order of what happens.
    """

    PLAIN = "plain"
    TF32 = "tf32"
    FLOAT8 = "float8"
    FLOAT8_FAST = "float8_fast"
    BATCH = "batch"
    BIAS = "bias"
    RELU = "relu"
    RELU_BIAS = "relu_bias"
    GELU = "gelu"
    GELU_BIAS = "gelu_bias"
    ADD_C = "add_c"
    ADD_BETA_C = "add_beta_c"
    ALPHA = "alpha"
    ALPHA_BIAS = "alpha_bias"
    ALPHA_ADD_C = "alpha_add_c"
    ALPHA_ADD_BETA_C = "alpha_add_beta_c"
    ADD_C_RELU = "add_c_relu"
    BATCH_ALPHA = "batch_alpha"
    BATCH_ADD_C = "batch_add_c"
    BATCH_ADD_BETA_C = "batch_add_beta_c"
    BATCH_ALPHA_ADD_C = "batch_alpha_add_c"
    BATCH_ALPHA_ADD_BETA_C = "batch_alpha_add_beta_c"
    TF32_BIAS = "tf32_bias"
    FLOAT8_BIAS = "float8_bias"
    FLOAT8_FAST_BIAS = "float8_fast_bias"


@dataclass(frozen=True, kw_only=True)
class Facets:
    """What all problems of a kind have in common; ``float8``: 8-bit operands, ``fast``: accumulated fast."""

    compute_type: ComputeType = ComputeType.COMPUTE_32F
    float8: bool = False
    fast: bool = False
    batched: bool = False
    alpha: ScalarClass = ScalarClass.ONE
    beta: ScalarClass = ScalarClass.ZERO
    epilogue: Epilogue = Epilogue.DEFAULT

    @property
    def dtypes(self) -> tuple[DType, ...] | None:
        """The operand types, where the kind has its own."""
        if self.float8:
            return (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
        return (DType.FLOAT32,) if self.compute_type is ComputeType.COMPUTE_32F_FAST_TF32 else None


_TF32 = ComputeType.COMPUTE_32F_FAST_TF32
_ONE, _OTHER = ScalarClass.ONE, ScalarClass.OTHER

FACETS: MappingProxyType[Kind, Facets] = MappingProxyType(
    {
        Kind.PLAIN: Facets(),
        Kind.TF32: Facets(compute_type=_TF32),
        Kind.FLOAT8: Facets(float8=True),
        Kind.FLOAT8_FAST: Facets(float8=True, fast=True),
        Kind.BATCH: Facets(batched=True),
        Kind.BIAS: Facets(epilogue=Epilogue.BIAS),
        Kind.RELU: Facets(epilogue=Epilogue.RELU),
        Kind.RELU_BIAS: Facets(epilogue=Epilogue.RELU_BIAS),
        Kind.GELU: Facets(epilogue=Epilogue.GELU),
        Kind.GELU_BIAS: Facets(epilogue=Epilogue.GELU_BIAS),
        Kind.ADD_C: Facets(beta=_ONE),
        Kind.ADD_BETA_C: Facets(beta=_OTHER),
        Kind.ALPHA: Facets(alpha=_OTHER),
        Kind.ALPHA_BIAS: Facets(alpha=_OTHER, epilogue=Epilogue.BIAS),
        Kind.ALPHA_ADD_C: Facets(alpha=_OTHER, beta=_ONE),
        Kind.ALPHA_ADD_BETA_C: Facets(alpha=_OTHER, beta=_OTHER),
        Kind.ADD_C_RELU: Facets(beta=_ONE, epilogue=Epilogue.RELU),
        Kind.BATCH_ALPHA: Facets(batched=True, alpha=_OTHER),
        Kind.BATCH_ADD_C: Facets(batched=True, beta=_ONE),
        Kind.BATCH_ADD_BETA_C: Facets(batched=True, beta=_OTHER),
        Kind.BATCH_ALPHA_ADD_C: Facets(batched=True, alpha=_OTHER, beta=_ONE),
        Kind.BATCH_ALPHA_ADD_BETA_C: Facets(batched=True, alpha=_OTHER, beta=_OTHER),
        Kind.TF32_BIAS: Facets(compute_type=_TF32, epilogue=Epilogue.BIAS),
        Kind.FLOAT8_BIAS: Facets(float8=True, epilogue=Epilogue.BIAS),
        Kind.FLOAT8_FAST_BIAS: Facets(float8=True, fast=True, epilogue=Epilogue.BIAS),
    }
)
