"""From a descriptor and plain facts about the operands to a kernel, or a decline.  Pure; no torch, no triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmdesc.descriptor import GEMMDesc, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose_lanes import SCALAR_ONLY, LaneChoice, choose_scalar
from gemmdesc.kernels.config import (
    EARLY_MERGED_CONFIGS,
    EARLY_TMA_CONFIGS,
    EARLY_WIDE_CONFIGS,
    FOLDED_CONFIGS,
    GROUPED_CONFIGS,
    MERGED_CONFIGS,
    MERGED_GROUPED_CONFIGS,
    MERGED_POINTER_CONFIGS,
    POINTER_CONFIGS,
    THIN_SIDE,
    TMA_CONFIGS,
    WIDE_CONFIGS,
    Feature,
    KernelConfig,
)
from gemmdesc.kernels.config import MOST_COUNTED as MOST_COUNTED
from gemmdesc.kernels.estimate import estimated_us
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.slices import Merge, Slices, declined, slice_up
from gemmdesc.kernels.specialised import EARLY_SPECIALISED_CONFIGS, SPECIALISED_CONFIGS, specialised_fits
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import UNTUNED, TunedKey, TunedTable, tuned_key
from gemmdesc.kernels.unasked import compared, features_of, pays_unasked, without_twins

#: The largest offset, in elements, that 32-bit index arithmetic reaches.
MAX_NARROW_OFFSET = 2**31 - 1
#: Operands are repacked where both sides reach this: copying them then costs little beside multiplying them.
PACKED_SIDE = 128
#: Nor are they where a slice has no more lanes than this, and tiles of that side are no more than multiprocessors: such
#: a chain takes few turns, and copying needs a launch more, which costs the host about as much as the product's own.
SHORT_LANES, SHORT_TILE = 512, 64
#: A packed slice is a multiple of this many lanes, and so is every span that a tensor-descriptor kernel takes directly.
SPAN_UNIT = 64
#: By whether slices are plain: chains alone, and chains whose last program folds.
_POINTER_STRUCTURES = {
    True: (Structure.CHAIN_POINTER, Structure.MERGED_POINTER),
    False: (Structure.GROUPED_CHAIN, Structure.MERGED_GROUPED),
}
#: Bytes that each multiprocessor should have asked for so that device memory is busy all the time: its rate times the
#: time that one load takes.  A size at which the estimate ranks configs as an H200 does.
_WANTED_IN_FLIGHT = 48 * 1024
#: Cost of loading one row or column of a tile, in elements multiplied.
_LOAD_COST = 16


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Both operands are copied first, each slice to ``span`` lanes; ``wide``: copying them needs 64-bit offsets."""

    span: int
    a_source: Layout
    b_source: Layout
    wide: bool


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """What to launch, on a grid of ``programs``.

    ``swapped``: all else speaks of the transposed product.  ``wide_offsets``: 64-bit index arithmetic.  The layouts are
    those that the chain reads, which are the copies' where there is a ``packing``.
    """

    structure: Structure
    slices: Slices
    packing: Packing | None
    operand_dtype: DType
    output_dtype: DType
    config: KernelConfig
    programs: int
    swapped: bool
    a_layout: Layout
    b_layout: Layout
    out_layout: Layout
    store_by_descriptor: bool
    wide_offsets: bool

    @property
    def merges(self) -> bool:
        """Whether the slices go through scratch and a merge kernel."""
        return self.slices.merge is not None and not self.structure.folds

    @property
    def stored_dtype(self) -> DType:
        """The type that the chain kernel stores."""
        return DType.FLOAT32 if self.merges else self.output_dtype


