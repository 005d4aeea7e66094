"""Verifying kinds of problems by the CPU replay: every shape's answer, its rule and windows of ``cublasLtMatmul``'s D.

This asks no more than whether the profile is right; ``kind_kernels`` compares all bytes of our kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemmdesc.bits import first_mismatch
from gemmdesc.errors import CampaignError, Declined, GemmdescError, InvalidInputError
from gemmdesc.library.interface import Inputs, Library, Window, tanh_approx_of
from gemmdesc.library.replayed import replay_decline, replay_problem
from gemmdesc.operands import Family, HashOperand, MaskedOperand, Operand
from gemmdesc.plain import to_plain
from gemmdesc.probe.compare import Draw as Beside
from gemmdesc.probe.compare import choose_window, draw_inputs, moderate_operands
from gemmdesc.probe.courses import has_gelu
from gemmdesc.probe.journal import Journal
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.probe.workers import Workers
from gemmdesc.problem import AlgoConfig, ComputeType, Failed, GemmProblem, Refused
from gemmdesc.profiles import Level, ProfileIndex
from gemmdesc.regions import Region
from gemmdesc.verification.campaign import Report
from gemmdesc.verification.draws import Draw, draws_of
from gemmdesc.verification.kind_records import KindRecord, kind_record_from_plain, kind_record_to_plain
from gemmdesc.verification.records import Outcome, count
from gemmdesc.verification.replayed import ReplayBench, described

#: Shapes come from other seeds than those of campaigns of the probe.
_SEED_OFFSET = 2_000_003
#: Rows and columns of D that are replayed, and products in a window beyond which it shrinks.
_SIDE, _LEAST_SIDE, _WINDOW_PRODUCTS = 16, 4, 1 << 20
#: Runs beyond the first that tell a library whose bytes vary from one that differs.
_AGAIN = 4
#: The bits of a float32 pattern down to the one below tfloat32's last: half of what they leave are ties.
_TIES = 0xFFFFF000
_SHAPES = "shapes"
#: What computed our side where no kernel did.
REPLAY = "replay"
#: Shapes that are planned ahead of all others, to see which kernels they need.
_LOOKED_AT = 2000


@dataclass(frozen=True, kw_only=True)
class KindItem:
    """Shape ``index`` of the kind ``name``; not begun after ``until`` (of ``time.time``), where that is given."""

    name: str
    scope: Scope
    seed: int
    index: int
    draws: int
    until: float | None = None

    @property
    def key(self) -> str:
        """The shape's name in records."""
        return f"{self.name}/{self.seed}/{self.index}"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One draw; ``located``: where it differs first, ready for JSON."""

    outcome: Outcome
    failure: str = ""
    located: dict[str, Any] | None = None


def verify_kind(library: Library, item: KindItem) -> KindRecord | None:
    """Ask and compare one shape; None where its time is over.

    Raises:
        InvalidInputError: ``library`` is no :class:`~gemmdesc.verification.replayed.ReplayBench`.
    """
    if not isinstance(library, ReplayBench):
        raise InvalidInputError(f"library must be a ReplayBench (got {type(library).__name__})")

    def compare(problem: GemmProblem, answer: AlgoConfig) -> Examined | Declined:
        return replayed(library, library.index, library.accept, item, Asked(problem=problem, answer=answer))

    return verify_by(library, item, compare)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A problem and the library's answer to it."""

    problem: GemmProblem
    answer: AlgoConfig


@dataclass(frozen=True, kw_only=True)
class Examined:
    """All draws of a shape; ``kernel``: what computed our side."""

    compared: Sequence[Compared]
    kernel: str


def replayed(
    library: Library, index: ProfileIndex, accept: Level, item: KindItem, asked: Asked
) -> Examined | Declined:
    """All draws of a shape by the CPU replay of its rule, on windows; Declined where there is no rule to replay."""
    known = described(library, index, asked.problem, asked.answer, accept)
    if isinstance(known, Declined):
        return known
    unfit = replay_decline(known.regions) if tanh_approx_of(library) is None else None
    compared = unfit or _compare(library, item, asked.problem, asked.answer, known.regions)
    return compared if isinstance(compared, Declined) else Examined(compared=compared, kernel=REPLAY)


