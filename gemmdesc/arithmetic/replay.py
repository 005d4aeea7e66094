"""Execute a descriptor on the CPU, bit for bit: the meaning of a :class:`~gemmdesc.descriptor.GEMMDesc`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numba import config

from gemmdesc.arithmetic.casts import cast_operand
from gemmdesc.arithmetic.decode import decode_rows, decode_tiles
from gemmdesc.arithmetic.epilogue import EpilogueInputs, apply_epilogue, finished_bits
from gemmdesc.arithmetic.kernels import LANES, Operand, Program, execute, fold_leaves, tasks
from gemmdesc.arithmetic.parameters import step_parameters, storage_targets
from gemmdesc.bits import Bits, bits_dtype, from_float32, to_float32
from gemmdesc.descriptor import (
    Accumulator,
    EpilogueStep,
    FusedDot,
    GEMMDesc,
    OperandCast,
    ResidueLast,
    ScalarStep,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.schedule import ROUNDINGS, Op, Schedule, make_schedule

Index = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

_NO_EPILOGUE = EpilogueInputs()
#: Types that a finished sum may be rounded to.
_OUTPUTS = (*ROUNDINGS, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
#: Multiply-adds below which starting threads costs more than it saves.
_WORTH_THREADS = 1 << 20
_RANGES_PER_THREAD = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One operand, k along its second axis: (rows, k) bit patterns, of which the ``chosen`` rows are wanted."""

    bits: Bits
    dtype: DType
    chosen: Index


class Finish(Protocol):
    """Epilogue steps on float32 values of the wanted outputs."""

    def __call__(self, values: Float32Array, steps: tuple[EpilogueStep, ...]) -> Float32Array: ...


def replay(
    desc: GEMMDesc,
    a: Bits,
    b: Bits,
    *,
    rows: npt.ArrayLike | None = None,
    cols: npt.ArrayLike | None = None,
    epilogue: EpilogueInputs = _NO_EPILOGUE,
) -> Bits:
    """The bytes of D = A B that ``desc`` fixes, for all outputs or for chosen rows and columns.

    ``a``: (m, k) bit patterns of ``desc.a_dtype``; ``b``: (k, n) of ``desc.b_dtype``, in the unsigned type of the
    format's size (:func:`gemmdesc.bits.bits_dtype`), any strides.  ``rows``, ``cols``: indices of the wanted outputs,
    default all.  Returns (len(rows), len(cols)) bit patterns of ``desc.output_dtype``.

    Roundings happen where ``docs/arithmetic.md`` says: at the end of every step, where a cut stores or adds a partial
    sum, in the epilogue's steps, and once to the output type.  NaN is canonical (0x7fffffff, or 0x7fff in 16 bits).

    Raises:
        InvalidInputError: shapes, element types or indices do not fit; the descriptor names an operand type wider than
            32 bits or an output type other than float16, bfloat16, float32 and the 8-bit floats; the sum of a step does
            not fit 53 bits.
    """
    m, n, k = check_operands(desc, a, b)
    chosen_rows, chosen_cols = indices("rows", rows, m), indices("cols", cols, n)
    schedule = make_schedule(desc, k)
    left = side_of(a, desc.a_dtype, desc.a_cast, chosen_rows)
    right = side_of(b.T, desc.b_dtype, desc.b_cast, chosen_cols)
    finish = partial(apply_epilogue, inputs=epilogue, shape=(m, n), rows=chosen_rows, cols=chosen_cols)
    run = partial(_run, desc.accumulator.step, left=left, right=right)
    return _finished(desc, schedule, run, finish)


