"""A whole campaign: scan, solve classes, learn which attributes matter, verify every answer, until little is unseen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from gemmdesc.probe import records
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.cover import Coverage
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.projection import (
    CLASS_ATTRIBUTES,
    Covers,
    Row,
    RowIndex,
    Solved,
    by_variety,
    conflicts,
    families,
    learn_projection,
)
from gemmdesc.probe.sampling import Scope
from gemmdesc.probe.scan import AnswerKey, Tally, Types, block_from_plain, block_to_plain, unseen_mass
from gemmdesc.probe.solve import ClassOutcome
from gemmdesc.probe.tasks import (
    ScanTask,
    SolveTask,
    VerifyTask,
    Verified,
    run_scan,
    run_solve,
    run_verify,
)
from gemmdesc.probe.workers import Workers
from gemmdesc.rule import Rule

#: Called with a phase's name, how much of it is done, and of how much (None: not known).
Report = Callable[[str, int, int | None], None]
#: Classes solved at once before their rules are offered to the next ones; it grows as rules become known.
_FIRST_BATCH = 24
#: Times that rows whose rule failed on some answer are solved again, with those answers' problems read first.
_REPAIRS = 3
#: Problems on which every row is verified, if the scan met as many.
ROW_PROBLEMS = 48


@dataclass(frozen=True, kw_only=True)
class Options:
    """``target_unseen``: Good-Turing mass, in scope, at which the scan stops; ``most_queries`` ends it in any case.

    ``first_blocks``: blocks scanned before anything is solved.  ``verify_draws``: draws for each answer found.
    """

    scope: Scope
    seed: int = 0
    target_unseen: float = 1e-5
    first_blocks: int = 40
    most_queries: int = 4_000_000
    verify_draws: int = 3


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a campaign knows at its end.  ``verified``: by answer and problem number.  ``seconds`` by phase."""

    options: Options
    tally: Tally
    rows: tuple[Row, ...]
    outcomes: dict[AnswerKey, ClassOutcome]
    verified: dict[tuple[AnswerKey, int], Verified]
    unseen: float
    unseen_all: float
    scan_rate: float
    seconds: dict[str, float]


