"""The kinds of work that a campaign hands to workers; each is a function of a library and one picklable value."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdesc.expressions import Expr
from gemmdesc.library.interface import Library
from gemmdesc.probe.answers import AnswerKey, slices_at_launch
from gemmdesc.probe.chains import NO_KIN, Kin
from gemmdesc.probe.courses import has_gelu
from gemmdesc.probe.examples import FEW_EXAMPLES, Draws, Variant, elsewhere, examples_of, other_layouts, varied
from gemmdesc.probe.holding import hold_class
from gemmdesc.probe.outcomes import ClassOutcome, ClassTask
from gemmdesc.probe.scan import Block, Example, scan_block
from gemmdesc.probe.solve import solve_class
from gemmdesc.probe.solve_gelu import solve_gelu
from gemmdesc.probe.solve_shared import solve_shared
from gemmdesc.rule import Rule

#: Examples of one class given to the solver, and numbers looked through to choose them.
_MOST_EXAMPLES, _MOST_LOOKED_AT = 48, 600
#: Examples whose answers are given to the solver in other layouts too.
_TURNED = 2


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    source: Draws
    block: int


def run_scan(library: Library, task: ScanTask) -> Block:
    return scan_block(library, task.source.scope, task.source.seed, task.block)


@dataclass(frozen=True, kw_only=True)
class SolveTask:
    """``numbers``: problems of the classes solved as one; ``witnesses`` are read before any of them.

    ``chains``: whether the class is one of CUDA-core kernels; ``kin``: rules that its trees are held
    against before any is sought.
    ``hints``: rules whose expressions are tried before others; ``preferred``: expressions that explain the family.
    ``bare``: rules of the same sums with nothing after them, of which those that end in gelu are made.
    ``readings``: taken of a class whose rule is held, for the rule to give all of their experiments.
    """

    key: AnswerKey
    source: Draws
    numbers: tuple[int, ...]
    known: tuple[Rule, ...]
    hints: tuple[Rule, ...]
    preferred: tuple[Expr, ...]
    witnesses: tuple[Variant, ...]
    zero_exponent: int | None
    cuda_cores: bool = True
    chains: bool = False
    kin: Kin = NO_KIN
    bare: tuple[Rule, ...] = ()
    readings: int = 0


def run_solve(library: Library, task: SolveTask) -> ClassOutcome:
    natural, of_class = _of_class(library, task)
    examples = of_class.examples
    gelu = bool(examples) and has_gelu(examples[0].problem)
    if examples and not gelu and all(slices_at_launch(e.answer.splitk_num) for e in examples):
        return solve_shared(library, str(task.key), natural, task.source.seed, task.zero_exponent)
    if gelu:
        return solve_gelu(library, of_class, task.bare)
    return solve_class(library, of_class)


def run_hold(library: Library, task: SolveTask) -> ClassOutcome | None:
    """Whether one of the rules ``known`` is the class's, on as many examples and trees as where one is tried at first.

    None where none is; nothing is sought then.
    """
    _, of_class = _of_class(library, task)
    if of_class.examples and has_gelu(of_class.examples[0].problem):
        held = solve_gelu(library, of_class, ())
        return held if held.rule is not None else None
    return hold_class(library, of_class, task.readings)


def _of_class(library: Library, task: SolveTask) -> tuple[list[Example], ClassTask]:
    """The natural examples chosen, and the work on the class with all of them."""
    first = [e for w in task.witnesses if (e := task.source.variant(library, w)) is not None]
    chosen = varied(task.source, task.numbers[:_MOST_LOOKED_AT], _MOST_EXAMPLES, wide=task.chains)
    natural = list(examples_of(library, task.source, chosen).values())
    examples = list(dict.fromkeys([*first, *natural]))
    made = elsewhere(library, natural) if len(natural) < FEW_EXAMPLES else []
    examples = list(dict.fromkeys([*examples, *made, *other_layouts(library, natural[:_TURNED])]))
    return natural, ClassTask(
        label=str(task.key), examples=tuple(examples), known=task.known, hints=task.hints, seed=task.source.seed,
        preferred=task.preferred, kin=task.kin, zero_exponent=task.zero_exponent, cuda_cores=task.cuda_cores,
        first=tuple(range(len(first))),
    )  # fmt: skip
