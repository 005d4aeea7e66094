"""Comparing every row's rule with the library: first what each row needs to be served, then all rows in depth."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

from gemmdesc.probe.answers import AnswerKey, key_to_plain
from gemmdesc.probe.comparisons import FEWEST_COMPARED, Comparisons, Standing, chosen_answers, holds, standing
from gemmdesc.probe.examples import Draws, Variant, cheapest_first, ends_of
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, FAMILY_ATTRIBUTES, Row, RowIndex
from gemmdesc.probe.records import key_of, retyped, verified_to_plain
from gemmdesc.probe.scalar_rule import is_scalar
from gemmdesc.probe.scan import Tally
from gemmdesc.probe.trials import MadeTask, VerifyTask, run_made, run_verify
from gemmdesc.probe.workers import Workers
from gemmdesc.rule import Rule

#: Problems on which every row is verified, if the scan met as many, and answers of a row with draws of every kind.
ROW_PROBLEMS, _FULL_ANSWERS = 16, 6
#: Problems among which a comparison chooses the one where other rules of the family would show, and how many of these.
_VERIFY_CHOICE, _VERIFY_RIVALS = 2, 6
#: Rows met on fewer problems than this have to be shown right in every layout, by so many of their classes; and on
#: how many made problems a class is compared at most, after how many of its problems.
_PLENTY, _IN_LAYOUTS, _MADE_PROBLEMS, _LOOKED_AT = 64, 4, 6, 4

#: A row whose rule failed, with a problem of each class that it failed on.
Failure = tuple[Row, dict[AnswerKey, Variant]]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A row that has a rule, the answers met of it, and those of them that are compared."""

    row: Row
    rule: Rule
    keys: tuple[AnswerKey, ...]
    due: tuple[AnswerKey, ...]


