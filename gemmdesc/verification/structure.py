"""A descriptor's accumulation structure in a few words, for counting by structure."""

from __future__ import annotations

from gemmdesc.descriptor import Contiguous, Cut, FusedDot, GEMMDesc, ResidueFirst, Start


def structure_of(desc: GEMMDesc) -> str:
    """``plain chain of 16``, ``grouped chain of 8 + split, float32 partials, float32 fold from first``, ..."""
    leaf = desc.accumulator
    if not isinstance(leaf.step, FusedDot):
        chain = "scalar chain"
    else:
        kind = "grouped" if isinstance(leaf.residue, ResidueFirst) else "plain"
        chain = f"{kind} chain of {leaf.instruction_k}"
    return " + ".join([chain, *(_cut(cut) for cut in reversed(desc.cuts))])


def _cut(cut: Cut) -> str:
    layout = "split" if isinstance(cut.layout, Contiguous) else "strided"
    start = "first" if cut.start is Start.FIRST else "zero"
    fold = "grouped fold" if cut.fold else "fold"
    return f"{layout}, {cut.partial_dtype.value} partials, {cut.merge_dtype.value} {fold} from {start}"
