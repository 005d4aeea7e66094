"""The compiled part of the replay: one stack program, run for tiles of output elements, lanes along columns.

Everything is done in IEEE float64 and float32 operations whose results are exact wherever the specification says
"exact", so that infinities and NaN come out of the same code as finite numbers.  A product of two operands has at most
48 significant bits; scaled by a power of two and truncated it is an integer; a step's integers sum to less than 2^53.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import intrinsic

from gemmdesc.schedule import Op

#: Columns in a tile, a constant so that the inner loops have a known length.
LANES = 64
_TILE_ROWS = 8
_LEAF, _ROUND, _ADD, _OPEN = int(Op.LEAF), int(Op.ROUND), int(Op.ADD), int(Op.OPEN)
#: Above every finite exponent and product of exponents, and low enough for powers of two to stay normal.
_EXPONENT_CAP = 400
#: Between the lowest product of two non-zero operands and the highest one that involves a zero.
_ZERO_PRODUCT = -8192


class Target(NamedTuple):
    """A rounding: ``fraction_bits`` below the leading bit, a floor for the exponent, and where infinity begins."""

    fraction_bits: int
    min_exponent: int
    infinity: float


class FusedParameters(NamedTuple):
    """A fused step as plain numbers.

    ``zero_enters``: a zero's exponent can exceed that of a non-zero accumulator, so it matters which terms are zero.
    Where it cannot, it is a floor under the largest exponent: a zero accumulator brings it in, another exceeds it.
    """

    fraction_bits: int
    zero_exponent: int
    zero_enters: bool
    nearest: bool
    target: Target


class Operand(NamedTuple):
    """Values (float32) and exponents (int16), k in schedule order.

    Shape (m, k) for the rows, (tiles, k, ``LANES``) for the columns.
    """

    values: npt.NDArray[np.float32]
    exponents: npt.NDArray[np.int16]


class Program(NamedTuple):
    """The arrays of a :class:`gemmdesc.schedule.Schedule` that the kernel reads, int64."""

    leaf_offsets: npt.NDArray[np.int64]
    step_ends: npt.NDArray[np.int64]
    step_offsets: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    stack_depth: int


@intrinsic
def _fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """One float32 rounding of a b + c."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate


@njit(nogil=True, cache=True)
def fma_float32(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], c: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """a b + c with one rounding to nearest even; flat float32 arrays of one length."""
    out = np.empty_like(a)
    for i in range(a.size):
        out[i] = _fma(a[i], b[i], c[i])
    return out


@njit(inline="always")
def power_of_two(exponent: int) -> float:
    """2^``exponent`` for exponents of normal float64 numbers."""
    return np.int64((exponent + 1023) << 52).view(np.float64)


@njit(inline="always")
def exponent_of(value: float) -> int:
    """The exponent of a normal float64 number."""
    return int((np.float64(value).view(np.int64) >> 52) & 0x7FF) - 1023


@njit(inline="always")
def rounded_to(value: float, nearest: bool, target: Target) -> float:
    """``value`` (float64) rounded to ``target``, to nearest even or toward zero."""
    exponent = min(max(exponent_of(value), target.min_exponent), _EXPONENT_CAP) - target.fraction_bits
    scaled = value * power_of_two(-exponent)
    whole = np.rint(scaled) if nearest else np.trunc(scaled)
    result = whole * power_of_two(exponent)
    if abs(result) >= target.infinity:
        result = np.copysign(np.inf, result)
    return float(result)


@njit(nogil=True, cache=True)
def fused_step(acc, a, b, row, tile, begin, end, p, high, low, scale, total):  # type: ignore[no-untyped-def]
    """One step for the LANES accumulators ``acc`` (float64); ``high`` to ``total`` are scratch."""
    high[:] = -32768
    low[:] = 32767
    for k in range(begin, end):
        x = a.exponents[row, k]
        for j in range(LANES):
            e = np.int16(x + b.exponents[tile, k, j])
            high[j] = e if e > high[j] else high[j]
    if p.zero_enters:
        for k in range(begin, end):
            x = a.exponents[row, k]
            for j in range(LANES):
                e = np.int16(x + b.exponents[tile, k, j])
                low[j] = e if e < low[j] else low[j]
    for j in range(LANES):
        c = acc[j]
        top = int(high[j])
        if c != 0.0:
            top = max(top, min(max(exponent_of(c), p.target.min_exponent), _EXPONENT_CAP))
        if not p.zero_enters or c == 0.0 or low[j] < _ZERO_PRODUCT:
            top = max(top, p.zero_exponent)
        scale[j] = power_of_two(p.fraction_bits - top)
        total[j] = np.trunc(c * scale[j])
    for k in range(begin, end):
        v = np.float64(a.values[row, k])
        for j in range(LANES):
            total[j] += np.trunc(v * np.float64(b.values[tile, k, j]) * scale[j])
    for j in range(LANES):
        # A sum that rounds to zero is +0.0, whatever its sign was.
        acc[j] = rounded_to(total[j] / scale[j], p.nearest, p.target) + 0.0


@njit(nogil=True, cache=True)
def scalar_steps(acc, a, b, row, tile, begin, end, fused):  # type: ignore[no-untyped-def]
    """A chain of one product a step for the LANES accumulators ``acc`` (float32)."""
    if fused:
        for k in range(begin, end):
            x = a.values[row, k]
            for j in range(LANES):
                acc[j] = _fma(x, b.values[tile, k, j], acc[j])
    else:
        for k in range(begin, end):
            x = a.values[row, k]
            for j in range(LANES):
                acc[j] = np.float32(np.float32(x * b.values[tile, k, j]) + acc[j])


