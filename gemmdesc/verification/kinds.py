"""Verifying kinds of problems by the CPU replay: every shape's answer, its rule and windows of ``cublasLtMatmul``'s D.

This asks no more than whether the profile is right; ``kind_kernels`` compares all bytes of our kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gemmdesc.bits import first_mismatch
from gemmdesc.errors import Declined, GemmdescError, InvalidInputError
from gemmdesc.library.interface import Inputs, Library, Window, tanh_approx_of
from gemmdesc.library.replayed import replay_decline, replay_problem
from gemmdesc.operands import Operand
from gemmdesc.plain import to_plain
from gemmdesc.probe.compare import choose_window
from gemmdesc.problem import AlgoConfig, Failed, GemmProblem, Refused
from gemmdesc.profiles import Level, ProfileIndex
from gemmdesc.regions import Region
from gemmdesc.verification.draws import Draw, draws_of
from gemmdesc.verification.kind_draws import KindItem, draw_beside, kind_inputs, kind_operands, operand_seed, problem_of
from gemmdesc.verification.kind_records import KindRecord
from gemmdesc.verification.records import Outcome, count
from gemmdesc.verification.replayed import ReplayBench, described

#: Rows and columns of D that are replayed, and products in a window beyond which it shrinks.
_SIDE, _LEAST_SIDE, _WINDOW_PRODUCTS = 16, 4, 1 << 20
#: Runs beyond the first that tell a library whose bytes vary from one that differs.
_AGAIN = 4
#: What computed our side where no kernel did.
REPLAY = "replay"


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
        inputs, window = kind_inputs(problem, draw, seed), choose_window(problem, draw_beside(draw, seed), side)
        return cls(problem=problem, a=a, b=b, inputs=inputs, window=window)

    def run(self, library: Library, answer: AlgoConfig) -> Any:
        """The library's bytes in the window, or Failed, also where the adapter cannot state the call."""
        try:
            return library.run(self.problem, answer, self.a, self.b, self.window, inputs=self.inputs)
        except GemmdescError as error:
            return Failed(status=f"{type(error).__name__}: {error}")
