"""Schedules that are timed beside ours: the model's choice among the configs of some features.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import KernelChoice, choose_kernel, configs_of
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tiled import Choice
from gemmdesc.kernels.unasked import features_of
from gemmdesc.tuning.card import kernel_descriptor

if TYPE_CHECKING:
    from gemmdesc.plan import Plan

#: Two kernels for slices and their fold, wide tiles, no dependent launch.
TWO_LAUNCHES = "two_launches"
#: The same of whole chains: what they would be without the features that are picked unasked.
PLAIN = "plain"
#: Whole chains by warps that each do one thing, which nothing picks unasked.
SPECIALISED = Structure.CHAIN_SPECIALISED.value
#: The same where pairs of programs load what they share once.
CLUSTERED = "clustered"
#: What is timed when nothing else is asked for: each feature alone, and what they come to together.
USUAL = (
    TWO_LAUNCHES, PLAIN, "one_launch", "narrow", "dependent", "one_launch+narrow", "one_launch+narrow+dependent",
)  # fmt: skip


def features_named(name: str) -> frozenset[Feature]:
    """The features of a schedule by name: values of Feature with ``+`` between them, or a schedule without any.

    Raises:
        InvalidInputError: it is none of these.
    """
    if name in (TWO_LAUNCHES, PLAIN, SPECIALISED, CLUSTERED):
        return frozenset()
    known = {f.value: f for f in Feature}
    parts = name.split("+")
    if not set(parts) <= set(known) or len(set(parts)) < len(parts):
        words = ", ".join((TWO_LAUNCHES, *known, PLAIN, SPECIALISED, CLUSTERED))
        raise InvalidInputError(f"configs must be some of {words}, joined by + where several hold (got {name!r})")
    return frozenset(known[part] for part in parts)


def schedules_named(text: str) -> tuple[str, ...]:
    """Names between commas, each checked; ``usual`` for USUAL, nothing for none.

    Raises:
        InvalidInputError: a name is none.
    """
    if text == "usual":
        return USUAL
    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        features_named(name)
    return names


def scheduled(plan: Plan, name: str, card: CardArithmetic) -> KernelChoice | None:
    """The model's choice for the plan's product with just the features of schedule ``name``; None where it has none.

    Two launches are a schedule of slices only, and the plain one of whole chains.  A wide one is the best of its
    structure, whether or not the model would rather have another.
    """
    features, wanted = features_named(name), kernel_descriptor(plan)
    structure = Structure.CHAIN_WIDE if Feature.WIDE in features else None
    if isinstance(wanted, Declined) or not isinstance(plan.kernel, KernelChoice):
        return None
    if name in (SPECIALISED, CLUSTERED):
        configs = tuple(c for c in configs_of(Structure.CHAIN_SPECIALISED) if c.cluster > 1)
        of = configs if name == CLUSTERED else None
        own = choose_kernel(wanted, plan.meta, card, structure=Structure.CHAIN_SPECIALISED, configs=of)
        return own if isinstance(own, KernelChoice) else None
    choice = choose_kernel(wanted, plan.meta, card, structure=structure, unasked=features)
    if not isinstance(choice, KernelChoice) or features_of(choice.structure, choice.config) != features:
        return None
    if name == PLAIN and choice.slices.merge is not None:
        return None
    return None if name == TWO_LAUNCHES and not choice.merges else choice


def scheduled_plans(plan: Plan, names: Iterable[str], card: CardArithmetic) -> dict[str, Plan]:
    """Of ``names`` those that apply to ``plan``, each with a plan of its own for the same product."""
    found = {name: scheduled(plan, name, card) for name in names}
    return {name: replace(plan, kernel=choice) for name, choice in found.items() if choice is not None}


def in_a_word(kernel: Choice) -> str:
    """Structure, tile and what else is not the same for all."""
    if not isinstance(kernel, KernelChoice):
        return kernel.structure.value
    c = kernel.config
    tile = f"{c.block_m}x{c.columns}x{c.block_k}, {c.num_warps} warps, {c.num_stages} stages"
    packed, dependent = " packed" if kernel.packing else "", ", dependent" if c.dependent else ""
    whole = " whole" if isinstance(c, SpecialisedConfig) and c.whole else ""
    shared = f", {c.sharing}{whole}" if isinstance(c, SpecialisedConfig) else ""
    clustered = f", cluster {c.cluster_m}x{c.cluster_n}" if isinstance(c, SpecialisedConfig) and c.cluster > 1 else ""
    return f"{kernel.structure.value}{packed} {tile}{shared}{clustered}{dependent}"
