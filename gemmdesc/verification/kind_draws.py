"""A shape of a kind, and what each of its draws multiplies: operands, and what a product takes beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmdesc.library.interface import Inputs
from gemmdesc.operands import Operand
from gemmdesc.probe.compare import Draw as Beside
from gemmdesc.probe.compare import draw_inputs, plain_operands
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.problem import GemmProblem
from gemmdesc.verification.draws import Draw

#: Shapes come from other seeds than those of campaigns of the probe.
_SEED_OFFSET = 2_000_003


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


def problem_of(item: KindItem) -> GemmProblem:
    """The shape's problem."""
    return draw_problem(item.scope, _SEED_OFFSET + item.seed, item.index)


def operand_seed(item: KindItem) -> int:
    """The seed of a shape's operands; shapes share none."""
    words = np.random.SeedSequence([item.seed, *item.name.encode(), item.index]).generate_state(1)
    return int(words[0])


def kind_inputs(problem: GemmProblem, draw: Draw, seed: int) -> Inputs:
    """What one draw's product takes beside its operands."""
    return draw_inputs(problem, draw_beside(draw, seed))


def draw_beside(draw: Draw, seed: int) -> Beside:
    """The draw as the probe names it, for what it makes beside operands: inputs and windows."""
    return Beside(seed=seed, number=draw.number, rival=False, family=draw.family)


def kind_operands(problem: GemmProblem, draw: Draw, seed: int) -> tuple[Operand, Operand]:
    """op(A) and op(B) of one draw; where they may be rounded to tfloat32, every NORMAL draw is rich in its ties.

    Where gelu follows, sums of such draws are about one.
    """
    return plain_operands(problem, draw_beside(draw, seed))
