"""The kinds of work that a campaign hands to workers; each is a function of a library and one picklable value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gemmdesc.errors import CampaignError
from gemmdesc.expressions import Expr
from gemmdesc.library.interface import Library
from gemmdesc.library.stability import run_to_run
from gemmdesc.probe.answers import AnswerKey, slices_at_launch
from gemmdesc.probe.compare import (
    WINDOW_SIDE,
    Draw,
    Verdict,
    choose_window,
    compare_rules,
    plain_draws,
    plain_operands,
    rival_draws,
)
from gemmdesc.probe.experiments import ReferenceFailed, magnitudes
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.sampling import Scope, draw_problem
from gemmdesc.probe.scan import Block, Example, resolve, scan_block
from gemmdesc.probe.solve import ClassOutcome, ClassTask, no_rule, solve_class
from gemmdesc.probe.telling import most_telling
from gemmdesc.probe.walks import read_fused, read_summed
from gemmdesc.problem import Failed, GemmProblem, Transpose, environment
from gemmdesc.rule import Rule

#: Examples of one class given to the solver, and numbers looked through to choose them.
_MOST_EXAMPLES, _MOST_LOOKED_AT = 48, 600
#: With fewer natural examples than this, others are made, from this many at most.
_FEW_EXAMPLES, _MADE_FROM = 4, 3
#: Elements of both operands up to which a problem is preferred, and k up to which examples are made.
_MODERATE_ELEMENTS, _LARGEST_MADE_K = 2**25, 2**15
#: A k below this hides how long the turns of most main loops are.
_TELLING_K = 192
#: Verification draws come from other seeds than solving.
_VERIFY_SEED_OFFSET = 1_000_003
#: One in this many verified problems has its launch captured.
_LAUNCH_EVERY = 4
#: One in this many problems compared with rivals is run again, alone and beside a busy stream.
_STABILITY_EVERY = 8
#: Rows and columns compared by a trial, and for answers beyond a row's first ones, at most.
_TRIAL_SIDE = 8
#: Problems of a class among which a trial chooses, and how many it takes place on.
_TRIAL_LOOKED_AT, _TRIAL_PROBLEMS = 6, 3


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Where numbered problems come from."""

    scope: Scope
    seed: int

    def example(self, library: Library, number: int) -> Example | None:
        return resolve(library, self.scope, self.seed, number)

    def problem(self, number: int) -> GemmProblem:
        return draw_problem(self.scope, self.seed, number)


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
    examples = [e for e in (task.source.example(library, n) for n in chosen) if e is not None]
    if examples and all(slices_at_launch(e.answer) for e in examples):
        return no_rule(str(task.key), "its kernel shares out k when it is launched (segment-k); no rule states that")
    if examples and len(examples) < _FEW_EXAMPLES:
        examples.extend(elsewhere(library, examples))
    return solve_class(
        library,
        ClassTask(
            label=str(task.key), examples=tuple(examples), known=task.known, hints=task.hints, seed=task.source.seed,
            preferred=task.preferred,
            zero_exponent=task.zero_exponent, first=tuple(range(min(task.first, len(examples)))),
        ),
    )  # fmt: skip


