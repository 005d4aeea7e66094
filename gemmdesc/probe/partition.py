"""Dividing the classes of answers into rows, each with one rule that gives all its classes' bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from gemmdesc.probe import records
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, Node, Row, Solved, divide, families, make_row
from gemmdesc.probe.scan import AnswerKey, Tally, Types
from gemmdesc.probe.solve import ClassOutcome
from gemmdesc.probe.tasks import Draws, SolveTask, TrialTask, run_solve, run_trial
from gemmdesc.probe.workers import Workers
from gemmdesc.rule import Rule

#: Called with a phase's name, how much of it is done, and of how much.
Report = Callable[[str, int, int | None], None]
#: Classes of a node that are solved, one after the other, before it is given up; joint attempts on one node.
_LEADS, _JOINT = 3, 3
#: Problems of each class that a joint attempt may use, and failing ones that it reads first.
_PER_CLASS, _READ_FIRST = 10, 3


class Partition:
    """Rows so far, every class's own outcome, and what each rule gave on each class it was tried on."""

    def __init__(
        self, workers: Workers, draws: Draws, report: Report, remember: Callable[[AnswerKey, ClassOutcome], None]
    ) -> None:
        self._workers, self._draws, self._report, self._remember = workers, draws, report, remember
        self._trials: dict[tuple[str, AnswerKey], bool] = {}
        self._numbers: dict[AnswerKey, list[int]] = {}
        self._counts: Counter[AnswerKey] = Counter()
        self.outcomes: dict[AnswerKey, ClassOutcome] = {}
        self.rules: Counter[str] = Counter()
        self._by_text: dict[str, Rule] = {}

    def recall(self, key: AnswerKey, outcome: ClassOutcome) -> None:
        """Take in an outcome, new or from a journal."""
        self.outcomes[key] = outcome
        if outcome.rule is not None:
            self.rules[outcome.rule.text] += 1
            self._by_text[outcome.rule.text] = outcome.rule

    def make_rows(self, tally: Tally, classes: Sequence[AnswerKey]) -> list[Row]:
        """Rows for ``classes``, which no row takes yet."""
        self._index(tally)
        rows: list[Row] = []
        nodes = families(classes)
        while nodes:
            solved = self._solve_leads(nodes)
            self._try_all([(n, s) for n, s in zip(nodes, solved, strict=True) if s is not None])
            following: list[Node] = []
            for node, found in zip(nodes, solved, strict=True):
                done, more = self._settle(node, found)
                rows.extend(done)
                following.extend(more)
            nodes = following
        return rows

    def repair(self, row: Row, failing: Mapping[AnswerKey, int]) -> Row | None:
        """A row for the same classes whose rule also gives the bytes of the ``failing`` ones' problems, if one exists."""
        node = Node(classes=row.classes, named=row.key.named)
        rule = self._joint(node, list(failing), [n for n in failing.values()])
        return None if rule is None else Row(key=row.key, classes=row.classes, solved=Solved(rule=rule))

    def _index(self, tally: Tally) -> None:
        self._numbers.clear()
        self._counts.clear()
        for key, numbers in tally.numbers.items():
            owner = key.only(CLASS_ATTRIBUTES)
            self._numbers.setdefault(owner, []).extend(numbers)
            self._counts[owner] += tally.counts[key]

    def known(self, types: Types) -> tuple[Rule, ...]:
        """Rules found so far, rewritten for ``types``: those met most often first."""
        moved = (records.retyped(self._by_text[text], types) for text, _ in self.rules.most_common())
        return tuple({r.text: r for r in moved}.values())

    def zero_exponent(self) -> int | None:
        """As measured on any class."""
        readings = (r for o in self.outcomes.values() for r in o.readings)
        return next((r.arithmetic.zero_exponent for r in readings if r.arithmetic.zero_exponent is not None), None)

    def task(self, key: AnswerKey, numbers: Sequence[int], first: int, known: Sequence[Rule]) -> SolveTask:
        return SolveTask(
            key=key, source=self._draws, numbers=tuple(numbers), known=tuple(known), hints=self.known(key.types),
            first=first, zero_exponent=self.zero_exponent(),
        )  # fmt: skip

    def _solve_leads(self, nodes: Sequence[Node]) -> list[Solved | None]:
        """For each node what its most frequent classes say; None where none of them says anything."""
        leads = [sorted(n.classes, key=lambda c: -self._counts[c])[:_LEADS] for n in nodes]
        for turn in range(_LEADS):
            due = [
                lead[turn]
                for lead in leads
                if len(lead) > turn and not any(_tells(self.outcomes.get(c)) for c in lead[:turn])
            ]
            self._solve([c for c in due if c not in self.outcomes])
        return [self._first_telling(lead) for lead in leads]

    def _first_telling(self, lead: Sequence[AnswerKey]) -> Solved | None:
        for outcome in (self.outcomes[c] for c in lead if c in self.outcomes):
            if _tells(outcome):
                return Solved(rule=outcome.rule, reason=outcome.reason)
        return None

    def _solve(self, classes: Sequence[AnswerKey]) -> None:
        known = {types: self.known(types) for types in {c.types for c in classes}}
        tasks = [self.task(c, self._numbers[c], 0, known[c.types]) for c in classes]
        for done, (task, outcome) in enumerate(self._workers.run(run_solve, tasks), 1):
            self.recall(task.key, outcome)
            self._remember(task.key, outcome)
            self._report("solve", done, len(tasks))

    def _try_all(self, work: Sequence[tuple[Node, Solved]]) -> None:
        """Try each node's rule on all its classes."""
        tasks = [
            TrialTask(key=c, source=self._draws, numbers=tuple(self._numbers[c][:8]), rule=s.rule)
            for node, s in work
            for c in node.classes
            if (_name(s), c) not in self._trials
        ]
        for done, (task, verdict) in enumerate(self._workers.run(run_trial, tasks), 1):
            name = "scalar" if task.rule is None else task.rule.text
            self._trials[name, task.key] = verdict in (Verdict.EQUAL, Verdict.REFERENCE_FAILED)
            self._report("try", done, len(tasks))

    def _settle(self, node: Node, found: Solved | None) -> tuple[list[Row], list[Node]]:
        """Rows where the node is settled, and nodes to go on with where it was divided."""
        if found is None:
            return [make_row(node, Solved(rule=None, reason=self._why(node)))], []
        given = {c for c in node.classes if self._trials[_name(found), c]}
        for _ in range(_JOINT):
            if len(given) == len(node.classes):
                return [make_row(node, found)], []
            parts = divide(node, given) if given else []
            if parts:
                return self._split(parts, given, found)
            rule = self._joint(node, [c for c in node.classes if c not in given], [])
            if rule is None:
                break
            found = Solved(rule=rule)
            self._try_all([(node, found)])
            given = {c for c in node.classes if self._trials[_name(found), c]}
        if len(given) == len(node.classes):
            return [make_row(node, found)], []
        return self._apart(node, given, found)

    def _split(self, parts: Sequence[Node], given: set[AnswerKey], found: Solved) -> tuple[list[Row], list[Node]]:
        rows, nodes = [], []
        for part in parts:
            if all(c in given for c in part.classes):
                rows.append(make_row(part, found))
            else:
                nodes.append(part)
        return rows, nodes

    def _apart(self, node: Node, given: set[AnswerKey], found: Solved) -> tuple[list[Row], list[Node]]:
        """No attribute and no rule joins them: each class that the rule fails on gets a row of its own, without one."""
        reason = "no rule of the space gives the bytes of this answer together with those of its neighbours"
        rows = [
            make_row(Node(classes=(c,), named=CLASS_ATTRIBUTES), Solved(rule=None, reason=reason))
            for c in node.classes
            if c not in given
        ]
        if given:
            rest = Node(classes=tuple(c for c in node.classes if c in given), named=node.named)
            rows.append(make_row(rest, found))
        return rows, []

    def _joint(self, node: Node, failing: Sequence[AnswerKey], numbers: Sequence[int]) -> Rule | None:
        """Solve the node's classes as one, problems of the failing ones read first."""
        first = [*numbers, *(self._numbers[c][0] for c in failing)][:_READ_FIRST]
        rest = [n for c in (*failing, *node.classes) for n in self._numbers[c][:_PER_CLASS]]
        task = self.task(node.classes[0], [*first, *rest], len(first), ())
        for _, outcome in self._workers.run(run_solve, [task]):
            if outcome.rule is not None:
                self.recall(node.classes[0], outcome)
                self._remember(node.classes[0], outcome)
                rule: Rule = outcome.rule
                return rule
        return None

    def _why(self, node: Node) -> str:
        reasons = Counter(self.outcomes[c].reason for c in node.classes if c in self.outcomes)
        return reasons.most_common(1)[0][0] if reasons else "not read"



def _tells(outcome: ClassOutcome | None) -> bool:
    return outcome is not None and (outcome.rule is not None or outcome.scalar)


def _name(solved: Solved) -> str:
    return "scalar" if solved.rule is None else solved.rule.text