class Verification:
    """The comparisons of a campaign.

    Every answer met is compared on a problem of its own, every class (an answer but for its number of slices) on made
    problems too where its own could not have shown the rule wrong.  ``draws``: plain draws for each of a row's first
    answers; others get one.  ``journal``: each comparison goes there as it comes.  ``most``: answers of a class that
    are compared, those met most often; all if None.
    """

    def __init__(
        self, workers: Workers, source: Draws, known: Comparisons, draws: int,
        report: Callable[[str, int, int | None], None], journal: Journal, most: int | None = None,
    ) -> None:  # fmt: skip
        self._workers, self._source, self._draws, self._most = workers, source, draws, most
        self._report, self._journal = report, journal
        self.comparisons = known
        self._ordered: dict[AnswerKey, list[int]] = {}
        self._ended: dict[AnswerKey, tuple[int, tuple[int, ...]]] = {}
        #: Classes, and digests of rules, of which made problems were compared, or showed nothing more.
        self._shown = {(key_of(data), str(data["rule"])) for data in journal.read("shown")}
        #: Those of them of this session: earlier ones may have known fewer ways to make problems.
        self._made: set[tuple[AnswerKey, str]] = set()

    def serve(self, tally: Tally, index: RowIndex) -> list[Failure]:
        """Compare what rows lack to be served, those first that gain most for a comparison; what has failed.

        Rows that were met on too few problems get made ones.
        """
        members = self._members(tally, index)
        lacking = [m for m in members if not self.standing(tally, m).verified]
        tasks = [(m, self._tasks(tally, m, members, FEWEST_COMPARED)) for m in lacking]
        tasks.sort(key=lambda t: -_met(tally, t[0]) / max(1, len(t[1])))
        self._compare("verify", run_verify, [task for _, of in tasks for task in of])
        few = [m for m, _ in tasks if self.standing(tally, m).equal < FEWEST_COMPARED]
        made = [task for m in few for task in self._made_tasks(tally, m, members, self._made)]
        self._compare("verify, made problems", run_made, made)
        return self._failing(tally, members)

    def deepen(self, tally: Tally, index: RowIndex) -> list[Failure]:
        """Compare all that is to be compared and is not yet, under each row's present rule; what has failed."""
        members = self._members(tally, index)
        # Comparisons that read a tree take longest: others are left for the end, where workers wait for the last one.
        members.sort(key=lambda m: not is_scalar(m.rule))
        tasks = [task for m in members for task in self._tasks(tally, m, members, ROW_PROBLEMS)]
        self._compare("verify in depth", run_verify, tasks)
        made = [task for m in members for task in self._made_tasks(tally, m, members, self._shown)]
        self._compare("verify in depth, made problems", run_made, made)
        return self._failing(tally, members)

    def standing(self, tally: Tally, member: Member) -> Standing:
        """What the comparisons so far say of a row."""
        return standing(self.comparisons.of(member.keys, tally.numbers, member.rule), member.due, tally.given)

    def unserved(self, tally: Tally, index: RowIndex) -> float:
        """The share of all answers that rows will take whose rules are not yet verified."""
        members = self._members(tally, index)
        lacking = (m for m in members if not self.standing(tally, m).verified)
        return sum(_met(tally, m) for m in lacking) / max(1, tally.counts.total())

    def _compare(self, phase: str, task: Callable[..., Any], items: Sequence[Any]) -> None:
        for count, (item, result) in enumerate(self._workers.run(task, items), 1):
            for verified in result if isinstance(result, tuple) else (result,):
                self.comparisons.add(verified)
                self._journal.append("verified", verified_to_plain(verified))
            if isinstance(item, MadeTask):
                owner = item.key.only(CLASS_ATTRIBUTES)
                self._shown.add((owner, _digest(item.rule)))
                self._made.add((owner, _digest(item.rule)))
                self._journal.append("shown", {"key": key_to_plain(owner), "rule": _digest(item.rule)})
            self._report(phase, count, len(items))

    def _failing(self, tally: Tally, members: Sequence[Member]) -> list[Failure]:
        failed = []
        for m in members:
            bad = [v for v in self.comparisons.of(m.keys, tally.numbers, m.rule) if not holds(v)]
            if bad:
                failed.append((m.row, {v.key.only(CLASS_ATTRIBUTES): v.variant for v in bad}))
        return failed

    def _tasks(self, tally: Tally, member: Member, members: Sequence[Member], problems: int) -> list[VerifyTask]:
        """A problem of every answer that is compared; further ones, answer by answer, of rows with few of them."""
        depth = _depth([len(tally.numbers[k]) for k in member.due], problems)
        rivals = _rivals(member, members)
        due = enumerate(member.due)
        return [t for at, key in due for t in self._due(tally, key, member.rule, rivals, depth, at < _FULL_ANSWERS)]

    def _due(
        self, tally: Tally, key: AnswerKey, rule: Rule, rivals: tuple[Rule, ...], depth: int, full: bool
    ) -> list[VerifyTask]:
        """Tasks for what is still to be compared of one answer, on up to ``depth`` of its problems.

        One answer of CUDA-core kernels may be several, by the sizes of D: the ends of its range are always compared.
        So is every given problem, by itself.
        """
        known = tally.numbers[key]
        done = {n for n in known if self._is_verified(key, n, rule, full)}
        ends = [n for n in self._ends(known, key) if n not in done] if is_scalar(rule) else []
        given = [n for n in tally.given.get(key, ()) if n not in done]
        ends = [n for n in ends if n not in given]
        needed = max(0, min(depth, len(known)) - len(done) - len(given), len(ends))
        cheap = self._cheapest(known[: _LOOKED_AT * depth], key) if needed else []
        left = [n for n in dict.fromkeys((*ends, *cheap)) if n not in done and n not in given]
        plain = self._draws if full else 1
        against = 2 if full else 1
        alone = [(n,) for n in given]
        chosen = [*alone, *(tuple(left[i::needed][:_VERIFY_CHOICE]) for i in range(min(needed, len(left))))]
        return [
            VerifyTask(
                key=key, source=self._source, numbers=numbers, rule=rule, others=rivals, draws=plain + against,
                rivals=against, full=full,
            )
            for numbers in chosen
        ]  # fmt: skip

    def _made_tasks(
        self, tally: Tally, member: Member, members: Sequence[Member], done: Container[tuple[AnswerKey, str]]
    ) -> list[MadeTask]:
        """One task for every class compared, through the answer of it met most; none for what is ``done``."""
        tasks = []
        rule, rivals = member.rule, _rivals(member, members)
        met = sum(len(tally.numbers[k]) for k in member.keys)
        least = max(0, FEWEST_COMPARED - self.standing(tally, member).equal)
        classes: dict[AnswerKey, list[AnswerKey]] = {}
        for key in sorted(member.keys, key=lambda k: -tally.counts[k]):
            classes.setdefault(key.only(CLASS_ATTRIBUTES), []).append(key)
        for place, (owner, answers) in enumerate(classes.items()):
            numbers = self._compared(tally, answers, rule)
            if numbers and (owner, _digest(rule)) not in done:
                by_layout = met < _PLENTY and place < _IN_LAYOUTS
                tasks.append(
                    MadeTask(
                        key=answers[0], source=self._source, numbers=numbers, rule=rule, others=rivals,
                        count=_MADE_PROBLEMS, by_layout=by_layout, least=least,
                    )
                )
        return tasks

    def _compared(self, tally: Tally, answers: Sequence[AnswerKey], rule: Rule) -> tuple[int, ...]:
        """Some problems of a class on which the rule was compared, one of the first answer first."""
        found = (n for a in answers for n in tally.numbers[a] if self.comparisons.under(a, n, rule) is not None)
        return tuple(islice(found, _LOOKED_AT))

    def _cheapest(self, numbers: list[int], key: AnswerKey) -> list[int]:
        """The answer's problems in the order in which they are worth comparing; drawing them again takes its time."""
        if len(numbers) == 1:
            return numbers
        known = self._ordered.get(key, [])
        if len(known) != len(numbers):
            known = self._ordered[key] = cheapest_first(self._source, numbers)
        return known

    def _ends(self, numbers: list[int], key: AnswerKey) -> tuple[int, ...]:
        count, ends = self._ended.get(key, (0, ()))
        if count != len(numbers):
            ends = ends_of(self._source, numbers)
            self._ended[key] = len(numbers), ends
        return ends

    def _is_verified(self, key: AnswerKey, number: int, rule: Rule, full: bool) -> bool:
        done = self.comparisons.under(key, number, rule)
        return done is not None and (done.full or not full)

    def _members(self, tally: Tally, index: RowIndex) -> list[Member]:
        """The rows that have a rule, with the answers met of each."""
        found: dict[AnswerKey, tuple[Row, list[AnswerKey]]] = {}
        for key in tally.counts:
            row = index.find(key)
            if row is not None and row.solved.rule is not None:
                found.setdefault(row.key, (row, []))[1].append(key)
        return [
            Member(
                row=row, rule=row.solved.rule, keys=tuple(keys),
                due=chosen_answers(keys, tally.counts, self._most, tally.given),
            )
            for row, keys in found.values()
            if row.solved.rule is not None
        ]


def _met(tally: Tally, member: Member) -> int:
    return sum(tally.counts[k] for k in member.keys)


def _depth(numbers: Sequence[int], problems: int) -> int:
    """On how many problems each answer is compared, ``numbers`` known of each, for so many in all or all there are."""
    depth = max(1, -(-problems // len(numbers)))
    while depth < max(numbers) and _sum_capped(numbers, depth) < problems:
        depth += 1
    return depth


def _sum_capped(numbers: Iterable[int], most: int) -> int:
    return sum(min(most, n) for n in numbers)


def _digest(rule: Rule) -> str:
    return sha256(rule.text.encode()).hexdigest()[:16]


def _rivals(member: Member, members: Sequence[Member]) -> tuple[Rule, ...]:
    """The rules of the same answer about other types, which is the same order most often; other rules of the family."""
    key = member.row.key
    twins = (retyped(m.rule, key.types) for m in members if m.row.key.values == key.values)
    family = key.only(FAMILY_ATTRIBUTES)
    rules = (*twins, *(m.rule for m in members if m.row.key.only(FAMILY_ATTRIBUTES) == family))
    distinct = {r.text: r for r in rules if r.text != member.rule.text}
    return tuple(distinct.values())[:_VERIFY_RIVALS]
