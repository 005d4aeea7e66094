"""A descriptor's accumulation structure in a few words, for counting by structure."""

from __future__ import annotations

from types import MappingProxyType

from gemmdesc.descriptor import Balanced, Contiguous, Cut, FusedDot, GEMMDesc, ResidueFirst, Start, Strided


def structure_of(desc: GEMMDesc) -> str:
    """``plain chain of 16``, ``grouped chain of 8 + split, float32 partials, float32 fold from first``, ..."""
    leaf = desc.accumulator
    if not isinstance(leaf.step, FusedDot):
        chain = "scalar chain"
    else:
        kind = "grouped" if isinstance(leaf.residue, ResidueFirst) else "plain"
        chain = f"{kind} chain of {leaf.instruction_k}"
    return " + ".join([chain, *(_cut(cut) for cut in reversed(desc.cuts))])


_LAYOUTS = MappingProxyType({Contiguous: "split", Strided: "strided", Balanced: "balanced split"})


def _cut(cut: Cut) -> str:
    layout = _LAYOUTS[type(cut.layout)]
    start = "first" if cut.start is Start.FIRST else "zero"
    fold = "grouped fold" if cut.fold else "fold"
    return f"{layout}, {cut.partial_dtype.value} partials, {cut.merge_dtype.value} {fold} from {start}"
