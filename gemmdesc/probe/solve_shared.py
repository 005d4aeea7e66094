"""Solving answers whose kernels share out k when they are launched: read, infer, read where survivors part, compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmdesc.errors import Declined
from gemmdesc.library.interface import Library
from gemmdesc.normal_form import normal_form
from gemmdesc.probe.compare import Verdict, compare_rules, plain_draws, rival_draws
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.infer import Unexplained
from gemmdesc.probe.outcomes import ClassOutcome, no_rule
from gemmdesc.probe.read import read_answer
from gemmdesc.probe.reader import PlacedReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scan import Example
from gemmdesc.probe.shared import SharedReading, infer_shared
from gemmdesc.probe.sharing import (
    SIZES,
    Launched,
    Sizes,
    cut_elements,
    foretells_cuts,
    launched,
    look_step,
    made_examples,
    readable_size,
)
from gemmdesc.problem import AlgoConfig, GemmProblem
from gemmdesc.regions import evaluate_regions
from gemmdesc.rule import Rule

#: Readings of a class: natural ones at first, and in all; problems compared at the end.
_FIRST, _MOST_READINGS, _COMPARED = 4, 14, 6
#: Further launches of which a rule must foretell which elements are cut; launches among which one that parts the rules
#: left is chosen.
_FORETOLD, _PARTED_AMONG = 24, 12
#: Elements that one reading is laid along at most.
_PLACES = 256


def solve_shared(
    library: Library, label: str, natural: Sequence[Example], seed: int, zero_exponent: int | None,
    sizes: Sizes = SIZES,
) -> ClassOutcome:  # fmt: skip
    """The rule of one class of such answers, or why there is none; ``sizes``: of the problems made for it."""
    met = launched(library, [e for e in natural if readable_size(e.problem)])
    made = launched(library, made_examples(library, natural, seed, sizes))
    pool = [x for x in (*met, *made) if x.shares and x.example.problem.m > 1]
    if not pool:
        return no_rule(label, "its kernel shares out k when it is launched, and no such launch could be read")
    return _Solver(library, label, pool, [*met, *made], seed, zero_exponent).solve()


class _Solver:
    def __init__(
        self, library: Library, label: str, pool: list[Launched], every: list[Launched], seed: int,
        zero_exponent: int | None,
    ) -> None:  # fmt: skip
        self._library, self._label, self._pool, self._every = library, label, pool, every
        self._seed, self._zero_exponent = seed, zero_exponent
        self._readings: list[SharedReading] = []
        self._read: set[int] = set()
        self._checked = self._draws = 0

    def solve(self) -> ClassOutcome:
        rules: tuple[Rule, ...] | Unexplained = Unexplained(reason="nothing was read")
        following: int | None = 0
        while following is not None and len(self._readings) < _MOST_READINGS:
            self._read.add(following)
            try:
                self._readings.append(read_shared(self._library, self._pool[following]))
            except ReferenceFailed as error:
                return self._outcome(None, str(error))
            following = self._unread() if len(self._readings) < _FIRST else None
            if following is None:
                rules = infer_shared(self._readings, self._zero_exponent)
                following = self._unread() if isinstance(rules, Unexplained) else self._parting(rules)
        if isinstance(rules, Unexplained):
            return self._outcome(None, rules.reason)
        if following is not None:
            return self._outcome(None, f"{len(self._readings)} readings leave {len(rules)} numberings of tiles")
        return self._compared(rules[0])

    def _unread(self) -> int | None:
        return next((i for i in range(len(self._pool)) if i not in self._read), None)

    def _parting(self, rules: Sequence[Rule]) -> int | None:
        """A launch of which the rules say different things, of some the one of most; None where they agree on all."""
        left = [i for i in range(len(self._pool)) if i not in self._read] if len(rules) > 1 else []
        for begin in range(0, len(left), _PARTED_AMONG):
            few = left[begin : begin + _PARTED_AMONG]
            said = {i: len({_said(rule, self._pool[i]) for rule in rules}) for i in few}
            best = max(said, key=lambda i: (said[i], -i))
            if said[best] > 1:
                return best
        return None

    def _compared(self, rule: Rule) -> ClassOutcome:
        left = [x for i, x in enumerate(self._pool) if i not in self._read]
        others = [x for x in self._every if not x.values["segment_k"]]
        strange = next((x for x in left[:_FORETOLD] if not foretells_cuts(self._library, rule, x)), None)
        if strange is not None:
            p = strange.example.problem
            return self._outcome(None, f"the best rule does not say which elements are cut at {p.m} x {p.n} x {p.k}")
        chosen = [*left[: _COMPARED - _COMPARED // 3], *others[: _COMPARED // 3]]
        for place, one in enumerate(chosen):
            # A draw for every rectangle that a D may have, of each kind.
            draws = (*plain_draws(self._seed, 4, first=place), *rival_draws(self._seed, 4, first=place))
            (verdict,) = compare_rules(self._library, one.example, [rule], draws)
            if verdict not in (Verdict.EQUAL, Verdict.REFERENCE_FAILED):
                p = one.example.problem
                return self._outcome(None, f"the best rule is {verdict.value} at {p.m} x {p.n} x {p.k}")
            self._checked += 1
            self._draws += len(draws)
        return self._outcome(rule, "")

    def _outcome(self, rule: Rule | None, reason: str) -> ClassOutcome:
        if rule is None:
            reason = f"its kernel shares out k when it is launched (segment-k); {reason}"
        return ClassOutcome(
            label=self._label, rule=rule, reason=reason, scalar=False, readings=(), checked=self._checked,
            draws=self._draws, rivals=0, shared=tuple(self._readings),
        )  # fmt: skip


def _said(rule: Rule, launched: Launched) -> object:
    """What a rule says of a launch, the same for rules that owe each other the same bits there."""
    found, k = evaluate_regions(rule, launched.values), launched.example.problem.k
    return None if isinstance(found, Declined) else tuple((r.bounds, normal_form(r.descriptor, k)) for r in found)


def read_shared(library: Library, launched: Launched) -> SharedReading:
    """Which elements' k is cut, and everything at one element whose is and at one whose is not.

    Raises:
        ReferenceFailed: the library did not run the answer.
    """
    p, answer = launched.example.problem, launched.example.answer
    step = look_step(p)
    cut = cut_elements(library, p, answer, step)
    read = {name: _at(library, p, answer, cut == wanted, step) for name, wanted in (("body", False), ("tail", True))}
    split = tuple("".join("1" if x else "0" for x in row) for row in cut)
    return SharedReading(problem=p, answer=answer, launch=launched.launch, step=step, split=split, **read)


def _at(library: Library, p: GemmProblem, answer: AlgoConfig, wanted: np.ndarray, step: int) -> Reading | None:
    """A reading along the line of D that has the most of the wanted elements."""
    along_m = p.m >= p.n
    lines = wanted.T if along_m else wanted
    if not lines.any():
        return None
    line = int(lines.sum(axis=1).argmax())
    length = p.m if along_m else p.n
    first = np.flatnonzero(lines[line]) * step
    places = (first[:, None] + np.arange(step)[None, :]).reshape(-1)
    places = places[places < length][:_PLACES].astype(np.int64)
    reader = PlacedReader(library, p, answer, places, line * step, along_m=along_m)
    return read_answer(reader, p, answer)
