"""Scanning the heuristic: which answers exist, how often, and how much of the mass is still unseen.

A scan counts answers and remembers, for each, the numbers of a few problems that got it; a problem is drawn again from
its number, and its answer asked again, whenever it is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gemmdesc.library.interface import Library
from gemmdesc.probe.answers import AnswerKey, answer_key, key_from_plain
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.problem import AlgoConfig, GemmProblem, Refused

#: Problems of one block; the unit of work, of saving and of resuming.
BLOCK_QUERIES = 2000
#: Problem numbers kept of one answer, and of one in a block: the first ones, beside the one with the longest side.
NUMBERS_KEPT, NUMBERS_PER_BLOCK = 24, 3


@dataclass(frozen=True, kw_only=True)
class Example:
    """One problem on which the library gave one answer of its own accord."""

    problem: GemmProblem
    answer: AlgoConfig


@dataclass(frozen=True, kw_only=True)
class Found:
    """One answer in one block: how often, and the numbers of some problems that got it."""

    key: AnswerKey
    count: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block's queries."""

    number: int
    queries: int
    found: tuple[Found, ...]
    refused: tuple[tuple[str, int], ...]


def scan_block(library: Library, scope: Scope, seed: int, number: int) -> Block:
    """Ask for the problems of block ``number`` of ``seed``."""
    counts: Counter[AnswerKey] = Counter()
    numbers: dict[AnswerKey, list[int]] = {}
    longest: dict[AnswerKey, tuple[int, int]] = {}
    refused: Counter[str] = Counter()
    for index in range(number * BLOCK_QUERIES, (number + 1) * BLOCK_QUERIES):
        problem = draw_problem(scope, seed, index)
        answer = library.answer(problem)
        if isinstance(answer, Refused):
            refused[answer.status] += 1
            continue
        key = answer_key(problem, answer)
        counts[key] += 1
        kept = numbers.setdefault(key, [])
        if len(kept) < NUMBERS_PER_BLOCK:
            kept.append(index)
        side = max(problem.m, problem.n)
        if side > longest.get(key, (0, 0))[0]:
            longest[key] = side, index
    found = tuple(
        Found(key=k, count=c, numbers=tuple(dict.fromkeys((*numbers[k], longest[k][1])))) for k, c in counts.items()
    )
    return Block(number=number, queries=BLOCK_QUERIES, found=found, refused=tuple(refused.items()))


def resolve(library: Library, scope: Scope, seed: int, index: int) -> Example | None:
    """Problem number ``index`` with the library's answer; None where it refuses."""
    problem = draw_problem(scope, seed, index)
    answer = library.answer(problem)
    return None if isinstance(answer, Refused) else Example(problem=problem, answer=answer)


@dataclass(kw_only=True)
class Tally:
    """Counts of a scan; grows block by block, a block counted once.

    ``given``: by answer, numbers of problems that no scan met, which come first among its ``numbers``.
    """

    counts: Counter[AnswerKey] = field(default_factory=Counter)
    numbers: dict[AnswerKey, list[int]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    queries: int = 0
    blocks: set[int] = field(default_factory=set)
    given: dict[AnswerKey, list[int]] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        if block.number in self.blocks:
            return
        self.blocks.add(block.number)
        self.queries += block.queries
        self.refused.update(dict(block.refused))
        for found in block.found:
            self.counts[found.key] += found.count
            kept = self.numbers.setdefault(found.key, [])
            kept.extend(found.numbers[: max(0, NUMBERS_KEPT - len(kept))])

    def give(self, key: AnswerKey, number: int) -> None:
        """Take in a problem that got the answer, and that no scan drew: it counts as no query."""
        self.counts[key] += 0
        self.numbers.setdefault(key, []).insert(0, number)
        self.given.setdefault(key, []).append(number)


def unseen_mass(counts: Iterable[int]) -> float:
    """Good-Turing: the share of future queries whose answer has not been seen, from how many were seen once.

    Where none was seen once, a count of one stands in, so that the estimate never claims less than 1 / queries.
    """
    values = list(counts)
    total = sum(values)
    return max(1, sum(1 for v in values if v == 1)) / total if total else 1.0


def block_to_plain(block: Block) -> dict[str, Any]:
    found = [[[t.value for t in f.key.types], list(f.key.values), f.count, list(f.numbers)] for f in block.found]
    return {"number": block.number, "queries": block.queries, "found": found, "refused": list(block.refused)}


def block_from_plain(data: dict[str, Any]) -> Block:
    found = tuple(
        Found(key=key_from_plain(types, values), count=count, numbers=tuple(numbers))
        for types, values, count, numbers in data["found"]
    )
    refused = tuple((str(s), int(n)) for s, n in data["refused"])
    return Block(number=data["number"], queries=data["queries"], found=found, refused=refused)
