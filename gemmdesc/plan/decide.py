"""From a problem and the library's answer to a descriptor and a kernel, or a decline.  Pure: no GPU, no torch."""

from __future__ import annotations

from dataclasses import replace

from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.tiled import choose_tiled
from gemmdesc.kernels.tuned import UNTUNED, TunedTable
from gemmdesc.plan.cards import realised
from gemmdesc.plan.pinning import pinned, require_reference
from gemmdesc.plan.problems import every_matrix
from gemmdesc.plan.values import Decision, Description, Following
from gemmdesc.problem import AlgoConfig, GemmProblem, Launch, environment
from gemmdesc.profiles import Level, ProfileIndex, lookup, matching_rows
from gemmdesc.regions import PLACE, Region, evaluate_regions
from gemmdesc.routes import TensorMeta


def decide(
    problem: GemmProblem,
    answer: AlgoConfig,
    launch: Launch | None,
    *,
    index: ProfileIndex,
    card: CardArithmetic,
    meta: KernelMeta,
    transposed: bool,
    accept: Level = Level.VERIFIED,
    reference: GemmProblem | None = None,
    following: Following | None = None,
    tuned: TunedTable = UNTUNED,
) -> Decision | Declined:
    """What the profile says of ``answer`` to ``problem``, evaluated there, and the kernel that computes it on ``card``.

    ``launch``: what the library would enqueue, None where it is unknown; few rules need it.  ``meta``: the tensors of
    the product that the kernel is to run, of a batch its first one; ``transposed``: whether that is the transpose of
    the problem's.  ``reference``: the problem that ``answer`` and ``launch`` are of, in whose order the product is
    summed; ``problem`` itself by default.  ``following``: what the kernel does after the product.  ``tuned``:
    configs that were measured to be fast on the card.

    Declines as :func:`describe` and :func:`gemmdesc.plan.pinning.pinned` do, and where no kernel computes the
    descriptor (``kernel``).

    Raises:
        InvalidInputError: ``reference`` differs from ``problem`` in what a pin leaves alone.
    """
    if reference is not None:
        require_reference(problem, reference)
    found = describe(reference or problem, answer, launch, index=index, accept=accept)
    if reference is not None and not isinstance(found, Declined):
        found = pinned(found, reference, problem)
    if isinstance(found, Declined):
        return found
    if following is not None:
        regions = tuple(replace(r, descriptor=following.after(r.descriptor)) for r in found.regions)
        found = replace(found, regions=regions)
    turned = [kernel_region(r, card, transposed=transposed) for r in found.regions]
    matrices = every_matrix(meta, problem, transposed=transposed)
    kernel = choose_tiled(turned, matrices, card, fused=following is not None, tuned=tuned)
    if isinstance(kernel, Declined):
        return kernel
    return Decision(row=found.row, rule=found.rule, regions=found.regions, kernel=kernel)


def kernel_region(region: Region, card: CardArithmetic, *, transposed: bool) -> Region:
    """The region as the card computes it, in the kernels' terms."""
    realisable = replace(region, descriptor=realised(region.descriptor, card))
    return realisable.transposed if transposed else realisable


def describe(
    problem: GemmProblem,
    answer: AlgoConfig,
    launch: Launch | None,
    *,
    index: ProfileIndex,
    accept: Level = Level.VERIFIED,
) -> Description | Declined:
    """What the profile says of ``answer`` to ``problem``, evaluated there; no kernel and no card takes part.

    Declines as :func:`gemmdesc.profiles.lookup` does, and where the rule cannot be evaluated here (``no_rule``).
    """
    rule = lookup(index, problem, answer, accept=accept)
    if isinstance(rule, Declined):
        return rule
    regions = evaluate_regions(rule, environment(problem, answer, launch))
    if isinstance(regions, Declined):
        return regions
    descriptor = regions[0].descriptor
    named = (descriptor.a_dtype, descriptor.b_dtype, descriptor.output_dtype)
    wanted = (problem.a_dtype, problem.b_dtype, problem.d_dtype)
    if named != wanted:
        types = [", ".join(d.value for d in group) for group in (named, wanted)]
        return Declined(code="no_rule", reason=f"the rule is for types {types[0]}, and the problem has {types[1]}")
    return Description(row=matching_rows(index, problem, answer)[0], rule=rule, regions=regions)


def needs_launch(index: ProfileIndex, problem: GemmProblem, answer: AlgoConfig, accept: Level) -> bool:
    """Whether the rule for ``answer`` reads fields of the library's own launch."""
    rule = lookup(index, problem, answer, accept=accept)
    return not isinstance(rule, Declined) and not rule.variables - PLACE <= set(environment(problem, answer, None))


def mm_meta(a: TensorMeta, b: TensorMeta, out: TensorMeta, *, sm_count: int, shared_bytes: int) -> KernelMeta:
    """The kernels' view of ``out = a @ b``; shapes must fit."""
    return KernelMeta(
        m=a.shape[0],
        n=b.shape[1],
        k=a.shape[1],
        a=_matrix(a),
        b=_matrix(b),
        out=_matrix(out),
        sm_count=sm_count,
        shared_bytes=shared_bytes,
    )


def _matrix(t: TensorMeta) -> MatrixMeta:
    return MatrixMeta(
        dtype=t.dtype, row_stride=t.strides[0], column_stride=t.strides[1], alignment=t.alignment_bytes
    )
