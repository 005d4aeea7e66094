"""Solving one class of answers: read, infer, tell survivors apart, verify, and read again where bytes differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gemmdesc.library.interface import Library
from gemmdesc.probe.asking_order import CHECKED_EXAMPLES, AskingOrder
from gemmdesc.probe.compare import Verdict, compare_rules, needs_launch, plain_draws, rival_draws
from gemmdesc.probe.epilogues import with_epilogues
from gemmdesc.probe.examples import readable, widest
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.formats import with_formats
from gemmdesc.probe.infer import Unexplained, infer_rules
from gemmdesc.probe.met import Met
from gemmdesc.probe.outcomes import ClassOutcome, ClassTask
from gemmdesc.probe.predicted import farthest, scalar_reading, short_chains
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scalar_infer import Launched, infer_scalar_rules
from gemmdesc.probe.scalar_rule import confirms, is_scalar
from gemmdesc.profiles import FEWEST_PRODUCTS
from gemmdesc.rule import Rule

#: Readings taken of one class before giving up on it.
MOST_READINGS = 8
#: Readings after which a class that no rule explains is given up: of fused steps, and of trees.
UNEXPLAINED, UNEXPLAINED_TREES = 4, 10
#: Trees of CUDA-core chains that a rule must foretell before they are read, and each of its branches; readings that may
#: be taken for that.
FORETOLD, FORETOLD_EACH, MOST_TREES = 3, 2, 20
#: How unlike every tree read an example may be (:func:`gemmdesc.probe.predicted.farthest`) and still be left unread.
LIKE_READ = 5.0


def solve_class(library: Library, task: ClassTask) -> ClassOutcome:
    """Find the class's rule.  Rules known from other classes are tried first, on this class's own bytes."""
    state = _Solver(library, task)
    return state.try_known() or state.learn()


def try_rules(library: Library, task: ClassTask) -> ClassOutcome | None:
    """The outcome where a known rule is the class's, tried as by :func:`solve_class`; None where none is."""
    return _Solver(library, task).try_known()


