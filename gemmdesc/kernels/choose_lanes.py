"""Choosing the kernel of a nest of lanes, in one launch.  Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

from gemmdesc.descriptor import GEMMDesc, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined
from gemmdesc.kernels.config import MOST_COUNTED
from gemmdesc.kernels.lanes import CHUNKED_FOLDS, ENDLESS, Digits, Lanes, as_lanes, places
from gemmdesc.kernels.meta import KernelMeta, Layout
from gemmdesc.kernels.nest import NEST_DTYPES, NestChoice, choose_nest
from gemmdesc.kernels.slices import declined, misfit
from gemmdesc.kernels.structure import Structure

#: What no other structure or config does.
SCALAR_ONLY = "chains of scalar steps have the structures scalar_nest and lane_nest only, and configs of their own"
#: Bytes of the widest load.
VECTOR_BYTES = 16
#: Loads of A that one thread has under way: across outputs every one takes an address of its own, wide ones four
#: registers.  The fewest and most steps of a chain that one turn of a loop takes.
_UNDER_WAY_ACROSS, _UNDER_WAY_ALONG, _UNDER_WAY_WIDE = 16, 32, 8
_LEAST_UNROLL, _MOST_UNROLL = 2, 32
_MOST_WARPS, _WARP = 4, 32
#: Outputs of a program for so many lanes, fewest first: read across outputs, and along k.
_ACROSS = {1: (128, 512), 2: (64, 256), 4: (32, 256), 8: (16, 128), 16: (8, 64), 32: (4, 16, 64), 128: (1, 4, 16),
           256: (1, 4, 16)}  # fmt: skip
_ALONG = {1: (128, 512), 2: (64, 256), 4: (32, 128), 8: (16, 64), 16: (8, 32, 128), 32: (4, 16, 64), 128: (1, 4, 16),
          256: (1, 4, 16)}  # fmt: skip
#: Outputs of a program whose threads each read a run: one run for each thread.
_RUN_THREADS = 128


class Read(IntEnum):
    """How a kernel reads the long operand: the kernels' own numbers."""

    ACROSS = 0
    ALONG = 1
    RUNS = 2


