"""How much a comparison can catch: trials of one verified shape with its draws and one single-field mutant.

Half of a trial's draws are built from the two rivals' trees, half are plain.  The mutant is caught if on some draw the
library's bytes are not the mutant's, while they are the descriptor's on every draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemmdesc.bits import bitwise_equal
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import Library
from gemmdesc.mutants import Mutant, mutants
from gemmdesc.operands import Operand
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.workers import Workers
from gemmdesc.problem import Failed
from gemmdesc.regions import Region
from gemmdesc.rivals import rival_operands
from gemmdesc.verification.bench import Prepared
from gemmdesc.verification.campaign import Report
from gemmdesc.verification.cases import Case, Regime, draw_case
from gemmdesc.verification.draws import draws_of
from gemmdesc.verification.replayed import problem_operands, replay_window, spread_window
from gemmdesc.verification.structure import structure_of
from gemmdesc.verification.tasks import bench_of

#: Elements of the operands of a trial's shape, at most.
_MOST_ELEMENTS = 1 << 24
_KIND = "trials"
#: Cases described at once.
_BLOCK = 400
_REGIMES = (Regime.UNROUNDED, Regime.ALIGNED, Regime.DEEP)


@dataclass(frozen=True, kw_only=True)
class Options:
    """``per_kind``: trials wanted of each structure and kind of mutant; ``most_cases`` bounds the search for them."""

    seed: int = 2
    draws: int = 10
    per_kind: int = 25
    most_cases: int = 12_000


@dataclass(frozen=True, kw_only=True)
class Trial:
    """``rivals_tell``, ``plain_tells``: whether a draw built from the two trees, or a plain one, refutes the mutant.

    ``rival_draws``: how many draws could be built from the trees.  ``agrees``: whether the descriptor gave the
    library's bytes on every draw; a trial where it did not says nothing about the mutant.
    """

    key: str
    structure: str
    kind: str
    m: int
    n: int
    k: int
    draws: int
    rival_draws: int
    agrees: bool
    rivals_tell: bool
    plain_tells: bool
    failure: str = ""

    @property
    def caught(self) -> bool:
        return self.agrees and (self.rivals_tell or self.plain_tells)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Trials on one case: the kinds of mutants wanted."""

    case: Case
    kinds: tuple[str, ...]
    draws: int


@dataclass(frozen=True, kw_only=True)
class Described:
    """A case's structure, and the kinds of mutants that differ from it there."""

    structure: str
    kinds: tuple[str, ...]


def run_power(
    workers: Workers, options: Options, folder: Path, identity: dict[str, object], report: Report
) -> tuple[Trial, ...]:
    """Trials until every structure and kind met has ``per_kind`` of them, or ``most_cases`` were looked at.

    Raises:
        CampaignError: ``folder`` holds another campaign.
    """
    journal = Journal(folder, identity | {"power": [options.seed, options.draws]})
    trials = [trial_from_plain(d) for d in journal.read(_KIND)]
    have = Counter((t.structure, t.kind) for t in trials)
    done = {t.key for t in trials}
    for begin in range(0, options.most_cases, _BLOCK):
        cases = [c for c in _cases(options.seed, begin) if _elements(c) <= _MOST_ELEMENTS]
        described = dict(workers.run(describe_task, [Task(case=c, kinds=(), draws=1) for c in cases]))
        tasks = []
        planned = Counter(have)
        for task in sorted(described, key=lambda t: t.case.key):
            found: Described | None = described[task]
            if found is None or task.case.key in done:
                continue
            kinds = tuple(k for k in found.kinds if planned[found.structure, k] < options.per_kind)
            planned.update((found.structure, k) for k in kinds)
            if kinds:
                tasks.append(Task(case=task.case, kinds=kinds, draws=options.draws))
        for at, (_, results) in enumerate(workers.run(trial_task, tasks), 1):
            for trial in results:
                journal.append(_KIND, asdict(trial))
                trials.append(trial)
                have[trial.structure, trial.kind] += 1
            report(f"trials, cases {begin} to {begin + _BLOCK}", at, len(tasks))
        if not tasks and begin and min(have.values(), default=0) >= options.per_kind:
            break
    return tuple(trials)


def _cases(seed: int, begin: int) -> list[Case]:
    share = _BLOCK // len(_REGIMES)
    first = begin // _BLOCK * share
    return [draw_case(regime, seed, i) for regime in _REGIMES for i in range(first, first + share)]


def _elements(case: Case) -> int:
    return (case.m + case.n) * case.k + case.m * case.n


