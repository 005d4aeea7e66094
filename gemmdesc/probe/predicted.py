"""Whether a rule of CUDA-core chains gives the summation tree that the library shows: what bytes seldom tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log2

from gemmdesc.descriptor import Accumulator, GEMMDesc, ResidueLast, ScalarStep, Start
from gemmdesc.expressions import Const, Var
from gemmdesc.library.interface import Library
from gemmdesc.probe.compare import needs_launch
from gemmdesc.probe.courses import has_epilogue, has_gelu
from gemmdesc.probe.experiments import ReferenceFailed, magnitudes_of
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.probe.reading import Reading
from gemmdesc.probe.scalar_infer import CONDITIONS
from gemmdesc.probe.scalar_rule import ScalarReading, confirms, is_scalar
from gemmdesc.probe.scan import Example
from gemmdesc.probe.walks import read_negative_zero, read_sampled_tree
from gemmdesc.problem import GemmProblem, environment
from gemmdesc.rule import Rule, make_rule


def short_chains(problem: GemmProblem) -> tuple[Rule, ...]:
    """One chain of CUDA-core steps, fused or not, from +0.0 or from its first product; none beside an epilogue."""
    if has_epilogue(problem):
        return ()
    found = []
    for fused, start in product((True, False), Start):
        leaf = Accumulator(instruction_k=1, residue=ResidueLast(), step=ScalarStep(fused=fused, start=start))
        desc = GEMMDesc(
            a_dtype=problem.a_dtype, b_dtype=problem.b_dtype, output_dtype=problem.d_dtype, summed_k=1, cuts=(),
            accumulator=leaf,
        )  # fmt: skip
        found.append(make_rule(desc, {"summed_k": Var("k"), "accumulator.instruction_k": Const(1)}))
    return tuple(found)


def scalar_reading(reading: Reading) -> ScalarReading | None:
    """The reading as one of a CUDA-core tree; None where the sizes read fit no tree, or something was not summed."""
    if reading.element_tree is None or reading.anomalies or reading.summed_k < reading.problem.k:
        return None
    return ScalarReading(
        problem=reading.problem, answer=reading.answer, launch=reading.launch, tree=reading.element_tree,
        negative_zero=reading.negative_zero,
    )  # fmt: skip


def predicts(library: Library, example: Example, rule: Rule) -> bool:
    """Whether the library sums the example's k in the tree that the rule gives, and opens chains as it says.

    Raises:
        ReferenceFailed: the library did not run the example.
    """
    problem = example.problem
    reader = LibraryReader(library, problem, example.answer)
    tree = read_sampled_tree(reader, problem.k, magnitudes_of(problem))
    if tree is None:
        return False
    zero = read_negative_zero(reader, problem.k)
    launch = library.launch(problem, example.answer) if needs_launch(rule, example) else None
    seen = ScalarReading(problem=problem, answer=example.answer, launch=launch, tree=tree, negative_zero=zero)
    return confirms(rule, seen)


def none_refuted(library: Library, examples: Sequence[Example], rule: Rule) -> bool:
    """Whether no example that runs refutes the rule; one that is not of CUDA-core chains is not asked.

    Nor is one that ends in gelu, through which no walk sees.
    """
    if not is_scalar(rule) or any(has_gelu(e.problem) for e in examples):
        return True
    for example in examples:
        try:
            if not predicts(library, example, rule):
                return False
        except ReferenceFailed:
            continue
    return True


def farthest(
    examples: Sequence[Example], taken: Sequence[int], candidates: Sequence[int], *, beyond: float = -1.0
) -> int | None:
    """The candidate least like any example taken: by k, slices, k in a slice, and how the operands lie.

    None where no candidate is farther than ``beyond`` from all of them: octaves of sizes and twice the conditions that
    differ, added up.
    """
    places = [_place(e) for e in examples]

    def distance(i: int) -> float:
        return min((sum(abs(a - b) for a, b in zip(places[i], places[j], strict=True)) for j in taken), default=0.0)

    found = max(((distance(i), -i) for i in candidates), default=(-1.0, 0))
    return -found[1] if found[0] > beyond else None


def _place(example: Example) -> tuple[float, ...]:
    values = environment(example.problem, example.answer, None)
    k, slices = values["k"], values["splitk_num"]
    # A whole octave of k counts as much as an operand that lies otherwise.
    return log2(k), log2(slices), log2(max(1, k // slices)), *(2.0 * values[name] for name in CONDITIONS)
