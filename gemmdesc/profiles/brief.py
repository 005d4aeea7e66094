"""A family in a few words."""

from __future__ import annotations

from gemmdesc.problem import ComputeType, Epilogue, ScalarClass
from gemmdesc.profiles.keys import Family


def operands_in_words(family: Family) -> str:
    """Operand types, with whatever makes the product other than a plain one: ``float32 (tf32, batched)``."""
    a, b = family.a_dtype.value, family.b_dtype.value
    words = [
        *(["tf32"] if family.compute_type is ComputeType.COMPUTE_32F_FAST_TF32 else []),
        *(["fast accumulation"] if family.fast_accumulation else []),
        *(["batched"] if family.batched else []),
        *([] if family.epilogue is Epilogue.DEFAULT else [family.epilogue.value]),
        *({ScalarClass.ZERO: [], ScalarClass.ONE: ["C"], ScalarClass.OTHER: ["beta C"]}[family.c_class]),
        *([] if family.alpha_class is ScalarClass.ONE else [f"alpha {family.alpha_class.value}"]),
    ]
    types = a if a == b else f"{a} x {b}"
    return f"{types} ({', '.join(words)})" if words else types


def family_in_words(family: Family) -> str:
    """:func:`operands_in_words` and the output type: ``float16 (bias) -> float32``."""
    return f"{operands_in_words(family)} -> {family.d_dtype.value}"
