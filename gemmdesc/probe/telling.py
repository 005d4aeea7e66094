"""Which problems would show that a rule is wrong: those where other rules, or mutants of its own, give other bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.mutants import mutants
from gemmdesc.normal_form import normal_form
from gemmdesc.rule import Rule, evaluate_rule

#: A k beyond which mutants are not worth their normal forms: they show at smaller ones.
MUTANT_K = 1 << 19

@dataclass(frozen=True, kw_only=True)
class Shown:
    """Names of the rivals, and of the rule's mutants, that do not owe it the same bits in some environment."""

    rivals: frozenset[str] = frozenset()
    mutants: frozenset[str] = frozenset()


def shown(rule: Rule, rivals: Sequence[Rule], environment: Mapping[str, int]) -> Shown:
    """What a comparison in ``environment`` could show."""
    k = environment["k"]
    own = evaluate_rule(rule, environment)
    if not isinstance(own, GEMMDesc):
        return Shown()
    found = frozenset(r.text for r in rivals if not _same(own, evaluate_rule(r, environment), k))
    # Where a slice ends may depend on the layout: a mutant counts once for each.
    layout = environment.get("k_contiguous", 0)
    changed = mutants(own, k) if k <= MUTANT_K else ()
    return Shown(rivals=found, mutants=frozenset(f"{m.change} {layout}" for m in changed))


def most_telling(
    rule: Rule, rivals: Sequence[Rule], environments: Sequence[Mapping[str, int]]
) -> Iterator[int]:
    """Indices of all ``environments``: each next one shows the most that none before it showed, the earlier on a tie.

    Rivals, which were right elsewhere, count before mutants.  ``environments``: see
    :func:`gemmdesc.problem.environment`.
    """
    left = {i: shown(rule, rivals, e) for i, e in enumerate(environments)}
    seen_rivals: frozenset[str] = frozenset()
    seen_mutants: frozenset[str] = frozenset()
    while left:
        best = max(left, key=lambda i: (len(left[i].rivals - seen_rivals), len(left[i].mutants - seen_mutants), -i))
        seen_rivals |= left[best].rivals
        seen_mutants |= left.pop(best).mutants
        yield best


def _same(own: GEMMDesc, other: object, k: int) -> bool:
    return isinstance(other, GEMMDesc) and normal_form(own, k) == normal_form(other, k)
