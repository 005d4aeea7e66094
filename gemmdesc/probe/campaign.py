"""A whole campaign: scan, divide the answers into rows of one rule, verify them, until few are unseen; then depth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from gemmdesc.probe import records
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.class_solver import Report
from gemmdesc.probe.comparisons import Comparisons
from gemmdesc.probe.examples import Draws, Variant
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.outcomes import ClassOutcome
from gemmdesc.probe.partition import Partition
from gemmdesc.probe.prior import NO_GUESSES, FirstGuesses, Prior
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Row, RowIndex
from gemmdesc.probe.reading import reading_from_plain, reading_to_plain
from gemmdesc.probe.refutations import Refutation, joined, refutation_from_plain, refutation_to_plain
from gemmdesc.probe.sampling import Scope
from gemmdesc.probe.scan import Tally, block_from_plain, block_to_plain, unseen_mass
from gemmdesc.probe.survey import Survey
from gemmdesc.probe.tasks import ScanTask, run_scan
from gemmdesc.probe.verification import Failure, Verification
from gemmdesc.probe.workers import Workers

#: Times that rows whose rule failed on some answer are solved again, those answers' problems read first.
_REPAIRS = 6


@dataclass(frozen=True, kw_only=True)
class Options:
    """``target_unseen``: Good-Turing mass, in scope, at which the scan stops; ``most_queries`` ends it in any case.

    ``first_blocks``: blocks scanned before anything is solved.  ``verify_draws``: plain draws for each of a row's first
    answers, beside two against the rivals of its rule; all other answers get one of each.  ``cuda_cores``: once the
    tensor-core answers are done, seek the orders of the others too, and count them as in scope.
    ``compared_answers``: of each class at most so many answers are compared, those met most often; all if None.
    """

    scope: Scope
    seed: int = 0
    target_unseen: float = 1e-5
    first_blocks: int = 400
    most_queries: int = 4_000_000
    verify_draws: int = 2
    cuda_cores: bool = True
    compared_answers: int | None = None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a campaign knows at its end.

    ``unseen``: over what the key projects to, in scope; ``unseen_all``:
    over whole answers.  ``scan_rate``: queries a second.  ``seconds``: by phase, of this session.  ``source``: of the
    problems that the tally numbers.  ``first_guesses``: whose rows of other builds sessions began with, in words.
    """

    options: Options
    source: Draws
    tally: Tally
    rows: tuple[Row, ...]
    outcomes: dict[AnswerKey, ClassOutcome]
    comparisons: Comparisons
    unseen: float
    unseen_all: float
    scan_rate: float
    seconds: dict[str, float]
    first_guesses: tuple[str, ...] = ()


