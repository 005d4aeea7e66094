"""A profile of a simulated library with hidden rules, made from those rules themselves."""

from __future__ import annotations

from collections.abc import Callable

from gemmdesc.probe.sampling import Regime, Scope, draw_problem
from gemmdesc.problem import AlgoConfig, GemmProblem
from gemmdesc.profiles import (
    Evidence,
    Example,
    Level,
    Metadata,
    Profile,
    ProfileRow,
    Range,
    RowKey,
    RuleOutcome,
    Scan,
    family_of,
    project,
)
from gemmdesc.rule import Rule
from gemmdesc.verification.hidden import DTYPE, Hidden, hidden_library

SCOPE = Scope(dtypes=(DTYPE,), output_float32=False, regimes=(Regime.SMALL,), misaligned_share=0.0)
KEY = ("algo_id",)
EXCLUDED = (("tile_id", 3), ("stages_id", 2), ("splitk_num", 6))


def first_example(hidden: Hidden, algo_id: int) -> tuple[GemmProblem, AlgoConfig]:
    """The first problem of the scope with that answer."""
    for number in range(1000):
        problem = draw_problem(SCOPE, 5, number)
        answer = hidden.answer(problem)
        if isinstance(answer, AlgoConfig) and answer.algo_id == algo_id:
            return problem, answer
    raise AssertionError(algo_id)


def hidden_profile(hidden: Hidden, change: Callable[[int, Rule], Rule | None] = lambda i, r: r) -> Profile:
    """One verified row for each hidden rule; ``change`` (row number, rule) replaces a rule or drops the row."""
    library = hidden_library(hidden)
    rows = []
    for number, (algo_id, rule) in enumerate(hidden.rules):
        changed = change(number, rule)
        if changed is None:
            continue
        problem, answer = first_example(hidden, algo_id)
        launch = library.launch(problem, answer)
        assert launch is not None
        one = Range(low=1, high=100_000)
        evidence = Evidence(
            level=Level.VERIFIED, shapes=3, draws=9, mismatches=0, excluded_rivals=2, nondeterministic=0, m=one, n=one,
            k=one, splitk=one, launch_names=launch.names,
            example=Example(problem=problem, answer=answer, launch=launch),
        )  # fmt: skip
        key = RowKey(family=family_of(problem), answer=project(answer, KEY))
        rows.append(ProfileRow(key=key, outcome=RuleOutcome(rule=changed), evidence=evidence))
    metadata = Metadata(
        command="test", date="2026-11-29", answer_key=KEY, excluded_attributes=EXCLUDED,
        scan=Scan(queries=100, distinct_answers=20, unseen_mass=0.01, queries_per_second=1000.0),
    )  # fmt: skip
    return Profile(device=library.device, library=library.identity, metadata=metadata, rows=tuple(rows))


