"""Solving a class of answers that end in gelu: a rule of products alone, and the course that its experiments show."""

from __future__ import annotations

from collections.abc import Sequence

from gemmdesc.library.interface import Library, tanh_approx_of
from gemmdesc.probe.compare import Verdict, compare_rules, needs_launch, plain_draws, rival_draws
from gemmdesc.probe.examples import readable, reading_order
from gemmdesc.probe.experiments import ReferenceFailed
from gemmdesc.probe.gelu import Experiments, gelu_rules, plan_gelu
from gemmdesc.probe.outcomes import ClassOutcome, ClassTask, no_rule
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.scan import Example
from gemmdesc.rule import Rule

#: Examples that experiments are run on, and that the bytes of what is left are compared on.
_ASKED, _COMPARED = 2, 6


def solve_gelu(library: Library, task: ClassTask, bare: Sequence[Rule]) -> ClassOutcome:
    """The class's rule: of those known, or of the ``bare`` ones with a course, the first that the library bears out.

    ``bare``: rules of the class's products with nothing after them.  Without one, or without the card's
    ``tanh.approx.f32``, there is none.
    """
    tanh_approx = tanh_approx_of(library)
    if tanh_approx is None:
        return no_rule(task.label, "tanh.approx is a function of the card, and nothing here computes it")
    if not task.examples:
        return no_rule(task.label, "no problem of the class is answered")
    alive = [*task.known, *gelu_rules(bare, task.examples[0].problem)]
    if not alive:
        return no_rule(task.label, "gelu follows products of which no rule without it is known")
    order = [i for i in reading_order(task.examples) if readable(task.examples[i])] or [0]
    asked = 0
    for example in (task.examples[i] for i in order):
        left = _borne_out(library, example, alive)
        if left is None:
            continue
        asked, alive = asked + 1, left
        if not alive or asked == _ASKED:
            break
    if not asked or not alive:
        reason = "no form of gelu gives what its experiments show" if asked else "the library ran none of its problems"
        return no_rule(task.label, reason)
    return _compared(library, task, alive)


def _borne_out(library: Library, example: Example, rules: Sequence[Rule]) -> list[Rule] | None:
    """Those of the rules that give the example's experiments; None where the library does not run it."""
    tanh_approx, p = tanh_approx_of(library), example.problem
    assert tanh_approx is not None
    try:
        outputs = LibraryReader(library, p, example.answer).outputs(plan_gelu(p, tanh_approx))
    except ReferenceFailed:
        return None
    launched = any(needs_launch(rule, example) for rule in rules)
    launch = library.launch(p, example.answer) if launched else None
    experiments = Experiments(p, example.answer, launch, outputs, tanh_approx)
    return [rule for rule in rules if experiments.given_by(rule)]


def _compared(library: Library, task: ClassTask, rules: Sequence[Rule]) -> ClassOutcome:
    """The first rule whose bytes are the library's, on examples of all the k there are."""
    alive, checked, draws, rivals = list(rules), 0, 0, 0
    by_k = sorted(task.examples, key=lambda e: e.problem.k)
    first = [task.examples[i] for i in task.first]
    step = max(1, len(by_k) // _COMPARED)
    chosen = list(dict.fromkeys([*first, *by_k[::step], by_k[-1]]))[: _COMPARED + len(first)]
    for number, example in enumerate(chosen):
        asked = (*plain_draws(task.seed, 4, first=number), *rival_draws(task.seed, 2, first=2 * number))
        verdicts = compare_rules(library, example, alive, asked)
        told = any(v in (Verdict.EQUAL, Verdict.DIFFERENT) for v in verdicts)
        checked, draws = checked + told, draws + told * len(asked)
        kept = [
            r for r, v in zip(alive, verdicts, strict=True) if v in (Verdict.EQUAL, Verdict.REFERENCE_FAILED)
        ]
        rivals += len(alive) - len(kept)
        alive = kept
        if not alive:
            return no_rule(task.label, "a form of gelu gives its experiments, but no rule known without it the bytes")
    if not checked:
        return no_rule(task.label, "the library ran none of its problems")
    return ClassOutcome(
        label=task.label, rule=alive[0], reason="", scalar=False, readings=(), checked=checked, draws=draws,
        rivals=rivals,
    )  # fmt: skip