def varied(source: Draws, numbers: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the numbers, spread over how powers of two divide k and which operands store it contiguously.

    Within such a bucket smaller problems come first; those with operands beyond ``_MODERATE_ELEMENTS`` take part only
    where there are few others.
    """
    problems = {n: source.problem(n) for n in numbers}
    moderate = [n for n, p in problems.items() if (p.m + p.n) * p.k <= _MODERATE_ELEMENTS]
    buckets: dict[tuple[int, int], list[tuple[bool, int, int]]] = {}
    for number in moderate if len(moderate) >= _FEW_EXAMPLES else numbers:
        p = problems[number]
        twos = min(7, (p.k & -p.k).bit_length() - 1)
        contiguous = int(p.transa is Transpose.T) + int(p.transb is Transpose.N)
        buckets.setdefault((twos, contiguous), []).append((*_cost(p), number))
    queues = [sorted(b)[::-1] for b in buckets.values()]
    chosen: list[int] = []
    while queues and len(chosen) < most:
        chosen.extend(q.pop()[-1] for q in queues)
        queues = [q for q in queues if q]
    return chosen[:most]


def elsewhere(library: Library, examples: Sequence[Example]) -> list[Example]:
    """The examples' answers at other k, where the library's check accepts them there; a rare answer's only variety.

    Rules found with their help are verified on natural problems only.
    """
    made = (moved(library, e, k) for e in examples[:_MADE_FROM] for k in other_sizes(e))
    return [e for e in made if e is not None]


def moved(library: Library, example: Example, k: int) -> Example | None:
    """The example's answer at another inner size; None where the library's check does not accept it there."""
    p = example.problem
    problem = replace(
        p, k=k, lda=p.lda if p.transa is Transpose.N else p.lda + k - p.k,
        ldb=p.ldb if p.transb is Transpose.T else p.ldb + k - p.k,
    )  # fmt: skip
    return Example(problem=problem, answer=example.answer) if library.check(problem, example.answer) else None


def other_sizes(example: Example) -> tuple[int, ...]:
    """Sizes that tell much: neighbours and multiples of k, and those just above where all slices are equally long."""
    k, slices = example.problem.k, example.answer.splitk_num
    even = max(1, k // (64 * slices)) * 64 * slices if slices < k else 64
    sizes = (even + 1, even + slices // 2 + 8, k + 8, k + 1, 2 * k + 24, k // 2 + 1, k + 64, k // 64 * 64 + 96, 3 * k)
    return tuple(dict.fromkeys(s for s in sizes if 0 < s <= _LARGEST_MADE_K and s != k))


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
    witnesses: tuple[int, ...] = ()


def run_trial(library: Library, task: TrialTask) -> Verdict:
    """One plain draw and one built against rivals, on each of the problems that would tell most."""
    chosen = varied(task.source, task.numbers, _TRIAL_LOOKED_AT)
    examples = [e for e in (task.source.example(library, n) for n in chosen) if e is not None]
    if task.rule is not None:
        if any(slices_at_launch(e.answer) for e in examples):
            return Verdict.DECLINED
        examples.extend(elsewhere(library, examples[:1]))
    before = [e for e in (task.source.example(library, n) for n in task.witnesses) if e is not None]
    verdict = Verdict.REFERENCE_FAILED
    for number, example in enumerate([*before, *_telling(examples, task.rule, task.rivals, _TRIAL_PROBLEMS)]):
        if task.rule is None:
            one = _trial_scalar(library, example)
        else:
            seed = task.source.seed
            draws = (*plain_draws(seed, 1, first=number), *rival_draws(seed, 1, first=2 * number))
            (one,) = compare_rules(
                library, example, [task.rule], draws, side=_TRIAL_SIDE, others=task.rivals
            )
        if one in (Verdict.DIFFERENT, Verdict.DECLINED):
            return one
        verdict = one if one is Verdict.EQUAL else verdict
    return verdict


def _telling(examples: Sequence[Example], rule: Rule | None, rivals: Sequence[Rule], count: int) -> list[Example]:
    """The examples, at most ``count``, on which the most rivals and mutants of the rule behave otherwise."""
    if rule is None or len(examples) == 1:
        return list(examples[:count])
    where = [environment(e.problem, e.answer, None) for e in examples]
    return [examples[i] for i in islice(most_telling(rule, rivals, where), count)]


def _trial_scalar(library: Library, example: Example) -> Verdict:
    reader = LibraryReader(library, example.problem, example.answer)
    try:
        fused = read_fused(reader, read_summed(reader)[0], magnitudes(example.problem.a_dtype, example.problem.d_dtype))
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
    """One answer compared on one of its problems, number ``number``, under the rule with text ``rule``."""

    key: AnswerKey
    rule: str
    number: int
    verdict: Verdict
    draws: int
    m: int
    n: int
    k: int
    kernels: tuple[str, ...]


def run_verify(library: Library, task: VerifyTask) -> Verified:
    """Compare the rule with the library on one problem.

    Raises:
        CampaignError: the library no longer answers the problem.
    """
    found = {n: e for n in task.numbers if (e := task.source.example(library, n)) is not None}
    if not found:
        raise CampaignError(f"{task.key} must still be answered as in the scan (got refusals of {task.numbers})")
    (example,) = _telling(list(found.values()), task.rule, task.others, 1)
    number = next(n for n, e in found.items() if e is example)
    seed = task.source.seed + _VERIFY_SEED_OFFSET
    plain = plain_draws(seed, task.draws - task.rivals, first=number % 97)
    draws = (*plain, *rival_draws(seed, task.rivals, first=2 * (number % 101)))
    side = WINDOW_SIDE if task.full else _TRIAL_SIDE
    (verdict,) = compare_rules(library, example, [task.rule], draws, side=side, others=task.others)
    again = task.full and number % _STABILITY_EVERY == 0
    if again and verdict is Verdict.EQUAL and not _stable(library, example, draws[0]):
        verdict = Verdict.NONDETERMINISTIC
    launch = library.launch(example.problem, example.answer) if number % _LAUNCH_EVERY == 0 else None
    return Verified(
        key=task.key, rule=task.rule.text, number=number, verdict=verdict, draws=len(draws), m=example.problem.m,
        n=example.problem.n, k=example.problem.k, kernels=launch.names if launch is not None else (),
    )  # fmt: skip


def _stable(library: Library, example: Example, draw: Draw) -> bool:
    """Whether two further runs, and two beside a busy stream, give one and the same bytes."""
    a, b = plain_operands(example.problem, draw)
    window = choose_window(example.problem, draw)
    found = run_to_run(library, example.problem, example.answer, a, b, repeats=2, window=window)
    return isinstance(found, Failed) or found.stable


def _cost(p: GemmProblem) -> tuple[bool, int]:
    """Small operands first, but after them those whose k is too short to show a main loop's turns."""
    return p.k < _TELLING_K, p.m * p.k + p.n * p.k + p.m * p.n


def cheapest_first(source: Draws, numbers: Sequence[int]) -> list[int]:
    """Problem numbers in the order in which they are worth comparing."""
    return sorted(numbers, key=lambda n: _cost(source.problem(n)))
