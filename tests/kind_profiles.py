"""The profile that a perfect probe would write of the library of ``tests/kind_samples.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.library.interface import Library
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.probe.sampling import Regime, Scope, draw_problem, scope_named
from gemmdesc.problem import Refused
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
    index_profile,
    project,
)
from gemmdesc.rule import Rule
from gemmdesc.verification.replayed import ReplayBench
from tests.kind_samples import answer_of, library_of_kinds, rule_of
from tests.probe_samples import AMPERE, DEVICE, HOPPER, IDENTITY

KEY = ("algo_id", "splitk_num")
_SIZES = Range(low=1, high=1 << 20)
#: Enough to meet all families and slices.
_PROBLEMS = 1500
#: The kinds of 16-bit operands that are more than one product.
KERNEL_KINDS = ("batch", "bias", "relu", "relu_bias", "add_c", "add_beta_c")
#: Those of other operands.
KMAJOR_KINDS = ("float32", "tf32", "float8", "float8_fast")


def small_scopes(names: Iterable[str]) -> dict[str, Scope]:
    """Problems of each kind that are small enough for a CPU."""
    return {name: replace(scope_named(name), regimes=(Regime.SMALL,)) for name in names}


def profile_of(scopes: Mapping[str, Scope], changed: Callable[[Rule], Rule] = lambda rule: rule) -> Profile:
    """Rows for what the scopes' first problems meet, with the hidden rules, or what ``changed`` makes of them."""
    rows: dict[RowKey, ProfileRow] = {}
    for problem in (draw_problem(scope, 0, i) for scope in scopes.values() for i in range(_PROBLEMS)):
        answer = answer_of(problem)
        if isinstance(answer, Refused):
            continue
        key = RowKey(family=family_of(problem), answer=project(answer, KEY))
        if key in rows:
            continue
        evidence = Evidence(
            level=Level.VERIFIED, shapes=1, draws=1, mismatches=0, excluded_rivals=0, nondeterministic=0, m=_SIZES,
            n=_SIZES, k=_SIZES, splitk=_SIZES, launch_names=(), example=Example(problem=problem, answer=answer),
        )  # fmt: skip
        outcome = RuleOutcome(rule=changed(rule_of(problem, answer)))
        rows[key] = ProfileRow(key=key, outcome=outcome, evidence=evidence)
    scan = Scan(queries=_PROBLEMS, distinct_answers=6, unseen_mass=0.0, queries_per_second=1.0)
    metadata = Metadata(command="test", date="2026-12-01", answer_key=KEY, excluded_attributes=(), scan=scan)
    return Profile(device=DEVICE, library=IDENTITY, metadata=metadata, rows=tuple(rows.values()))


def on_hopper(rule: Rule) -> Rule:
    """The rule with the matrix steps of the card that the library is simulated on, as kernels need them."""

    def changed(desc: GEMMDesc) -> GEMMDesc:
        if desc.accumulator.step != AMPERE:
            return desc
        return replace(desc, accumulator=replace(desc.accumulator, step=HOPPER))

    return rule.restructured(changed)


def bench_of(profile: Profile, library: Library | None = None) -> ReplayBench:
    return ReplayBench(library or library_of_kinds(), index_profile(profile), TorchSettings())


@dataclass(frozen=True)
class KindsLibrary:
    """Opens the library of kinds in any process."""

    def __call__(self) -> Library:
        return library_of_kinds()


