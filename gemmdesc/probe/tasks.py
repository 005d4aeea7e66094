"""The three kinds of work that a campaign hands to workers; each is a function of a library and one picklable value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemmdesc.errors import CampaignError
from gemmdesc.library.interface import Library
from gemmdesc.probe.compare import Verdict, compare_rules, plain_draws, rival_draws
from gemmdesc.probe.sampling import Scope
from gemmdesc.probe.scan import AnswerKey, Block, Example, resolve, scan_block
from gemmdesc.probe.solve import ClassOutcome, ClassTask, solve_class
from gemmdesc.problem import Transpose
from gemmdesc.rule import Rule

#: One in this many verified problems has its launch captured.
_LAUNCH_EVERY = 4
#: Examples of one class given to the solver.
_MOST_EXAMPLES = 48
#: With fewer natural examples than this, others are made.
_FEW_EXAMPLES = 4
#: Verification draws come from other seeds than solving.
_VERIFY_SEED_OFFSET = 1_000_003


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    scope: Scope
    seed: int
    block: int


def run_scan(library: Library, task: ScanTask) -> Block:
    return scan_block(library, task.scope, task.seed, task.block)


@dataclass(frozen=True, kw_only=True)
class SolveTask:
    """``numbers``: the class's problems; the first ``first`` of them are read before any other."""

    key: AnswerKey
    scope: Scope
    seed: int
    numbers: tuple[int, ...]
    known: tuple[Rule, ...]
    hints: tuple[Rule, ...]
    first: int
    zero_exponent: int | None


def run_solve(library: Library, task: SolveTask) -> ClassOutcome:
    numbers = list(dict.fromkeys(task.numbers))
    rest = numbers[task.first :]
    chosen = numbers[: task.first] + rest[:: max(1, -(-len(rest) // _MOST_EXAMPLES))]
    examples = [e for e in (resolve(library, task.scope, task.seed, n) for n in chosen) if e is not None]
    if examples and len(examples) < _FEW_EXAMPLES:
        examples.extend(elsewhere(library, examples))
    return solve_class(
        library,
        ClassTask(
            label=str(task.key), examples=tuple(examples), known=task.known, hints=task.hints, seed=task.seed,
            zero_exponent=task.zero_exponent, first=tuple(range(task.first)),
        ),
    )  # fmt: skip


def elsewhere(library: Library, examples: Sequence[Example]) -> list[Example]:
    """The examples' answers at other k, where the library's check accepts them there; a rare answer's only variety.

    Rules found with their help are verified on natural problems only.
    """
    out: list[Example] = []
    for example in examples[:3]:
        p = example.problem
        for k in (p.k + 8, p.k + 1, 2 * p.k + 24, 3 * p.k, p.k // 2 + 1, p.k + 64, p.k // 64 * 64 + 64, 5 * p.k + 40):
            moved = replace(
                p, k=k, lda=p.lda if p.transa is Transpose.N else p.lda + k - p.k,
                ldb=p.ldb if p.transb is Transpose.T else p.ldb + k - p.k,
            )  # fmt: skip
            if library.check(moved, example.answer):
                out.append(Example(problem=moved, answer=example.answer))
    return out


@dataclass(frozen=True, kw_only=True)
class VerifyTask:
    key: AnswerKey
    scope: Scope
    seed: int
    number: int
    rule: Rule
    draws: int


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
    """Compare the rule with the library on one problem: plain draws, and one in three built against a mutant.

    Raises:
        CampaignError: the library no longer answers the problem.
    """
    example = resolve(library, task.scope, task.seed, task.number)
    if example is None:
        raise CampaignError(f"{task.key} must still be answered as in the scan (got a refusal of {task.number})")
    rivals = max(1, task.draws // 3)
    seed, number = task.seed + _VERIFY_SEED_OFFSET, task.number
    draws = (*plain_draws(seed, task.draws - rivals, first=number % 97), *rival_draws(seed, rivals, first=number % 101))
    (verdict,) = compare_rules(library, example, [task.rule], draws)
    launch = library.launch(example.problem, example.answer) if number % _LAUNCH_EVERY == 0 else None
    return Verified(
        key=task.key, rule=task.rule.text, number=number, verdict=verdict, draws=len(draws), m=example.problem.m,
        n=example.problem.n, k=example.problem.k, kernels=launch.names if launch is not None else (),
    )  # fmt: skip
