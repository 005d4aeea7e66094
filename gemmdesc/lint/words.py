"""An order at one k in a few words."""

from __future__ import annotations

from gemmdesc.descriptor import Contiguous, Cut, FusedDot, GEMMDesc, ResidueFirst, Strided
from gemmdesc.dtypes import DType


def part_counts(desc: GEMMDesc, k: int) -> tuple[int, ...]:
    """For each cut, outermost first, into how many parts it deals the longest part around it."""
    counts, length = [], min(k, desc.summed_k)
    for cut in desc.cuts:
        parts, length = _dealt(cut, length)
        counts.append(parts)
    return tuple(counts)


def _dealt(cut: Cut, length: int) -> tuple[int, int]:
    """Parts, and the longest one's length."""
    layout = cut.layout
    if isinstance(layout, Contiguous):
        return -(-length // layout.span), min(length, layout.span)
    units = -(-length // layout.unit)
    return min(layout.count, units), min(length, -(-units // layout.count) * layout.unit)


def order_text(desc: GEMMDesc, k: int) -> str:
    """For example ``5 parts of 1408, chain of 16``; types are named where they are not float32."""
    found, length = [], min(k, desc.summed_k)
    for cut in desc.cuts:
        parts, longest = _dealt(cut, length)
        if parts > 1:
            found.append(_parts(cut, parts, longest))
        length = longest
    step = desc.accumulator.step
    chain = f"chain of {desc.accumulator.instruction_k}" if isinstance(step, FusedDot) else "chain of single products"
    residue = desc.accumulator.residue
    first = isinstance(residue, ResidueFirst) and length % residue.k_loop_step != 0
    found.append(f"{chain}{', partial turn first' if first else ''}")
    if desc.summed_k < k:
        found.append(f"the last {k - desc.summed_k} k lost")
    return ", ".join(found)


def _parts(cut: Cut, parts: int, longest: int) -> str:
    kind = f"{parts} strided parts" if isinstance(cut.layout, Strided) else f"{parts} parts of {longest}"
    narrow = [
        f"{what} {dtype.value}"
        for what, dtype in (("stored as", cut.partial_dtype), ("summed in", cut.merge_dtype))
        if dtype is not DType.FLOAT32
    ]
    return " ".join([kind, *narrow])
