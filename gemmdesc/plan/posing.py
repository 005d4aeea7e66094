"""Which problem a planned call is, and which one the library is asked for in its place.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmdesc.errors import Declined
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.plan.decide import mm_meta
from gemmdesc.plan.pinning import with_rows
from gemmdesc.plan.values import Following, MmCall, ProblemCall
from gemmdesc.problem import GemmProblem
from gemmdesc.routes import route_mm, swaps_operands


@dataclass(frozen=True, kw_only=True)
class Posed:
    """A call's problem, and the tensors of its product as the kernels see them.

    ``transposed``: whether what the kernels compute is the transpose of the problem's product.  ``reference``: of a
    pinned call, the problem that the library is asked for.  ``following``: what the kernels do after the product.
    """

    problem: GemmProblem
    meta: KernelMeta
    transposed: bool
    reference: GemmProblem | None
    following: Following | None = None


def pose(call: MmCall | ProblemCall, *, sm_count: int, shared_bytes: int) -> Posed | Declined:
    """The problem of ``call`` on a card with so many SMs and so much shared memory for a program.

    Declines as :func:`gemmdesc.routes.route_mm`, at the call's own sizes and at those that it is pinned to.
    """
    if isinstance(call, ProblemCall):
        return Posed(
            problem=call.problem, meta=call.meta, transposed=call.transposed, reference=call.reference,
            following=call.following,
        )  # fmt: skip
    problem = route_mm(call.a, call.b, call.out, call.settings)
    if isinstance(problem, Declined):
        return _with_layouts(problem, call)
    reference = None
    if call.pin is not None:
        asked = route_mm(with_rows(call.a, call.pin), call.b, with_rows(call.out, call.pin), call.settings)
        if isinstance(asked, Declined):
            return asked
        reference = asked
    meta = mm_meta(call.a, call.b, call.out, sm_count=sm_count, shared_bytes=shared_bytes)
    return Posed(problem=problem, meta=meta, transposed=swaps_operands(call.out), reference=reference)


def _with_layouts(declined: Declined, call: MmCall) -> Declined:
    """``declined`` with the layouts, where they are the reason."""
    if declined.code != "unsupported_input":
        return declined
    named = (("a", call.a), ("b", call.b), ("out", call.out))
    layouts = "; ".join(f"{name} {t.shape[0]} x {t.shape[1]}, strides {t.strides}" for name, t in named)
    return replace(declined, reason=f"{declined.reason} (got {layouts})")
