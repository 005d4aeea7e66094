"""The values of :mod:`gemmdesc.problem` as JSON-ready data, and back."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.problem import (
    MAX_ALIGNMENT_BYTES,
    AlgoConfig,
    ComputeType,
    Epilogue,
    GemmProblem,
    KernelNode,
    Launch,
    ScalarClass,
    Transpose,
)


def to_plain(value: Any) -> Any:
    """JSON-ready form of any value of this module."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        found = _shallow(value)
        # Digests of profiles from before a problem had it are over problems without it.
        if found.get("bias_alignment_bytes") == MAX_ALIGNMENT_BYTES:
            del found["bias_alignment_bytes"]
        return {name: to_plain(v) for name, v in found.items()}
    return value


def _shallow(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def problem_from_plain(data: dict[str, Any]) -> GemmProblem:
    """The problem that :func:`to_plain` wrote.

    Raises:
        InvalidInputError: a field is missing, unknown or out of range.
    """
    enums: dict[str, type[Enum]] = {
        "a_dtype": DType, "b_dtype": DType, "d_dtype": DType, "scale_dtype": DType, "transa": Transpose,
        "transb": Transpose, "compute_type": ComputeType, "alpha": ScalarClass, "beta": ScalarClass,
        "epilogue": Epilogue,
    }  # fmt: skip
    try:
        values: dict[str, Any] = {name: enums[name](v) if name in enums else v for name, v in data.items()}
        return GemmProblem(**values)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"problem must hold the fields of GemmProblem ({error}) (got {data})") from None


def answer_from_plain(data: dict[str, Any]) -> AlgoConfig:
    """The answer that :func:`to_plain` wrote.

    Raises:
        InvalidInputError: a field is missing or unknown.
    """
    try:
        return AlgoConfig(**data)
    except TypeError as error:
        raise InvalidInputError(f"answer must hold the fields of AlgoConfig ({error}) (got {data})") from None


def launch_from_plain(data: dict[str, Any]) -> Launch:
    """The launch that :func:`to_plain` wrote.

    Raises:
        InvalidInputError: a field is missing or unknown.
    """
    try:
        kernels = tuple(
            KernelNode(**{**k, **{name: tuple(k[name]) for name in ("grid", "block", "cluster")}})
            for k in data["kernels"]
        )
        return Launch(kernels=kernels, memset_bytes=tuple(data["memset_bytes"]))
    except (KeyError, TypeError) as error:
        raise InvalidInputError(f"launch must hold the fields of Launch ({error}) (got {data})") from None