@njit(nogil=True, cache=True)
def _fused_leaf(acc, a, b, first_row, tile, begin, ends, p):  # type: ignore[no-untyped-def]
    """Chains of fused steps for the (rows, LANES) accumulators ``acc`` (float32), in place."""
    running = acc.astype(np.float64)
    high, low = np.empty(LANES, np.int16), np.empty(LANES, np.int16)
    scale, total = np.empty(LANES, np.float64), np.empty(LANES, np.float64)
    for s in range(ends.size):
        for r in range(acc.shape[0]):
            fused_step(running[r], a, b, first_row + r, tile, begin, ends[s], p, high, low, scale, total)
        begin = ends[s]
    for r in range(acc.shape[0]):
        for j in range(LANES):
            acc[r, j] = np.float32(running[r, j])


@njit(nogil=True, cache=True)
def _combine(stack, depth, op, target):  # type: ignore[no-untyped-def]
    """ROUND, ADD and ADD_TO_ZERO on the (rows, LANES) values at the top of ``stack``, which holds ``depth``."""
    for r in range(stack.shape[1]):
        for j in range(LANES):
            x = stack[depth - 1, r, j]
            if op == _ROUND:
                stack[depth - 1, r, j] = np.float32(rounded_to(np.float64(x), True, target))
            elif op == _ADD:
                stack[depth - 2, r, j] = np.float32(stack[depth - 2, r, j] + x)
            else:
                stack[depth - 1, r, j] = np.float32(x + np.float32(0.0))


@njit(nogil=True, cache=True)
def _tile(out, start, given, a, b, first_row, tile, program, targets, is_fused_dot, fused, parameters):  # type: ignore[no-untyped-def]
    """The stack program for the rows of ``out`` (rows, LANES); ``start`` (as ``out``) opens every leaf.

    OPEN puts ``given`` (as ``out``) on the stack.
    """
    rows = out.shape[0]
    stack = np.empty((program.stack_depth, rows, LANES), np.float32)
    depth = 0
    for i in range(program.rows.shape[0]):
        op, argument = program.rows[i, 0], program.rows[i, 1]
        if op == _LEAF:
            stack[depth] = start
            begin, end = program.leaf_offsets[argument], program.leaf_offsets[argument + 1]
            if is_fused_dot:
                ends = program.step_ends[program.step_offsets[argument] : program.step_offsets[argument + 1]]
                _fused_leaf(stack[depth], a, b, first_row, tile, begin, ends, parameters)
            else:
                for r in range(rows):
                    scalar_steps(stack[depth, r], a, b, first_row + r, tile, begin, end, fused)
            depth += 1
        elif op == _OPEN:
            stack[depth] = given
            depth += 1
        else:
            _combine(stack, depth, op, targets[argument])
            if op == _ADD:
                depth -= 1
    out[:] = stack[0]


@njit(nogil=True, cache=True)
def fold_leaves(leaves, given, program, stack_depth, targets):  # type: ignore[no-untyped-def]
    """What ``program`` (rows of an op and its argument) makes of float32 ``leaves``, shape (leaves, outputs).

    ``given`` (outputs,): what OPEN stands for.  Returns (outputs,) float32; NaN payloads are not canonical.
    """
    size = leaves.shape[1]
    stack = np.empty((stack_depth, size), np.float32)
    depth = 0
    for i in range(program.shape[0]):
        op, argument = program[i, 0], program[i, 1]
        if op == _LEAF:
            stack[depth] = leaves[argument]
            depth += 1
        elif op == _OPEN:
            stack[depth] = given
            depth += 1
        elif op == _ADD:
            for j in range(size):
                stack[depth - 2, j] = np.float32(stack[depth - 2, j] + stack[depth - 1, j])
            depth -= 1
        elif op == _ROUND:
            for j in range(size):
                stack[depth - 1, j] = np.float32(rounded_to(np.float64(stack[depth - 1, j]), True, targets[argument]))
        else:
            for j in range(size):
                stack[depth - 1, j] = np.float32(stack[depth - 1, j] + np.float32(0.0))
    return stack[0]


def tasks(rows: int, tiles: int) -> int:
    """How many independent tasks :func:`execute` divides an output of ``rows`` x ``tiles`` into."""
    return tiles * (-(-rows // _TILE_ROWS))


@njit(nogil=True, cache=True)
def execute(out, start, given, a, b, program, targets, is_fused_dot, fused, parameters, first_task, last_task):  # type: ignore[no-untyped-def]
    """Run ``program`` for the tasks from ``first_task`` up to ``last_task``, writing float32 values into ``out``.

    ``out``, ``start``, ``given``: (m, tiles x LANES) float32; every leaf's chain opens with ``start``, and a program
    that goes on from an opening begins with OPEN, which stands for ``given``.  ``a``, ``b``: an
    :class:`Operand` each.  ``targets``: one :class:`Target` per entry of ``gemmdesc.schedule.ROUNDINGS``.  NaN payloads
    are not canonical.
    Tasks touch disjoint outputs and the interpreter lock is released, so threads may share them.
    """
    blocks = (out.shape[0] + _TILE_ROWS - 1) // _TILE_ROWS
    for task in range(first_task, last_task):
        tile, first = task // blocks, task % blocks * _TILE_ROWS
        rows = slice(first, min(first + _TILE_ROWS, out.shape[0]))
        columns = slice(tile * LANES, (tile + 1) * LANES)
        _tile(
            out[rows, columns],
            start[rows, columns],
            given[rows, columns],
            a,
            b,
            first,
            tile,
            program,
            targets,
            is_fused_dot,
            fused,
            parameters,
        )