@dataclass(frozen=True, kw_only=True)
class LaneForm:
    """What the code of a lane kernel is, but for types, and but for what its ``joins`` meet in.

    ``flat``: several columns, outputs numbered through; ``width``: elements of one load; ``chunked``: lanes have
    chunks; ``units``: a lane's k are runs; ``joins``: several programs sum one output, ``dealt``: as blocks do.
    """

    read: Read
    flat: bool
    width: int
    chunked: bool
    units: bool
    joins: bool
    dealt: bool
    digits: Digits
    outputs: int

    @property
    def lanes(self) -> int:
        return places(self.digits)

    @property
    def unroll(self) -> int:
        """Steps that one turn of a loop takes: loads enough under way, registers for all of them."""
        loads = max(1, self.lanes * self.outputs // (_WARP * self.num_warps) // self.width)
        narrow = _UNDER_WAY_ACROSS if self.read is Read.ACROSS else _UNDER_WAY_ALONG
        wanted = _UNDER_WAY_WIDE if self.width > 1 else narrow
        return min(max(wanted // loads, _LEAST_UNROLL), _MOST_UNROLL)

    @property
    def num_warps(self) -> int:
        """One thread for each load of a step, so far."""
        threads = self.lanes * self.outputs // (1 if self.read is Read.RUNS else self.width)
        return min(max(threads // _WARP, 1), _MOST_WARPS)


@dataclass(frozen=True, kw_only=True)
class LaneChoice:
    """What to launch for ``lanes``, of the transposed product where ``swapped``, so that A has the longer side.

    ``programs``: for each tile of outputs.  ``rows_first``: outputs are numbered down the columns of the product.
    """

    lanes: Lanes
    form: LaneForm
    programs: int
    operand_dtype: DType
    output_dtype: DType
    fused: bool
    opening: float
    swapped: bool
    rows_first: bool

    @property
    def structure(self) -> Structure:
        return Structure.LANE_NEST


def choose_lanes(desc: GEMMDesc, meta: KernelMeta, outputs: int | None = None) -> LaneChoice | Declined:
    """The kernel that computes ``desc``, a nest of lanes, bit for bit; ``outputs`` of a program override the choice."""
    trouble = misfit(desc, meta, NEST_DTYPES)
    if trouble is not None:
        return trouble
    step = desc.accumulator.step
    if not isinstance(step, ScalarStep):
        return declined("the leaf must be a chain of scalar steps")
    strides = (meta.a.row_stride, meta.a.column_stride, meta.b.row_stride, meta.b.column_stride)
    if min(meta.m, meta.n, meta.k, desc.summed_k) < 1 or min(strides) < 0:
        return declined(f"sizes must be positive and strides not negative (got {meta})")
    lanes = as_lanes(desc, meta.k)
    if lanes is None:
        return declined("the cuts must be lanes that kernels are compiled for")
    swapped = meta.m < meta.n
    turned = meta.swapped if swapped else meta
    flat = turned.n > 1
    if flat and lanes.digits not in CHUNKED_FOLDS:
        return declined("no kernel folds a butterfly for more than one column")
    read = _read(lanes, turned, flat)
    if isinstance(read, Declined):
        return read
    joins = lanes.parts > 1 or lanes.blocks > 1
    known = outputs_of(read, lanes.digits) if outputs is None else (outputs,)
    fitting = [o for o in known if not joins or -(-turned.m * turned.n // o) <= MOST_COUNTED]
    if not fitting:
        return declined(f"sums of parts must meet in at most {MOST_COUNTED} tiles")
    busy = -(-lanes.summed_k // (lanes.lanes * lanes.unit))
    whole = LaneChoice(
        lanes=lanes, programs=lanes.parts if lanes.blocks == 1 else min(lanes.blocks, busy), operand_dtype=desc.a_dtype,
        output_dtype=desc.output_dtype, fused=step.fused, opening=step.opening, swapped=swapped,
        rows_first=turned.out.layout(turned.m, turned.n) is Layout.COLUMNS,
        form=_form(lanes, turned, read, fitting[0]),
    )  # fmt: skip
    choices = [replace(whole, form=_form(lanes, turned, read, count)) for count in fitting]
    return min(choices, key=lambda choice: lane_us(choice, turned))


def _form(lanes: Lanes, meta: KernelMeta, read: Read, outputs: int) -> LaneForm:
    flat = meta.n > 1
    width = _width(read, lanes, meta, flat)
    return LaneForm(
        read=read, flat=flat, width=width if read is not Read.ACROSS or outputs >= width else 1,
        chunked=lanes.chunk < ENDLESS, units=lanes.unit > 1 and read is Read.ACROSS,
        joins=lanes.parts > 1 or lanes.blocks > 1, dealt=lanes.blocks > 1, digits=lanes.digits, outputs=outputs,
    )  # fmt: skip


#: Operand types whose lanes a card has compared (tests/test_lanes_gpu.py); others are launched only if asked for.
LANES_COMPARED = (DType.FLOAT16, DType.BFLOAT16)


def choose_scalar(
    desc: GEMMDesc, meta: KernelMeta, structure: Structure | None = None
) -> NestChoice | LaneChoice | Declined:
    """The kernels of a nest of CUDA-core chains.

    A ``structure`` that is asked for; else, for operands of LANES_COMPARED, what is estimated to take less.
    """
    if structure not in (None, Structure.SCALAR_NEST, Structure.LANE_NEST):
        return declined(SCALAR_ONLY)
    wanted = structure is Structure.LANE_NEST or (structure is None and desc.a_dtype in LANES_COMPARED)
    lanes = choose_lanes(desc, meta) if wanted else declined(SCALAR_ONLY)
    if structure is Structure.LANE_NEST:
        return lanes
    nest = choose_nest(desc, meta)
    if isinstance(lanes, Declined) or isinstance(nest, Declined):
        return nest
    return lanes if lane_us(lanes, meta) <= nest_us(nest, lanes.lanes, meta) else nest


def outputs_of(read: Read, digits: Digits) -> tuple[int, ...]:
    """How many outputs a program may have."""
    lanes = places(digits)
    if read is Read.RUNS:
        return (_RUN_THREADS // lanes,)
    return (_ACROSS if read is Read.ACROSS else _ALONG)[lanes]


def _read(lanes: Lanes, meta: KernelMeta, flat: bool) -> Read | Declined:
    """A is the operand with the longer side."""
    layout = meta.a.layout(meta.m, meta.k)
    along = layout is Layout.ROWS or (meta.m == 1 and meta.a.column_stride == 1)
    chunked = lanes.chunk < ENDLESS
    if flat:
        # Several columns read the same elements, which a multiprocessor then holds.
        return Read.ALONG if along and lanes.lanes > 1 else Read.ACROSS
    if along and (lanes.unit > 1 or lanes.lanes == 1) and not chunked and lanes.blocks == 1:
        return Read.RUNS
    if along and lanes.unit == 1:
        return Read.ALONG
    if meta.m == 1 or layout is Layout.COLUMNS:
        return Read.ACROSS
    return declined("A must have a unit stride")


def _width(read: Read, lanes: Lanes, meta: KernelMeta, flat: bool) -> int:
    """Elements of a load: 16 bytes where every one of them begins at a multiple of that."""
    size = meta.a.dtype.itemsize
    wide = VECTOR_BYTES // size
    if read is Read.RUNS:
        return wide
    if flat or meta.a.alignment % VECTOR_BYTES:
        return 1
    if read is Read.ACROSS:
        return wide if meta.a.column_stride % wide == 0 and meta.m % wide == 0 else 1
    steps = [meta.a.row_stride, lanes.summed_k, lanes.span if lanes.parts > 1 else 0]
    return wide if lanes.lanes >= wide and not any(step % wide for step in steps) else 1


@dataclass(frozen=True, kw_only=True)
class LaneCosts:
    """What a card's kernels of CUDA-core chains take, for ranking ways to one descriptor: no fit, a stated model.

    ``start_us``: a launch beside others; ``turn_us``: loads asked for and there; ``step_ns``: one step of a chain after
    the other; ``join_us``: what the last program of a tile does; ``terabytes``: of memory per second; ``warps``: how
    many one multiprocessor runs at a time.
    """

    start_us: float = 2.0
    turn_us: float = 0.6
    step_ns: float = 2.5
    join_us: float = 1.0
    terabytes: float = 4.0
    warps: int = 24


LANE_COSTS = LaneCosts()
#: Bytes that memory gives at least, and which part of its rate runs reach: they take more instructions.
_SECTOR_BYTES, _RUN_RATE = 32, 0.7
_SUM_BYTES = 4


def lane_us(choice: LaneChoice, meta: KernelMeta, costs: LaneCosts = LANE_COSTS) -> float:
    """A launch, then bytes over the bandwidth or one chain's turns in every wave of programs, then the last fold."""
    form, lanes = choice.form, choice.lanes
    tiles = -(-meta.m * meta.n // form.outputs)
    waves = math.ceil(tiles * choice.programs / (meta.sm_count * (costs.warps // form.num_warps)))
    steps = lanes.chain
    chain = steps * costs.step_ns * 1e-3 + math.ceil(steps / form.unroll) * costs.turn_us * waves
    neighbours = form.outputs if form.read is Read.ACROSS else form.lanes
    line = neighbours * meta.a.dtype.itemsize
    wasted = max(1.0, _SECTOR_BYTES / line) if form.read is Read.ACROSS and not form.flat else 1.0
    rate = costs.terabytes * (_RUN_RATE if form.read is Read.RUNS else 1.0)
    join = costs.join_us if form.joins else 0.0
    return costs.start_us + max(wasted * _bytes(meta) / rate * 1e-6, chain) + join


def nest_us(choice: NestChoice, lanes: Lanes, meta: KernelMeta, costs: LaneCosts = LANE_COSTS) -> float:
    """The same of a launch for all leaves and one for each fold, between which every leaf's sum is stored and loaded.

    A leaf of the general kernel asks for one k at a time, which it finds in a table.
    """
    longest = min(lanes.chain, lanes.chunk)
    leaves = lanes.parts * lanes.lanes * lanes.blocks * -(-lanes.chain // longest)
    chain = longest * (costs.step_ns * 1e-3 + costs.turn_us)
    sums = 2 * _SUM_BYTES * leaves * meta.m * meta.n / costs.terabytes * 1e-6
    return (1 + len(choice.folds)) * costs.start_us + max(_bytes(meta) / costs.terabytes * 1e-6, chain) + sums


def _bytes(meta: KernelMeta) -> int:
    operands = meta.k * (meta.m + meta.n) * meta.a.dtype.itemsize
    return operands + meta.m * meta.n * meta.out.dtype.itemsize
