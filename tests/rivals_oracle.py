"""The forecast in NumPy operations on all rows at once, leaf by leaf: what the compiled one must equal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import CastTo, FusedDot, GEMMDesc, Relu, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.rivals.sparse import Index, Reals, SparseRows
from gemmdesc.schedule import ROUNDINGS, Op, Schedule, make_schedule


def expected_places(schedule: Schedule, k: int) -> tuple[Index, Index]:
    """The leaf and the step of every k index, -1 where it is not summed."""
    leaf, step = np.full(k, -1, dtype=np.int64), np.full(k, -1, dtype=np.int64)
    position = np.arange(len(schedule.order), dtype=np.int64)
    leaf[schedule.order] = np.searchsorted(schedule.leaf_offsets, position, side="right") - 1
    step[schedule.order] = np.searchsorted(schedule.step_ends, position, side="right")
    return leaf, step


def expected_forecast(desc: GEMMDesc, k: int, rows: SparseRows) -> Reals:
    """The values of D at inner size ``k`` for each sparse row, as float64 numbers of the output type, shape (T,)."""
    schedule = make_schedule(desc, k)
    with np.errstate(invalid="ignore"):
        value = _fold(schedule, len(rows.k), _leaf_sums(desc, expected_places(schedule, k), rows))
        for step in desc.epilogue:
            if isinstance(step, CastTo):
                value = _round_to(value, step.dtype)
            elif isinstance(step, Relu):
                value = np.where(value > 0, value, 0.0)
        value = _round_to(value, desc.output_dtype)
    return np.where(np.isnan(value), np.nan, value)


def _round_to(values: Reals, dtype: DType) -> Reals:
    """float64 values rounded to ``dtype``, nearest even, overflow to infinity; the sign of zero is kept."""
    form = dtype.format
    rounded = _round_bits(values, form.fraction_bits, form.min_exponent, Rounding.NEAREST_EVEN)
    return np.where(np.abs(rounded) >= 2.0 ** (form.max_exponent + 1), np.copysign(np.inf, rounded), rounded)


def _round_bits(values: Reals, bits: int, least: int, rounding: Rounding) -> Reals:
    quantum = _exponent(values, least) - bits
    scaled = np.ldexp(values, -quantum)
    whole = np.trunc(scaled) if rounding is Rounding.TOWARD_ZERO else np.rint(scaled)
    return np.ldexp(whole, quantum)


def _exponent(values: Reals, least: int) -> npt.NDArray[np.int32]:
    """Exponents of 1.f values, at least ``least``; ``least`` for zero."""
    _, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
    return np.where(values == 0, least, np.maximum(exponent - 1, least)).astype(np.int32)


def _leaf_sums(desc: GEMMDesc, places: tuple[Index, Index], rows: SparseRows) -> dict[int, Reals]:
    """Sums by leaf, (T,) each, +0.0 for rows that have no element there; leaves that no row touches are left out."""
    leaf, step = (place[rows.k] for place in places)
    order = np.argsort(step, axis=1, kind="stable")
    leaf, step = np.take_along_axis(leaf, order, axis=1), np.take_along_axis(step, order, axis=1)
    products = np.where(leaf < 0, 0.0, np.take_along_axis(rows.products, order, axis=1))
    group = np.cumsum(np.diff(step, axis=1, prepend=step[:, :1]) != 0, axis=1)
    sums: dict[int, Reals] = {}
    everyone = np.arange(len(leaf))
    accumulator = np.zeros(len(leaf))
    previous = np.full(len(leaf), -1, dtype=np.int64)
    for g in range(int(group.max(initial=-1)) + 1):
        inside = group == g
        here = np.where(inside, leaf, -1).max(axis=1)
        alive = here >= 0
        accumulator = np.where(here == previous, accumulator, 0.0)
        terms = np.where(inside, products, 0.0)
        accumulator = np.where(alive, _step(desc.accumulator.step, accumulator, terms), accumulator)
        for number in np.unique(here[alive]).tolist():
            chosen = everyone[here == number]
            sums.setdefault(number, np.zeros(len(leaf)))[chosen] = accumulator[chosen]
        previous = here
    return sums


def _step(step: FusedDot | ScalarStep, accumulator: Reals, terms: Reals) -> Reals:
    if isinstance(step, ScalarStep):
        product = terms.sum(axis=1)
        if not step.fused:
            product = _round_to(product, DType.FLOAT32)
        return _round_to(accumulator + product, DType.FLOAT32)
    form = step.accumulator_dtype.format
    everything = np.concatenate([accumulator[:, None], terms], axis=1)
    least = np.iinfo(np.int32).min
    floors = np.array([form.min_exponent] + [-1000] * terms.shape[1])
    exponents = np.where(everything == 0, least, np.maximum(np.frexp(everything)[1] - 1, floors))
    quantum = np.maximum(exponents.max(axis=1), step.zero_exponent) - step.fraction_bits
    aligned = np.ldexp(np.trunc(np.ldexp(everything, -quantum[:, None])), quantum[:, None])
    # An exact zero comes out as +0.0.
    return _round_bits(aligned.sum(axis=1), step.output_bits, form.min_exponent, step.rounding) + 0.0


def _fold(schedule: Schedule, count: int, sums: dict[int, Reals]) -> Reals:
    """Run the stack program; None stands for +0.0 in every row, so that untouched parts cost next to nothing."""
    stack: list[Reals | None] = []
    for op, argument in schedule.program.tolist():
        if op == Op.LEAF:
            stack.append(sums.get(argument))
            continue
        top = stack.pop()
        if op == Op.ADD:
            left = stack.pop()
            if left is None or top is None:
                only = top if left is None else left
                top = None if only is None else only + 0.0
            else:
                top = _round_to(left + top, DType.FLOAT32)
        elif top is not None:
            top = top + 0.0 if op == Op.ADD_TO_ZERO else _round_to(top, ROUNDINGS[argument])
        stack.append(top)
    (root,) = stack
    return np.zeros(count) if root is None else root
