"""How long a tensor-descriptor kernel takes, from what a card does in a microsecond.  Pure.

A ranking of schedules, never more: no estimate can change a bit.  The time is a start, the bounds that all of a
kernel's work meets, joined by a norm, and what no other work hides.  ``scripts/fit_estimate.py`` fits the costs to
journals of the benchmark and says how well they rank what it timed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gemmdesc.dtypes import DType
from gemmdesc.kernels.config import THIN_SIDE, KernelConfig
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.slices import Slices
from gemmdesc.kernels.specialised import SpecialisedConfig
from gemmdesc.kernels.structure import Structure

#: Bytes that the matrix unit of a multiprocessor gets from shared memory in a clock.
_SHARED_BYTES = 128
#: Rows of a tile that one instruction of a warp group multiplies, and multiplications of 16 bits in a clock.
_GROUP_ROWS, _PRODUCTS = 64, 4096
#: Lanes of k in a box of 128 bytes, and below which a line is a sliver that costs more than its bytes.
_BOX_LANES, _SLIVER_LANES = 64, 32
#: Steps that a pipeline takes to fill.
_FILLING = 4
#: Shared memory of a multiprocessor beyond what one program may ask for, and what the system takes for each.
_SHARED_SPARE = 1024
_MOST_PROGRAMS = 8


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a card does, and what its kernels pay beside.

    ``start_us``: a launch; ``fill_us``: a pipeline's first turn; ``early_us``: what a dependent launch hides of both.
    ``latency_us``: from asking for a step of a tile to having multiplied it.  ``gigahertz``: clock;
    ``tera_operations``: the rate that power allows, additions counted; ``terabytes``: of device memory.
    ``cache_bytes``: what a multiprocessor gets from the second-level cache in a clock.
    ``tile_us`` and ``store_ns``: the end of a tile, and of a thousand of its outputs.  ``line_ns``, ``sliver_ns``: one
    line of a box, and beyond that of a line of no length.  ``fold_us``, ``fold_terabytes``, ``turned_terabytes``: a
    fold's own kernel, what it reads where the output lies by rows, as scratch does, and where by columns.
    ``merge_us``, ``slice_us``, ``slice_ns``: a fold by the last program, each slice of it, and a thousand outputs of a
    slice.  ``restart_us``: from the end of a loop over k to the next one of a program or multiprocessor, where loads of
    the next do not begin before.  ``sharpness``: the norm's power.
    """

    start_us: float
    fill_us: float
    early_us: float
    latency_us: float
    gigahertz: float
    tera_operations: float
    terabytes: float
    cache_bytes: float
    tile_us: float
    store_ns: float
    line_ns: float
    sliver_ns: float
    fold_us: float
    fold_terabytes: float
    turned_terabytes: float
    merge_us: float
    slice_us: float
    slice_ns: float
    restart_us: float
    sharpness: float


#: Fitted to an H200: of stock kernels that fold slices or have few columns, of those of other whole chains, and of
#: specialised warps, whose loads never wait for a tile's end.  Each set ranks what competes for the same products, no
#: more: a cost may stand for others.
H200 = Costs(
    start_us=2.74, fill_us=0.24, early_us=0.5, latency_us=0.818, gigahertz=1.98, tera_operations=917.0, terabytes=4.51,
    cache_bytes=64.0, tile_us=0.25, store_ns=10.8, line_ns=0.11, sliver_ns=8.1, fold_us=2.42, fold_terabytes=2.19,
    turned_terabytes=0.5, merge_us=1.28, slice_us=0.075, slice_ns=180.0, restart_us=1.4, sharpness=3.87,
)  # fmt: skip
H200_WHOLE = replace(
    H200, start_us=3.192, fill_us=0.0485, early_us=0.484, latency_us=0.359, gigahertz=2.49, tera_operations=1184.7,
    terabytes=5.39, cache_bytes=317.0, tile_us=0.0505, store_ns=14.13, line_ns=0.43, sliver_ns=2.4, restart_us=5.21,
    sharpness=1.474,
)  # fmt: skip
H200_SPECIALISED = replace(
    H200, start_us=2.853, fill_us=0.644, early_us=0.6535, latency_us=0.183, gigahertz=1.965, tera_operations=853.1,
    terabytes=3.87, cache_bytes=743.0, tile_us=0.196, store_ns=4.98, line_ns=0.0149, sliver_ns=6.54, sharpness=2.005,
)  # fmt: skip