def choose_kernel(
    desc: GEMMDesc,
    meta: KernelMeta,
    card: CardArithmetic,
    *,
    config: KernelConfig | None = None,
    structure: Structure | None = None,
    configs: tuple[KernelConfig, ...] | None = None,
    tuned: TunedTable = UNTUNED,
    unasked: frozenset[Feature] | None = None,
) -> KernelChoice | NestChoice | LaneChoice | Declined:
    """The kernel that computes ``desc`` bit for bit; ``config`` and ``structure`` override choices of speed.

    ``configs``: those to choose among, instead of the structure's.  ``tuned``: what was measured to be fast, taken
    where it is one of the configs that may be chosen here.  ``unasked``: features of the configs that the model may
    pick, by default those that pay there (:func:`gemmdesc.kernels.unasked.pays_unasked`); a merged ``structure`` asks
    for one launch.
    A nest of CUDA-core chains has structures and configs of its own (:func:`gemmdesc.kernels.nest.choose_nest`,
    :func:`gemmdesc.kernels.choose_lanes.choose_lanes`), of which ``tuned`` says nothing.
    """
    if isinstance(desc.accumulator.step, ScalarStep):
        return choose_scalar(desc, meta, structure) if config is None else declined(SCALAR_ONLY)
    slices = slice_up(desc, meta, card)
    if isinstance(slices, Declined):
        return slices
    strides = (meta.a.row_stride, meta.a.column_stride, meta.b.row_stride, meta.b.column_stride)
    if min(meta.m, meta.n) < 1 or min(strides) < 0:
        return declined(f"sizes must be positive and strides not negative (got {meta})")
    if meta.out.layout(meta.m, meta.n) is Layout.ANY:
        return declined(f"out must have a unit stride (got {meta.out.row_stride}, {meta.out.column_stride})")
    swapped = meta.m < meta.n and meta.m <= THIN_SIDE
    turned = meta.swapped if swapped else meta
    candidates = tuple(s for s in structures_for(slices, turned) if card.wgmma or s is not Structure.CHAIN_SPECIALISED)
    if structure is not None:
        candidates = tuple(c for c in candidates if c is structure)
    for pick in () if config else tuned.find(chain_key(slices, turned), turned):
        allowed = (configs or configs_of(pick.structure)) if pick.structure in candidates else ()
        if pick.config in allowed and _fits(pick.config, pick.structure, turned, slices):
            return _assemble(pick.structure, slices, pick.config, turned, swapped)
    if unasked is not None and structure is not None and structure.merged:
        unasked |= {Feature.ONE_LAUNCH}
    # A caller's config is for the first structure that it fits.
    for tried in [(c,) for c in candidates] if config else _together(candidates):
        found = []
        for candidate in tried:
            every = _compared(candidate) if structure is Structure.CHAIN_SPECIALISED else ()
            known = (config,) if config else configs or every or _unasked_configs(candidate, turned, slices, unasked)
            found += [(candidate, c) for c in known if _fits(c, candidate, turned, slices)]
        if found:
            return _chosen(found, slices, turned, swapped)
    return declined(
        f"structure and config must suit spans of {slices.span} and {meta.shared_bytes} shared bytes "
        f"(got {structure}, {config})"
    )


def chain_key(slices: Slices, meta: KernelMeta) -> TunedKey:
    """What a tuned table holds for such slices of a product, ``meta`` being of what the kernel computes."""
    return tuned_key("plain" if slices.plain else "grouped", slices.merge is not None, meta)


def configs_of(structure: Structure) -> tuple[KernelConfig, ...]:
    """Every config that the chooser may pick for ``structure``, largest tile first."""
    match structure:
        case Structure.CHAIN_TMA:
            return TMA_CONFIGS + EARLY_TMA_CONFIGS
        case Structure.CHAIN_WIDE:
            return WIDE_CONFIGS + EARLY_WIDE_CONFIGS
        case Structure.CHAIN_SPECIALISED:
            return SPECIALISED_CONFIGS + EARLY_SPECIALISED_CONFIGS
        case Structure.FOLDED_CHAIN:
            return FOLDED_CONFIGS
        case Structure.MERGED_TMA:
            return MERGED_CONFIGS + EARLY_MERGED_CONFIGS
        case Structure.CHAIN_POINTER:
            return POINTER_CONFIGS
        case Structure.MERGED_POINTER:
            return MERGED_POINTER_CONFIGS
        case Structure.GROUPED_CHAIN:
            return GROUPED_CONFIGS
        case Structure.MERGED_GROUPED:
            return MERGED_GROUPED_CONFIGS
        case _:
            return ()


def _compared(structure: Structure) -> list[KernelConfig]:
    """Its configs that a card has compared: others, and those in clusters, are asked for by themselves."""
    return [c for c in configs_of(structure) if compared(structure, c)]


def _unasked_configs(
    structure: Structure, meta: KernelMeta, slices: Slices, unasked: frozenset[Feature] | None
) -> list[KernelConfig]:
    """Those that the model may pick; where it may pick dependent ones, not what they are without."""
    if structure is Structure.CHAIN_WIDE and meta.n <= THIN_SIDE:
        return []
    every = configs_of(structure)
    if unasked is not None:
        asked = structure is Structure.CHAIN_WIDE and Feature.WIDE in unasked
        return without_twins(
            [c for c in every if features_of(structure, c) <= unasked and (asked or compared(structure, c))]
        )
    span = read_span(slices, meta)
    return without_twins([c for c in every if pays_unasked(structure, c, meta, slices, span)])


