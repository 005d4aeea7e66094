"""What the inference of scalar chains starts from and ends with: trees that were read, and rules made of cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gemmdesc.descriptor import Accumulator, Cut, GEMMDesc, Layout, ResidueLast, ScalarStep, Start
from gemmdesc.dtypes import DType
from gemmdesc.expressions import Expr, Var
from gemmdesc.probe.induced import induced_tree
from gemmdesc.probe.pieces import Piece, flatten, whole
from gemmdesc.probe.scalar_cuts import Kind
from gemmdesc.probe.sites import sampled_sites
from gemmdesc.probe.tree import Tree
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch, environment
from gemmdesc.rule import Rule, evaluate_rule, make_rule

#: Sites by which rules are told apart.
SHAPE_SITES = 96
#: Environments, of those where integers differ, on which rules are told apart by the trees that they give.
_TOLD_APART_ON = 10


@dataclass(frozen=True, kw_only=True)
class ScalarReading:
    """A summation tree read off one problem and answer; ``tree``'s sites are all k, or a sample of them.

    ``negative_zero``: whether the output is -0.0 where every product is; None where that was not asked.
    """

    problem: GemmProblem
    answer: AlgoConfig
    launch: Launch | None
    tree: Tree
    negative_zero: bool | None = None

    @cached_property
    def piece(self) -> Piece:
        """The tree as the sum of all k.

        Raises:
            ScalarNestError: some node joins more than two, or a site lies beyond k.
        """
        return whole(flatten(self.tree), self.problem.k)

    @property
    def environment(self) -> dict[str, int]:
        return environment(self.problem, self.answer, self.launch)


def is_scalar(rule: Rule) -> bool:
    """Whether the rule's chains are those of CUDA cores."""
    return isinstance(rule.structure.accumulator.step, ScalarStep)


def scalar_descriptor(problem: GemmProblem, layouts: Sequence[Layout], start: Start = Start.ZERO) -> GEMMDesc:
    """All k of ``problem`` in these cuts, outermost first, in float32 over an ascending fused chain from ``start``."""
    return GEMMDesc(
        a_dtype=problem.a_dtype,
        b_dtype=problem.b_dtype,
        output_dtype=problem.d_dtype,
        summed_k=problem.k,
        cuts=tuple(
            Cut(layout=x, partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST) for x in layouts
        ),
        accumulator=Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=True, start=start)),
    )


def scalar_rule(
    problem: GemmProblem, kinds: Sequence[Kind], expressions: Mapping[str, Expr], start: Start = Start.ZERO
) -> Rule:
    """The rule of these cuts in float32 over an ascending fused chain from ``start``; expressions by path."""
    desc = scalar_descriptor(problem, [_blank(kind) for kind in kinds], start)
    cuts = zip(desc.cuts, kinds, strict=True)
    desc = replace(desc, cuts=tuple(replace(cut, fold=tuple(map(_blank, kind.fold))) for cut, kind in cuts))
    return make_rule(desc, {"summed_k": Var("k"), **expressions})


def _blank(kind: Kind) -> Layout:
    return kind.layout([1] * len(kind.names))


def lend(rule: Rule, problem: GemmProblem, start: Start = Start.ZERO) -> Rule:
    """The rule for the operand and output types of ``problem``, with chains from ``start``."""

    def moved(desc: GEMMDesc) -> GEMMDesc:
        return replace(
            desc,
            a_dtype=problem.a_dtype,
            b_dtype=problem.b_dtype,
            output_dtype=problem.d_dtype,
            accumulator=replace(desc.accumulator, step=ScalarStep(fused=True, start=start)),
        )

    return rule.restructured(moved)


def shape(rule: Rule, environment: Mapping[str, int]) -> Tree | None:
    """The tree that the rule gives there over the sites that a reading would hold; None where it declines.

    Rules of CUDA-core chains in float32 with one tree over all k owe each other the same bits; this is a cheap sample.
    """
    desc = evaluate_rule(rule, environment)
    if not isinstance(desc, GEMMDesc):
        return None
    return induced_tree(desc, environment["k"], sampled_sites(environment["k"], SHAPE_SITES))


def confirms(rule: Rule, reading: ScalarReading) -> bool:
    """Whether the rule's descriptor for this reading induces exactly its tree, and opens chains as was read."""
    desc = evaluate_rule(rule, reading.environment)
    if not isinstance(desc, GEMMDesc):
        return False
    step = desc.accumulator.step
    first = isinstance(step, ScalarStep) and step.start is Start.FIRST
    if reading.negative_zero is not None and reading.negative_zero != first:
        return False
    sites = reading.piece.flat.sites.tolist()
    return induced_tree(desc, reading.problem.k, sites) == reading.tree


def lent_rules(
    readings: Sequence[ScalarReading], domain: Sequence[Mapping[str, int]], others: Sequence[Rule]
) -> tuple[Rule, ...]:
    """Rules of other classes that explain all readings."""
    start = Start.FIRST if any(r.negative_zero for r in readings) else Start.ZERO
    lent = (lend(rule, readings[0].problem, start) for rule in others)
    fitting = [rule for rule in lent if all(confirms(rule, r) for r in readings)]
    return told_apart(fitting, [r.environment for r in readings], domain)


def told_apart(
    rules: Sequence[Rule], environments: Sequence[Mapping[str, int]], domain: Sequence[Mapping[str, int]]
) -> tuple[Rule, ...]:
    """The first rule of each behaviour, where their integers differ on readings or domain."""
    if len(rules) < 2:
        return tuple(rules)
    everywhere = [*environments, *domain]
    descs = {rule: tuple(_described(rule, e) for e in everywhere) for rule in rules}
    alike = {d: rule for rule, d in reversed(descs.items())}
    kept = [rule for rule in descs if alike[descs[rule]] is rule]
    differ = [i for i, column in enumerate(zip(*(descs[r] for r in kept), strict=True)) if len(set(column)) > 1]
    differ.sort(key=lambda i: everywhere[i]["k"])
    chosen = [everywhere[i] for i in differ[:: max(1, len(differ) // _TOLD_APART_ON)]][:_TOLD_APART_ON]
    shapes = {rule: tuple(shape(rule, e) for e in chosen) for rule in kept}
    first = {s: rule for rule, s in reversed(shapes.items())}
    return tuple(rule for rule in kept if first[shapes[rule]] is rule)


def _described(rule: Rule, environment: Mapping[str, int]) -> GEMMDesc | None:
    desc = evaluate_rule(rule, environment)
    return desc if isinstance(desc, GEMMDesc) else None
