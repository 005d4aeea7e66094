"""Comparing one rule with the library: a trial of a class, the verification of an answer; work for workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import Library
from gemmdesc.library.stability import run_to_run
from gemmdesc.probe.answers import AnswerKey, slices_at_launch
from gemmdesc.probe.compare import (
    WINDOW_SIDE,
    Draw,
    Verdict,
    choose_window,
    compare_rules,
    draw_inputs,
    plain_draws,
    plain_operands,
    rival_draws,
)
from gemmdesc.probe.examples import Draws, Variant, elsewhere, examples_of, nearby, other_layouts, varied
from gemmdesc.probe.experiments import ReferenceFailed, magnitudes_of
from gemmdesc.probe.predicted import none_refuted
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.scan import Example
from gemmdesc.probe.sharing import foretells_cuts, shared_examples
from gemmdesc.probe.telling import adding, most_telling
from gemmdesc.probe.walks import read_fused, read_summed
from gemmdesc.problem import Failed, GemmProblem, environment
from gemmdesc.regions import depends_on_place
from gemmdesc.rule import Rule

#: Verification draws come from other seeds than solving.
_VERIFY_SEED_OFFSET = 1_000_003
#: One in this many problems that are not compared in full has its launch captured.
_LAUNCH_EVERY = 4
#: One in this many problems compared in full is run again, alone and beside a busy stream.
_STABILITY_EVERY = 8
#: Rows and columns compared by a trial, and for answers beyond a row's first ones, at most.
_TRIAL_SIDE = 8
#: Problems of a class among which a trial chooses, and how many it takes place on.
_TRIAL_LOOKED_AT, _TRIAL_PROBLEMS = 5, 2
#: Launches that share out k of which a rule for them must foretell which elements are cut; numberings of tiles that
#: differ say the same of many.
_SHARED_TRIALS = 16


@dataclass(frozen=True, kw_only=True)
class TrialTask:
    """Does ``rule`` give the bytes of the class ``key``?  ``rule`` None: does no fused step show there?

    ``rivals``: other rules met so far; the trial takes place where most of them would give other bytes.  ``witnesses``:
    problems on which some rule failed before, always tried.
    """

    key: AnswerKey
    source: Draws
    numbers: tuple[int, ...]
    rule: Rule | None
    rivals: tuple[Rule, ...] = ()
    witnesses: tuple[Variant, ...] = ()


def run_trial(library: Library, task: TrialTask) -> Verdict:
    """One plain draw and one built against rivals, on each of the problems that would tell most.

    A trial chooses between rules, so that it verifies none: its draws are those of solving.
    """
    chosen = varied(task.source, task.numbers, _TRIAL_LOOKED_AT)
    examples = list(examples_of(library, task.source, chosen).values())
    shared = any(slices_at_launch(e.answer.splitk_num) for e in examples)
    if shared and task.rule is not None:
        return _try_shared(library, list(examples_of(library, task.source, task.numbers).values()), task)
    if task.rule is not None:
        if depends_on_place(task.rule):
            return Verdict.DECLINED
        examples.extend(elsewhere(library, examples[:1]))
    witnesses = [e for w in task.witnesses if (e := task.source.variant(library, w)) is not None]
    verdict = Verdict.REFERENCE_FAILED
    telling = _telling(examples, task.rule, task.rivals, _TRIAL_PROBLEMS)
    for place, example in enumerate([*witnesses, *telling]):
        one = _try(library, example, task, place)
        if one in (Verdict.DIFFERENT, Verdict.DECLINED):
            return one
        verdict = one if one is Verdict.EQUAL else verdict
    if task.rule is not None and not none_refuted(library, [*witnesses, *telling], task.rule):
        return Verdict.DIFFERENT
    return verdict


def _try_shared(library: Library, examples: Sequence[Example], task: TrialTask) -> Verdict:
    """The trial of a class whose launches may share out k: on such launches, as all others say little of its rule."""
    if task.rule is None or not depends_on_place(task.rule):
        return Verdict.DECLINED
    sharing = shared_examples(library, examples, task.source.seed, _SHARED_TRIALS)
    if len(sharing) < _SHARED_TRIALS:
        return Verdict.DECLINED
    if not all(foretells_cuts(library, task.rule, x) for x in sharing):
        return Verdict.DIFFERENT
    for place, x in enumerate(sharing[:_TRIAL_PROBLEMS]):
        # Each draw looks at one rectangle of D.
        draws = (*plain_draws(task.source.seed, 4, first=place), *rival_draws(task.source.seed, 2, first=place))
        (one,) = compare_rules(library, x.example, [task.rule], draws, side=_TRIAL_SIDE)
        if one is not Verdict.EQUAL:
            return one
    return Verdict.EQUAL


def _try(library: Library, example: Example, task: TrialTask, place: int) -> Verdict:
    if task.rule is None:
        return _trial_scalar(library, example)
    seed = task.source.seed
    known = _refuting(task.source, example.problem)
    draws = (*known, *plain_draws(seed, 1, first=place), *rival_draws(seed, 1, first=2 * place))
    (one,) = compare_rules(library, example, [task.rule], draws, side=_TRIAL_SIDE, others=task.rivals)
    return one


def _refuting(source: Draws, problem: GemmProblem) -> tuple[Draw, ...]:
    """The draws that have shown a rule wrong there: a window elsewhere, or other operands, may hide it."""
    return tuple(
        Draw(seed=d.seed, number=d.number, rival=False, family=d.family, at=(d.row, d.column))
        for d in source.refuting(problem)
    )


def _telling(examples: Sequence[Example], rule: Rule | None, rivals: Sequence[Rule], count: int) -> list[Example]:
    """The examples, at most ``count``, on which the most rivals and mutants of the rule behave otherwise."""
    if rule is None or len(examples) == 1:
        return list(examples[:count])
    where = [environment(e.problem, e.answer, None) for e in examples]
    return [examples[i] for i in islice(most_telling(rule, rivals, where), count)]


def _trial_scalar(library: Library, example: Example) -> Verdict:
    reader = LibraryReader(library, example.problem, example.answer)
    try:
        fused = read_fused(reader, read_summed(reader)[0], magnitudes_of(example.problem))
    except ReferenceFailed:
        return Verdict.REFERENCE_FAILED
    return Verdict.DIFFERENT if fused else Verdict.EQUAL


@dataclass(frozen=True, kw_only=True)
class VerifyTask:
    """``rivals`` of the ``draws`` are built against the ``others`` and mutants; ``full``: more outputs are compared.

    Of the problems ``numbers``, the one is compared on which most of the ``others``, rules of the family, would show.
    """

    key: AnswerKey
    source: Draws
    numbers: tuple[int, ...]
    rule: Rule
    others: tuple[Rule, ...]
    draws: int
    rivals: int
    full: bool


@dataclass(frozen=True, kw_only=True)
class Verified:
    """One answer compared on one of its problems, or on a variant of it, under the rule with text ``rule``.

    ``full``: on draws of every kind and more outputs.
    """

    key: AnswerKey
    rule: str
    variant: Variant
    verdict: Verdict
    draws: int
    m: int
    n: int
    k: int
    kernels: tuple[str, ...]
    full: bool


@dataclass(frozen=True, kw_only=True)
class MadeTask:
    """Compare ``rule`` where the problems ``numbers``, on which it was compared, could not have shown it wrong.

    At most ``count`` problems are made from the first of them; ``by_layout``: in all layouts, the rule to be shown
    right in each.  ``others``: rules of the family.  ``least``: compare on so many, even if the last ones show no more;
    where the check refuses other k and layouts, on other outer sizes.
    """

    key: AnswerKey
    source: Draws
    numbers: tuple[int, ...]
    rule: Rule
    others: tuple[Rule, ...]
    count: int
    by_layout: bool
    least: int = 0


def run_made(library: Library, task: MadeTask) -> tuple[Verified, ...]:
    """One plain draw and one against rivals on each made problem that shows more.

    None where the problems compared showed all, or the library's check accepts no other ones.
    """
    natural = list(examples_of(library, task.source, task.numbers).values())
    if not natural:
        return ()
    made = _variants(library, natural[0], task.by_layout)
    compared, further = ([environment(e.problem, e.answer, None) for e in of] for of in (natural, made))
    chosen = list(islice(adding(task.rule, task.others, compared, further, by_layout=task.by_layout), task.count))
    spare = [i for i in range(len(made)) if i not in chosen]
    missing = max(0, task.least - len(chosen))
    chosen += spare[:: max(1, len(spare) // max(1, missing))][:missing]
    problems = [made[i] for i in chosen]
    problems += islice(nearby(library, natural[0]), max(0, task.least - len(problems)))
    seed = task.source.seed + _VERIFY_SEED_OFFSET
    found = []
    for place, example in enumerate(problems, 1):
        draws = (*plain_draws(seed, 1, first=place), *rival_draws(seed, 1, first=2 * place))
        (verdict,) = compare_rules(library, example, [task.rule], draws, side=_TRIAL_SIDE, others=task.others)
        if verdict is Verdict.EQUAL and not none_refuted(library, [example], task.rule):
            verdict = Verdict.DIFFERENT
        p = example.problem
        variant = _made(task.numbers[0], natural[0].problem, p)
        found.append(
            Verified(
                key=task.key, rule=task.rule.text, variant=variant, verdict=verdict, draws=len(draws), m=p.m, n=p.n,
                k=p.k, kernels=(), full=False,
            )
        )
    return tuple(found)


def _made(number: int, natural: GemmProblem, made: GemmProblem) -> Variant:
    outer = (0, 0) if (made.m, made.n) == (natural.m, natural.n) else (made.m, made.n)
    return Variant(number=number, k=made.k, layout=(made.transa, made.transb), m=outer[0], n=outer[1])


def _variants(library: Library, natural: Example, by_layout: bool) -> list[Example]:
    """The answer on other problems, in all layouts or in its own; small ones first."""
    own = (natural.problem.transa, natural.problem.transb)
    made = dict.fromkeys([*elsewhere(library, [natural]), *other_layouts(library, [natural])])
    made.pop(natural, None)
    kept = [e for e in made if by_layout or (e.problem.transa, e.problem.transb) == own]
    return sorted(kept, key=lambda e: e.problem.k)


def run_verify(library: Library, task: VerifyTask) -> Verified:
    """Compare the rule with the library on one problem.

    Raises:
        CampaignError: the library no longer answers the problem.
    """
    found = examples_of(library, task.source, task.numbers)
    if not found:
        raise CampaignError(f"{task.key} must still be answered as in the scan (got refusals of {task.numbers})")
    (example,) = _telling(list(found.values()), task.rule, task.others, 1)
    number = next(n for n, e in found.items() if e is example)
    seed = task.source.seed + _VERIFY_SEED_OFFSET
    plain = plain_draws(seed, task.draws - task.rivals, first=number % 97)
    known = _refuting(task.source, example.problem)
    draws = (*known, *plain, *rival_draws(seed, task.rivals, first=2 * (number % 101)))
    side = WINDOW_SIDE if task.full else _TRIAL_SIDE
    (verdict,) = compare_rules(library, example, [task.rule], draws, side=side, others=task.others)
    if task.full and verdict is Verdict.EQUAL and not none_refuted(library, [example], task.rule):
        verdict = Verdict.DIFFERENT
    again = task.full and number % _STABILITY_EVERY == 0
    if again and verdict is Verdict.EQUAL and not _stable(library, example, plain[0]):
        verdict = Verdict.NONDETERMINISTIC
    captured = task.full or number % _LAUNCH_EVERY == 0
    launch = library.launch(example.problem, example.answer) if captured else None
    return Verified(
        key=task.key, rule=task.rule.text, variant=Variant(number=number), verdict=verdict, draws=len(draws),
        m=example.problem.m, n=example.problem.n, k=example.problem.k,
        kernels=launch.names if launch is not None else (), full=task.full,
    )  # fmt: skip


def _stable(library: Library, example: Example, draw: Draw) -> bool:
    """Whether two further runs, and two beside a busy stream, give one and the same bytes."""
    a, b = plain_operands(example.problem, draw)
    window = choose_window(example.problem, draw)
    inputs = draw_inputs(example.problem, draw)
    found = run_to_run(library, example.problem, example.answer, a, b, repeats=2, window=window, inputs=inputs)
    return isinstance(found, Failed) or found.stable
