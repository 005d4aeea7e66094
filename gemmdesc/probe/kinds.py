"""A first look at a kind of problem: which answers occur, a few readings of each, and whether their rules give bytes.

Less than a campaign: no family is generalised and nothing is verified.  What comes out says whether the probe's space
holds the kind's orders, and keeps every experiment for reading and inferring again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdesc.errors import GemmdescError
from gemmdesc.library.interface import Library
from gemmdesc.plain import to_plain
from gemmdesc.probe.answers import AnswerKey, answer_key, key_to_plain, slices_at_launch
from gemmdesc.probe.compare import Verdict, compare_rules, plain_draws, rival_draws
from gemmdesc.probe.epilogues import with_epilogues
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.formats import with_formats
from gemmdesc.probe.infer import Unexplained, infer_rules
from gemmdesc.probe.raw import RecordingReader
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading, reading_to_plain
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.probe.scalar_infer import infer_scalar_rules
from gemmdesc.probe.scalar_rule import ScalarReading
from gemmdesc.probe.scan import Example
from gemmdesc.problem import GemmProblem, Refused, environment
from gemmdesc.rule import Rule

#: Attributes of an answer by which readings are spread; the rest names tiles and the like.
SPREAD_OVER = ("algo_id", "reduction_scheme", "custom_option", "stages_id")
#: Numbers kept of one group of answers in one block of a scan.
_KEPT = 6
#: What a reading may cost: elements of the operands and of D, and an inner size that a walk crosses in few launches.
_LARGEST_ELEMENTS, _LARGEST_K = 1 << 25, 1 << 15
#: The cost from which on a reading waits for all others.
_LATE = 1e4


@dataclass(frozen=True, kw_only=True)
class Group:
    """Answers that are read for one another: the same types and family, with one slice or with several."""

    key: AnswerKey
    several: bool


@dataclass(frozen=True, kw_only=True)
class ScanItem:
    """Ask for problems ``first`` .. ``first + count - 1``."""

    scope: Scope
    seed: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class ReadItem:
    """Read problem ``number``; ``draws`` of each kind compare the rule found on that problem."""

    scope: Scope
    seed: int
    number: int
    draws: int = 3


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """By group: how often it was met, and (cost, number) of those worth reading, cheapest first."""

    counts: dict[Group, int]
    worth: dict[Group, list[tuple[float, int]]]
    refused: dict[str, int]


def scan_kind(library: Library, item: ScanItem) -> Scanned:
    """The answers to a block of problems."""
    found = Scanned(counts={}, worth={}, refused={})
    for number in range(item.first, item.first + item.count):
        problem = draw_problem(item.scope, item.seed, number)
        answer = library.answer(problem)
        if isinstance(answer, Refused):
            found.refused[answer.status] = found.refused.get(answer.status, 0) + 1
            continue
        group = Group(key=answer_key(problem, answer).only(SPREAD_OVER), several=answer.splitk_num > 1)
        found.counts[group] = found.counts.get(group, 0) + 1
        kept = found.worth.setdefault(group, [])
        kept.append((reading_cost(problem, answer.splitk_num), number))
        kept.sort()
        del kept[_KEPT:]
    return found


def merged(parts: Sequence[Scanned]) -> Scanned:
    """Several blocks of one scan as one."""
    whole = Scanned(counts={}, worth={}, refused={})
    for part in parts:
        for group, count in part.counts.items():
            whole.counts[group] = whole.counts.get(group, 0) + count
            whole.worth[group] = sorted([*whole.worth.get(group, []), *part.worth[group]])[:_KEPT]
        for status, count in part.refused.items():
            whole.refused[status] = whole.refused.get(status, 0) + count
    return whole


def in_turn(scanned: Scanned, each: int) -> list[tuple[Group, int]]:
    """Problem numbers to read, the most frequent groups first, one of every group before the second of any.

    Those that cost much more than others come last.
    """
    ordered = sorted(scanned.counts, key=lambda g: -scanned.counts[g])
    queue = [(g, *scanned.worth[g][turn]) for turn in range(each) for g in ordered if turn < len(scanned.worth[g])]
    return [(g, number) for late in (False, True) for g, cost, number in queue if (cost > _LATE) is late]


def reading_cost(problem: GemmProblem, slices: int) -> float:
    """Roughly the work of reading: launches times elements; much more where k shows little or is beyond reach."""
    p = problem
    width = max(p.m, p.n) if p.a_dtype.itemsize > 1 else min(p.m, p.n)
    elements = p.a_outer * p.k + p.b_outer * p.k + p.d_outer * p.n
    cost = (2500 / width) * (1.0 + elements / 2**20)
    shallow = p.k < 200 * max(1, min(slices, 64))
    beyond = elements > _LARGEST_ELEMENTS or p.k > _LARGEST_K
    return cost * (50.0 if shallow else 1.0) * (1e4 if beyond else 1.0)


def read_kind(library: Library, item: ReadItem) -> dict[str, Any]:
    """One record, ready for JSON: problem, answer, reading, raw experiments, launch, rule and what bytes said of it.

    What fails is in the record too, under ``failure``.
    """
    problem = draw_problem(item.scope, item.seed, item.number)
    record: dict[str, Any] = {"kind": item.scope.kind.value, "number": item.number, "problem": to_plain(problem)}
    record["dtypes"] = [d.value for d in item.scope.dtypes]
    answer = library.answer(problem)
    if isinstance(answer, Refused):
        return record | {"failure": f"the heuristic: {answer.status}"}
    record |= {"answer": to_plain(answer), "key": key_to_plain(answer_key(problem, answer))}
    launch = library.launch(problem, answer)
    record["launch"] = None if launch is None else to_plain(launch)
    counted = LibraryReader(library, problem, answer)
    reader = RecordingReader(counted)
    began = time.monotonic()
    try:
        reading = read_answer(reader, problem, answer)
    except ReferenceFailed as error:
        return record | {"failure": str(error), "raw": reader.packed()}
    except GemmdescError as error:
        return record | {"failure": f"{type(error).__name__}: {error}", "raw": reader.packed()}
    reading = replace(reading, launch=launch, launches=counted.launches, experiments=counted.experiments)
    record |= {"reading": reading_to_plain(reading), "raw": reader.packed(), "seconds": time.monotonic() - began}
    return record | _ruled(library, reading, item)


def _ruled(library: Library, reading: Reading, item: ReadItem) -> dict[str, Any]:
    rules = rules_of([reading])
    if isinstance(rules, Unexplained):
        return {"reason": rules.reason}
    example = Example(problem=reading.problem, answer=reading.answer)
    draws = (*plain_draws(item.seed, 2 * item.draws), *rival_draws(item.seed, item.draws))
    verdicts = compare_rules(library, example, rules[:1], draws)
    shared = {"shares": True} if slices_at_launch(reading.answer.splitk_num) else {}
    return {"rule": rules[0].text, "rules": len(rules), "verdict": verdicts[0].value, "draws": len(draws), **shared}


def rules_of(readings: Sequence[Reading]) -> tuple[Rule, ...] | Unexplained:
    """The rules that the readings allow, of matrix steps or of CUDA-core chains, told apart on their own problems."""
    domain = [environment(r.problem, r.answer, r.launch) for r in readings]
    zero = next((r.arithmetic.zero_exponent for r in readings if r.arithmetic.zero_exponent is not None), None)
    if any(r.fused for r in readings):
        return infer_rules(readings, domain, zero_exponent=zero)
    trees = [
        ScalarReading(
            problem=r.problem, answer=r.answer, launch=r.launch, tree=r.element_tree, negative_zero=r.negative_zero
        )
        for r in readings
        if r.element_tree is not None
    ]
    if len(trees) < len(readings):
        return Unexplained(reason="the sizes read fit no tree", scalar=True)
    known = all(t.launch is not None for t in trees)
    found = infer_scalar_rules(trees, domain, launched=lambda: (trees, domain) if known else None)
    if isinstance(found, Unexplained):
        return found
    formed = with_epilogues(with_formats(found, readings), readings)
    return formed or Unexplained(reason="what is done to operands or sums fits no step", scalar=True)


def equal_verdicts(records: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many records have each outcome: a verdict, ``unexplained`` or ``failed``."""
    counts: dict[str, int] = {v.value: 0 for v in Verdict} | {"unexplained": 0, "failed": 0}
    for r in records:
        counts[r.get("verdict") or ("failed" if "failure" in r else "unexplained")] += 1
    return {name: count for name, count in counts.items() if count}
