"""Comparing rules with the library on draws: the step that eliminates and the step that verifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, bitwise_equal
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.library.interface import Library, Window
from gemmdesc.mutants import mutants
from gemmdesc.normal_form import normal_form
from gemmdesc.operands import Family, HashOperand, Operand
from gemmdesc.probe.scan import Example
from gemmdesc.probe.telling import worth_mutants
from gemmdesc.problem import Failed, GemmProblem, environment
from gemmdesc.rivals import rival_set_operands
from gemmdesc.rule import Rule, evaluate_rule

#: Rows and columns of D that one comparison replays, at most.
WINDOW_SIDE = 16
#: Rows (or columns) of D that a comparison with rivals replays: each was built against one of them.
RIVAL_ROWS = 96
#: Families of the plain draws, in turn.  Where sums cancel, a narrow output still shows the order, elsewhere seldom;
#: where all products are -0.0, the sign of the sum shows how it starts.
FAMILIES = (
    Family.CANCELLING, Family.NEGATIVE_ZERO, Family.WIDE, Family.SPECIALS, Family.CANCELLING, Family.RAMP,
)  # fmt: skip


class Verdict(Enum):
    """What one comparison says of a rule."""

    EQUAL = "equal"
    DIFFERENT = "different"
    DECLINED = "declined"
    REFERENCE_FAILED = "reference_failed"
    NONDETERMINISTIC = "nondeterministic"


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One pair of operands: of a family, or built against rivals.

    ``number`` names the family; of rival draws, even ones cancel and odd ones are tiny (``rival_set_operands``).
    """

    seed: int
    number: int
    rival: bool


def plain_draws(seed: int, count: int, first: int = 0) -> tuple[Draw, ...]:
    return tuple(Draw(seed=seed, number=first + i, rival=False) for i in range(count))


def rival_draws(seed: int, count: int, first: int = 0) -> tuple[Draw, ...]:
    return tuple(Draw(seed=seed, number=first + i, rival=True) for i in range(count))


def describe(rule: Rule, example: Example) -> GEMMDesc | None:
    """The rule's descriptor on one example; None where it declines."""
    desc = evaluate_rule(rule, environment(example.problem, example.answer, None))
    return desc if isinstance(desc, GEMMDesc) else None


def compare_rules(
    library: Library,
    example: Example,
    rules: Sequence[Rule],
    draws: Sequence[Draw],
    *,
    side: int = WINDOW_SIDE,
    others: Sequence[Rule] = (),
) -> tuple[Verdict, ...]:
    """One verdict for each rule over all ``draws``: different as soon as one byte of one draw differs.

    At most ``side`` rows and columns of D are compared.  Rival draws are built against what the ``others`` would give
    here, and against mutants.
    """
    descs = [describe(r, example) for r in rules]
    rivals = tuple(d for d in (*(describe(r, example) for r in others), *descs) if d is not None)
    verdicts = [Verdict.DECLINED if d is None else Verdict.EQUAL for d in descs]
    for draw in draws:
        lead = next((d for d, v in zip(descs, verdicts, strict=True) if d is not None and v is Verdict.EQUAL), None)
        if lead is None:
            break
        a, b = operands(example.problem, lead, draw, rivals)
        window = choose_window(example.problem, draw, side)
        got = library.run(example.problem, example.answer, a, b, window)
        if isinstance(got, Failed):
            return tuple(Verdict.DECLINED if d is None else Verdict.REFERENCE_FAILED for d in descs)
        expected: dict[str, bool] = {}
        for i, desc in enumerate(descs):
            if desc is None or verdicts[i] is not Verdict.EQUAL:
                continue
            digest = normal_form(desc, example.problem.k).digest
            if digest not in expected:
                expected[digest] = bitwise_equal(_replayed(desc, example.problem, a, b, window), got)
            if not expected[digest]:
                verdicts[i] = Verdict.DIFFERENT
    return tuple(verdicts)


def operands(
    problem: GemmProblem, desc: GEMMDesc, draw: Draw, others: Sequence[GEMMDesc] = ()
) -> tuple[Operand, Operand]:
    """The draw's operands; a rival draw pits ``desc`` against all of the others and of its mutants that differ here."""
    if draw.rival:
        own = normal_form(desc, problem.k)
        changed = [m.desc for m in mutants(desc, problem.k)] if worth_mutants(desc, problem.k) else []
        pool = {normal_form(d, problem.k): d for d in (*others, *changed)}
        pool.pop(own, None)
        made = rival_set_operands(
            desc, tuple(pool.values()), problem.k, seed=draw.seed, draw=draw.number, dtype=problem.a_dtype
        )
        if made is not None:
            return made if problem.m >= problem.n else made[::-1]
    return plain_operands(problem, draw)


def plain_operands(problem: GemmProblem, draw: Draw) -> tuple[Operand, Operand]:
    """Hashed operands of the family that the draw's number names."""
    family = FAMILIES[draw.number % len(FAMILIES)]
    return (
        HashOperand(dtype=problem.a_dtype, family=family, seed=draw.seed, draw=draw.number, role="a"),
        HashOperand(dtype=problem.b_dtype, family=family, seed=draw.seed, draw=draw.number, role="b"),
    )


def choose_window(problem: GemmProblem, draw: Draw, side: int = WINDOW_SIDE) -> Window:
    """Rows and columns spread over D, first and last ones included, others by the draw's seed.

    A rival draw differs from row to row of the longer axis only, so that its window is long and narrow.
    """
    rng = np.random.default_rng([draw.seed, draw.number])
    rows, columns = side, side
    if draw.rival:
        rows, columns = (RIVAL_ROWS, 2) if problem.m >= problem.n else (2, RIVAL_ROWS)
    return Window(rows=_spread(rng, problem.m, rows), columns=_spread(rng, problem.n, columns))


def _spread(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    if size <= count:
        return np.arange(size, dtype=np.int64)
    inner = rng.integers(0, size, size=max(0, count - 2))
    return np.unique(np.concatenate([[0, size - 1], inner])).astype(np.int64)


def _replayed(desc: GEMMDesc, problem: GemmProblem, a: Operand, b: Operand, window: Window) -> Bits:
    a_bits = a.bits(problem.m, problem.k, window.rows)
    b_bits = b.bits(problem.n, problem.k, window.columns)
    return replay(desc, a_bits, np.ascontiguousarray(b_bits.T))