def verify_by(
    library: Library, item: KindItem, compare: Callable[[GemmProblem, AlgoConfig], Examined | Declined]
) -> KindRecord | None:
    """The record of one shape, None where its time is over; ``compare`` compares all draws, or says why it cannot."""
    if item.until is not None and time.time() > item.until:
        return None
    begin = time.perf_counter()
    p = problem_of(item)
    found: dict[str, Any] = {"key": item.key, "kind": item.name, "problem": to_plain(p), "counts": {}}
    found["types"] = f"{p.a_dtype.value} x {p.b_dtype.value} -> {p.d_dtype.value}"
    answer = library.answer(p)
    if isinstance(answer, Refused):
        return KindRecord(**found, refused=answer.status, seconds=time.perf_counter() - begin)
    found["answer"] = to_plain(answer)
    examined = compare(p, answer)
    if isinstance(examined, Declined):
        return KindRecord(**found, declined=examined, seconds=time.perf_counter() - begin)
    compared, found["kernel"] = examined.compared, examined.kernel
    worst = max(compared, key=lambda c: list(Outcome).index(c.outcome))
    found["counts"] = count([c.outcome for c in compared])
    fatal = any("CUDA error" in c.failure for c in compared)
    seconds = time.perf_counter() - begin
    return KindRecord(**found, failure=worst.failure, located=worst.located, seconds=seconds, fatal=fatal)


def _compare(
    library: Library, item: KindItem, problem: GemmProblem, answer: AlgoConfig, regions: tuple[Region, ...]
) -> list[Compared]:
    """All draws: the library's products are waited for by another thread while this one replays them."""
    seed, compared, tanh = operand_seed(item), [], tanh_approx_of(library)
    with ThreadPoolExecutor(1) as waiting:
        asked = []
        for draw in draws_of(item.draws):
            made = _Product.of(problem, draw, seed)
            asked.append((draw, made, waiting.submit(made.run, library, answer)))
        for draw, made, running in asked:
            try:
                ours = replay_problem(
                    regions, problem, made.a, made.b, made.window, inputs=made.inputs, tanh_approx=tanh
                )
            except GemmdescError as error:
                why = f"our side raised {type(error).__name__}: {error}"
                compared.append(Compared(outcome=Outcome.DIFFERENT, failure=why))
                continue
            got = running.result()
            if isinstance(got, Failed):
                compared.append(Compared(outcome=Outcome.REFERENCE_FAILED, failure=got.status))
                continue
            differs = first_mismatch(got, ours)
            if differs is None:
                compared.append(Compared(outcome=Outcome.EQUAL))
                continue
            again = [waiting.submit(made.run, library, answer).result() for _ in range(_AGAIN)]
            if any(isinstance(x, Failed) or first_mismatch(got, x) is not None for x in again):
                compared.append(Compared(outcome=Outcome.NONDETERMINISTIC))
                continue
            located = {
                "draw": draw.number, "family": draw.family.value, "row": int(made.window.rows[differs.index[0]]),
                "column": int(made.window.columns[differs.index[1]]), "expected_bits": differs.expected_bits,
                "got_bits": differs.got_bits, "count": differs.count, "size": differs.size,
            }  # fmt: skip
            compared.append(Compared(outcome=Outcome.DIFFERENT, located=located))
    return compared


def problem_of(item: KindItem) -> GemmProblem:
    """The shape's problem."""
    return draw_problem(item.scope, _SEED_OFFSET + item.seed, item.index)


def operand_seed(item: KindItem) -> int:
    """The seed of a shape's operands; shapes share none."""
    words = np.random.SeedSequence([item.seed, *item.name.encode(), item.index]).generate_state(1)
    return int(words[0])


def kind_inputs(problem: GemmProblem, draw: Draw, seed: int) -> Inputs:
    """What one draw's product takes beside its operands."""
    return draw_inputs(problem, _beside(draw, seed))