def _together(structures: tuple[Structure, ...]) -> Iterator[tuple[Structure, ...]]:
    """Structures in their order, those that read by descriptor as one, as the estimate compares them."""
    told = False
    for structure in structures:
        if not structure.by_descriptor:
            yield (structure,)
        elif not told:
            told = True
            yield tuple(s for s in structures if s.by_descriptor)


def structures_for(slices: Slices, meta: KernelMeta) -> tuple[Structure, ...]:
    """Every structure that can compute ``slices`` there; where pointers come first, they are expected to be faster."""
    chained, merged = _POINTER_STRUCTURES[slices.plain]
    pointers = (chained,) if slices.merge is None else (merged, chained)
    if not _direct(slices, meta) and min(meta.m, meta.n) < PACKED_SIDE:
        return pointers
    scratch: tuple[Structure, ...] = (Structure.CHAIN_TMA, Structure.CHAIN_WIDE)
    scratch = (*scratch, Structure.CHAIN_SPECIALISED) if slices.merge is None else (Structure.MERGED_TMA, *scratch)
    if not _direct(slices, meta) and _is_short(slices, meta):
        return (*pointers, *scratch)
    if slices.merge is not None and foldable(slices.merge, meta.out.dtype):
        scratch = (*scratch, Structure.FOLDED_CHAIN)
    return (*scratch, *pointers)


