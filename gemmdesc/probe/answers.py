"""Answers as a campaign tells them apart: the operand and output types, and the answer's attributes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gemmdesc.dtypes import DType
from gemmdesc.plain import answer_from_plain
from gemmdesc.problem import ANSWER_ATTRIBUTES, AlgoConfig, GemmProblem

Types = tuple[DType, DType, DType]


@dataclass(frozen=True, kw_only=True)
class AnswerKey:
    """An answer as the scan counts it: types of A, B and D, and all attributes (None: left out)."""

    types: Types
    values: tuple[int | None, ...]

    def attribute(self, name: str) -> int | None:
        return self.values[ANSWER_ATTRIBUTES.index(name)]

    @property
    def family(self) -> int:
        """``algo_id``, 0 where that is left out."""
        return self.attribute("algo_id") or 0

    @property
    def named(self) -> tuple[str, ...]:
        """The attributes that are not left out."""
        return tuple(n for n, v in zip(ANSWER_ATTRIBUTES, self.values, strict=True) if v is not None)

    def only(self, names: Iterable[str]) -> AnswerKey:
        """The key with every attribute but the named ones left out."""
        kept = set(names)
        return AnswerKey(
            types=self.types,
            values=tuple(v if n in kept else None for n, v in zip(ANSWER_ATTRIBUTES, self.values, strict=True)),
        )

    @property
    def answer(self) -> AlgoConfig:
        """An answer with these attributes, 0 for those left out."""
        return answer_from_plain({n: v or 0 for n, v in zip(ANSWER_ATTRIBUTES, self.values, strict=True)})

    def __str__(self) -> str:
        named = (f"{n}={v}" for n, v in zip(ANSWER_ATTRIBUTES, self.values, strict=True) if v is not None)
        return f"{self.types[0].value} x {self.types[1].value} -> {self.types[2].value} " + " ".join(named)


def slices_at_launch(splitk_num: int) -> bool:
    """Whether ``splitk_num`` (unsigned) is no number of slices but -1: the kernel shares out k when it is launched."""
    return splitk_num >= 1 << 31


def answer_key(problem: GemmProblem, answer: AlgoConfig) -> AnswerKey:
    values = tuple(getattr(answer, name) for name in ANSWER_ATTRIBUTES)
    return AnswerKey(types=(problem.a_dtype, problem.b_dtype, problem.d_dtype), values=values)


def key_from_plain(types: list[str], values: list[int | None]) -> AnswerKey:
    a, b, d = (DType(t) for t in types)
    return AnswerKey(types=(a, b, d), values=tuple(values))


def key_to_plain(key: AnswerKey) -> tuple[list[str], list[int | None]]:
    return [t.value for t in key.types], list(key.values)
