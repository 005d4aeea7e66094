"""Dividing the classes of answers into rows, each with one rule that gives all its classes' bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gemmdesc.dtypes import DType
from gemmdesc.probe.answers import AnswerKey
from gemmdesc.probe.chains import most_met_types, one_rule, row_alone, steps, without
from gemmdesc.probe.class_solver import ClassSolver, Report
from gemmdesc.probe.compare import Verdict
from gemmdesc.probe.examples import Draws, Variant
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.outcomes import ClassOutcome
from gemmdesc.probe.prior import Prior
from gemmdesc.probe.projection import (
    CLASS_ATTRIBUTES,
    FAMILY_ATTRIBUTES,
    Node,
    Row,
    Solved,
    families,
    join,
    joinable,
    make_row,
    narrowed,
    settle,
)
from gemmdesc.probe.scalar_rule import is_scalar
from gemmdesc.probe.scan import Tally
from gemmdesc.probe.trialbook import TrialBook
from gemmdesc.probe.trials import TrialTask, run_trial
from gemmdesc.probe.workers import Workers
from gemmdesc.rule import Rule

#: Rules met most often that a trial is to tell from the one tried.
_RIVALS = 8
#: Of trials that take place on a class's own problems only.
NO_WITNESSES: Mapping[AnswerKey, Sequence[Variant]] = MappingProxyType({})


class Partition:
    """Rows so far, every class's own outcome, and what each rule gave on each class it was tried on.

    ``book``: what is known of rules.
    """

    def __init__(
        self, workers: Workers, draws: Draws, report: Report, journal: Journal, prior: Prior | None = None
    ) -> None:
        self._workers, self._draws, self._report = workers, draws, report
        self._prior = Prior() if prior is None else prior
        self._trials = TrialBook(journal)
        self._solver = ClassSolver(workers, draws, report, journal, self._prior, self._trials)
        self.book = self._solver.book

    def leave_cuda_cores(self) -> None:
        """From now on seek no orders of classes that show no fused step."""
        self._solver.cuda_cores = False

    def seek_cuda_cores(self, rows: Sequence[Row]) -> list[Row]:
        """From now on seek orders of classes that show no fused step too; the rows, less those with too few products.

        Classes of CUDA-core kernels stay in their rows until :meth:`solve_chains` solves them.
        """
        self._solver.cuda_cores = True
        unsought = {c for c, o in self.book.outcomes.items() if o.rule is None and _not_sought(o)}
        unsought -= {c for row in rows for c in row.classes if self._solver.is_chain(c)}
        for key in unsought:
            del self.book.outcomes[key]
        return [r for r in rows if r.solved.rule is not None or unsought.isdisjoint(r.classes)]

    def chain_steps(self, tally: Tally, rows: Sequence[Row]) -> list[list[AnswerKey]]:
        """Classes of CUDA-core kernels that no rule was sought for yet, those of one step to be solved together."""
        self._solver.index(tally)
        return steps([c for row in rows for c in row.classes if self.waits(row, c)], self._solver.counts)

    def waits(self, row: Row, key: AnswerKey) -> bool:
        """Whether ``key``, a class of ``row``, is one of CUDA-core kernels for which no rule was sought yet."""
        if row.solved.rule is not None or not self._solver.is_chain(key):
            return False
        outcome = self.book.outcomes.get(key)
        return outcome is None or _not_sought(outcome) or (outcome.rule is not None and self._solver.stands(key))

    def solve_chains(self, tally: Tally, rows: Sequence[Row], classes: Sequence[AnswerKey]) -> list[Row]:
        """``rows``, with one for each of ``classes``, of CUDA-core kernels, by itself."""
        self._solver.index(tally)
        due = [c for c in classes if c not in self.book.outcomes or not self._sought(c)]
        self._solver.solve(due)
        met, alone = list(self._solver.counts), []
        for key in classes:
            outcome = self.book.outcomes[key]
            if outcome.rule is not None:
                # It foretold trees of this class.
                self._trials.note(outcome.rule, key, given=True)
            alone.append(row_alone(key, met, Solved(rule=outcome.rule, reason=outcome.reason)))
        return [*without(rows, classes), *alone]

    def _sought(self, key: AnswerKey) -> bool:
        return not _not_sought(self.book.outcomes[key]) and self._solver.stands(key)

    def lendable(self, tally: Tally, rows: Sequence[Row]) -> list[AnswerKey]:
        """Classes of CUDA-core kernels without a rule, whose family has some by now: trees were too few."""
        self._solver.index(tally)
        return [c for row in rows if self._may_be_lent(row) for c in row.classes]

    def foreknown(self, tally: Tally) -> frozenset[int]:
        """Families (``algo_id``) of all of whose classes met the prior has a rule."""
        unknown = {key.family for key in tally.counts if not self._prior.has_rule(key)}
        return frozenset({key.family for key in tally.counts} - unknown)

    def hold_guesses(
        self, tally: Tally, classes: Sequence[AnswerKey], witnesses: Mapping[AnswerKey, Sequence[Variant]],
        *, chains: bool,
    ) -> frozenset[int]:  # fmt: skip
        """Try the guesses from another build of ``classes``, before any is read; the families where one is wrong.

        Of every row the class met most is read, too: bytes of narrow partials show little of a step.  ``chains``: those
        of CUDA-core kernels are tried too,
        each by itself.  ``witnesses``: problems of classes that take part in their trials.
        """
        self._solver.index(tally)
        groups = self._guessed(classes, chains)
        chained = [c for node, rule in groups if is_scalar(rule) for c in node.classes]
        often = most_met_types(chained, self._solver.counts)
        leads = [node.classes[0] for node, rule in groups if not is_scalar(rule)]
        self._solver.hold([*often, *leads], read=leads)
        # The same answers about other types: most are the same order, of which fewer trees are read then.
        self._solver.hold([c for c in chained if c not in often])
        held = [(n, Solved(rule=r)) for n, r in groups if not is_scalar(r) and self._solver.stands(n.classes[0])]
        for node, solved in held:
            self._trials.take_foretold(self._prior, node, solved)
        self._try_all(held, witnesses)
        refuted = [c for node, rule in groups for c in node.classes if not self._trials.allows(rule, c)]
        return frozenset(c.family for c in refuted)

    def _guessed(self, classes: Sequence[AnswerKey], chains: bool) -> list[tuple[Node, Rule]]:
        """The classes of which there are guesses, as these divide them, those of one rule together, most met first."""
        found: list[tuple[Node, Rule]] = []
        for node in (part for whole in families(classes) for part in self._prior.divided(whole)):
            by_rule: dict[str, tuple[Rule, list[AnswerKey]]] = {}
            for key in sorted(node.classes, key=lambda c: -self._solver.counts[c]):
                rule = self._solver.guess(key)
                if rule is not None and (chains or not is_scalar(rule)):
                    by_rule.setdefault(rule.text, (rule, []))[1].append(key)
            found += [(Node(classes=tuple(keys), named=node.named), rule) for rule, keys in by_rule.values()]
        return found

    def make_rows(self, tally: Tally, classes: Sequence[AnswerKey]) -> list[Row]:
        """Rows for ``classes``, which no row takes yet."""
        self._solver.index(tally)
        nodes = families(classes)
        if self.book.zero_exponent() is None:
            # Only these types show it, and the rules of others need it.
            showing = [n for n in nodes if n.classes[0].types[2] is DType.FLOAT32]
            leads = [max(n.classes, key=lambda c: self._solver.counts[c]) for n in showing]
            self._solver.solve([c for c in leads if c not in self.book.outcomes])
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
        leads = [max(n.classes, key=lambda c: self._solver.counts[c]) for n in nodes if self._prior.knows(n.classes[0])]
        self._solver.solve([c for c in leads if c not in self.book.outcomes])
        return [part for node in nodes for part in self._prior.divided(node)]

    def _may_be_lent(self, row: Row) -> bool:
        """Whether CUDA-core chains of a class of the family have a rule, and the row's have none."""
        solved = {c.family for c, o in self.book.outcomes.items() if o.rule is not None and is_scalar(o.rule)}
        unsolved = row.solved.rule is None and any(self.book.is_scalar(c) for c in row.classes)
        return self._solver.cuda_cores and unsolved and row.classes[0].family in solved

    def repair(self, tally: Tally, failed: Sequence[tuple[Row, Mapping[AnswerKey, Variant]]]) -> list[Row]:
        """Rows in place of those whose rule failed; ``failed`` gives each one a problem of every class it failed on."""
        self._solver.index(tally)
        nodes = []
        for row, classes in failed:
            self._trials.fail(row, classes)
            nodes.append(Node(classes=row.classes, named=row.named))
        return self._work(nodes)

    def _work(self, nodes: list[Node]) -> list[Row]:
        rows: list[Row] = []
        while nodes:
            solved = self._solver.solve_leads(nodes)
            for node, found in zip(nodes, solved, strict=True):
                self._trials.take_foretold(self._prior, node, found)
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
                shared = next((s for s in candidates if len(self._trials.given(node, s)) == len(node.classes)), None)
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

    def _try_all(
        self, work: Sequence[tuple[Node, Solved]], witnesses: Mapping[AnswerKey, Sequence[Variant]] = NO_WITNESSES
    ) -> None:
        """Try each node's rule on all its classes, on ``witnesses`` too."""
        rivals = {t: self.book.known(t)[:_RIVALS] for t in {n.classes[0].types for n, _ in work}}
        tasks = [
            TrialTask(
                key=c,
                source=self._draws,
                numbers=tuple(self._solver.numbers[c][:24]),
                rule=s.rule,
                rivals=rivals[c.types],
                witnesses=(*self._trials.witnesses(c)[:4], *witnesses.get(c, ())),
            )
            for node, s in work
            for c in node.classes
            if not self._trials.tried(s.rule, c)
        ]
        for done, (task, verdict) in enumerate(self._workers.run(run_trial, tasks), 1):
            self._trials.note(task.rule, task.key, verdict in (Verdict.EQUAL, Verdict.REFERENCE_FAILED))
            self._report("try", done, len(tasks))

    def _settle(self, node: Node, found: Solved | None) -> tuple[list[Row], list[Node]]:
        """Rows where the node is settled, and nodes to go on with where it was divided."""
        if found is None:
            return [make_row(node, Solved(rule=None, reason=self._why(node)))], []
        return settle(node, found, self._trials.given(node, found))

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