class _Solver:
    def __init__(self, library: Library, task: ClassTask) -> None:
        self._library, self._task = library, task
        self._met = Met(library, task.examples)
        self._examples, self._domain = self._met.examples, self._met.domain
        self._readings: list[Reading] = []
        self._read: dict[int, None] = {}
        self._order = AskingOrder(self._met, task.first, self._read)
        self._hints = tuple({str(e): e for r in task.hints for e in r.expressions}.values())
        self._held: Rule | None = None
        self._rules: tuple[Rule, ...] = (*task.kin.twins, *task.kin.others)
        self._twins = frozenset(rule.text for rule in task.kin.twins)
        #: Texts of rules of steps that gave other bytes than the library.
        self._refuted: set[str] = set()
        self._foretold: Counter[int] = Counter()
        self._rivals = 0
        self._checked = 0
        self._draws = 0

    def _outcome(self, rule: Rule | None, reason: str = "", scalar: bool = False) -> ClassOutcome:
        return ClassOutcome(
            label=self._task.label, rule=rule, reason=reason, scalar=scalar, readings=tuple(self._readings),
            checked=self._checked, draws=self._draws, rivals=self._rivals,
        )  # fmt: skip

    def try_known(self) -> ClassOutcome | None:
        """A known rule that gives this class's bytes: on examples where the known ones differ most, then on others.

        Products too few to show an order are taken for one chain, too, where they are those of no matrix step.
        """
        short = all(e.problem.k < FEWEST_PRODUCTS for e in self._examples)
        alive = [*self._task.known, *(short_chains(self._examples[0].problem) if short else ())]
        asked: list[int] = []
        for index in self._task.first:
            alive = self._surviving(alive, index) if alive else []
            asked.append(index)
        following = self._order.next_beyond(asked)
        while alive and following is not None and len(asked) < CHECKED_EXAMPLES:
            alive = self._surviving(alive, following)
            asked.append(following)
            following = self._order.most_disputed(alive, asked)
        for index in self._order.checked(alive):
            if alive and index not in asked and len(asked) < CHECKED_EXAMPLES:
                alive = self._surviving(alive, index)
                asked.append(index)
        if not alive or not self._checked:
            return None
        if is_scalar(alive[0]) and not short and not self._foretells(alive[0]):
            return None
        return self._outcome(alive[0])

    def _foretells(self, rule: Rule) -> bool:
        """Whether a rule of another class gives the trees of some examples of this one."""
        self._held = rule
        if needs_launch(rule, self._examples[0]):
            self._launched()
        while (index := self._unlike_read()) is not None:
            try:
                self._take(index)
            except ReferenceFailed:
                continue
            if not self._foretold:
                return False
        return True

    def _surviving(self, rules: list[Rule], index: int) -> list[Rule]:
        draws = (*plain_draws(self._task.seed, 2, first=index), *rival_draws(self._task.seed, 2, first=2 * index))
        verdicts = compare_rules(self._library, self._examples[index], rules, draws)
        if any(v in (Verdict.EQUAL, Verdict.DIFFERENT) for v in verdicts):
            self._checked += 1
            self._draws += len(draws)
        kept = [r for r, v in zip(rules, verdicts, strict=True) if v in (Verdict.EQUAL, Verdict.REFERENCE_FAILED)]
        self._rivals += len(rules) - len(kept)
        self._refuted |= {r.text for r in rules if r not in kept and not is_scalar(r)}
        return kept

    def learn(self) -> ClassOutcome:
        """Read until one behaviour is left that also gives the bytes of the examples not read."""
        if any(needs_launch(r, self._examples[0]) for r in self._rules):
            self._launched()
        following: int | None = self._order.next_unread()
        while following is not None and len(self._readings) < self._most():
            try:
                self._take(following)
            except ReferenceFailed as error:
                if not self._readings and self._order.next_unread() is None:
                    return self._outcome(None, str(error))
                following = self._order.next_unread()
                continue
            rules = self._told_apart(self._inferred())
            if isinstance(rules, Unexplained):
                following = self._order.next_unread() if not rules.scalar else self._order.unlike_unexplained()
                if following is None or self._gives_up(rules):
                    return self._outcome(None, rules.reason, rules.scalar)
                continue
            self._held = rules[0] if is_scalar(rules[0]) else None
            self._rules = rules if self._held is not None else ()
            following = self._order.most_disputed(rules, self._read)
            if following is None and self._held is not None:
                following = self._unlike_read()
            if following is not None:
                continue
            failing = self._first_failing(list(rules))
            if failing is None:
                return self._outcome(rules[0])
            if failing in self._read:
                return self._outcome(None, "the readings allow the rule, but the bytes differ")
            following = failing
        if self._held is not None:
            reason = f"of {len(self._readings)} trees the best rule foretold the last {self._foretold.total()} only"
            return self._outcome(None, reason, scalar=True)
        return self._outcome(None, f"{len(self._readings)} readings leave no rule that gives the bytes")

    def _gives_up(self, found: Unexplained) -> bool:
        """Whether a class that nothing explains so far is read no further."""
        if found.scalar and not self._task.cuda_cores:
            return True
        return len(self._readings) >= (UNEXPLAINED_TREES if found.scalar else UNEXPLAINED)

    def _told_apart(self, rules: tuple[Rule, ...] | Unexplained) -> tuple[Rule, ...] | Unexplained:
        """``rules`` less those refuted by bytes, which are asked where a reading left rules that differ right there.

        A walk does not see everything: an accumulator of a single product, say, leaves it no room.
        """
        if isinstance(rules, Unexplained) or is_scalar(rules[0]):
            return rules
        alive = [r for r in rules if r.text not in self._refuted]
        for index in reversed(self._read):
            if len(alive) > 1 and self._order.behaviours(alive, index) > 1:
                alive = self._surviving(alive, index)
        return tuple(alive) or Unexplained(reason="the readings allow rules, but the bytes differ from all of theirs")

    def _most(self) -> int:
        trees = self._held is not None or any(r.element_tree is not None and not r.fused for r in self._readings)
        return MOST_TREES if trees else MOST_READINGS

    def _unlike_read(self) -> int | None:
        """The example least like those read, the answers at other k among them, that the held rule is yet to foretell.

        Of a branch that has foretold too few, if there is one left; None where all have foretold enough and what is
        left is like something read.
        """
        if self._held is None:
            return None
        self._met.stretch()
        branches = [self._held.branch(e) for e in self._domain]
        lacking = {b for b in set(branches) if self._foretold[b] < FORETOLD_EACH}
        left = [i for i, e in enumerate(self._examples) if i not in self._read and readable(e)]
        due = [i for i in left if branches[i] in lacking] or self._met.other_kernels(left, self._read)
        enough = not due and self._foretold.total() >= FORETOLD
        if enough and self._held.text in self._twins:
            # What its order depends on was read where it was found.
            return None
        of = widest(self._examples, due or left)
        return farthest(self._examples, sorted(self._read), of, beyond=LIKE_READ if enough else -1.0)

    def _launched(self) -> Launched | None:
        """The trees read and the domain with what the library launches; from now on readings and domain have it."""
        if not self._met.launched:
            self._met.see_launches()
            self._readings = [replace(r, launch=self._library.launch(r.problem, r.answer)) for r in self._readings]
        trees = [tree for r in self._readings if (tree := scalar_reading(r)) is not None]
        return (trees, self._domain) if all(t.launch is not None for t in trees) else None

    def _inferred(self) -> tuple[Rule, ...] | Unexplained:
        """The rules that the readings allow: of steps that fuse several products, or else of CUDA-core chains."""
        if any(r.fused for r in self._readings) or not self._task.cuda_cores:
            return infer_rules(
                self._readings, self._domain, self._hints, self._task.preferred, self._task.zero_exponent
            )
        trees = [tree for r in self._readings if (tree := scalar_reading(r)) is not None]
        if len(trees) < len(self._readings):
            return Unexplained(reason="the sizes read fit no tree of all k", scalar=True)
        # What foretold the newest tree explains all before it; only where nothing did is there more to search.
        kept = tuple(r for r in self._rules if confirms(r, trees[-1]))
        if kept:
            return self._formed(kept)
        others = [r for r in self._task.hints if is_scalar(r)]
        found = infer_scalar_rules(trees, self._domain, self._hints, others=others, launched=self._launched)
        if isinstance(found, Unexplained):
            return found
        return self._formed(found)

    def _formed(self, rules: Sequence[Rule]) -> tuple[Rule, ...] | Unexplained:
        """The rules with what is done to operands and to sums."""
        formed = with_epilogues(with_formats(rules, self._readings), self._readings)
        return formed or Unexplained(reason="what is done to operands or sums fits no step", scalar=True)

    def _take(self, index: int) -> None:
        self._read[index] = None
        example = self._examples[index]
        reader = LibraryReader(self._library, example.problem, example.answer)
        reading = read_answer(reader, example.problem, example.answer, cuda_cores=self._task.cuda_cores)
        if self._met.launched:
            reading = replace(reading, launch=self._library.launch(example.problem, example.answer))
        self._readings.append(reading)
        if self._held is not None:
            tree = scalar_reading(reading)
            if tree is not None and confirms(self._held, tree):
                self._foretold[self._held.branch(tree.environment)] += 1
            else:
                self._foretold.clear()

    def _first_failing(self, rules: list[Rule]) -> int | None:
        for i in self._order.checked(rules):
            if not self._surviving(rules[:1], i):
                return i
        return None