def _is_short(slices: Slices, meta: KernelMeta) -> bool:
    """Whether a kernel that reads by pointers is done after a few turns of every multiprocessor."""
    tiles = -(-meta.m // SHORT_TILE) * -(-meta.n // SHORT_TILE)
    return slices.lanes <= SHORT_LANES and tiles * slices.count <= meta.sm_count


def foldable(merge: Merge, output_dtype: DType) -> bool:
    """Whether a kernel folds in registers with these roundings; others go through scratch, to bound the variants."""
    return {merge.partial_dtype, merge.merge_dtype} <= {DType.FLOAT32, output_dtype}


def _direct(slices: Slices, meta: KernelMeta) -> bool:
    """Whether tensor descriptors can read the operands where they lie."""
    return (
        slices.plain
        and (slices.count == 1 or slices.span % SPAN_UNIT == 0)
        and meta.a.by_descriptor(meta.m, slices.summed_k)
        and meta.b.by_descriptor(slices.summed_k, meta.n)
    )


def _fits(config: KernelConfig, structure: Structure, meta: KernelMeta, slices: Slices) -> bool:
    """Whether no step of ``config`` crosses from one slice into the next, and the kernel fits memory and indices."""
    if structure.by_descriptor and slices.count > 1 and read_span(slices, meta) % config.block_k:
        return False
    wide = structure is Structure.CHAIN_WIDE
    if config.one_launch != structure.merged:
        return False
    if config.beside_n and not wide and structure is not Structure.CHAIN_SPECIALISED:
        return False
    if (wide and not config.beside_n) or not specialised_fits(config, structure, meta, read_span(slices, meta)):
        return False
    if structure.merged and not _counts(config, structure, meta, slices):
        return False
    scratch = slices.merge is not None and structure is not Structure.FOLDED_CHAIN
    stored = DType.FLOAT32 if scratch else meta.out.dtype
    return (
        config.shared_bytes(meta.a.dtype.itemsize, stored.itemsize, by_pointers=scratch) <= meta.shared_bytes
        and config.tiles(meta.m, meta.n) * slices.count <= MAX_NARROW_OFFSET
    )


def _counts(config: KernelConfig, structure: Structure, meta: KernelMeta, slices: Slices) -> bool:
    """Whether a merged kernel folds ``slices``: there is a fold, and its words and its 32-bit offsets reach."""
    return (
        slices.merge is not None
        and config.tiles(meta.m, meta.n) <= MOST_COUNTED
        and max(_reaches(structure, meta)) <= MAX_NARROW_OFFSET
    )


def _reaches(structure: Structure, meta: KernelMeta) -> tuple[int, ...]:
    """The largest offsets that a kernel works out itself, but for an output that is scratch or has a descriptor."""
    out = meta.out.last_offset(meta.m, meta.n)
    if structure.by_descriptor:
        return (out,)
    return (meta.a.last_offset(meta.m, meta.k), meta.b.last_offset(meta.k, meta.n), out)


def read_span(slices: Slices, meta: KernelMeta) -> int:
    """Lanes of a slice as a tensor-descriptor kernel reads it."""
    return slices.span if _direct(slices, meta) else _packed_span(slices)


def _packed_span(slices: Slices) -> int:
    return -(-slices.lanes // SPAN_UNIT) * SPAN_UNIT


def _chosen(
    found: list[tuple[Structure, KernelConfig]], slices: Slices, meta: KernelMeta, swapped: bool
) -> KernelChoice:
    """The pair of least estimated time, the first of equals; a thin side gets one tile, so that A is read once."""
    if meta.n <= THIN_SIDE:
        narrow: dict[Structure, int] = {}
        for s, c in found:
            covers, least = c.block_n >= meta.n, narrow.get(s)
            if covers and (least is None or c.block_n < least):
                narrow[s] = c.block_n
        found = [(s, c) for s, c in found if c.block_n == narrow.get(s, c.block_n)]

    span = read_span(slices, meta)

    def cost(pair: tuple[Structure, KernelConfig]) -> float:
        if pair[0].by_descriptor:
            return estimated_us(*pair, meta, slices, span)
        return _pointer_cost(pair[1], meta, slices)

    structure, config = min(found, key=cost)
    return _assemble(structure, slices, config, meta, swapped)


def _pointer_cost(config: KernelConfig, meta: KernelMeta, slices: Slices) -> float:
    """Of a kernel that reads by pointers: rounds of tiles, each its products and the loads that feed them.

    Where a side is thin, reading the other: memory gives its full rate only while enough bytes are under way (Little's
    law), so a config takes longer by as much as it asks for too few, and by what it reads of B for each row of A.
    """
    items = config.tiles(meta.m, meta.n) * slices.count
    if meta.n > THIN_SIDE:
        rounds = -(-items // meta.sm_count)
        return rounds * (config.block_m * config.block_n + _LOAD_COST * (config.block_m + config.block_n))
    size = meta.a.dtype.itemsize
    most = max(1, meta.shared_bytes // config.shared_bytes(size, DType.FLOAT32.itemsize))
    programs = min(items, meta.sm_count * most)
    late = max(1.0, meta.sm_count * _WANTED_IN_FLIGHT / (programs * config.bytes_in_flight(size)))
    return late * (config.block_m + config.block_n) / config.block_m


def _assemble(
    structure: Structure, slices: Slices, config: KernelConfig, meta: KernelMeta, swapped: bool
) -> KernelChoice:
    m, n = meta.m, meta.n
    merges = slices.merge is not None and not structure.folds
    packing = None if not structure.by_descriptor or _direct(slices, meta) else _packing(slices, meta)
    layouts = meta.a.layout(m, meta.k), meta.b.layout(meta.k, n)
    if packing is not None:
        layouts = _packed_layout(layouts[0], Layout.COLUMNS), _packed_layout(layouts[1], Layout.ROWS)
    elif Layout.ANY in layouts:
        layouts = Layout.ANY, Layout.ANY
    out_layout = Layout.ROWS if merges else meta.out.layout(m, n)
    stores = structure.by_descriptor and not (merges or structure.merged)
    by_descriptor = stores and out_layout is Layout.ROWS and meta.out.stored_by_descriptor(m, n)
    offsets = [0] if structure.by_descriptor else [meta.a.last_offset(m, meta.k), meta.b.last_offset(meta.k, n)]
    if not by_descriptor:
        offsets.append(m * n if merges else meta.out.last_offset(m, n))
    programs = config.tiles(m, n) * (1 if structure is Structure.FOLDED_CHAIN else slices.count)
    if structure.by_descriptor and not structure.merged:
        programs = min(programs, meta.sm_count // config.cluster * config.cluster * config.programs_per_sm)
    return KernelChoice(
        structure=structure,
        slices=slices,
        packing=packing,
        operand_dtype=meta.a.dtype,
        output_dtype=meta.out.dtype,
        config=config,
        programs=programs,
        swapped=swapped,
        a_layout=layouts[0],
        b_layout=layouts[1],
        out_layout=out_layout,
        store_by_descriptor=by_descriptor,
        wide_offsets=max(offsets) > MAX_NARROW_OFFSET,
    )


def _packing(slices: Slices, meta: KernelMeta) -> Packing:
    span = _packed_span(slices)
    a_largest = max(meta.a.last_offset(meta.m, meta.k), (meta.m + SPAN_UNIT) * span * slices.count)
    b_largest = max(meta.b.last_offset(meta.k, meta.n), (meta.n + SPAN_UNIT) * span * slices.count)
    return Packing(
        span=span,
        a_source=meta.a.layout(meta.m, meta.k),
        b_source=meta.b.layout(meta.k, meta.n),
        wide=max(a_largest, b_largest) > MAX_NARROW_OFFSET,
    )


def _packed_layout(source: Layout, across_k: Layout) -> Layout:
    """The copy keeps lines across k as they are; all else is copied to lines along k."""
    along_k = Layout.ROWS if across_k is Layout.COLUMNS else Layout.COLUMNS
    return across_k if source is across_k else along_k