class Campaign:
    """One campaign in one folder; constructing it on the same folder resumes it."""

    def __init__(self, workers: Workers, options: Options, folder: Path, report: Report) -> None:
        self._workers, self._options, self._report = workers, options, report
        identity = records.identity(workers.library.identity, workers.library.device, options)
        self._journal = Journal(folder, identity)
        self._tally = Tally()
        for data in self._journal.read("scan"):
            self._tally.add(block_from_plain(data))
        self._outcomes = dict(records.outcome_from_plain(d) for d in self._journal.read("classes"))
        self._coverage = Coverage(options.scope, options.seed)
        self._verified: dict[tuple[AnswerKey, int], Verified] = {}
        for result in map(records.verified_from_plain, self._journal.read("verified")):
            self._verified[result.key, result.number] = result
            if result.verdict is Verdict.DIFFERENT:
                self._coverage.witness(workers.library, result.key, result.number)
        self._rows: tuple[Row, ...] = ()
        self._index = RowIndex(())
        self._seconds: Counter[str] = Counter()
        self._unjoined: set[tuple[tuple[AnswerKey, ...], frozenset[str]]] = set()
        self._asked = 0

    def run(self) -> Findings:
        """Go on until the stop rule holds; everything learned is on disk as soon as it is known."""
        blocks = self._options.first_blocks
        while True:
            self._timed("scan", self._scan, blocks)
            self._timed("solve", self._solve_new)
            self._timed("project", self._project)
            self._timed("verify", self._verify_and_repair)
            unseen = self._unseen()
            if unseen <= self._options.target_unseen or self._tally.queries >= self._options.most_queries:
                return self._findings(unseen)
            blocks = max(blocks * 3, self._options.first_blocks)

    def _timed(self, phase: str, work: Callable[..., None], *arguments: Any) -> None:
        begin = monotonic()
        work(*arguments)
        self._seconds[phase] += monotonic() - begin

    def _scan(self, blocks: int) -> None:
        missing = [b for b in range(blocks) if b not in self._tally.blocks]
        tasks = [ScanTask(scope=self._options.scope, seed=self._options.seed, block=b) for b in missing]
        for done, (_, block) in enumerate(self._workers.run(run_scan, tasks), 1):
            self._journal.append("scan", block_to_plain(block))
            self._tally.add(block)
            self._asked += block.queries
            self._report("scan", done, len(tasks))

    def _solve_new(self) -> None:
        """Solve classes that no row answers, most frequent first; a failing task leaves the others untouched."""
        counts: Counter[AnswerKey] = Counter()
        for key, count in self._tally.counts.items():
            counts[key.only(CLASS_ATTRIBUTES)] += count
        todo = [c for c, _ in counts.most_common() if c not in self._outcomes and self._index.find(c) is None]
        size, done, total = _FIRST_BATCH, 0, len(todo)
        while todo:
            batch, todo = todo[:size], todo[size:]
            for _ in self._solve(batch, {}):
                done += 1
                self._report("solve", done, total)
            size = min(size * 2, 512)

    def _solve(self, classes: Sequence[AnswerKey], first: Mapping[AnswerKey, list[int]]) -> Iterator[AnswerKey]:
        """Solve ``classes``; those named in ``first`` from scratch, reading these problems of theirs before others."""
        known = {types: self._known(types) for types in {c.types for c in classes}}
        numbers = self._class_numbers(classes)
        tasks = [
            self._task(
                c, [*first.get(c, ()), *numbers[c]], () if c in first else known[c.types], known[c.types],
                len(first.get(c, ())),
            )
            for c in classes
        ]  # fmt: skip
        for task, outcome in self._workers.run(run_solve, tasks):
            self._outcomes[task.key] = outcome
            self._journal.append("classes", records.outcome_to_plain(task.key, outcome))
            yield task.key

    def _class_numbers(self, classes: Sequence[AnswerKey]) -> dict[AnswerKey, list[int]]:
        """Problem numbers of each class, over all its values of ``splitk_num``."""
        numbers: dict[AnswerKey, list[int]] = {c: [] for c in classes}
        for key, found in self._tally.numbers.items():
            if (owner := key.only(CLASS_ATTRIBUTES)) in numbers:
                numbers[owner].extend(found)
        return numbers

    def _task(
        self, key: AnswerKey, numbers: list[int], known: tuple[Rule, ...], hints: tuple[Rule, ...], first: int
    ) -> SolveTask:
        return SolveTask(
            key=key, scope=self._options.scope, seed=self._options.seed, numbers=tuple(numbers), known=known,
            hints=hints, first=first, zero_exponent=self._zero_exponent(),
        )  # fmt: skip

    def _known(self, types: Types) -> tuple[Rule, ...]:
        """Rules found so far, rewritten for ``types``: those met most often first."""
        met = Counter(o.rule.text for o in self._outcomes.values() if o.rule is not None)
        by_text = {o.rule.text: o.rule for o in self._outcomes.values() if o.rule is not None}
        moved = (records.retyped(by_text[text], types) for text, _ in met.most_common())
        return tuple({r.text: r for r in moved}.values())

    def _zero_exponent(self) -> int | None:
        seen = [
            r.arithmetic.zero_exponent
            for o in self._outcomes.values()
            for r in o.readings
            if r.arithmetic.zero_exponent is not None
        ]
        return seen[0] if seen else None

    def _solved(self) -> dict[AnswerKey, Solved]:
        """Classes whose outcome says something; those with too little to read take part in no row."""
        return {
            key: Solved(rule=o.rule, reason=o.reason)
            for key, o in self._outcomes.items()
            if o.rule is not None or o.scalar
        }

    def _project(self) -> None:
        domain = self._coverage.environments(self._workers.library, self._tally)

        def covers(rule: Rule, key: AnswerKey) -> bool:
            return self._coverage.covers(rule, key, self._outcomes, domain)

        self._unify(covers)
        self._rows = learn_projection(self._solved(), covers)
        self._index = RowIndex(self._rows)

    def _unify(self, covers: Covers) -> None:
        """Where leaving out an attribute joins classes with different rules, look for one rule that gives all their bytes.

        A class met on a few problems allows rules that are too narrow; together with its neighbours it does not.
        """
        for family in families(self._solved()):
            matter = list(CLASS_ATTRIBUTES)
            for name in by_variety(family):
                members = {k: s for k, s in self._solved().items() if k in set(family)}
                without = [n for n in matter if n != name]
                groups = [g for g in conflicts(members, without, covers) if self._worth_joining(g)]
                for count, _ in enumerate(self._solve_jointly(groups), 1):
                    self._report("unify", count, len(groups))
                members = {k: s for k, s in self._solved().items() if k in set(family)}
                if not conflicts(members, without, covers):
                    matter = without

    def _worth_joining(self, group: tuple[AnswerKey, ...]) -> bool:
        """Whether all classes have rules, and these were not joined in vain before."""
        rules = [self._outcomes[c].rule for c in group]
        attempt = (group, frozenset(r.text for r in rules if r is not None))
        if None in rules or attempt in self._unjoined:
            return False
        self._unjoined.add(attempt)
        return True

    def _solve_jointly(self, groups: Sequence[tuple[AnswerKey, ...]]) -> Iterator[tuple[AnswerKey, ...]]:
        tasks = []
        for group in groups:
            numbers = self._class_numbers(group)
            lead = [numbers[c][0] for c in group[:3]]
            rest = [n for c in group for n in numbers[c][:12]]
            own = {r.text: r for r in (self._outcomes[c].rule for c in group) if r is not None}
            known = self._known(group[0].types)
            tasks.append(self._task(group[0], [*lead, *rest], tuple(own.values()), known, len(lead)))
        by_task = dict(zip((id(t) for t in tasks), groups, strict=True))
        for task, outcome in self._workers.run(run_solve, tasks):
            group = by_task[id(task)]
            if outcome.rule is not None:
                for key in group:
                    joined = replace(self._outcomes[key], rule=outcome.rule)
                    self._outcomes[key] = joined
                    self._journal.append("classes", records.outcome_to_plain(key, joined))
            yield group

    def _verify_and_repair(self) -> None:
        for _ in range(_REPAIRS):
            failed = self._verify()
            if not failed:
                return
            first: dict[AnswerKey, list[int]] = {}
            for key, result in failed.items():
                del self._verified[key, result.number]
                self._coverage.witness(self._workers.library, key, result.number)
                first.setdefault(key.only(CLASS_ATTRIBUTES), []).append(result.number)
            for count, _ in enumerate(self._solve(list(first), {c: n[:2] for c, n in first.items()}), 1):
                self._report("repair", count, len(first))
            self._project()

    def _verify(self) -> dict[AnswerKey, Verified]:
        """Compare every answer, and every row on enough problems, under the row's present rule; returns what differed."""
        tasks = self._verify_tasks()
        failed: dict[AnswerKey, Verified] = {}
        for count, (task, result) in enumerate(self._workers.run(run_verify, tasks), 1):
            self._verified[task.key, task.number] = result
            self._journal.append("verified", records.verified_to_plain(result))
            if result.verdict in (Verdict.DIFFERENT, Verdict.DECLINED):
                failed[task.key] = result
            self._report("verify", count, len(tasks))
        return failed

    def _verify_tasks(self) -> list[VerifyTask]:
        """One problem of every answer; then further ones, answer by answer, for rows that have too few."""
        members: dict[AnswerKey, list[AnswerKey]] = {}
        rules: dict[AnswerKey, Rule] = {}
        for key in self._tally.counts:
            row = self._index.find(key)
            if row is not None and row.solved.rule is not None:
                members.setdefault(row.key, []).append(key)
                rules[row.key] = row.solved.rule
        tasks = []
        for row_key, keys in members.items():
            rule = rules[row_key]
            depth = max(1, -(-ROW_PROBLEMS // len(keys)))
            for key in keys:
                for number in self._tally.numbers[key][:depth]:
                    done = self._verified.get((key, number))
                    if done is None or done.rule != rule.text:
                        tasks.append(self._verify_task(key, number, rule))
        return tasks

    def _verify_task(self, key: AnswerKey, number: int, rule: Rule) -> VerifyTask:
        return VerifyTask(
            key=key, scope=self._options.scope, seed=self._options.seed, number=number, rule=rule,
            draws=self._options.verify_draws,
        )  # fmt: skip

    def _unseen(self) -> float:
        """Good-Turing over what the key projects to; an answer that no row takes counts as itself, in scope."""
        counts: Counter[AnswerKey] = Counter()
        for key, count in self._tally.counts.items():
            row = self._index.find(key)
            if row is None or row.solved.rule is not None:
                counts[key.only(CLASS_ATTRIBUTES) if row is None else row.key] += count
        singles = sum(1 for c in counts.values() if c == 1)
        return max(1, singles) / max(1, self._tally.queries)

    def _findings(self, unseen: float) -> Findings:
        scanning = self._seconds["scan"]
        return Findings(
            options=self._options, tally=self._tally, rows=self._rows, outcomes=self._outcomes,
            verified=self._verified, unseen=unseen, unseen_all=unseen_mass(self._tally.counts.values()),
            scan_rate=self._asked / scanning if scanning else 0.0, seconds=dict(self._seconds),
        )  # fmt: skip


def quick(options: Options) -> Options:
    """Options for a first look: a tenth of the queries, one dtype's worth of patience."""
    return replace(options, first_blocks=8, most_queries=32_000, verify_draws=2, target_unseen=1e-3)
