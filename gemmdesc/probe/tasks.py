"""The kinds of work that a campaign hands to workers; each is a function of a library and one picklable value."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.expressions import Expr
from gemmdesc.library.interface import Library
from gemmdesc.probe.answers import AnswerKey, slices_at_launch
from gemmdesc.probe.examples import FEW_EXAMPLES, Draws, elsewhere, examples_of, varied
from gemmdesc.probe.scan import Block, scan_block
from gemmdesc.probe.solve import ClassOutcome, ClassTask, no_rule, solve_class
from gemmdesc.rule import Rule

#: Examples of one class given to the solver, and numbers looked through to choose them.
_MOST_EXAMPLES, _MOST_LOOKED_AT = 48, 600


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    source: Draws
    block: int


def run_scan(library: Library, task: ScanTask) -> Block:
    return scan_block(library, task.source.scope, task.source.seed, task.block)


@dataclass(frozen=True, kw_only=True)
class SolveTask:
    """``numbers``: problems of the classes solved as one; the first ``first`` of them are read before any other.

    ``hints``: rules whose expressions are tried before others; ``preferred``: expressions that explain the family.
    """

    key: AnswerKey
    source: Draws
    numbers: tuple[int, ...]
    known: tuple[Rule, ...]
    hints: tuple[Rule, ...]
    preferred: tuple[Expr, ...]
    first: int
    zero_exponent: int | None


def run_solve(library: Library, task: SolveTask) -> ClassOutcome:
    numbers = list(dict.fromkeys(task.numbers))
    rest = numbers[task.first : _MOST_LOOKED_AT]
    chosen = [*numbers[: task.first], *varied(task.source, rest, _MOST_EXAMPLES)]
    examples = list(examples_of(library, task.source, chosen).values())
    if examples and all(slices_at_launch(e.answer.splitk_num) for e in examples):
        return no_rule(str(task.key), "its kernel shares out k when it is launched (segment-k); no rule states that")
    if examples and len(examples) < FEW_EXAMPLES:
        examples.extend(elsewhere(library, examples))
    return solve_class(
        library,
        ClassTask(
            label=str(task.key), examples=tuple(examples), known=task.known, hints=task.hints, seed=task.source.seed,
            preferred=task.preferred,
            zero_exponent=task.zero_exponent, first=tuple(range(min(task.first, len(examples)))),
        ),
    )  # fmt: skip
