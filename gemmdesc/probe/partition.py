"""Dividing the classes of answers into rows, each with one rule that gives all its classes' bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gemmdesc.dtypes import DType
from gemmdesc.probe import records
from gemmdesc.probe.answers import AnswerKey, Types
from gemmdesc.probe.chains import NO_KIN, Kin, kin_of, one_rule, row_alone, steps, without
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.examples import Draws, Variant
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.outcomes import ClassOutcome
from gemmdesc.probe.prior import Prior, first_rules
from gemmdesc.probe.projection import (
    CLASS_ATTRIBUTES,
    FAMILY_ATTRIBUTES,
    Node,
    Row,
    Solved,
    divide,
    families,
    join,
    joinable,
    make_row,
    narrowed,
)
from gemmdesc.probe.rulebook import RuleBook
from gemmdesc.probe.scalar_rule import is_scalar
from gemmdesc.probe.scan import Tally
from gemmdesc.probe.tasks import SolveTask, run_solve
from gemmdesc.probe.trials import TrialTask, run_trial
from gemmdesc.probe.workers import Workers
from gemmdesc.problem import environment
from gemmdesc.rule import Rule

#: Called with a phase's name, how much of it is done, and of how much.
Report = Callable[[str, int, int | None], None]
#: Classes of a node that are solved, one after the other, before it is given up.
_LEADS = 3
#: Problems on which a rule failed that are read before others.
_READ_FIRST = 3
#: Rules met most often that a trial is to tell from the one tried, and that a class is tried on before it is read.
_RIVALS, _KNOWN = 8, 20


class Partition:
    """Rows so far, every class's own outcome, and what each rule gave on each class it was tried on.

    ``book``: what is known of rules.  ``cuda_cores``: whether the orders of classes that fuse no products are sought.
    """

    cuda_cores = False

    def __init__(
        self, workers: Workers, draws: Draws, report: Report, journal: Journal, prior: Sequence[Row] = ()
    ) -> None:
        self._workers, self._draws, self._report, self._journal = workers, draws, report, journal
        self._prior = Prior(prior)
        self._trials: dict[tuple[str, AnswerKey], bool] = {}
        self._foretold: set[tuple[str, AnswerKey]] = set()
        self._failed: set[str] = set()
        self._witnesses: dict[AnswerKey, list[Variant]] = {}
        self._numbers: dict[AnswerKey, list[int]] = {}
        self._counts: Counter[AnswerKey] = Counter()
        self.book = RuleBook()
        for data in journal.read("classes"):
            self.book.recall(*records.outcome_from_plain(data))
        for data in journal.read("trials"):
            place = (data["rule"], records.key_of(data))
            self._trials[place] = data["given"]
            (self._foretold.add if data.get("foretold") else self._foretold.discard)(place)

    def seek_cuda_cores(self, rows: Sequence[Row]) -> list[Row]:
        """From now on seek orders of classes that show no fused step too; the rows, less those with too few products.

        Classes of CUDA-core kernels stay in their rows until :meth:`solve_chains` solves them.
        """
        self.cuda_cores = True
        unsought = {c for c, o in self.book.outcomes.items() if o.rule is None and _not_sought(o)}
        unsought -= {c for row in rows for c in row.classes if self._is_chain(c)}
        for key in unsought:
            del self.book.outcomes[key]
        return [r for r in rows if r.solved.rule is not None or unsought.isdisjoint(r.classes)]

    def chain_steps(self, tally: Tally, rows: Sequence[Row]) -> list[list[AnswerKey]]:
        """Classes of CUDA-core kernels that no rule was sought for yet, those of one step to be solved together."""
        self._index(tally)
        return steps([c for row in rows for c in row.classes if self.waits(row, c)], self._counts)

    def waits(self, row: Row, key: AnswerKey) -> bool:
        """Whether ``key``, a class of ``row``, is one of CUDA-core kernels for which no rule was sought yet."""
        if row.solved.rule is not None or not self._is_chain(key):
            return False
        outcome = self.book.outcomes.get(key)
        return outcome is None or _not_sought(outcome) or (outcome.rule is not None and self._stands(key))

    def _is_chain(self, key: AnswerKey) -> bool:
        """Whether the class showed no fused step, read or tried."""
        outcome = self.book.outcomes.get(key)
        solved = outcome is not None and outcome.rule is not None and is_scalar(outcome.rule)
        return solved or self.book.is_scalar(key) or self._trials.get((_name(Solved(rule=None)), key), False)

    def solve_chains(self, tally: Tally, rows: Sequence[Row], classes: Sequence[AnswerKey]) -> list[Row]:
        """``rows``, with one for each of ``classes``, of CUDA-core kernels, by itself."""
        self._index(tally)
        due = [c for c in classes if c not in self.book.outcomes or not self._sought(c)]
        self._solve(due)
        met, alone = list(self._counts), []
        for key in classes:
            outcome = self.book.outcomes[key]
            if outcome.rule is not None:
                # It foretold trees of this class.
                self._trials[outcome.rule.text, key] = True
                self._journal.append("trials", records.trial_to_plain(outcome.rule.text, key, given=True))
            alone.append(row_alone(key, met, Solved(rule=outcome.rule, reason=outcome.reason)))
        return [*without(rows, classes), *alone]

    def _sought(self, key: AnswerKey) -> bool:
        return not _not_sought(self.book.outcomes[key]) and self._stands(key)

    def lendable(self, tally: Tally, rows: Sequence[Row]) -> list[AnswerKey]:
        """Classes of CUDA-core kernels without a rule, whose family has some by now: trees were too few."""
        self._index(tally)
        return [c for row in rows if self._may_be_lent(row) for c in row.classes]

    def foreknown(self, tally: Tally) -> frozenset[int]:
        """Families (``algo_id``) of all of whose classes met the prior has a rule."""
        unknown = {_family(key) for key in tally.counts if not self._prior.has_rule(key)}
        return frozenset({_family(key) for key in tally.counts} - unknown)

    def make_rows(self, tally: Tally, classes: Sequence[AnswerKey]) -> list[Row]:
        """Rows for ``classes``, which no row takes yet."""
        self._index(tally)
        nodes = families(classes)
        if self.book.zero_exponent() is None:
            # Only these types show it, and the rules of others need it.
            showing = [n for n in nodes if n.classes[0].types[2] is DType.FLOAT32]
            self._solve([max(n.classes, key=lambda c: self._counts[c]) for n in showing])
        rows = self._work(self._guided(nodes))
        # Classes with too few products to read take a known rule that gives their bytes; by now rules are known.
        silent = [r for r in rows if r.solved.rule is None and not any(self.book.is_scalar(c) for c in r.classes)]
        for key in (c for r in silent for c in r.classes):
            self.book.outcomes.pop(key, None)
        again = self._work([Node(classes=r.classes, named=r.named) for r in silent]) if self.book.rules else silent
        rows = [*(r for r in rows if r not in silent), *again]
        # Kernels are the same for several types: what one class's trees were too few for, another's may have shown.
        lacking = [r for r in rows if self._may_be_lent(r)]
        for key in (c for r in lacking for c in r.classes):
            self.book.outcomes.pop(key, None)
        return [*(r for r in rows if r not in lacking), *self._work([_whole([r]) for r in lacking])]

    def _guided(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes as the prior divides them, once a class of each family it knows was read, for what it adds."""
        leads = [max(n.classes, key=lambda c: self._counts[c]) for n in nodes if self._prior.knows(n.classes[0])]
        self._solve([c for c in leads if c not in self.book.outcomes])
        return [part for node in nodes for part in self._prior.divided(node)]

    def _may_be_lent(self, row: Row) -> bool:
        """Whether CUDA-core chains of a class of the family have a rule, and the row's have none."""
        solved = {_family(c) for c, o in self.book.outcomes.items() if o.rule is not None and is_scalar(o.rule)}
        unsolved = row.solved.rule is None and any(self.book.is_scalar(c) for c in row.classes)
        return self.cuda_cores and unsolved and _family(row.classes[0]) in solved

    def repair(self, tally: Tally, failed: Sequence[tuple[Row, Mapping[AnswerKey, Variant]]]) -> list[Row]:
        """Rows in place of those whose rule failed; ``failed`` gives each one a problem of every class it failed on."""
        self._index(tally)
        nodes = []
        for row, classes in failed:
            # Where some of what was foretold is wrong, the rest is tried.
            self._failed.add(_name(row.solved))
            for place in {(_name(row.solved), key) for key in row.classes} & self._foretold:
                self._foretold.discard(place)
                del self._trials[place]
            for key, variant in classes.items():
                self._trials[_name(row.solved), key] = False
                witnesses = self._witnesses.setdefault(key, [])
                if variant not in witnesses:
                    witnesses.insert(0, variant)
            nodes.append(Node(classes=row.classes, named=row.named))
        return self._work(nodes)

    def _work(self, nodes: list[Node]) -> list[Row]:
        rows: list[Row] = []
        while nodes:
            solved = self._solve_leads(nodes)
            for node, found in zip(nodes, solved, strict=True):
                self._take_foretold(node, found)
            self._try_all([(n, s) for n, s in zip(nodes, solved, strict=True) if s is not None])
            following: list[Node] = []
            for node, found in zip(nodes, solved, strict=True):
                done, more = self._settle(node, found)
                rows.extend(done)
                following.extend(more)
            nodes = following
        return rows

    def merge(self, rows: Sequence[Row]) -> list[Row]:
        """Undo divisions that one of the divided rows' rules makes needless, as it gives all their classes' bytes."""
        kept = list(rows)
        for name in (n for n in CLASS_ATTRIBUTES if n not in FAMILY_ATTRIBUTES):
            groups = [g for g in joinable(kept, name) if not _chains(g) or one_rule(g)]
            rules = [self._candidates(g) for g in groups]
            self._try_all([(_whole(g), s) for g, candidates in zip(groups, rules, strict=True) for s in candidates])
            for group, candidates in zip(groups, rules, strict=True):
                node = _whole(group)
                shared = next((s for s in candidates if len(self._given(node, s)) == len(node.classes)), None)
                if shared is not None:
                    gone = {r.key for r in group}
                    kept = [*(r for r in kept if r.key not in gone), join(group, name, shared)]
        return narrowed(kept)

    def _candidates(self, group: Sequence[Row]) -> list[Solved]:
        """The rule of the most classes in the group."""
        texts = Counter({r.solved.rule.text: 0 for r in group if r.solved.rule is not None})
        for row in group:
            if row.solved.rule is not None:
                texts[row.solved.rule.text] += len(row.classes)
        by_text = {r.solved.rule.text: r.solved for r in group if r.solved.rule is not None}
        return [by_text[t] for t, _ in texts.most_common(1)]

    def _index(self, tally: Tally) -> None:
        self._numbers.clear()
        self._counts.clear()
        for key, numbers in tally.numbers.items():
            owner = key.only(CLASS_ATTRIBUTES)
            self._numbers.setdefault(owner, []).extend(numbers)
            self._counts[owner] += tally.counts[key]

    def task(self, key: AnswerKey, known: Sequence[Rule]) -> SolveTask:
        return SolveTask(
            key=key, source=self._draws, numbers=tuple(self._numbers[key]), known=tuple(known),
            chains=self._reads_chains(key), kin=self._kin(key),
            hints=self.book.known(key.types), preferred=self.book.pool.expressions(_family(key)),
            witnesses=tuple(self._witnesses.get(key, ())[:_READ_FIRST]), zero_exponent=self.book.zero_exponent(),
            cuda_cores=self.cuda_cores, bare=self._prior.bare(key),
        )  # fmt: skip

    def _reads_chains(self, key: AnswerKey) -> bool:
        return self.cuda_cores and self._is_chain(key)

    def _kin(self, key: AnswerKey) -> Kin:
        """Rules that a class of CUDA-core kernels is read against, where their orders are sought; none of others."""
        if not self._reads_chains(key):
            return NO_KIN
        solved = self.book.solved()
        kin = kin_of(key, solved, lambda rule: records.retyped(rule, key.types))
        guesses = [r for r in self._prior.guesses(key, solved) if is_scalar(r)]
        return Kin(twins=self._unrefuted(key, [*guesses, *kin.twins]), others=self._unrefuted(key, kin.others))

    def _unrefuted(self, key: AnswerKey, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """A rule that failed on the class has been tried."""
        return tuple(r for r in rules if self._trials.get((r.text, key), True))

    def _solve_leads(self, nodes: Sequence[Node]) -> list[Solved | None]:
        """For each node what its most frequent classes say; None where none of them says anything."""
        leads = [sorted(n.classes, key=lambda c: -self._counts[c])[:_LEADS] for n in nodes]
        for turn in range(_LEADS):
            due = [
                lead[turn]
                for lead in leads
                if len(lead) > turn and not any(self._stands(c) for c in lead[:turn])
            ]
            self._solve([c for c in due if c not in self.book.outcomes or not self._stands(c)])
        return [self._first_telling(lead) for lead in leads]

    def _stands(self, key: AnswerKey) -> bool:
        """Whether the class's own outcome says something, and has not failed on the class since."""
        outcome = self.book.outcomes.get(key)
        if outcome is None or not (outcome.rule is not None or outcome.scalar):
            return False
        return self._trials.get((_name(Solved(rule=outcome.rule)), key), True)

    def _first_telling(self, lead: Sequence[AnswerKey]) -> Solved | None:
        key = next((c for c in lead if self._stands(c)), None)
        if key is None:
            return None
        outcome = self.book.outcomes[key]
        if outcome.rule is None:
            return Solved(rule=None, reason=outcome.reason)
        wide = self.book.calibrated(self.book.pool.widen(outcome.rule, _family(key), outcome.readings))
        wide = self._prior.restated(key, wide, [environment(r.problem, r.answer, None) for r in outcome.readings])
        if not self._trials.get((wide.text, key), True):
            wide = outcome.rule
        self.book.meet(wide)
        return Solved(rule=wide, reason=outcome.reason)

    def _known(self, types: Types) -> tuple[Rule, ...]:
        """Rules found so far; while CUDA-core orders are not sought, those of too few products tell nothing of them."""
        return tuple(r for r in self.book.known(types) if self.cuda_cores or not is_scalar(r))

    def _solve(self, classes: Sequence[AnswerKey]) -> None:
        read = {c for c in classes if self._reads_chains(c)}
        known = {types: self._known(types)[:_KNOWN] for types in {c.types for c in classes if c not in read}}
        guessed = {
            c: () if c in read else (*self._prior.guesses(c, self.book.solved()), *known[c.types]) for c in classes
        }
        left = {c: self._unrefuted(c, rules) for c, rules in guessed.items()}
        tasks = [self.task(c, first_rules(left[c], _KNOWN)) for c in classes]
        for done, (task, outcome) in enumerate(self._workers.run(run_solve, tasks), 1):
            self.book.recall(task.key, outcome)
            self._journal.append("classes", records.outcome_to_plain(task.key, outcome))
            self._report("solve", done, len(tasks))

    def _try_all(self, work: Sequence[tuple[Node, Solved]]) -> None:
        """Try each node's rule on all its classes."""
        rivals = {t: self.book.known(t)[:_RIVALS] for t in {n.classes[0].types for n, _ in work}}
        tasks = [
            TrialTask(
                key=c,
                source=self._draws,
                numbers=tuple(self._numbers[c][:24]),
                rule=s.rule,
                rivals=rivals[c.types],
                witnesses=tuple(self._witnesses.get(c, ())[:4]),
            )
            for node, s in work
            for c in node.classes
            if (_name(s), c) not in self._trials
        ]
        for done, (task, verdict) in enumerate(self._workers.run(run_trial, tasks), 1):
            name = "scalar" if task.rule is None else task.rule.text
            given = verdict in (Verdict.EQUAL, Verdict.REFERENCE_FAILED)
            self._trials[name, task.key] = given
            self._journal.append("trials", records.trial_to_plain(name, task.key, given))
            self._report("try", done, len(tasks))

    def _take_foretold(self, node: Node, found: Solved | None) -> None:
        """Classes for which the prior foretells what the node's lead showed go untried: verifying compares them all."""
        if found is None or found.rule is None or found.rule.text in self._failed:
            return
        for key in node.classes:
            place = (found.rule.text, key)
            if place not in self._trials and self._prior.foretells(key, found.rule):
                self._trials[place] = True
                self._foretold.add(place)
                record = records.trial_to_plain(found.rule.text, key, given=True, foretold=True)
                self._journal.append("trials", record)

    def _settle(self, node: Node, found: Solved | None) -> tuple[list[Row], list[Node]]:
        """Rows where the node is settled, and nodes to go on with where it was divided."""
        if found is None:
            return [make_row(node, Solved(rule=None, reason=self._why(node)))], []
        given = self._given(node, found)
        if len(given) == len(node.classes):
            return [make_row(node, found)], []
        parts = divide(node, given)
        return self._split(parts, given, found) if parts else self._apart(node, given, found)

    def _given(self, node: Node, found: Solved) -> set[AnswerKey]:
        """The node's classes whose bytes ``found`` gave."""
        return {c for c in node.classes if self._trials[_name(found), c]}

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

    def _why(self, node: Node) -> str:
        reasons = Counter(self.book.outcomes[c].reason for c in node.classes if c in self.book.outcomes)
        return reasons.most_common(1)[0][0] if reasons else "not read"


def _not_sought(outcome: ClassOutcome) -> bool:
    """Whether a class was read, without a fused step to be seen, and no order of single products was sought."""
    readings = outcome.readings
    asked = any(r.fused or r.element_tree is not None or r.negative_zero is not None for r in readings)
    return bool(readings) and not asked


def _whole(group: Sequence[Row]) -> Node:
    return Node(classes=tuple(c for r in group for c in r.classes), named=group[0].named)


def _chains(rows: Sequence[Row]) -> bool:
    """Whether the rows' rules are those of CUDA-core kernels: trials take many launches, and few rules are shared."""
    return all(r.solved.rule is not None and is_scalar(r.solved.rule) for r in rows)


def _family(key: AnswerKey) -> int:
    return key.attribute("algo_id") or 0


def _name(solved: Solved) -> str:
    return "scalar" if solved.rule is None else solved.rule.text
