"""Keys of a profile's rows: the family that a problem belongs to, and what of the library's answer matters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.problem import ANSWER_ATTRIBUTES, AlgoConfig, ComputeType, Epilogue, GemmProblem, ScalarClass, attributes


@dataclass(frozen=True, kw_only=True)
class Family:
    """The part of a row's key that the problem alone decides."""

    a_dtype: DType
    b_dtype: DType
    d_dtype: DType
    compute_type: ComputeType
    scale_dtype: DType
    fast_accumulation: bool
    epilogue: Epilogue
    alpha_class: ScalarClass
    c_class: ScalarClass
    batched: bool

    def __str__(self) -> str:
        parts = [f"{f.name}={_word(getattr(self, f.name))}" for f in fields(self)]
        return " ".join(parts)


def family_of(problem: GemmProblem) -> Family:
    """The family that ``problem`` belongs to; ``c_class`` is the class of its beta."""
    return Family(
        a_dtype=problem.a_dtype,
        b_dtype=problem.b_dtype,
        d_dtype=problem.d_dtype,
        compute_type=problem.compute_type,
        scale_dtype=problem.scale_dtype,
        fast_accumulation=problem.fast_accumulation,
        epilogue=problem.epilogue,
        alpha_class=problem.alpha,
        c_class=problem.beta,
        batched=problem.batch_count > 1,
    )


@dataclass(frozen=True, kw_only=True)
class RowKey:
    """A family, and the answer's attributes that matter with their values, in the order of ``ANSWER_ATTRIBUTES``.

    Raises:
        InvalidInputError: an attribute is unknown, out of order or named twice.
    """

    family: Family
    answer: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.answer]
        if names != [name for name in ANSWER_ATTRIBUTES if name in names]:
            raise InvalidInputError(f"answer must name attributes of AlgoConfig once each, in its order (got {names})")

    @property
    def projection(self) -> tuple[str, ...]:
        """The attributes that take part."""
        return tuple(name for name, _ in self.answer)

    def __str__(self) -> str:
        return f"{self.family} | " + " ".join(f"{name}={value}" for name, value in self.answer)


def project(answer: AlgoConfig, projection: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """The named attributes of ``answer``, as a row's key holds them."""
    values = attributes(answer)
    return tuple((name, values[name]) for name in ANSWER_ATTRIBUTES if name in projection)


def sort_key(key: RowKey) -> tuple[str, tuple[int, ...]]:
    """Orders rows: by family as printed, then by attribute values, those that take no part first."""
    values = dict(key.answer)
    return str(key.family), tuple(values.get(name, -(2**62)) for name in ANSWER_ATTRIBUTES)


def _word(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower()
