"""Which row of a profile decided a shape, as a short word that stays the same while what the row serves does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

from gemmdesc.problem import AlgoConfig, GemmProblem
from gemmdesc.profiles.evidence import Level
from gemmdesc.profiles.lookup import FEWEST_PRODUCTS, index_profile, matching_rows
from gemmdesc.profiles.schema import DeclineOutcome, Profile, ProfileRow

#: Hex digits of a word: rows of one profile are a few thousand at most.
_DIGITS = 12


class Deciding:
    """The rows of ``profile`` by their words, where evidence of level ``accept`` is served.

    A word is over the row's key and what a lookup gives there: the rule's text, or the decline.  Evidence alone does
    not change it.  An answer that no row takes has the word of all keys together, which changes with any of them.
    """

    def __init__(self, profile: Profile, accept: Level = Level.VERIFIED) -> None:
        self._index, self._accept = index_profile(profile), accept

    @cached_property
    def rows(self) -> dict[str, ProfileRow]:
        """Every row by its word."""
        return {self._word_of(row): row for row in self._index.profile.rows}

    @cached_property
    def nobody(self) -> str:
        """The word of answers that no row takes."""
        return _digest(["none", *(str(row.key) for row in self._index.profile.rows)])

    @property
    def words(self) -> frozenset[str]:
        """All words that hold under this profile."""
        return frozenset({*self.rows, self.nobody})

    def word(self, problem: GemmProblem, answer: AlgoConfig) -> str:
        """The word of what decides ``answer`` to ``problem``."""
        found = matching_rows(self._index, problem, answer)
        if not found:
            return self.nobody
        # Rows that overlap fail a profile's audit; no record of theirs is kept.
        return self._word_of(found[0]) if len(found) == 1 else _digest(["several", *map(self._word_of, found)])

    def _word_of(self, row: ProfileRow) -> str:
        if isinstance(row.outcome, DeclineOutcome):
            served = ["declined", row.outcome.declined.code, row.outcome.declined.reason]
        elif not row.evidence.level.reaches(self._accept):
            served = ["weak", row.evidence.level.value, row.outcome.rule.text]
        else:
            # A rule met at few products only declines at more of them.
            served = ["rule", row.outcome.rule.text, str(row.evidence.k.high < FEWEST_PRODUCTS)]
        return _digest([str(row.key), *served])


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGITS]
