"""The stack program of ``gemmdesc.arithmetic.kernels`` with drawn directions: compiled, lanes along columns.

A step's products and accumulator are added without error (an expansion of three float64, which holds all but sums of
extreme spread; those are redone as an expansion of any length), and the sum is rounded once, up or down.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gemmdesc.arithmetic.kernels import LANES, exponent_of, fused_step, power_of_two, rounded_to, scalar_steps
from gemmdesc.schedule import Op

_LEAF, _ROUND, _ADD, _OPEN = int(Op.LEAF), int(Op.ROUND), int(Op.ADD), int(Op.OPEN)
_TILE_ROWS = 8
_EXPONENT_CAP = 1000
_STRIDE = np.uint64(0xD1342543DE82EF95)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
#: Components that an expansion of float64 numbers can have: its exponents span 2^11 in steps of 53 bits.
_COMPONENTS = 64


class Draws(NamedTuple):
    """``keys``: (m, width) uint64, one per element.  ``opposite``: all directions turned.

    ``step``: steps draw.  ``rows``: bool per row of the stack program, whose first has the site number ``first_row``.
    """

    keys: npt.NDArray[np.uint64]
    opposite: bool
    step: bool
    rows: npt.NDArray[np.bool_]
    first_row: int


@njit(inline="always")
def _finalise(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def _up(key: Any, site: int, opposite: bool) -> bool:
    word = _finalise(key + _STRIDE * np.uint64((site >> 6) + 1))
    return bool(((word >> np.uint64(site & 63)) & np.uint64(1)) == np.uint64(0 if opposite else 1))


@njit(inline="always")
def _two_sum(x: float, y: float) -> tuple[float, float]:
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@njit(nogil=True, cache=True)
def _neighbour(value, rest, up, target):  # type: ignore[no-untyped-def]
    """The neighbour of z = (``value``, sign of ``rest``) in ``target``, and how far apart z's two neighbours are."""
    if not np.isfinite(value) or value == 0.0:
        return value, 0.0
    exponent = min(max(exponent_of(value), target.min_exponent), _EXPONENT_CAP) - target.fraction_bits
    units = value * power_of_two(-exponent)
    low = np.floor(units)
    lower, upper = low, low + 1.0
    if low == units:
        if rest == 0.0:
            lower, upper = units, units
        else:
            # Under a power of two the next value toward zero is half a unit away.
            finer = (
                abs(units) == power_of_two(target.fraction_bits)
                and exponent + target.fraction_bits > target.min_exponent
            )
            inward = 0.5 if finer else 1.0
            if rest > 0.0:
                lower, upper = units, units + (inward if units < 0.0 else 1.0)
            else:
                lower, upper = units - (inward if units > 0.0 else 1.0), units
    result = np.copysign((upper if up else lower) * power_of_two(exponent), value)
    if abs(result) >= target.infinity:
        return np.copysign(np.inf, value), np.inf
    return result, (upper - lower) * power_of_two(exponent)


@njit(nogil=True, cache=True)
def _closed(high, low, least):  # type: ignore[no-untyped-def]
    """(value, rest) of the exact sum of three float64."""
    first, low_rest = _two_sum(low, least)
    second, high_rest = _two_sum(high, first)
    third, last = _two_sum(low_rest, high_rest)
    value, rest = _two_sum(second, third)
    return value, rest if rest != 0.0 else last


@njit(nogil=True, cache=True)
def _expanded(terms, count):  # type: ignore[no-untyped-def]
    """(value, rest) of the exact sum of ``terms[:count]`` (Shewchuk's grow-expansion)."""
    parts = np.zeros(_COMPONENTS, np.float64)
    length = 0
    for i in range(count):
        carried, kept = terms[i], 0
        for j in range(length):
            carried, rest = _two_sum(carried, parts[j])
            if rest != 0.0:
                parts[kept] = rest
                kept += 1
        parts[kept] = carried
        length = kept + 1
    value, rest = parts[length - 1], 0.0
    for j in range(length - 2, -1, -1):
        value, rest = _two_sum(value, parts[j])
        if rest != 0.0:
            break
    return value, rest


@njit(nogil=True, cache=True)
def _drawn_step(acc, gaps, a, b, row, tile, begin, end, keys, site, opposite, target, low, least, spread, terms):  # type: ignore[no-untyped-def]
    """One step for the LANES accumulators ``acc`` (float64); ``low`` to ``terms`` are scratch."""
    high = acc.copy()
    low[:] = 0.0
    least[:] = 0.0
    spread[:] = 0.0
    for k in range(begin, end):
        v = np.float64(a.values[row, k])
        for j in range(LANES):
            high[j], rest = _two_sum(high[j], v * np.float64(b.values[tile, k, j]))
            low[j], rest = _two_sum(low[j], rest)
            least[j], rest = _two_sum(least[j], rest)
            spread[j] += abs(rest)
    for j in range(LANES):
        if np.isfinite(high[j]):
            if spread[j] != 0.0:
                terms[0] = acc[j]
                for k in range(begin, end):
                    terms[k - begin + 1] = np.float64(a.values[row, k]) * np.float64(b.values[tile, k, j])
                value, rest = _expanded(terms, end - begin + 1)
            else:
                value, rest = _closed(high[j], low[j], least[j])
            result, gap = _neighbour(value, rest, _up(keys[j], site, opposite), target)
            gaps[j] += gap * gap
            # A step's zero is +0.0, whatever its sign was.
            acc[j] = result + 0.0
        else:
            acc[j] = high[j]


