"""What a descriptor makes of rows that are zero but for a few elements: the forecast that chooses rival patterns.

It works on float64 values and costs time proportional to the elements and to the number of leaves, not to k.  It is a
forecast and no oracle: special values, C, bias and scale are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import CastTo, FusedDot, GEMMDesc, Relu, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.rivals.forecasting import LANES, RELU, Step, execute
from gemmdesc.schedule import ROUNDINGS, Op, Schedule

Index = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

#: Types that a value may be rounded to, those of the schedule's program first; float64 holds every value as it is.
_ROUNDED = (*ROUNDINGS, *(d for d in DType if d not in ROUNDINGS and d is not DType.FLOAT64))
_TARGETS = np.array(
    [(f.fraction_bits, f.min_exponent, 2.0 ** (f.max_exponent + 1)) for f in (d.format for d in _ROUNDED)]
)
#: Beyond these a zero's exponent hides every product, or none, of the formats that a descriptor may name.
_LOWEST_ZERO, _HIGHEST_ZERO = -400, 400


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseRows:
    """T rows of E elements: ``k`` indices, all different within a row, and ``products`` a x b, float64; both (T, E)."""

    k: Index
    products: Reals


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """Where each k is summed (int32): ``step`` (k,), counted over all leaves, -1 where it is not summed; and ``leaf``.

    ``leaf`` (steps + 1,) is the leaf of each step, and -1 at the end, so that ``leaf[step[k]]`` is the leaf of k or -1.
    """

    step: npt.NDArray[np.int32]
    leaf: npt.NDArray[np.int32]


def find_places(schedule: Schedule, k: int) -> Places:
    """The leaf and step of every k index."""
    step = np.empty(k, dtype=np.int32)
    # The order holds the first k, every one of them once.
    step[len(schedule.order) :] = -1
    step[schedule.order] = _numbered(np.diff(schedule.step_ends, prepend=0))
    return Places(step=step, leaf=np.append(_numbered(np.diff(schedule.step_offsets)), np.int32(-1)))


def _numbered(lengths: Index) -> npt.NDArray[np.int32]:
    """0 as often as the first length says, then 1 as often as the second, and so on."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def forecast(desc: GEMMDesc, schedule: Schedule, places: Places, rows: SparseRows) -> Reals:
    """The values of D for each sparse row, as float64 numbers of the output type, shape (T,).

    The descriptor is one that the replay accepts, so that the sums of its steps fit 53 bits.
    """
    out = np.empty(len(rows.k), dtype=np.float64)
    leaves = len(schedule.leaf_offsets) - 1
    execute(
        out,
        np.ascontiguousarray(rows.k),
        np.ascontiguousarray(rows.products),
        places.step,
        places.leaf,
        np.concatenate([_known(schedule.program), _epilogue(desc)]),
        _TARGETS,
        _step(desc.accumulator.step),
        np.full(leaves, -1),
        np.zeros((min(leaves, rows.k.size) + 1, LANES)),
        np.zeros((schedule.stack_depth, LANES)),
        np.zeros(schedule.stack_depth, dtype=np.bool_),
        np.empty(rows.k.shape[1], dtype=np.int64),
    )
    return out


def _known(program: Index) -> Index:
    """The program as far as forecasts know it: what opens a fold adds nothing."""
    if not (program[:, 0] == Op.OPEN).any():
        return program
    out = program.copy()
    out[out[:, 0] == Op.OPEN, 0] = Op.ADD_TO_ZERO
    return out


def _epilogue(desc: GEMMDesc) -> Index:
    """Instructions (N, 2) for what the forecast knows of the epilogue, and for the rounding of D."""
    rows = []
    for step in (*desc.epilogue, CastTo(dtype=desc.output_dtype)):
        if isinstance(step, Relu):
            rows.append((RELU, 0))
        elif isinstance(step, CastTo) and step.dtype is not DType.FLOAT64:
            rows.append((int(Op.ROUND), _ROUNDED.index(step.dtype)))
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _step(step: FusedDot | ScalarStep) -> Step:
    if isinstance(step, ScalarStep):
        return Step(False, step.fused, 1, 0, False, 1, 0)
    return Step(
        True,
        False,
        step.fraction_bits,
        min(max(step.zero_exponent, _LOWEST_ZERO), _HIGHEST_ZERO),
        step.rounding is Rounding.NEAREST_EVEN,
        step.output_bits,
        step.accumulator_dtype.format.min_exponent,
    )
