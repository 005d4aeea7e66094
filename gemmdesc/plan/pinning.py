"""Pinning: a product summed in the order of another problem, its reference, however many rows it has.  Pure.

A descriptor says how one element is summed, so that the one that a library's answer has at a reference shape can be
run at any other number of rows: every row then has the bits that it has at the reference.  That holds only where all
elements of the reference have one order, and where both problems sum the same k of the same types to the same end.
"""

from __future__ import annotations

from dataclasses import fields, replace

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.normal_form import same_bits
from gemmdesc.plan.values import Description
from gemmdesc.problem import MAX_ALIGNMENT_BYTES, GemmProblem
from gemmdesc.regions import whole
from gemmdesc.routes import TensorMeta
from gemmdesc.routes.mm import is_row_major

#: What a problem has in common with its reference; the rest is how many rows and matrices there are, how they are
#: stored, and what the library may use.
_COMMON = (
    "k", "a_dtype", "b_dtype", "d_dtype", "compute_type", "scale_dtype", "alpha", "beta", "epilogue",
    "fast_accumulation",
)  # fmt: skip


def require_reference(problem: GemmProblem, reference: GemmProblem) -> None:
    """Raise InvalidInputError where the two differ in more than sizes other than k, batches, layouts and workspace."""
    for name in (f.name for f in fields(GemmProblem) if f.name in _COMMON):
        wanted, got = getattr(problem, name), getattr(reference, name)
        if wanted != got:
            raise InvalidInputError(f"reference must have the problem's {name}, {wanted} (got {got})")


def pinned(found: Description, reference: GemmProblem, problem: GemmProblem) -> Description | Declined:
    """What ``found``, the description of ``reference``, says of every element of ``problem``.

    Declines where elements of the reference have several orders (``no_reference``).
    """
    desc = found.descriptor
    if not all(same_bits(desc, region.descriptor, reference.k) for region in found.regions[1:]):
        reason = "elements of the reference have several orders, by their place, so that no row has one to pin"
        return Declined(code="no_reference", reason=reason)
    return replace(found, regions=whole(desc, problem.m, problem.n))


def with_rows(t: TensorMeta, rows: int) -> TensorMeta:
    """A new tensor like ``t`` with so many rows: stored by rows or by columns as it is, dense, and well aligned."""
    strides = (1, rows) if is_row_major(t) is False else (t.shape[1], 1)
    return replace(t, shape=(rows, t.shape[1]), strides=strides, alignment_bytes=MAX_ALIGNMENT_BYTES)