@njit(nogil=True, cache=True)
def _drawn_chain(acc, gaps, a, b, row, tile, begin, end, fused, keys, opposite, target):  # type: ignore[no-untyped-def]
    """A chain of one product a step for the LANES accumulators ``acc`` (float32)."""
    for k in range(begin, end):
        x = np.float64(a.values[row, k])
        for j in range(LANES):
            product = x * np.float64(b.values[tile, k, j])
            if not fused:
                product, gap = _neighbour(product, 0.0, _up(keys[j], 2 * k, opposite), target)
                gaps[j] += gap * gap
            value, rest = _two_sum(product, np.float64(acc[j]))
            result, gap = _neighbour(value, rest, _up(keys[j], 2 * k + 1, opposite), target)
            gaps[j] += gap * gap
            acc[j] = np.float32(result)


@njit(nogil=True, cache=True)
def _leaf(acc, gaps, a, b, first_row, tile, begin, ends, first_step, p, keys, draws):  # type: ignore[no-untyped-def]
    """Chains of fused steps for the (rows, LANES) accumulators ``acc`` (float32), in place."""
    running = acc.astype(np.float64)
    top, bottom = np.empty(LANES, np.int16), np.empty(LANES, np.int16)
    low, least, spread = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    longest = 0
    previous = begin
    for s in range(ends.size):
        longest = max(longest, ends[s] - previous)
        previous = ends[s]
    terms = np.empty(longest + 1, np.float64)
    for s in range(ends.size):
        for r in range(acc.shape[0]):
            row = first_row + r
            if draws.step:
                _drawn_step(
                    running[r], gaps[r], a, b, row, tile, begin, ends[s], keys[r], first_step + s, draws.opposite,
                    p.target, low, least, spread, terms,
                )  # fmt: skip
            else:
                fused_step(running[r], a, b, row, tile, begin, ends[s], p, top, bottom, low, least)
        begin = ends[s]
    for r in range(acc.shape[0]):
        for j in range(LANES):
            acc[r, j] = np.float32(running[r, j])


@njit(nogil=True, cache=True)
def _combine(stack, depth, op, gaps, target, single, drawn, keys, site, opposite):  # type: ignore[no-untyped-def]
    """ROUND, ADD and ADD_TO_ZERO on the (rows, LANES) values at the top of ``stack``, which holds ``depth``."""
    for r in range(stack.shape[1]):
        for j in range(LANES):
            x = stack[depth - 1, r, j]
            up = _up(keys[r, j], site, opposite)
            if op == _ROUND and drawn:
                result, gap = _neighbour(np.float64(x), 0.0, up, target)
                gaps[r, j] += gap * gap
                stack[depth - 1, r, j] = np.float32(result)
            elif op == _ROUND:
                stack[depth - 1, r, j] = np.float32(rounded_to(np.float64(x), True, target))
            elif op == _ADD and drawn:
                value, rest = _two_sum(np.float64(stack[depth - 2, r, j]), np.float64(x))
                result, gap = _neighbour(value, rest, up, single)
                gaps[r, j] += gap * gap
                stack[depth - 2, r, j] = np.float32(result)
            elif op == _ADD:
                stack[depth - 2, r, j] = np.float32(stack[depth - 2, r, j] + x)
            else:
                stack[depth - 1, r, j] = np.float32(x + np.float32(0.0))


@njit(nogil=True, cache=True)
def _tile(out, gaps, start, given, a, b, first_row, tile, program, targets, is_fused_dot, fused, p, keys, draws):  # type: ignore[no-untyped-def]
    """The stack program for the rows of ``out`` (rows, LANES); see :func:`execute_drawn`."""
    rows = out.shape[0]
    stack = np.empty((program.stack_depth, rows, LANES), np.float32)
    depth = 0
    for i in range(program.rows.shape[0]):
        op, argument = program.rows[i, 0], program.rows[i, 1]
        if op == _LEAF:
            stack[depth] = start
            begin, end = program.leaf_offsets[argument], program.leaf_offsets[argument + 1]
            if is_fused_dot:
                first, last = program.step_offsets[argument], program.step_offsets[argument + 1]
                ends = program.step_ends[first:last]
                _leaf(stack[depth], gaps, a, b, first_row, tile, begin, ends, first, p, keys, draws)
            else:
                for r in range(rows):
                    if draws.step:
                        _drawn_chain(
                            stack[depth, r], gaps[r], a, b, first_row + r, tile, begin, end, fused, keys[r],
                            draws.opposite, targets[0],
                        )  # fmt: skip
                    else:
                        scalar_steps(stack[depth, r], a, b, first_row + r, tile, begin, end, fused)
            depth += 1
        elif op == _OPEN:
            stack[depth] = given
            depth += 1
        else:
            site = draws.first_row + i
            _combine(
                stack, depth, op, gaps, targets[argument], targets[0], draws.rows[i], keys, site, draws.opposite
            )
            if op == _ADD:
                depth -= 1
    out[:] = stack[0]


@njit(nogil=True, cache=True)
def execute_drawn(  # type: ignore[no-untyped-def]
    out, gaps, start, given, a, b, program, targets, is_fused_dot, fused, parameters, draws, first_task, last_task
):
    """As :func:`gemmdesc.arithmetic.kernels.execute`, drawing where ``draws`` (:class:`Draws`) says.

    ``gaps`` (as ``out``, float64) gains the square of the gap at every drawn rounding that lay between two values.
    """
    blocks = (out.shape[0] + _TILE_ROWS - 1) // _TILE_ROWS
    for task in range(first_task, last_task):
        tile, first = task // blocks, task % blocks * _TILE_ROWS
        rows = slice(first, min(first + _TILE_ROWS, out.shape[0]))
        columns = slice(tile * LANES, (tile + 1) * LANES)
        _tile(
            out[rows, columns], gaps[rows, columns], start[rows, columns], given[rows, columns], a, b, first, tile,
            program, targets, is_fused_dot, fused, parameters, draws.keys[rows, columns], draws,
        )  # fmt: skip
