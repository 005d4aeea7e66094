"""Which problems would show that a rule is wrong: those where other rules, or mutants of its own, give other bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gemmdesc.descriptor import GEMMDesc, ScalarStep, Strided
from gemmdesc.mutants import mutants
from gemmdesc.normal_form import normal_form
from gemmdesc.rule import Rule, evaluate_rule

#: A k beyond which mutants are not worth their normal forms: they show at smaller ones.
MUTANT_K = 1 << 19
#: The same for CUDA-core chains, whose leaves are short and many, and whose trees are read besides.
SCALAR_MUTANT_K = 1 << 12
#: Problems that show as many rivals of which the mutants are compared: their normal forms are what choosing costs.
_TIED = 4


def worth_mutants(desc: GEMMDesc, k: int) -> bool:
    """Whether the mutants of ``desc`` at ``k`` are worth their normal forms."""
    if not isinstance(desc.accumulator.step, ScalarStep):
        return k <= MUTANT_K
    strided = [cut.layout.count for cut in desc.cuts if isinstance(cut.layout, Strided)]
    return max(k, prod(strided)) <= SCALAR_MUTANT_K


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Names of the rivals, and of the rule's mutants, that do not owe it the same bits in some environment."""

    rivals: frozenset[str] = frozenset()
    mutants: frozenset[str] = frozenset()


def shown(
    rule: Rule, rivals: Sequence[Rule], environment: Mapping[str, int], *, by_layout: bool = True,
    but: frozenset[str] = frozenset(),
) -> Shown:  # fmt: skip
    """What a comparison in ``environment`` could show; ``by_layout``: mutants of the rule once for each layout.

    Where a slice ends may depend on how many operands store k contiguously.  Names in ``but`` are left out: normal
    forms are what this costs.
    """
    left = [r for r in rivals if r.text not in but]
    return Shown(
        rivals=_rivals_shown(rule, left, environment),
        mutants=_mutants_shown(rule, environment, by_layout=by_layout, but=but),
    )


def _rivals_shown(rule: Rule, rivals: Sequence[Rule], environment: Mapping[str, int]) -> frozenset[str]:
    own, k = evaluate_rule(rule, environment), environment["k"]
    if not rivals or not isinstance(own, GEMMDesc):
        return frozenset()
    return frozenset(r.text for r in rivals if not _same(own, evaluate_rule(r, environment), k))


def _mutants_shown(
    rule: Rule, environment: Mapping[str, int], *, by_layout: bool = True, but: frozenset[str] = frozenset()
) -> frozenset[str]:
    own, k = evaluate_rule(rule, environment), environment["k"]
    if not isinstance(own, GEMMDesc) or not worth_mutants(own, k):
        return frozenset()
    layout = environment.get("k_contiguous", 0) if by_layout else 0
    known = {name.removesuffix(f" {layout}") for name in but if name.endswith(f" {layout}")}
    return frozenset(f"{m.change} {layout}" for m in mutants(own, k, known))


def adding(
    rule: Rule,
    rivals: Sequence[Rule],
    compared: Sequence[Mapping[str, int]],
    further: Sequence[Mapping[str, int]],
    *,
    by_layout: bool,
) -> Iterator[int]:
    """Indices of ``further`` environments that show what neither the ``compared`` ones nor earlier indices showed."""
    met: frozenset[str] = frozenset()
    for e in compared:
        seen = shown(rule, rivals, e, by_layout=by_layout, but=met)
        met |= seen.rivals | seen.mutants
    left = {i: shown(rule, rivals, e, by_layout=by_layout, but=met) for i, e in enumerate(further)}
    while left:
        new = {i: (s.rivals | s.mutants) - met for i, s in left.items()}
        best = max(new, key=lambda i: (len(new[i]), -i))
        if not new[best]:
            return
        met |= new[best]
        left = {i: s for i, s in left.items() if i != best and new[i]}
        yield best


def most_telling(
    rule: Rule, rivals: Sequence[Rule], environments: Sequence[Mapping[str, int]]
) -> Iterator[int]:
    """Indices of all ``environments``: each next one shows the most that none before it showed, the earlier on a tie.

    Rivals, which were right elsewhere, count before mutants; where many show as many rivals, the mutants of a few of
    them are compared, first and last ones included.  ``environments``: see :func:`gemmdesc.problem.environment`.
    """
    left = {i: _rivals_shown(rule, rivals, e) for i, e in enumerate(environments)}
    by_mutants: dict[int, frozenset[str]] = {}
    chosen: list[int] = []
    seen: frozenset[str] = frozenset()
    while left:
        most = max(len(shows - seen) for shows in left.values())
        tied = _some([i for i, shows in left.items() if len(shows - seen) == most])
        best = tied[0]
        if len(tied) > 1:
            for i in (*chosen, *tied):
                if i not in by_mutants:
                    by_mutants[i] = _mutants_shown(rule, environments[i])
            met = frozenset[str]().union(*(by_mutants[i] for i in chosen))
            best = max(tied, key=lambda i: (len(by_mutants[i] - met), -i))
        seen |= left.pop(best)
        chosen.append(best)
        yield best


def _some(indices: Sequence[int]) -> list[int]:
    """At most ``_TIED`` of the indices, evenly spread."""
    if len(indices) <= _TIED:
        return list(indices)
    return [indices[round(i * (len(indices) - 1) / (_TIED - 1))] for i in range(_TIED)]


def _same(own: GEMMDesc, other: object, k: int) -> bool:
    return isinstance(other, GEMMDesc) and normal_form(own, k) == normal_form(other, k)