def describe_task(library: Library, task: Task) -> Described | None:
    """The structure of the case's descriptor and its kinds of mutants; None where it declines or fails."""
    prepared = bench_of(library).prepare(task.case)
    if not isinstance(prepared, Prepared) or not prepared.regions:
        return None
    desc = _richest(prepared).descriptor
    kinds = dict.fromkeys(m.kind for m in mutants(desc, task.case.k))
    return Described(structure=structure_of(desc), kinds=tuple(kinds))


def _richest(prepared: Prepared) -> Region:
    """The rectangle whose order has the most cuts, of these the largest; mostly all of D."""
    return max(prepared.regions, key=lambda r: len(r.descriptor.cuts))


def trial_task(library: Library, task: Task) -> tuple[Trial, ...]:
    """One trial for each wanted kind; which of a kind's mutants is taken varies with the case."""
    bench, case = bench_of(library), task.case
    prepared = bench.prepare(case)
    if not isinstance(prepared, Prepared) or not prepared.regions:
        return ()
    region = _richest(prepared)
    found: dict[str, list[Mutant]] = {}
    for mutant in mutants(region.descriptor, case.k):
        found.setdefault(mutant.kind, []).append(mutant)
    chosen = [found[kind][case.index % len(found[kind])] for kind in task.kinds if kind in found]
    return tuple(_trial(bench, prepared, region, mutant, task.draws) for mutant in chosen)


def _trial(library: Library, prepared: Prepared, region: Region, mutant: Mutant, draws: int) -> Trial:
    case, problem, desc = prepared.case, prepared.problem, region.descriptor
    agrees, rivals, failure = True, 0, ""
    tells = {True: False, False: False}
    for number, (a, b, rival) in enumerate(_trial_operands(prepared, desc, mutant.desc, draws)):
        rivals += rival
        window = spread_window(problem, number, region)
        got = library.run(problem, prepared.answer, a, b, window)
        if isinstance(got, Failed):
            agrees, failure = False, got.status
            break
        agrees &= bitwise_equal(replay_window(desc, problem, a, b, window), got)
        if not tells[rival]:
            tells[rival] = not bitwise_equal(replay_window(mutant.desc, problem, a, b, window), got)
    return Trial(
        key=case.key, structure=structure_of(desc), kind=mutant.kind, m=problem.m, n=problem.n, k=problem.k,
        draws=draws, rival_draws=rivals, agrees=agrees, rivals_tell=tells[True], plain_tells=tells[False],
        failure=failure,
    )  # fmt: skip


def _trial_operands(
    prepared: Prepared, desc: GEMMDesc, mutant: GEMMDesc, count: int
) -> Iterable[tuple[Operand, Operand, bool]]:
    """Operands of op(A) and op(B), and whether they were built from the two trees; rival and plain draws in turn."""
    problem, seed = prepared.problem, prepared.case.operand_draw_seed
    for draw in draws_of(count):
        made = None
        if draw.number % 2 == 0:
            made = rival_operands(desc, mutant, problem.k, seed=seed, draw=draw.number, dtype=problem.a_dtype)
        if made is None:
            a, b, _ = problem_operands(prepared.case, draws_of(count)[draw.number // 2])
            yield a, b, False
        else:
            # The patterns lie along the longer output axis.
            a, b = made if problem.m >= problem.n else made[::-1]
            yield a, b, True


def trial_from_plain(data: dict[str, Any]) -> Trial:
    """The trial that a journal holds.

    Raises:
        CampaignError: the data hold no trial.
    """
    try:
        return Trial(**data)
    except TypeError as error:
        raise CampaignError(f"record must be a trial ({error}) (got {str(data)[:200]})") from None


def power_summary(trials: Sequence[Trial]) -> dict[str, dict[str, dict[str, float]]]:
    """By structure, then kind of mutant (and ``all``): trials that count, how many were caught, and the share."""
    grouped: dict[str, dict[str, list[Trial]]] = {}
    for trial in trials:
        kinds = grouped.setdefault(trial.structure, {})
        kinds.setdefault(trial.kind, []).append(trial)
        kinds.setdefault("all", []).append(trial)
    return {
        structure: {kind: _counts(members) for kind, members in sorted(kinds.items())}
        for structure, kinds in sorted(grouped.items())
    }


def _counts(trials: Sequence[Trial]) -> dict[str, float]:
    valid = [t for t in trials if t.agrees]
    caught = sum(t.caught for t in valid)
    return {
        "trials": len(valid),
        "caught": caught,
        "share": round(caught / len(valid), 4) if valid else float(np.nan),
        "caught_by_rival_draws": sum(t.rivals_tell for t in valid),
        "caught_by_plain_draws": sum(t.plain_tells for t in valid),
        "without_rival_draws": sum(not t.rival_draws for t in valid),
        "disagreeing": len(trials) - len(valid),
    }