def replay_leaves(
    desc: GEMMDesc, k: int, leaves: Float32Array, *, epilogue: EpilogueInputs = _NO_EPILOGUE
) -> Bits:
    """:func:`replay` from the sums of ``desc``'s leaves at inner size ``k``, in the order of its schedule.

    ``leaves``: (leaves, m, n) float32.  Returns (m, n) bit patterns of ``desc.output_dtype``.

    Raises:
        InvalidInputError: the number of leaves or the output type does not fit.
    """
    schedule = make_schedule(desc, k)
    count, m, n = leaves.shape
    if count != len(schedule.leaf_offsets) - 1:
        raise InvalidInputError(f"leaves must be {len(schedule.leaf_offsets) - 1} for this descriptor (got {count})")
    _check_output(desc)
    flat, targets = np.ascontiguousarray(leaves).reshape(count, m * n), storage_targets()
    nothing = np.zeros(m * n, dtype=np.float32)

    def run(schedule: Schedule, *, given: Float32Array | None = None) -> Float32Array:
        opened = nothing if given is None else np.ascontiguousarray(given, dtype=np.float32).reshape(m * n)
        return np.asarray(fold_leaves(flat, opened, schedule.program, schedule.stack_depth, targets)).reshape(m, n)

    finish = partial(apply_epilogue, inputs=epilogue, shape=(m, n), rows=np.arange(m), cols=np.arange(n))
    return _finished(desc, schedule, run, finish)


class _Run(Protocol):
    """The sums of a schedule's program, or of a part of it; ``given`` is what the part's OPEN stands for."""

    def __call__(self, schedule: Schedule, *, given: Float32Array | None = None) -> Float32Array: ...


def _finished(desc: GEMMDesc, schedule: Schedule, run: _Run, finish: Finish) -> Bits:
    """The output's patterns; ``finish`` does what opens the outermost fold, and the epilogue."""
    program = schedule.program
    (places,) = np.nonzero(program[:, 0] == Op.OPEN)
    if len(places):
        place = int(places[0])
        opened = finish(run(replace(schedule, program=program[:place])), desc.cuts[0].opening)
        values = run(replace(schedule, program=program[place:]), given=opened)
    else:
        values = run(schedule)
    steps = desc.epilogue[:-1] if desc.overflows else desc.epilogue
    return finished_bits(finish(values, steps), desc)


def fused_dot(step: FusedDot, a: Bits, b: Bits, c: Bits, *, a_dtype: DType, b_dtype: DType, instruction_k: int) -> Bits:
    """Matrix instructions D = A B + C: a chain of ``step`` per output from ``c`` on, ``instruction_k`` products a step.

    ``a``: (m, k) bit patterns of ``a_dtype``; ``b``: (k, n) of ``b_dtype``; ``c``: (m, n) of the accumulator's type.
    Returns (m, n) bit patterns of ``step.accumulator_dtype``; with k = 0 those of ``c``, NaN made canonical.

    Raises:
        InvalidInputError: as :func:`replay`; or ``c`` is not (m, n).
    """
    accumulator = Accumulator(instruction_k=instruction_k, residue=ResidueLast(), step=step)
    desc = GEMMDesc(
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        output_dtype=step.accumulator_dtype,
        summed_k=max(a.shape[-1:], default=0),
        cuts=(),
        accumulator=accumulator,
    )
    m, n, k = check_operands(desc, a, b)
    if c.shape != (m, n) or c.dtype != bits_dtype(step.accumulator_dtype):
        raise InvalidInputError(
            f"c must be ({m}, {n}) patterns of {step.accumulator_dtype.value} (got {c.shape}, {c.dtype})"
        )
    start = to_float32(c, step.accumulator_dtype)
    left = Side(bits=a, dtype=a_dtype, chosen=np.arange(m))
    right = Side(bits=b.T, dtype=b_dtype, chosen=np.arange(n))
    return from_float32(_run(step, make_schedule(desc, k), left, right, start=start), step.accumulator_dtype)


def side_of(bits: Bits, dtype: DType, cast: OperandCast | None, chosen: Index) -> Side:
    """The ``chosen`` rows of an operand, as the accumulator takes them."""
    if cast is None:
        return Side(bits=bits, dtype=dtype, chosen=chosen)
    return Side(bits=cast_operand(bits[chosen], cast), dtype=cast.dtype, chosen=np.arange(len(chosen)))


