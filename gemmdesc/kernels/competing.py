"""Every kernel that the chooser allows for one descriptor: what a tuner may choose from.  Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import KernelChoice, chain_key, choose_kernel, configs_of
from gemmdesc.kernels.fma import FMA_CONFIGS, FmaChoice, choose_fma
from gemmdesc.kernels.kmajor import KMajorChoice, choose_kmajor
from gemmdesc.kernels.kmajor_blocks import TILES
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.slices import declined
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import choose_whole
from gemmdesc.kernels.tuned import TunedKey, TunedPick, tuned_key

#: Choices that a tuned table can name.
TunableChoice = KernelChoice | KMajorChoice | FmaChoice


def competing(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> tuple[TunableChoice, ...] | Declined:
    """The choice that the model makes, and every other one for ``desc`` at ``meta``; all give the same bytes.

    Declines as :func:`gemmdesc.kernels.tiled.choose_whole` does, and where a structure has no configs to tune.
    """
    first = choose_whole(desc, meta, card)
    if isinstance(first, Declined):
        return first
    if not isinstance(first, TunableChoice):
        return declined(f"only chains have configs to tune (got {first.structure.value})")
    found: dict[TunedPick, TunableChoice] = {pick_of(first): first}
    for choice in _others(desc, meta, card, first):
        found.setdefault(pick_of(choice), choice)
    return tuple(found.values())


def _others(
    desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic, first: TunableChoice
) -> Iterator[TunableChoice]:
    if isinstance(first, KernelChoice):
        for structure in Structure:
            for config in configs_of(structure):
                choice = choose_kernel(desc, meta, card, config=config, structure=structure)
                if isinstance(choice, KernelChoice):
                    yield choice
    elif isinstance(first, KMajorChoice):
        for tile in TILES:
            tiled = choose_kmajor(desc, meta, card, tile)
            if isinstance(tiled, KMajorChoice):
                yield tiled
    else:
        yield from filter(None, (choose_fma(desc, meta, config) for config in FMA_CONFIGS))


def pick_of(choice: TunableChoice) -> TunedPick:
    return TunedPick(structure=choice.structure, config=choice.config)


def key_of(choice: TunableChoice, meta: KernelMeta) -> TunedKey:
    """What the chooser looks ``choice``'s pick up by; ``meta`` is what it was chosen for."""
    match choice:
        case KernelChoice():
            return chain_key(choice.slices, meta.swapped if choice.swapped else meta)
        case KMajorChoice():
            return tuned_key("kmajor", choice.blocks.count > 1, meta.swapped if choice.swapped else meta)
        case FmaChoice():
            return tuned_key("fma", choice.count > 1, meta)
