"""Campaigns that take turns: all have a first one, then those that miss most; a limit of time loses no work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gemmdesc.dtypes import DType
from gemmdesc.errors import CampaignError
from gemmdesc.probe import scan, verification
from gemmdesc.probe.campaign import Campaign, Findings, Options
from gemmdesc.probe.class_solver import Report
from gemmdesc.probe.publish import make_profile
from gemmdesc.probe.several import run_several
from gemmdesc.probe.workers import InProcess
from gemmdesc.profiles import RowKey, RuleOutcome
from tests.kind_profiles import small_scopes
from tests.kind_samples import library_of_kinds
from tests.probe_samples import DEVICE, IDENTITY


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Made:
    """A campaign of so many parts of ten steps of ``step`` seconds each; a part leaves so much less missing."""

    name: str
    clock: Clock
    log: list[str]
    shares: list[float]
    step: float = 1.0
    report: Report = lambda *_: None
    fails: bool = False
    done: int = 0
    steps: int = field(default=0)

    def opened(self, report: Report) -> Made:
        self.report = report
        return self

    def turns(self) -> Iterator[None]:
        while self.done < len(self.shares):
            while self.steps < 10 * (self.done + 1):
                self.clock.now += self.step
                self.steps += 1
                self.log.append(self.name)
                if self.fails:
                    raise CampaignError("workers must stay alive")
                self.report("verify", self.steps, None)
            self.done += 1
            yield

    def missing(self) -> float:
        return 1.0 if self.done == 0 else self.shares[self.done - 1]


def run(seconds: float, *made: Made) -> tuple[list[str], dict[str, bool]]:
    """The order of turns, and which campaigns ended."""
    clock, log = made[0].clock, made[0].log
    openers: dict[str, Callable[[Report], Made]] = {m.name: m.opened for m in made}
    came = run_several(openers, seconds, lambda *_: None, clock, least_turn=5.0)
    order = [name for place, name in enumerate(log) if place == 0 or log[place - 1] != name]
    return order, {name: c.ended for name, c in came.items()}


def test_turns_go_where_most_is_missing() -> None:
    clock, log = Clock(), []
    a = Made("a", clock, log, [0.5, 0.4, 0.01])
    b = Made("b", clock, log, [0.45, 0.02])
    _, ended = run(1000.0, a, b)
    assert log == ["a"] * 10 + ["b"] * 10 + ["a"] * 10 + ["b"] * 10 + ["a"] * 10
    assert ended == {"a": True, "b": True}


def test_a_long_first_turn_leaves_time_for_the_others_and_goes_on() -> None:
    clock, log = Clock(), []
    a, b = Made("a", clock, log, [0.0], step=4.0), Made("b", clock, log, [0.2])
    order, ended = run(60.0, a, b)
    # Thirty seconds each; what a has done by then it does not do again.
    assert order == ["a", "b", "a"]
    assert a.steps == b.steps == 10
    assert ended == {"a": True, "b": True}


def test_the_limit_ends_all() -> None:
    clock, log = Clock(), []
    _, ended = run(12.0, Made("a", clock, log, [0.5, 0.4]), Made("b", clock, log, [0.5]))
    assert ended == {"a": False, "b": False}
    assert clock.now <= 12.0 + 1.0


def test_a_campaign_that_fails_leaves_the_others_their_time() -> None:
    clock, log = Clock(), []
    bad, good = Made("bad", clock, log, [0.5], fails=True), Made("good", clock, log, [0.5])
    came = run_several({m.name: m.opened for m in (bad, good)}, 100.0, lambda *_: None, clock, least_turn=5.0)
    assert came["bad"].error == "workers must stay alive"
    assert not came["bad"].ended
    assert came["good"].ended
    assert log.count("bad") == 1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_QUERIES", 100)
    monkeypatch.setattr(verification, "ROW_PROBLEMS", 40)


@dataclass
class Ticking:
    """A clock on which every look takes a second: turns end in the middle of everything."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def options_of(name: str, blocks: int = 1) -> Options:
    scope = replace(small_scopes((name,))[name], dtypes=(DType.FLOAT16,), output_float32=False)
    return Options(scope=scope, seed=3, first_blocks=blocks, target_unseen=1.0, cuda_cores=False)


def outcomes(findings: Findings) -> dict[RowKey, object]:
    profile = make_profile(findings, DEVICE, IDENTITY, command="test", date="2026-01-01")
    return {row.key: row.outcome for row in profile.rows}


@pytest.mark.slow
def test_interrupted_turns_come_to_the_same_rows(small: None, tmp_path: Path) -> None:
    library = library_of_kinds()

    def opener(name: str, folder: Path) -> Callable[[Report], Campaign]:
        return lambda report: Campaign(InProcess(library), options_of(name), folder / name, report)

    made: dict[str, Campaign] = {}

    def kept(name: str) -> Callable[[Report], Campaign]:
        def opened(report: Report) -> Campaign:
            made[name] = opener(name, tmp_path / "turns")(report)
            return made[name]

        return opened

    clock, names = Ticking(), ("alpha", "relu")
    came = run_several({n: kept(n) for n in names}, 5000.0, lambda *_: None, clock, least_turn=25.0)
    assert all(c.ended for c in came.values())
    for name in names:
        whole = opener(name, tmp_path / "whole")(lambda *_: None).run()
        ours, theirs = map(outcomes, (made[name].findings(), whole))
        assert ours == theirs
        assert all(isinstance(o, RuleOutcome) for o in ours.values())


@pytest.mark.slow
def test_every_row_is_served_before_any_is_compared_in_depth(small: None, tmp_path: Path) -> None:
    phases: list[str] = []

    def report(phase: str, done: int, total: int | None) -> None:
        if phase == "verify in depth" and phase not in phases:
            shares.append(campaign.missing())
        phases.append(phase)

    shares: list[float] = []
    campaign = Campaign(InProcess(library_of_kinds()), options_of("alpha", blocks=4), tmp_path, report)
    assert campaign.missing() == 1.0
    campaign.run()
    assert phases.index("verify") < phases.index("verify in depth")
    # No more than Good and Turing's estimate of what was not met.
    assert shares == [pytest.approx(1 / 400, abs=4 / 400)]
