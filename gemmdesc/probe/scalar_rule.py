"""What the inference of scalar chains starts from and ends with: trees that were read, and rules made of cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gemmdesc.descriptor import Accumulator, Contiguous, Cut, GEMMDesc, ResidueLast, ScalarStep, Start, Strided
from gemmdesc.dtypes import DType
from gemmdesc.expressions import Expr, Var, evaluate
from gemmdesc.probe.induced import induced_tree
from gemmdesc.probe.pieces import Layout, Piece, flatten, whole
from gemmdesc.probe.scalar_nest import Kind
from gemmdesc.probe.tree import Tree
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch, environment
from gemmdesc.rule import Rule, evaluate_rule, make_rule

Structure = tuple[Kind, ...]


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
    problem: GemmProblem, structure: Structure, expressions: Mapping[str, Expr], start: Start = Start.ZERO
) -> Rule:
    """The rule of these cuts in float32 over an ascending fused chain from ``start``; expressions by path."""
    layouts = [Strided(count=1, unit=1) if k.short is None else Contiguous(span=1, short=k.short) for k in structure]
    return make_rule(scalar_descriptor(problem, layouts, start), {"summed_k": Var("k"), **expressions})


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


def confirms(rule: Rule, reading: ScalarReading) -> bool:
    """Whether the rule's descriptor for this reading induces exactly its tree."""
    desc = evaluate_rule(rule, reading.environment)
    if not isinstance(desc, GEMMDesc):
        return False
    sites = reading.piece.flat.sites.tolist()
    return induced_tree(desc, reading.problem.k, sites) == reading.tree


def integer_paths(structure: Structure) -> list[str]:
    """Paths of the integers of these cuts, outermost first."""
    fields = [("count", "unit") if kind.short is None else ("span",) for kind in structure]
    return [f"cuts.{i}.layout.{name}" for i, names in enumerate(fields) for name in names]


def layouts_in(
    structure: Structure, expressions: Mapping[str, Expr], environment: Mapping[str, int]
) -> tuple[Layout, ...] | None:
    """The layouts in one environment; None where an integer comes out that no cut can have."""
    values = {path: evaluate(e, environment) for path, e in expressions.items()}
    if min(values.values(), default=1) < 1:
        return None
    out: list[Layout] = []
    for i, kind in enumerate(structure):
        path = f"cuts.{i}.layout."
        if kind.short is None:
            out.append(Strided(count=values[f"{path}count"], unit=values[f"{path}unit"]))
        else:
            out.append(Contiguous(span=values[f"{path}span"], short=kind.short))
    return tuple(out)
