"""Which features of a schedule the chooser picks unasked: where a card's rows showed that they pay.  Pure.

The one place that says so.  Tuned tables and callers may name any config, and a benchmark asks for each feature.
"""

from __future__ import annotations

from gemmdesc.kernels.config import UNCOMPARED_CONFIGS, Feature, KernelConfig
from gemmdesc.kernels.estimate import turns_of
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.slices import Slices
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure


def compared(structure: Structure, config: KernelConfig) -> bool:
    """Whether a card has compared the bytes of such a kernel with the replay's."""
    if structure is Structure.CHAIN_SPECIALISED:
        return config.cluster == 1 and not (isinstance(config, SpecialisedConfig) and config.whole)
    return not structure.by_descriptor or _pipeline(config) not in _UNCOMPARED


def ends_compared(structure: Structure) -> bool:
    """Whether a card has compared the bytes of such chains whose kernel ends with what follows the product."""
    return structure is not Structure.CHAIN_SPECIALISED


def _pipeline(c: KernelConfig) -> tuple[int, ...]:
    """What a config is but for its features; cheaper than another config, as a choice is made while a caller waits."""
    return c.block_m, c.block_n, c.beside_n, c.block_k, c.num_warps, c.num_stages, c.group_m, c.programs_per_sm


def _twin(c: KernelConfig) -> tuple[int | str, ...]:
    """What a config is but for when it is launched."""
    if not isinstance(c, SpecialisedConfig):
        return (*_pipeline(c), c.one_launch)
    own = c.sharing, c.store_n, c.store_buffers, c.cluster_m, c.cluster_n, c.whole
    return (*_pipeline(c), c.one_launch, *own)


_UNCOMPARED = frozenset(_pipeline(c) for c in UNCOMPARED_CONFIGS)


def features_of(structure: Structure, config: KernelConfig) -> frozenset[Feature]:
    """What ``config`` does there beside tiles, warps and stages."""
    has = {
        Feature.ONE_LAUNCH: config.one_launch,
        Feature.NARROW: structure.by_descriptor and config.thin,
        Feature.DEPENDENT: config.dependent,
        Feature.WIDE: structure is Structure.CHAIN_WIDE,
        Feature.SPECIALISED: structure is Structure.CHAIN_SPECIALISED,
    }
    return frozenset(feature for feature, whether in has.items() if whether)


def pays_unasked(
    structure: Structure, config: KernelConfig, meta: KernelMeta, slices: Slices, span: int
) -> bool:
    """Whether each feature of ``config`` was faster on a card for products like this one.

    One launch: the estimate weighs it against a fold of its own.  Narrow: for slices that one launch folds; whole
    chains gained nothing.  Specialised: where a descriptor can store the output, and dependent always; by addresses
    its stores took a fifth of a product's time.  Dependent else: for whole chains of which each program has one, or
    which are shorter than the pipeline; a longer loop over tiles loses more by letting the next kernel start than that
    gains by it.  Tiles of two widths and clusters, which were slower or won too rarely to tell where, are never picked,
    nor what no card has compared.
    """
    if not compared(structure, config) or (structure.by_descriptor and config.thin and not structure.merged):
        return False
    if structure is Structure.CHAIN_SPECIALISED:
        by_rows = meta.out.layout(meta.m, meta.n) is Layout.ROWS
        return by_rows and meta.out.stored_by_descriptor(meta.m, meta.n)
    if not config.dependent:
        return True
    if slices.merge is not None:
        return False
    turns = turns_of(structure, config, meta, slices, span)
    return turns.each == 1 or turns.steps < config.num_stages


def without_twins(configs: list[KernelConfig]) -> list[KernelConfig]:
    """Where a dependent config may be picked, not what it is without."""
    early = {_twin(c) for c in configs if c.dependent}
    return [c for c in configs if c.dependent or _twin(c) not in early]