class Campaign:
    """One campaign in one folder; constructing it on the same folder resumes it.

    ``prior``: rows of plain products of the same library, as first guesses, and ``guesses``: those about the same kind
    of another build; what is found is verified as without them.
    ``refuted``: problems on which rules failed elsewhere; those of the options' scope are kept with the campaign, and
    no row whose answer they got is served before its rule has given their bytes.
    """

    def __init__(
        self, workers: Workers, options: Options, folder: Path, report: Report, prior: Sequence[Row] = (),
        guesses: FirstGuesses = NO_GUESSES,
        refuted: Sequence[Refutation] = (),
    ) -> None:  # fmt: skip
        self._workers, self._options, self._report = workers, options, report
        identity = records.identity(workers.library.identity, workers.library.device, options)
        self._journal = Journal(folder, identity)
        self._source = Draws(scope=options.scope, seed=options.seed, given=self._given(refuted))
        self._tally = Tally()
        for data in self._journal.read("scan"):
            self._tally.add(block_from_plain(data))
        for place, one in enumerate(self._source.given):
            self._tally.give(one.key, -1 - place)
        self._guesses = guesses
        self._guessed = dict.fromkeys(s for data in self._journal.read("sessions") if (s := data.get("first_guesses")))
        self._partition = Partition(workers, self._source, report, self._journal, Prior(prior, guesses.rows))
        known = Comparisons(self._source, map(records.verified_from_plain, self._journal.read("verified")))
        self._verification = Verification(
            workers, self._source, known, options.verify_draws, report, self._journal, options.compared_answers
        )
        self._surveyed: set[int] = set()
        self._doubted: set[int] = set()
        for data in self._journal.read("survey"):
            self._partition.book.observe((reading_from_plain(data),))
        for data in self._journal.read("surveyed"):
            self._surveyed.update(data["families"])
        self._rows: list[Row] = []
        for data in self._journal.read("rows"):
            self._rows = records.rows_from_plain(data)
        self._index = RowIndex(self._rows)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._asked = 0
        self._begun = False

    def _given(self, refuted: Sequence[Refutation]) -> tuple[Refutation, ...]:
        """What this campaign knows of refutations, the new ones last: comparisons on disk name them by place."""
        known = tuple(map(refutation_from_plain, self._journal.read("given")))
        fresh = joined(known, refuted, self._options.scope)
        for one in fresh:
            self._journal.append("given", refutation_to_plain(one))
        return (*known, *fresh)

    def run(self) -> Findings:
        """Go on until the stop rule holds; everything learned is on disk as soon as it is known."""
        for _ in self.turns():
            pass
        return self.findings()

    def turns(self) -> Iterator[None]:
        """The same in parts: each scans, makes rows and compares what these need to be served; depth comes last.

        Where ``report`` raised, a new iterator goes on, as a campaign on the same folder would.
        """
        library = self._workers.library
        if not self._begun:
            session = records.session_to_plain(library.identity, library.device, self._guesses.source)
            self._journal.append("sessions", session)
            self._guessed.update(dict.fromkeys([self._guesses.source] if self._guesses.source else ()))
            self._begun = True
        self._partition.leave_cuda_cores()
        known = max(self._tally.blocks, default=-1) + 1
        yield from self._until_few_unseen(max(self._options.first_blocks, known))
        if self._options.cuda_cores:
            self._set_rows(self._partition.seek_cuda_cores(self._rows))
            yield from self._chains()
            yield from self._until_few_unseen(len(self._tally.blocks))
        yield
        self._timed("depth", self._verify_and_repair, self._verification.deepen)

    def _chains(self) -> Iterator[None]:
        """Rows for classes of CUDA-core kernels, some at a time: those met most are served before others are read."""
        for classes in self._partition.chain_steps(self._tally, self._rows):
            self._timed("solve", self._solve_chains, classes)
            self._timed("verify", self._verify_and_repair, self._verification.serve)
            yield
        self._timed("solve", self._lend)

    def _solve_chains(self, classes: Sequence[AnswerKey]) -> None:
        self._set_rows(self._partition.merge(self._partition.solve_chains(self._tally, self._rows, classes)))

    def _lend(self) -> None:
        """Once more classes without a rule, now that others of their families have one."""
        classes = self._partition.lendable(self._tally, self._rows)
        if classes:
            self._solve_chains(classes)

    def missing(self) -> float:
        """The share of queries that no row is verified for yet, though a rule was found or is still to be sought."""
        if not self._tally.queries:
            return 1.0
        counts = self._tally.counts
        untaken = sum(count for key, count in counts.items() if self._is_sought(self._index.find(key)))
        return untaken / counts.total() + self._verification.unserved(self._tally, self._index) + self._unseen()

    def _is_sought(self, row: Row | None) -> bool:
        """Whether a rule is still to be sought for answers of ``row``, or for those that no row takes."""
        if row is None:
            return True
        return self._options.cuda_cores and any(self._partition.waits(row, c) for c in row.classes)

    def _until_few_unseen(self, blocks: int) -> Iterator[None]:
        while True:
            self._timed("scan", self._scan, blocks)
            self._timed("survey", self._survey)
            if self._guesses.rows:
                self._timed("guess", self._hold_guesses)
            self._timed("solve", self._make_rows)
            self._timed("verify", self._verify_and_repair, self._verification.serve)
            unseen = self._unseen()
            if unseen < self._options.target_unseen or self._tally.queries >= self._options.most_queries:
                return
            yield
            blocks = blocks * 3 // 2

    def _timed(self, phase: str, work: Callable[..., None], *arguments: Any) -> None:
        begin = monotonic()
        work(*arguments)
        self._seconds[phase] += monotonic() - begin

    def _scan(self, blocks: int) -> None:
        tasks = [ScanTask(source=self._source, block=b) for b in range(blocks) if b not in self._tally.blocks]
        for done, (_, block) in enumerate(self._workers.run(run_scan, tasks), 1):
            self._journal.append("scan", block_to_plain(block))
            self._tally.add(block)
            self._asked += block.queries
            self._report("scan", done, len(tasks))

    def _survey(self) -> None:
        """Read several answers of every family not read yet; one that was cut short is read again from its start.

        Families whose slices the prior knows are read only once a rule of theirs has failed.
        """
        look = Survey(self._workers, self._source, self._tally, self._partition.book, self._report)
        spared = self._partition.foreknown(self._tally) - self._doubted
        for reading in look.run(frozenset(self._surveyed) | spared):
            self._journal.append("survey", reading_to_plain(reading))
        read = look.families - spared
        if not read <= self._surveyed:
            self._journal.append("surveyed", {"families": sorted(read - self._surveyed)})
            self._surveyed |= read

    def _hold_guesses(self) -> None:
        """Try what another build's rows say of classes that no row takes yet; families where it is wrong are surveyed.

        Of the others, what a survey would read is compared with the guess.
        """
        missing = self._missing()
        if not missing:
            return
        spared = self._partition.foreknown(self._tally) - self._doubted - self._surveyed
        look = Survey(self._workers, self._source, self._tally, self._partition.book, self._report)
        owners = {n: key.only(CLASS_ATTRIBUTES) for key, numbers in self._tally.numbers.items() for n in numbers}
        witnesses: defaultdict[AnswerKey, list[Variant]] = defaultdict(list)
        for variant in look.first_asked(spared):
            witnesses[owners[variant.number]].append(variant)
        wrong = self._partition.hold_guesses(self._tally, missing, witnesses, chains=self._options.cuda_cores)
        if not wrong <= self._doubted:
            self._doubted |= wrong
            self._survey()

    def _missing(self) -> list[AnswerKey]:
        """Classes that no row takes yet, those met most often first."""
        classes = dict.fromkeys(key.only(CLASS_ATTRIBUTES) for key, _ in self._tally.counts.most_common())
        return [c for c in classes if self._index.find(c) is None]

    def _make_rows(self) -> None:
        """Rows for classes that none takes yet."""
        missing = self._missing()
        if not missing:
            return
        self._set_rows(self._partition.merge([*self._rows, *self._partition.make_rows(self._tally, missing)]))

    def _set_rows(self, rows: list[Row]) -> None:
        if rows != self._rows:
            self._journal.append("rows", records.rows_to_plain(rows))
        self._rows = rows
        self._index = RowIndex(rows)

    def _verify_and_repair(self, compare: Callable[[Tally, RowIndex], list[Failure]]) -> None:
        for _ in range(_REPAIRS):
            failed = compare(self._tally, self._index)
            if not failed:
                return
            self._doubted.update(row.key.family for row, _ in failed)
            self._timed("survey", self._survey)
            bad = {row.key for row, _ in failed}
            good = [r for r in self._rows if r.key not in bad]
            self._set_rows(self._partition.merge([*good, *self._partition.repair(self._tally, failed)]))
        self._demote(compare(self._tally, self._index))

    def _demote(self, failed: list[Failure]) -> None:
        """Rows whose rule still fails on some answer decline: a rule that is not verified is not served."""
        reason = "the best rule found gives other bytes on some of the answers met"
        bad = {row.key for row, _ in failed}
        solved = [replace(r.solved, rule=None, reason=reason) if r.key in bad else r.solved for r in self._rows]
        self._set_rows([replace(r, solved=s) for r, s in zip(self._rows, solved, strict=True)])

    def _unseen(self) -> float:
        """Good-Turing over what the key projects to; an answer that no row takes counts as itself, in scope."""
        counts: Counter[AnswerKey] = Counter()
        for key, count in self._tally.counts.items():
            row = self._index.find(key)
            if row is None or row.solved.rule is not None:
                counts[key.only(CLASS_ATTRIBUTES) if row is None else row.key] += count
        singles = sum(1 for c in counts.values() if c == 1)
        return max(1, singles) / max(1, self._tally.queries)

    def findings(self) -> Findings:
        """What is known so far, whether or not the campaign has run to its end."""
        scanning = self._seconds["scan"]
        return Findings(
            options=self._options, source=self._source, tally=self._tally, rows=tuple(self._rows),
            outcomes=self._partition.book.outcomes, comparisons=self._verification.comparisons, unseen=self._unseen(),
            unseen_all=unseen_mass(self._tally.counts.values()),
            scan_rate=self._asked / scanning if scanning else 0.0, seconds=dict(self._seconds),
            first_guesses=tuple(self._guessed),
        )  # fmt: skip


def quick(options: Options) -> Options:
    """Options for a first look: few queries, a stop rule to match, and tensor cores only."""
    return replace(options, first_blocks=8, most_queries=32_000, target_unseen=1e-3, cuda_cores=False)