def _beside(draw: Draw, seed: int) -> Beside:
    return Beside(seed=seed, number=draw.number, rival=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Product:
    """One draw of one problem."""

    problem: GemmProblem
    a: Operand
    b: Operand
    inputs: Inputs
    window: Window

    @classmethod
    def of(cls, problem: GemmProblem, draw: Draw, seed: int) -> _Product:
        side = _SIDE
        while side > _LEAST_SIDE and side * side * problem.k > _WINDOW_PRODUCTS:
            side //= 2
        a, b = kind_operands(problem, draw, seed)
        inputs, window = kind_inputs(problem, draw, seed), choose_window(problem, _beside(draw, seed), side)
        return cls(problem=problem, a=a, b=b, inputs=inputs, window=window)

    def run(self, library: Library, answer: AlgoConfig) -> Any:
        """The library's bytes in the window, or Failed, also where the adapter cannot state the call."""
        try:
            return library.run(self.problem, answer, self.a, self.b, self.window, inputs=self.inputs)
        except GemmdescError as error:
            return Failed(status=f"{type(error).__name__}: {error}")


def kind_operands(problem: GemmProblem, draw: Draw, seed: int) -> tuple[Operand, Operand]:
    """op(A) and op(B) of one draw; where they may be rounded to tfloat32, every NORMAL draw is rich in its ties.

    Where gelu follows, sums of such draws are about one.
    """
    if has_gelu(problem) and draw.family is Family.NORMAL:
        return moderate_operands(problem, seed, draw.number)
    a: Operand = HashOperand(dtype=problem.a_dtype, family=draw.family, seed=seed, draw=draw.number, role="a")
    b: Operand = HashOperand(dtype=problem.b_dtype, family=draw.family, seed=seed, draw=draw.number, role="b")
    if problem.compute_type is ComputeType.COMPUTE_32F_FAST_TF32 and draw.family is Family.NORMAL:
        return MaskedOperand(source=a, mask=_TIES), MaskedOperand(source=b, mask=_TIES)
    return a, b


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """``shapes`` of each kind, and ``draws`` of each shape; ``seconds``: none is begun after so long.

    Raises:
        InvalidInputError: a number is too small.
    """

    shapes: int = 1000
    draws: int = 10
    seed: int = 1
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("shapes", 1), ("draws", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} must be at least {least} (got {getattr(self, name)})")


#: What a worker does with one shape.
Verify = Callable[[Library, KindItem], KindRecord | None]
#: Names of the compiled kernels that one shape needs.
Needs = Callable[[Library, KindItem], tuple[str, ...]]


def run_kinds(
    workers: Workers, scopes: Mapping[str, Scope], options: KindOptions, folder: Path, identity: dict[str, Any],
    report: Report, verify: Verify = verify_kind, needs: Needs | None = None,
) -> dict[str, tuple[KindRecord, ...]]:  # fmt: skip
    """Verify every shape of every kind that is not in ``folder`` yet; all records there, by kind, in their order.

    ``scopes``: by the kind's name.  ``verify``: does one shape, with the workers' library.  Kinds take turns, so that a
    session cut short has some of each; with ``needs``, shapes that need a kernel which no other one before them does
    come first, so that processes do not compile the same one.

    Raises:
        CampaignError: ``folder`` holds another campaign, or a process lost its device; what was done is on disk.
    """
    about = {**identity, "seed": options.seed, "draws": options.draws}
    journals = {n: Journal(folder / n, {**about, "kind": n, "dtypes": _types(s)}) for n, s in scopes.items()}
    done = {n: {r.key: r for r in map(kind_record_from_plain, j.read(_SHAPES))} for n, j in journals.items()}
    until = None if options.seconds is None else time.time() + options.seconds
    items = [
        KindItem(name=n, scope=s, seed=options.seed, index=i, draws=options.draws, until=until)
        for i in range(options.shapes)
        for n, s in scopes.items()
    ]
    left = [i for i in items if i.key not in done[i.name]]
    if needs is not None:
        left = _compile_first(workers, left, needs, report)
    for at, (item, record) in enumerate(workers.run(verify, left), 1):
        report("verify", at, len(left))
        if record is None:
            continue
        journals[item.name].append(_SHAPES, kind_record_to_plain(record))
        done[item.name][record.key] = record
        if record.fatal:
            raise CampaignError(
                f"device must stay usable; {record.key} is recorded, run again to go on (got {record.failure})"
            )
    return {n: tuple(done[n][i.key] for i in items if i.name == n and i.key in done[n]) for n in scopes}


def _compile_first(workers: Workers, items: list[KindItem], needs: Needs, report: Report) -> list[KindItem]:
    """``items`` in their order, but that of the first ones those with a kernel that none before them needs lead."""
    looked, needed = items[:_LOOKED_AT], dict[str, tuple[str, ...]]()
    for at, (item, names) in enumerate(workers.run(needs, looked), 1):
        needed[item.key] = names
        report("plan", at, len(looked))
    seen: set[str] = set()
    first: list[KindItem] = []
    rest: list[KindItem] = []
    for item in looked:
        fresh = set(needed[item.key]) - seen
        seen |= fresh
        (first if fresh else rest).append(item)
    return [*first, *rest, *items[_LOOKED_AT:]]


def _types(scope: Scope) -> list[str]:
    return [d.value for d in scope.dtypes]
