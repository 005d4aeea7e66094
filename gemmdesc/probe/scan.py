"""Scanning the heuristic: which answers exist, how often, and how much of the mass is still unseen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemmdesc.dtypes import DType
from gemmdesc.library.interface import Library
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.problem import (
    ANSWER_ATTRIBUTES,
    AlgoConfig,
    GemmProblem,
    Refused,
    answer_from_plain,
    attributes,
    problem_from_plain,
    to_plain,
)

#: Problems of one block; the unit of work, of saving and of resuming.
BLOCK_QUERIES = 2000
#: Examples kept of one answer.
EXAMPLES_KEPT = 12

Types = tuple[DType, DType, DType]


@dataclass(frozen=True, kw_only=True)
class AnswerKey:
    """An answer as the scan counts it: operand and output types, and all attributes."""

    types: Types
    values: tuple[int, ...]

    def attribute(self, name: str) -> int:
        return self.values[ANSWER_ATTRIBUTES.index(name)]

    def without(self, names: Iterable[str]) -> AnswerKey:
        """The key with the named attributes blanked."""
        drop = set(names)
        kept = tuple(-1 if name in drop else v for name, v in zip(ANSWER_ATTRIBUTES, self.values, strict=True))
        return AnswerKey(types=self.types, values=kept)


def answer_key(problem: GemmProblem, answer: AlgoConfig) -> AnswerKey:
    return AnswerKey(
        types=(problem.a_dtype, problem.b_dtype, problem.d_dtype), values=tuple(attributes(answer).values())
    )


@dataclass(frozen=True, kw_only=True)
class Example:
    """One problem on which the library gave one answer of its own accord."""

    problem: GemmProblem
    answer: AlgoConfig


@dataclass(kw_only=True)
class Tally:
    """Counts of a scan; grows block by block."""

    counts: Counter[AnswerKey] = field(default_factory=Counter)
    examples: dict[AnswerKey, list[Example]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    queries: int = 0
    blocks: set[int] = field(default_factory=set)

    def add(self, block: int, found: Sequence[tuple[GemmProblem, AlgoConfig | Refused]]) -> None:
        """Count one block's queries; a block already counted is left out."""
        if block in self.blocks:
            return
        self.blocks.add(block)
        self.queries += len(found)
        for problem, answer in found:
            if isinstance(answer, Refused):
                self.refused[answer.status] += 1
                continue
            key = answer_key(problem, answer)
            self.counts[key] += 1
            kept = self.examples.setdefault(key, [])
            if len(kept) < EXAMPLES_KEPT:
                kept.append(Example(problem=problem, answer=answer))


def unseen_mass(counts: Iterable[int]) -> float:
    """Good-Turing: the share of future queries whose answer has not been seen, from how many were seen once.

    Where none was seen once, the estimate for a singleton count of 1 stands in as an upper value.
    """
    values = list(counts)
    total = sum(values)
    if total == 0:
        return 1.0
    return max(1, sum(1 for v in values if v == 1)) / total


def scan_block(library: Library, scope: Scope, seed: int, block: int) -> list[tuple[GemmProblem, AlgoConfig | Refused]]:
    """The answers to block number ``block`` of ``seed``."""
    first = block * BLOCK_QUERIES
    problems = (draw_problem(scope, seed, i) for i in range(first, first + BLOCK_QUERIES))
    return [(p, library.answer(p)) for p in problems]


def example_to_plain(example: Example) -> dict[str, Any]:
    return {"problem": to_plain(example.problem), "answer": to_plain(example.answer)}


def example_from_plain(data: dict[str, Any]) -> Example:
    return Example(problem=problem_from_plain(data["problem"]), answer=answer_from_plain(data["answer"]))