def check_operands(desc: GEMMDesc, a: Bits, b: Bits) -> tuple[int, int, int]:
    """m, n and k; raises as :func:`replay`."""
    for name, array, dtype in (("a", a, desc.a_dtype), ("b", b, desc.b_dtype)):
        if dtype is DType.FLOAT64:
            raise InvalidInputError(f"{name}_dtype must be at most 32 bits wide (got float64)")
        if array.ndim != 2 or array.dtype != bits_dtype(dtype):
            raise InvalidInputError(
                f"{name} must be a matrix of {bits_dtype(dtype)} patterns of {dtype.value} "
                f"(got {array.ndim} dimensions of {array.dtype})"
            )
    if a.shape[1] != b.shape[0]:
        raise InvalidInputError(f"b must have as many rows as a has columns, {a.shape[1]} (got {b.shape[0]})")
    _check_output(desc)
    return a.shape[0], b.shape[1], a.shape[1]


def _check_output(desc: GEMMDesc) -> None:
    if desc.output_dtype not in _OUTPUTS:
        known = ", ".join(d.value for d in _OUTPUTS)
        raise InvalidInputError(f"output_dtype must be one of {known} (got {desc.output_dtype.value})")


def indices(name: str, chosen: npt.ArrayLike | None, size: int) -> Index:
    """``chosen`` as int64, or all of ``size``; raises as :func:`replay`."""
    if chosen is None:
        return np.arange(size, dtype=np.int64)
    index = np.asarray(chosen)
    if index.size == 0:
        return np.empty(0, dtype=np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= size:
        raise InvalidInputError(f"{name} must be a list of indices below {size} (got {chosen!r})")
    return index.astype(np.int64)


def _run(
    step: FusedDot | ScalarStep,
    schedule: Schedule,
    left: Side,
    right: Side,
    *,
    start: Float32Array | None = None,
    given: Float32Array | None = None,
) -> Float32Array:
    """Float32 sums (m, n) over the schedule's k, for the chosen rows of both sides.

    ``start`` opens every leaf; ``given`` is what the program's OPEN stands for.
    """
    m, n = len(left.chosen), len(right.chosen)
    if n < m:
        # Lanes run along columns and a step is symmetric in its operands: the longer side becomes the columns.
        turned = (None if x is None else x.T for x in (start, given))
        return _run(step, schedule, right, left, start=next(turned), given=next(turned)).T
    if m == 0:
        return np.empty((m, n), dtype=np.float32)
    width = -(-n // LANES) * LANES
    opening = np.full((m, width), step.opening if isinstance(step, ScalarStep) else 0.0, dtype=np.float32)
    if start is not None:
        opening[:, :n] = start
    opened = opening if given is None else np.zeros((m, width), dtype=np.float32)
    if given is not None:
        opened[:, :n] = given
    out = np.empty((m, width), dtype=np.float32)
    program = Program(
        schedule.leaf_offsets, schedule.step_ends, schedule.step_offsets, schedule.program, schedule.stack_depth
    )
    targets = storage_targets()
    fused_dot_step = isinstance(step, FusedDot)
    fused = isinstance(step, ScalarStep) and step.fused
    rows = Operand(*decode_rows(left.bits, left.dtype, left.chosen, schedule.order))
    columns = Operand(*decode_tiles(right.bits.T, right.dtype, schedule.order, right.chosen, LANES))
    parameters = step_parameters(step, schedule)

    def work(first: int, last: int) -> None:
        execute(out, opening, opened, rows, columns, program, targets, fused_dot_step, fused, parameters, first, last)

    spread(work, tasks(m, width // LANES), out.size * len(schedule.order))
    return out[:, :n]


def spread(work: Callable[[int, int], None], count: int, products: int) -> None:
    """Call ``work(first, last)`` for consecutive ranges that cover ``count`` tasks, on Numba's number of threads."""
    threads = min(config.NUMBA_NUM_THREADS, count)
    if threads == 1 or products < _WORTH_THREADS:
        work(0, count)
        return
    edges = np.linspace(0, count, min(count, threads * _RANGES_PER_THREAD) + 1).astype(np.int64).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))
