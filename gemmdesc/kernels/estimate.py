"""How long a tensor-descriptor kernel takes, from what a card does in a microsecond.  Pure.

A ranking of schedules, never more: no estimate can change a bit.  The time is a start, the bounds that all of a
kernel's work meets, joined by a norm, and what no other work hides.  ``scripts/fit_estimate.py`` fits the costs to
journals of the benchmark and says how well they rank what it timed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmdesc.dtypes import DType
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.slices import Slices
from gemmdesc.kernels.structure import Structure

#: Bytes that a multiprocessor gets from the second-level cache in a clock, and its matrix unit from shared memory.
_CACHE_BYTES, _SHARED_BYTES = 64, 128
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
    ``tera_operations``: the rate that power allows, additions counted; ``terabytes``: of device memory.  ``tile_us``
    and ``store_ns``: the end of a tile, and of a thousand of its outputs.  ``line_ns``, ``sliver_ns``: one line of a
    box, and beyond that of a line of no length.  ``fold_us``, ``fold_terabytes``: a fold's own kernel.  ``merge_us``,
    ``slice_us``: a fold by the last program, and each slice of it.  ``sharpness``: the norm's power.
    """

    start_us: float
    fill_us: float
    early_us: float
    latency_us: float
    gigahertz: float
    tera_operations: float
    terabytes: float
    tile_us: float
    store_ns: float
    line_ns: float
    sliver_ns: float
    fold_us: float
    fold_terabytes: float
    merge_us: float
    slice_us: float
    sharpness: float


#: Fitted to an H200.
H200 = Costs(
    start_us=2.74, fill_us=0.24, early_us=0.5, latency_us=0.818, gigahertz=1.98, tera_operations=917.0, terabytes=4.51,
    tile_us=0.25, store_ns=10.8, line_ns=0.11, sliver_ns=8.1, fold_us=2.83, fold_terabytes=0.88, merge_us=1.44,
    slice_us=0.154, sharpness=3.87,
)  # fmt: skip


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
    structure: Structure, config: KernelConfig, meta: KernelMeta, slices: Slices, span: int, costs: Costs = H200
) -> float:
    """Microseconds of a kernel that reads by descriptor, and of the fold of its slices, copies left out.

    ``meta`` is of the product as the kernel computes it, ``span`` of a slice's lanes as the kernel reads them.
    """
    turns = turns_of(structure, config, meta, slices, span)
    bounds = _bounds(config, meta, turns, min(span, meta.k), costs)
    largest = max(bounds)
    together = sum([math.pow(bound / largest, costs.sharpness) for bound in bounds])
    time = largest * math.pow(together, 1 / costs.sharpness)
    time += costs.start_us + costs.fill_us * min(turns.steps, _FILLING) / _FILLING
    time += turns.each * costs.tile_us + turns.share * config.block_m * config.columns * costs.store_ns * 1e-6
    if config.dependent:
        time -= costs.early_us
    if structure.merged:
        time += costs.merge_us + slices.count * costs.slice_us
    elif slices.merge is not None and structure is not Structure.FOLDED_CHAIN:
        time += costs.fold_us + slices.count * meta.m * meta.n * 4e-6 / costs.fold_terabytes
    return time


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
    # Each warp group reads its rows and all columns of a step from shared memory.
    read = (_GROUP_ROWS + columns) * 16 * size / _SHARED_BYTES
    instruction = max(columns * _GROUP_ROWS * 16 / _PRODUCTS * 2, read)
    width = min(k, _BOX_LANES)
    line = costs.line_ns + costs.sliver_ns * max(0.0, 1 - lanes / min(width, _SLIVER_LANES))
    work = 2.0 * turns.items * turns.steps * rows * columns * k
    moved = (meta.m * meta.k + meta.k * meta.n) * size + meta.m * meta.n * meta.out.dtype.itemsize
    return (
        steps * max(1.0, rows / _GROUP_ROWS) * k / 16 * instruction / clocks,
        steps * (rows + columns) * k * size / _CACHE_BYTES / clocks,
        steps * (rows + columns) * (k // width) * line * 1e-3,
        turns.each * turns.steps * costs.latency_us / max(1, config.num_stages - 1),
        work * 1e-6 / costs.tera_operations,
        moved * 1e-6 / costs.terabytes,
    )
