"""Comparing every row's rule with the library: on every answer met, and on made problems where few were met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

from gemmdesc.probe.answers import AnswerKey, key_to_plain
from gemmdesc.probe.comparisons import FEWEST_COMPARED, Comparisons, chosen_answers, holds
from gemmdesc.probe.examples import Draws, Variant, cheapest_first
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.projection import CLASS_ATTRIBUTES, FAMILY_ATTRIBUTES, Row, RowIndex
from gemmdesc.probe.records import key_of, verified_to_plain
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
        #: Classes, and digests of rules, of which made problems were compared, or showed nothing more.
        self._shown = {(key_of(data), str(data["rule"])) for data in journal.read("shown")}

    def run(self, tally: Tally, index: RowIndex) -> list[Failure]:
        """Compare what is not yet compared under its row's present rule; what has failed under it."""
        members = _members(tally, index)
        self._compare("verify", run_verify, self._tasks(tally, members))
        self._compare("verify, made problems", run_made, self._made_tasks(tally, members))
        return self._failing(tally, members)

    def _compare(self, phase: str, task: Callable[..., Any], items: Sequence[Any]) -> None:
        for count, (item, result) in enumerate(self._workers.run(task, items), 1):
            for verified in result if isinstance(result, tuple) else (result,):
                self.comparisons.add(verified)
                self._journal.append("verified", verified_to_plain(verified))
            if isinstance(item, MadeTask):
                owner = item.key.only(CLASS_ATTRIBUTES)
                self._journal.append("shown", {"key": key_to_plain(owner), "rule": _digest(item.rule)})
            self._report(phase, count, len(items))

    def _failing(self, tally: Tally, members: Sequence[tuple[Row, list[AnswerKey]]]) -> list[Failure]:
        failed = []
        for row, keys in members:
            assert row.solved.rule is not None
            bad = [v for v in self.comparisons.of(keys, tally.numbers, row.solved.rule) if not holds(v)]
            if bad:
                failed.append((row, {v.key.only(CLASS_ATTRIBUTES): v.variant for v in bad}))
        return failed

    def _tasks(self, tally: Tally, members: Sequence[tuple[Row, list[AnswerKey]]]) -> list[VerifyTask]:
        """A problem of every answer that is compared; further ones, answer by answer, for rows that have too few."""
        tasks = []
        for row, keys in members:
            depth = max(1, -(-ROW_PROBLEMS // len(keys)))
            rivals = _rivals(row, members)
            for place, key in enumerate(chosen_answers(keys, tally.counts, self._most)):
                tasks.extend(self._due(tally, key, row, rivals, depth, place < _FULL_ANSWERS))
        return tasks

    def _due(
        self, tally: Tally, key: AnswerKey, row: Row, rivals: tuple[Rule, ...], depth: int, full: bool
    ) -> list[VerifyTask]:
        """Tasks for what is still to be compared of one answer, on up to ``depth`` of its problems."""
        assert row.solved.rule is not None
        rule = row.solved.rule
        numbers = self._cheapest(tally.numbers[key][: _LOOKED_AT * depth], key)
        left = [n for n in numbers if not self._is_verified(key, n, rule, full)]
        needed = min(depth, len(numbers)) - (len(numbers) - len(left))
        plain = self._draws if full else 1
        against = 2 if full else 1
        return [
            VerifyTask(
                key=key, source=self._source, numbers=tuple(left[i::needed][:_VERIFY_CHOICE]), rule=rule,
                others=rivals, draws=plain + against, rivals=against, full=full,
            )
            for i in range(max(0, needed))
        ]  # fmt: skip

    def _made_tasks(self, tally: Tally, members: Sequence[tuple[Row, list[AnswerKey]]]) -> list[MadeTask]:
        """One task for every class, through the answer of it met most; not twice under one rule."""
        tasks = []
        for row, keys in members:
            assert row.solved.rule is not None
            rule, rivals = row.solved.rule, _rivals(row, members)
            met = sum(len(tally.numbers[k]) for k in keys)
            classes: dict[AnswerKey, list[AnswerKey]] = {}
            for key in sorted(keys, key=lambda k: -tally.counts[k]):
                classes.setdefault(key.only(CLASS_ATTRIBUTES), []).append(key)
            for place, (owner, answers) in enumerate(classes.items()):
                if (owner, _digest(rule)) not in self._shown:
                    self._shown.add((owner, _digest(rule)))
                    numbers = self._compared(tally, answers, rule)
                    by_layout = met < _PLENTY and place < _IN_LAYOUTS
                    tasks.append(
                        MadeTask(
                            key=answers[0], source=self._source, numbers=numbers, rule=rule, others=rivals,
                            count=_MADE_PROBLEMS, by_layout=by_layout,
                            least=max(0, FEWEST_COMPARED - met),
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

    def _is_verified(self, key: AnswerKey, number: int, rule: Rule, full: bool) -> bool:
        done = self.comparisons.under(key, number, rule)
        return done is not None and (done.full or not full)


def _digest(rule: Rule) -> str:
    return sha256(rule.text.encode()).hexdigest()[:16]


def _members(tally: Tally, index: RowIndex) -> list[tuple[Row, list[AnswerKey]]]:
    """The rows that have a rule, with the answers met of each."""
    found: dict[AnswerKey, tuple[Row, list[AnswerKey]]] = {}
    for key in tally.counts:
        row = index.find(key)
        if row is not None and row.solved.rule is not None:
            found.setdefault(row.key, (row, []))[1].append(key)
    return list(found.values())


def _rivals(row: Row, members: Sequence[tuple[Row, list[AnswerKey]]]) -> tuple[Rule, ...]:
    """Other rules of the row's family."""
    family, own = row.key.only(FAMILY_ATTRIBUTES), row.solved.rule
    rules = (r.solved.rule for r, _ in members if r.key.only(FAMILY_ATTRIBUTES) == family)
    distinct = {r.text: r for r in rules if r is not None and own is not None and r.text != own.text}
    return tuple(distinct.values())[:_VERIFY_RIVALS]
