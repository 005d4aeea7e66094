"""Every kernel that the chooser allows for one descriptor: what a tuner may choose from.  Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import KernelChoice, chain_key, choose_kernel, configs_of, read_span
from gemmdesc.kernels.estimate import H200, estimated_us, least_us
from gemmdesc.kernels.fma import FMA_CONFIGS, FmaChoice, choose_fma
from gemmdesc.kernels.fused import FUSED_CONFIGS, SPECIALISED_ENDS, FusedChoice, choose_fused, predicted_end_us
from gemmdesc.kernels.kmajor import KMajorChoice, choose_kmajor
from gemmdesc.kernels.kmajor_blocks import TILES
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.slices import declined
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import Choice, choose_whole
from gemmdesc.kernels.tuned import Sizes, TunedKey, TunedPick, TunedTable, tuned_key

#: Choices that a tuned table can name.
TunableChoice = KernelChoice | KMajorChoice | FmaChoice

#: What a choice was made by, in a word: a table's pick for the very product, or for its class, or the model.
EXACT, CLASS, MODEL = "exact", "class", ""
#: What is timed beside the default: so many at most, none whose estimate is longer than the least by more than this.
MOST_TIMED, WITHIN = 12, 1.35
#: What part of a default's time may be saved where there is no estimate of it.
_UNKNOWN_ROOM = 0.25


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


def competing_fused(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> tuple[FusedChoice, ...] | Declined:
    """The model's choice for ``desc`` with what follows its product, and every other chain that can end so.

    All give the same bytes.  Those of the specialised chain come first after the model's, shortest estimates first.
    Declines as :func:`gemmdesc.kernels.fused.choose_fused` does, and where the product's kernel cannot end with the
    rest.
    """
    first = choose_whole(desc, meta, card, fused=True)
    if isinstance(first, Declined):
        return first
    if not isinstance(first, FusedChoice) or not first.in_chain:
        return declined("only chains that end with what follows them have configs to tune")
    found = []
    for structure, configs in ((Structure.CHAIN_SPECIALISED, SPECIALISED_ENDS), (Structure.CHAIN_TMA, FUSED_CONFIGS)):
        choices = [
            choose_fused(desc, meta, card, choose_whole, structure=structure, config=config) for config in configs
        ]
        known = [c for c in choices if isinstance(c, FusedChoice) and c != first]
        found += sorted(known, key=lambda c: predicted_end_us(c.product, meta, desc.epilogue))
    return (first, *found)


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


def predicted_us(choice: TunableChoice, meta: KernelMeta) -> float | None:
    """Estimated microseconds of ``choice`` for ``meta``; None of kernels that there is no estimate for."""
    if not isinstance(choice, KernelChoice) or not choice.structure.by_descriptor:
        return None
    turned = meta.swapped if choice.swapped else meta
    return estimated_us(choice.structure, choice.config, turned, choice.slices, read_span(choice.slices, turned))


def worth_timing(
    choices: tuple[TunableChoice, ...], meta: KernelMeta, *, most: int = MOST_TIMED, within: float = WITHIN
) -> tuple[TunableChoice, ...]:
    """The default, and of the others at most ``most`` whose estimates are near the least, shortest first.

    ``within``: by what factor an estimate may be longer than the least.  Where the default has an estimate, kernels
    without one are slower by far; where it has none, all compete.
    """
    first, *others = choices
    if predicted_us(first, meta) is None:
        return choices
    known = [(us, c) for c in others if (us := predicted_us(c, meta)) is not None]
    known.sort(key=lambda pair: pair[0])
    near = [c for us, c in known if us <= within * known[0][0]]
    return (first, *near[:most])


def room(choice: TunableChoice, meta: KernelMeta) -> float:
    """What part of the time of ``choice`` is neither a launch's nor the least that its work can take."""
    us = predicted_us(choice, meta)
    if us is None:
        return _UNKNOWN_ROOM
    return max(0.0, us - H200.start_us - least_us(meta)) / us


def pick_of(choice: TunableChoice) -> TunedPick:
    return TunedPick(structure=choice.structure, config=choice.config)


def key_of(choice: TunableChoice, meta: KernelMeta) -> TunedKey:
    """What the chooser looks ``choice``'s pick up by; ``meta`` is what it was chosen for."""
    turned = _as_computed(choice, meta)
    match choice:
        case KernelChoice():
            return chain_key(choice.slices, turned)
        case KMajorChoice():
            return tuned_key("kmajor", choice.blocks.count > 1, turned)
        case FmaChoice():
            return tuned_key("fma", choice.count > 1, turned)


def sizes_of(choice: TunableChoice, meta: KernelMeta) -> Sizes:
    """m, n and k as ``choice`` computes the product of ``meta``, of which :func:`key_of` has the classes."""
    turned = _as_computed(choice, meta)
    return turned.m, turned.n, turned.k


def _as_computed(choice: TunableChoice, meta: KernelMeta) -> KernelMeta:
    return meta if isinstance(choice, FmaChoice) or not choice.swapped else meta.swapped


def chosen_by(choice: Choice, meta: KernelMeta, tuned: TunedTable) -> str:
    """EXACT, CLASS or MODEL: what of ``tuned`` the choice for ``meta`` is; no table says anything of other kernels."""
    if not isinstance(choice, TunableChoice):
        return MODEL
    key, pick = key_of(choice, meta), pick_of(choice)
    if tuned.exact.get((key, sizes_of(choice, meta))) == pick:
        return EXACT
    return CLASS if tuned.picks.get(key) == pick else MODEL