def costs_of(structure: Structure, meta: KernelMeta, slices: Slices) -> Costs:
    """What kernels of ``structure`` pay for such a product on the card that the costs were fitted to."""
    if structure is Structure.CHAIN_SPECIALISED:
        return H200_SPECIALISED
    return H200_WHOLE if slices.merge is None and meta.n > THIN_SIDE else H200


@dataclass(frozen=True, kw_only=True)
class Turns:
    """How the work of a kernel falls on a card: ``items`` of ``steps`` each, on ``programs`` of which ``each`` do most.

    ``share``: the most items that one multiprocessor gets.
    """

    items: int
    steps: int
    programs: int
    each: int
    share: int


def turns_of(structure: Structure, config: KernelConfig, meta: KernelMeta, slices: Slices, span: int) -> Turns:
    """Of slices of ``span`` lanes; a structure that folds in registers gives a program all slices of a tile."""
    folded = structure is Structure.FOLDED_CHAIN
    items = config.tiles(meta.m, meta.n) * (1 if folded else slices.count)
    each = config.programs_per_sm
    if structure.merged:
        used = config.shared_bytes(meta.a.dtype.itemsize, DType.FLOAT32.itemsize) + _SHARED_SPARE
        each = max(1, min(_MOST_PROGRAMS, (meta.shared_bytes + _SHARED_SPARE) // used))
    programs = min(items, meta.sm_count * each)
    return Turns(
        items=items, steps=-(-span // config.block_k) * (slices.count if folded else 1), programs=programs,
        each=-(-items // programs), share=-(-items // meta.sm_count),
    )  # fmt: skip


def estimated_us(
    structure: Structure, config: KernelConfig, meta: KernelMeta, slices: Slices, span: int,
    costs: Costs | None = None, *, finishing_ns: float = 0.0,
) -> float:  # fmt: skip
    """Microseconds of a kernel that reads by descriptor, and of the fold of its slices, copies left out.

    ``meta`` is of the product as the kernel computes it, ``span`` of a slice's lanes as the kernel reads them.
    ``costs``: by default those of :func:`costs_of`.  ``finishing_ns``: what a thousand outputs of a tile take beside
    their store, where the kernel does to them what follows the product.
    """
    costs = costs or costs_of(structure, meta, slices)
    turns = turns_of(structure, config, meta, slices, span)
    bounds = _bounds(config, meta, turns, min(span, meta.k), costs)
    largest = max(bounds)
    together = sum([math.pow(bound / largest, costs.sharpness) for bound in bounds])
    time = largest * math.pow(together, 1 / costs.sharpness)
    time += costs.start_us + costs.fill_us * min(turns.steps, _FILLING) / _FILLING
    time += _ends(config, turns, costs, finishing_ns)
    if finishing_ns and isinstance(config, SpecialisedConfig) and config.turns:
        # A group has as long as the other one multiplies; what takes longer shows at every tile but the last.
        late = config.block_m * config.columns * finishing_ns * 1e-6 - bounds[0] / turns.share
        time += max(0.0, late) * (turns.share - 1)
    if config.dependent:
        time -= costs.early_us
    time += _between(structure, config, slices, turns, costs) / max(1, turns.programs // meta.sm_count)
    return time + _fold(structure, config, meta, slices, costs)


def _ends(config: KernelConfig, turns: Turns, costs: Costs, finishing_ns: float) -> float:
    """Microseconds of the ends of tiles that no product hides: of groups that take turns, the last one's."""
    outputs_us = config.block_m * config.columns * (costs.store_ns + finishing_ns) * 1e-6
    if isinstance(config, SpecialisedConfig) and config.turns:
        return costs.tile_us + outputs_us
    return turns.each * costs.tile_us + turns.share * outputs_us


def _between(structure: Structure, config: KernelConfig, slices: Slices, turns: Turns, costs: Costs) -> float:
    """Microseconds of a program between loops over k that are not flattened; others of its multiprocessor hide them."""
    if structure is Structure.CHAIN_WIDE:
        return (turns.each - 1) * costs.restart_us
    if structure is Structure.FOLDED_CHAIN:
        return (turns.each * slices.count - 1) * costs.restart_us
    if structure.merged:
        # A slice goes to scratch and comes back.
        return (turns.each - 1) * (costs.restart_us + 2 * _slice_us(config, costs))
    return 0.0


def _fold(structure: Structure, config: KernelConfig, meta: KernelMeta, slices: Slices, costs: Costs) -> float:
    """Microseconds of a fold that is not in registers."""
    if structure.merged:
        return costs.merge_us + slices.count * _slice_us(config, costs)
    if slices.merge is None or structure is Structure.FOLDED_CHAIN:
        return 0.0
    turned = meta.out.layout(meta.m, meta.n) is Layout.COLUMNS
    rate = costs.turned_terabytes if turned else costs.fold_terabytes
    return costs.fold_us + slices.count * meta.m * meta.n * 4e-6 / rate


def _slice_us(config: KernelConfig, costs: Costs) -> float:
    return costs.slice_us + config.block_m * config.columns * costs.slice_ns * 1e-6


def least_us(meta: KernelMeta, costs: Costs = H200) -> float:
    """Microseconds below which no kernel of a product comes: its bytes once, and its operations."""
    size = meta.a.dtype.itemsize
    moved = (meta.m * meta.k + meta.k * meta.n) * size + meta.m * meta.n * meta.out.dtype.itemsize
    return max(moved * 1e-6 / costs.terabytes, 2e-6 * meta.m * meta.n * meta.k / costs.tera_operations)


def _bounds(config: KernelConfig, meta: KernelMeta, turns: Turns, lanes: int, costs: Costs) -> tuple[float, ...]:
    """Microseconds of each of what may be the slowest: instructions, caches, lines, latency, power, memory."""
    rows, columns, k = config.block_m, config.columns, config.block_k
    size = meta.a.dtype.itemsize
    steps, clocks = turns.share * turns.steps, costs.gigahertz * 1e3
    widths = (config.block_n, config.beside_n) if config.beside_n else (columns,)
    instruction = sum([_instruction(width, size) for width in widths])
    width = min(k, _BOX_LANES)
    line = costs.line_ns + costs.sliver_ns * max(0.0, 1 - lanes / min(width, _SLIVER_LANES))
    work = 2.0 * turns.items * turns.steps * rows * columns * k
    moved = (meta.m * meta.k + meta.k * meta.n) * size + meta.m * meta.n * meta.out.dtype.itemsize
    return (
        steps * max(1.0, rows / _GROUP_ROWS) * k / 16 * instruction / clocks,
        steps * config.loaded_lines * k * size / costs.cache_bytes / clocks,
        steps * (rows + columns) * (k // width) * line * 1e-3,
        turns.each * turns.steps * costs.latency_us / max(1, config.num_stages - 1),
        work * 1e-6 / costs.tera_operations,
        moved * 1e-6 / costs.terabytes,
    )


def _instruction(columns: int, size: int) -> float:
    """Clocks of an instruction, in which each warp group reads its rows and all columns from shared memory."""
    read = (_GROUP_ROWS + columns) * 16 * size / _SHARED_BYTES
    return max(columns * _GROUP_ROWS * 16 / _PRODUCTS * 2, read)
