"""Simulated releases of one library: a neighbour, and one equal to it or with other orders for a few answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from gemmdesc.bits import Bits
from gemmdesc.library.interface import NO_INPUTS, Inputs, Library, Window
from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.operands import Operand
from gemmdesc.probe.campaign import Campaign, Findings, Options
from gemmdesc.probe.class_solver import Report
from gemmdesc.probe.prior import NO_GUESSES, FirstGuesses
from gemmdesc.probe.projection import RowIndex
from gemmdesc.probe.publish import guesses_of, make_profile
from gemmdesc.probe.sampling import Regime, Scope, draw_problem
from gemmdesc.probe.workers import InProcess
from gemmdesc.problem import (
    AlgoConfig,
    DeviceId,
    Failed,
    GemmProblem,
    Launch,
    LibraryId,
    LibraryVersion,
    Refused,
)
from gemmdesc.profiles import Profile
from gemmdesc.rule import Rule, parse_rule
from gemmdesc.verification.hidden import same_rule
from tests.probe_samples import DEVICE, FP16, Order, sample_answer

SCOPE = Scope(dtypes=(FP16,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.0)
OPTIONS = Options(scope=SCOPE, seed=3, first_blocks=1, target_unseen=1.0)
OLD = LibraryId(
    version=LibraryVersion(major=13, minor=1, patch=0), build_id="01d", path="simulated", sha256="", wheel="none"
)
NEW = replace(OLD, version=LibraryVersion(major=13, minor=2, patch=0), build_id="4e3")
CHAIN, SPLIT, LANES, ADDED = 7, 23, 19, 29
_LONG = 512
#: By ``custom_option``, by ``reduction_scheme`` (the second with partials of D's type), and lanes by ``custom_option``.
_CHAINS = (Order(), Order(instruction_k=8, loop_step=32), Order(loop_step=64))
_SPLITS = (
    Order(spans=("round_up(ceildiv(k, splitk_num), 64)",)),
    Order(spans=("round_up(ceildiv(k, splitk_num), select(mod(k, 64), 8, 64))",)),
)
_LANE_COUNTS = (4, 16)


def lanes(count: int, output: str) -> Rule:
    return parse_rule(
        f"gemm(a_dtype=float16, b_dtype=float16, output_dtype={output}, summed_k=k, "
        f"cuts=[cut(layout=strided(count={count}, unit=1), partial_dtype=float32, merge_dtype=float32, start=first)], "
        "accumulator=accumulator(instruction_k=1, residue=residue_last(), step=scalar_step(fused=True, start=zero)), "
        "epilogue=[])"
    )


@dataclass(frozen=True, kw_only=True)
class Release:
    """``changed``: a chain of one ``stages_id``, a split and a number of lanes are others, and one answer is new."""

    identity: LibraryId
    changed: bool = False

    def answer(self, p: GemmProblem) -> AlgoConfig:
        option = p.n // 4 % 3
        if p.n % 4 == 0:
            return sample_answer(algo_id=LANES, custom_option=option % 2, tile_id=0)
        if p.k >= _LONG:
            return sample_answer(
                algo_id=SPLIT, tile_id=1 + p.m % 2, reduction_scheme=1 + p.n % 2, splitk_num=2 + (p.m + p.n) % 3
            )
        if self.changed and p.n % 8 == 3:
            return sample_answer(algo_id=ADDED)
        return sample_answer(algo_id=CHAIN, tile_id=1 + p.m % 4, custom_option=option, stages_id=3 + p.m // 4 % 3)

    def is_changed(self, answer: AlgoConfig) -> bool:
        """Whether the neighbour sums this answer otherwise, or does not give it."""
        a = answer
        return self.changed and (
            a.algo_id == ADDED
            or (a.algo_id, a.custom_option, a.stages_id) == (CHAIN, 1, 5)
            or (a.algo_id, a.reduction_scheme) == (SPLIT, 1)
            or (a.algo_id, a.custom_option) == (LANES, 1)
        )

    def rule(self, p: GemmProblem, a: AlgoConfig) -> Rule:
        changed = self.is_changed(a)
        if a.algo_id == LANES:
            return lanes(8 if changed else _LANE_COUNTS[a.custom_option], p.d_dtype.value)
        if a.algo_id == ADDED:
            order = Order(instruction_k=32)
        elif a.algo_id == SPLIT:
            order = _SPLITS[a.reduction_scheme - 1]
            order = replace(order, spans=("round_up(ceildiv(k, splitk_num), 32)",)) if changed else order
            order = replace(order, partial=p.d_dtype) if a.reduction_scheme == 2 else order
        else:
            order = replace(_CHAINS[1], loop_step=64) if changed else _CHAINS[a.custom_option]
        return order.rule(p.a_dtype, p.d_dtype)

    def library(self) -> Counted:
        return Counted(
            of=SimulatedLibrary(identity=self.identity, device=DEVICE, heuristic=self.answer, rules=self.rule)
        )


@dataclass(kw_only=True)
class Counted:
    """A library that counts the products run."""

    of: SimulatedLibrary
    products: int = field(default=0)

    @property
    def identity(self) -> LibraryId:
        return self.of.identity

    @property
    def device(self) -> DeviceId:
        return self.of.device

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        return self.of.answer(problem)

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool:
        return self.of.check(problem, answer)

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        return self.of.launch(problem, answer)

    def run(
        self, problem: GemmProblem, answer: AlgoConfig, a: Operand, b: Operand, window: Window | None = None, *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed:  # fmt: skip
        self.products += 1
        return self.of.run(problem, answer, a, b, window, inputs=inputs)


@dataclass(frozen=True, kw_only=True)
class Came:
    """What one campaign came to: ``readings`` of classes and of the survey, ``products`` run."""

    findings: Findings
    profile: Profile
    readings: int
    trials: int
    comparisons: int
    products: int
    seconds: float


def campaign(
    release: Release, folder: Path, guesses: FirstGuesses = NO_GUESSES, report: Report = lambda *_: None
) -> Came:
    """One campaign to its end, in this process."""
    library: Library = release.library()
    begun = monotonic()
    found = Campaign(InProcess(library), OPTIONS, folder, report, guesses=guesses).run()
    seconds = monotonic() - begun
    profile = make_profile(found, DEVICE, release.identity, command="test", date="2026-12-01")
    lines = {n: _lines(folder / f"{n}.jsonl") for n in ("survey", "trials", "verified")}
    assert isinstance(library, Counted)
    return Came(
        findings=found, profile=profile, trials=lines["trials"], comparisons=lines["verified"], seconds=seconds,
        readings=lines["survey"] + sum(len(o.readings) for o in found.outcomes.values()), products=library.products,
    )  # fmt: skip


def neighbour_guesses(folder: Path) -> tuple[Came, FirstGuesses]:
    """The neighbour's campaign from scratch, and what it guesses of another build."""
    came = campaign(Release(identity=OLD), folder)
    return came, guesses_of(came.profile, SCOPE)


def wrong_answers(came: Came, release: Release, *, declined: bool = True) -> list[str]:
    """Answers met whose row has no rule, or one that owes other bits than the hidden one on a problem that met them.

    Without ``declined`` only the latter.
    """
    index, found = RowIndex(came.findings.rows), list[str]()
    for key, numbers in came.findings.tally.numbers.items():
        row = index.find(key)
        rule = None if row is None else row.solved.rule
        if rule is None:
            found += [str(key)] if declined else []
            continue
        found += [str(key) for n in numbers[:6] if _differs(rule, came, release, n, key.answer)]
    return found


def _differs(rule: Rule, came: Came, release: Release, number: int, answer: AlgoConfig) -> bool:
    problem = draw_problem(came.findings.options.scope, came.findings.options.seed, number)
    return not same_rule(rule, release.rule(problem, answer), problem, answer)


def changed_classes(came: Came, release: Release) -> Iterator[AlgoConfig]:
    """The answers met that the neighbour sums otherwise."""
    return (key.answer for key in came.findings.tally.counts if release.is_changed(key.answer))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.is_file() else 0
