"""Solving single classes of answers, many at once, with what is known of rules by then; what a node's classes say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from gemmdesc.probe import records
from gemmdesc.probe.answers import AnswerKey, Types
from gemmdesc.probe.chains import NO_KIN, Kin, kin_of
from gemmdesc.probe.examples import Draws
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.outcomes import ClassOutcome
from gemmdesc.probe.prior import Prior, first_rules
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Node, Solved
from gemmdesc.probe.rulebook import RuleBook
from gemmdesc.probe.scalar_rule import is_scalar
from gemmdesc.probe.scan import Tally
from gemmdesc.probe.tasks import SolveTask, run_hold, run_solve
from gemmdesc.probe.trialbook import TrialBook
from gemmdesc.probe.workers import Workers
from gemmdesc.problem import environment
from gemmdesc.rule import Rule

#: Called with a phase's name, how much of it is done, and of how much.
Report = Callable[[str, int, int | None], None]
#: Classes of a node that are solved, one after the other, before it is given up.
_LEADS = 3
#: Problems on which a rule failed that are read before others.
_READ_FIRST = 3
#: Rules met most often that a class is tried on before it is read.
_KNOWN = 20
#: Problems that are read of a class whose guess stands for a whole row.
_HELD_READINGS = 2


class ClassSolver:
    """Every class's own outcome, in ``book``, which is what is known of rules.

    ``cuda_cores``: whether the orders of classes that fuse no products are sought.  ``counts``: how often each class
    was met; ``numbers``: by which problems.
    """

    def __init__(
        self, workers: Workers, draws: Draws, report: Report, journal: Journal, prior: Prior, trials: TrialBook
    ) -> None:
        self._workers, self._draws, self._report, self._journal = workers, draws, report, journal
        self._prior, self._trials = prior, trials
        self.cuda_cores = False
        self.numbers: dict[AnswerKey, list[int]] = {}
        self.counts: Counter[AnswerKey] = Counter()
        self.book = RuleBook()
        for data in journal.read("classes"):
            self.book.recall(*records.outcome_from_plain(data))

    def index(self, tally: Tally) -> None:
        """Take in the classes met so far, how often, and by which problems."""
        self.numbers.clear()
        self.counts.clear()
        for key, numbers in tally.numbers.items():
            owner = key.only(CLASS_ATTRIBUTES)
            self.numbers.setdefault(owner, []).extend(numbers)
            self.counts[owner] += tally.counts[key]

    def is_chain(self, key: AnswerKey) -> bool:
        """Whether the class showed no fused step, read or tried."""
        outcome = self.book.outcomes.get(key)
        solved = outcome is not None and outcome.rule is not None and is_scalar(outcome.rule)
        return solved or self.book.is_scalar(key) or self._trials.gave(None, key)

    def solve_leads(self, nodes: Sequence[Node]) -> list[Solved | None]:
        """For each node what its most frequent classes say; None where none of them says anything."""
        leads = [sorted(n.classes, key=lambda c: -self.counts[c])[:_LEADS] for n in nodes]
        for turn in range(_LEADS):
            due = [
                lead[turn]
                for lead in leads
                if len(lead) > turn and not any(self.stands(c) for c in lead[:turn])
            ]
            self.solve([c for c in due if c not in self.book.outcomes or not self.stands(c)])
        return [self._first_telling(lead) for lead in leads]

    def stands(self, key: AnswerKey) -> bool:
        """Whether the class's own outcome says something, and has not failed on the class since."""
        outcome = self.book.outcomes.get(key)
        if outcome is None or not (outcome.rule is not None or outcome.scalar):
            return False
        return self._trials.allows(outcome.rule, key)

    def guess(self, key: AnswerKey) -> Rule | None:
        """The rule of the same kind's row of another build, with what an exact zero was measured to count as here."""
        rule = self._prior.exact(key)
        return None if rule is None else self.book.calibrated(rule)

    def _first_telling(self, lead: Sequence[AnswerKey]) -> Solved | None:
        key = next((c for c in lead if self.stands(c)), None)
        if key is None:
            return None
        outcome = self.book.outcomes[key]
        if outcome.rule is None:
            return Solved(rule=None, reason=outcome.reason)
        guess = self.guess(key)
        if guess is not None and self.book.calibrated(outcome.rule).text == guess.text:
            # What others were read for may be said by other expressions, which would all be tried again.
            return Solved(rule=guess, reason=outcome.reason)
        wide = self.book.calibrated(self.book.pool.widen(outcome.rule, key.family, outcome.readings))
        where = [environment(r.problem, r.answer, None) for r in outcome.readings]
        wide = self._prior.restated(key, wide, where, guess)
        if not self._trials.allows(wide, key):
            wide = outcome.rule
        self.book.meet(wide)
        return Solved(rule=wide, reason=outcome.reason)

    def solve(self, classes: Sequence[AnswerKey]) -> None:
        """Solve each by itself, all at once; the book has their outcomes then."""
        read = {c for c in classes if self._reads_chains(c)}
        known = {types: self._known(types)[:_KNOWN] for types in {c.types for c in classes if c not in read}}
        tried = {c: () if c in read else (*self._guesses(c), *known[c.types]) for c in classes}
        left = {c: self._trials.unrefuted(c, rules) for c, rules in tried.items()}
        tasks = [self._task(c, first_rules(left[c], _KNOWN)) for c in classes]
        for done, (task, outcome) in enumerate(self._workers.run(run_solve, tasks), 1):
            self._recall(task.key, outcome)
            self._report("solve", done, len(tasks))

    def _guesses(self, key: AnswerKey) -> tuple[Rule, ...]:
        guess = self.guess(key)
        return (*(() if guess is None else (guess,)), *self._prior.guesses(key, self.book.solved()))

    def hold(self, classes: Sequence[AnswerKey], read: Container[AnswerKey] = ()) -> None:
        """Try each class's guess as :meth:`solve` does first; the book has outcomes of those whose bytes it gives.

        For the others it is noted that it does not; nothing is sought in its place.  ``read``: of these some problems
        are read too, of which it has to give every experiment.
        """
        guesses = {c: rule for c in classes if (rule := self.guess(c)) is not None}
        due = [c for c, rule in guesses.items() if c not in self.book.outcomes and not self._trials.tried(rule, c)]
        solved = self.book.solved()
        tasks = [
            replace(self._held(c, guesses[c], solved), readings=_HELD_READINGS if c in read else 0) for c in due
        ]
        for done, (task, outcome) in enumerate(self._workers.run(run_hold, tasks), 1):
            if outcome is not None and outcome.rule == task.known[0]:
                self._recall(task.key, outcome)
                if task.chains:
                    # It foretold trees of this class; others have their trial yet.
                    self._trials.note(outcome.rule, task.key, given=True)
            else:
                self._trials.note(task.known[0], task.key, given=False)
            self._report("hold", done, len(tasks))

    def _held(self, key: AnswerKey, guess: Rule, solved: Mapping[AnswerKey, Rule]) -> SolveTask:
        """Work of trying the guess; of chains that are the answer's about other types, too, fewer trees are read."""
        task = replace(self._task(key, (guess,)), cuda_cores=True, chains=is_scalar(guess))
        if not task.chains:
            return task
        twins = kin_of(key, solved, lambda rule: records.retyped(rule, key.types)).twins
        return replace(task, kin=Kin(twins=tuple(r for r in twins if r.text == guess.text)))

    def _recall(self, key: AnswerKey, outcome: ClassOutcome) -> None:
        self.book.recall(key, outcome)
        self._journal.append("classes", records.outcome_to_plain(key, outcome))

    def _known(self, types: Types) -> tuple[Rule, ...]:
        """Rules found so far; while CUDA-core orders are not sought, those of too few products tell nothing of them."""
        return tuple(r for r in self.book.known(types) if self.cuda_cores or not is_scalar(r))

    def _task(self, key: AnswerKey, known: Sequence[Rule]) -> SolveTask:
        return SolveTask(
            key=key, source=self._draws, numbers=tuple(self.numbers[key]), known=tuple(known),
            chains=self._reads_chains(key), kin=self._kin(key),
            hints=self.book.known(key.types), preferred=self.book.pool.expressions(key.family),
            witnesses=tuple(self._trials.witnesses(key)[:_READ_FIRST]), zero_exponent=self.book.zero_exponent(),
            cuda_cores=self.cuda_cores, bare=self._prior.bare(key),
        )  # fmt: skip

    def _reads_chains(self, key: AnswerKey) -> bool:
        return self.cuda_cores and self.is_chain(key)

    def _kin(self, key: AnswerKey) -> Kin:
        """Rules that a class of CUDA-core kernels is read against, where their orders are sought; none of others."""
        if not self._reads_chains(key):
            return NO_KIN
        solved = self.book.solved()
        kin = kin_of(key, solved, lambda rule: records.retyped(rule, key.types))
        guesses = [r for r in self._prior.guesses(key, solved) if is_scalar(r)]
        twins, others = (*guesses, *kin.twins), kin.others
        return Kin(twins=self._trials.unrefuted(key, twins), others=self._trials.unrefuted(key, others))
