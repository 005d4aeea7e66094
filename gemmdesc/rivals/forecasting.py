"""The compiled part of the forecast: the leaves of one sparse row after the other, then the fold of a block of rows.

Everything is done in float64.  Values are products of two operands of at most 32 bits and sums of those, so that they
are within 2^-300 and 2^300, or special, and the powers of two below are normal numbers.  Arrays are allocated by the
caller, which saves compiling it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from gemmdesc.schedule import Op

#: Rows folded together, a constant so that the inner loops have a known length.
LANES = 64
#: max(x, +0.0), an instruction beside those of :class:`gemmdesc.schedule.Op`; NaN becomes +0.0.
# Of its own, and not the next one after Op: Numba keeps what it compiled as long as this file stays, whatever Op gains.
RELU = 64
_LEAF, _ROUND, _ADD = int(Op.LEAF), int(Op.ROUND), int(Op.ADD)
#: Above every finite exponent, and low enough for powers of two to stay normal.
_EXPONENT_CAP = 400
#: A key is the number of a step, shifted, and an element's place in its row.
_SHIFT, _PLACE = 32, (1 << 32) - 1

#: Compiled code alone calls these, so that nothing is compiled to call them from elsewhere.
_inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Step(NamedTuple):
    """An accumulator's step as plain numbers: ``fused`` of a scalar step, and what follows it of a fused dot."""

    is_fused_dot: bool
    fused: bool
    fraction_bits: int
    zero_exponent: int
    nearest: bool
    output_bits: int
    min_exponent: int


@_inner
def _exponent(value):  # type: ignore[no-untyped-def]
    return ((np.float64(value).view(np.int64) >> 52) & 0x7FF) - 1023


@_inner
def _power_of_two(exponent):  # type: ignore[no-untyped-def]
    return np.int64((exponent + 1023) << 52).view(np.float64)


@_inner
def _rounded(value, bits, least, nearest):  # type: ignore[no-untyped-def]
    """``value`` to ``bits`` below its leading bit, whose exponent counts as ``least`` at least; no overflow."""
    exponent = min(max(_exponent(value), least), 1023) - bits
    scaled = value * _power_of_two(-exponent)
    return (np.rint(scaled) if nearest else np.trunc(scaled)) * _power_of_two(exponent)


@_inner
def _fused_dot(acc, products, keys, first, last, step):  # type: ignore[no-untyped-def]
    """``acc`` after a step over the ``products`` at the places in ``keys[first:last]``.

    Alignment leaves multiples of one power of two, which sum to less than 2^53 of it: the sum is exact in any order.
    """
    top = step.zero_exponent
    if acc != 0.0:
        top = max(top, max(_exponent(acc), step.min_exponent))
    for i in range(first, last):
        x = products[keys[i] & _PLACE]
        if x != 0.0:
            top = max(top, _exponent(x))
    top = min(top, _EXPONENT_CAP)
    scale = _power_of_two(step.fraction_bits - top)
    total = np.trunc(acc * scale)
    for i in range(first, last):
        total += np.trunc(products[keys[i] & _PLACE] * scale)
    total *= _power_of_two(top - step.fraction_bits)
    # An exact zero comes out as +0.0.
    return _rounded(total, step.output_bits, step.min_exponent, step.nearest) + 0.0


@_inner
def _sort(keys, count):  # type: ignore[no-untyped-def]
    """Put ``keys[:count]`` in ascending order; they are few, or ascend already in long runs."""
    gap = 1
    while 3 * gap < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, j = keys[i], i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 3


@_inner
def _leaf_sums(sums, lane, slots, step_of, leaf_of, k, products, keys, step):  # type: ignore[no-untyped-def]
    """One row: its elements by step, a chain of steps for each leaf; leaf i's sum goes to ``sums[slots[i], lane]``."""
    # Integers of one type, not literals, so that what they are handed to is compiled once.
    count, first, previous = np.int64(0), np.int64(0), np.int64(-1)
    for e in range(k.size):
        repeats = e > 0 and k[e] == k[0] and products[e] == 0.0
        step_number = np.int64(step_of[k[e]])
        if step_number >= 0 and not repeats:
            keys[count] = (step_number << _SHIFT) | e
            count += 1
    _sort(keys, count)
    acc = 0.0
    while first < count:
        last = first + 1
        while last < count and keys[last] >> _SHIFT == keys[first] >> _SHIFT:
            last += 1
        leaf = leaf_of[keys[first] >> _SHIFT]
        if leaf != previous:
            acc = 0.0
        if step.is_fused_dot:
            acc = _fused_dot(acc, products, keys, first, last, step)
        else:
            # A step of one k has one product, which others at the same k repeat as zero: exact in any order.
            product = 0.0
            for i in range(first, last):
                product += products[keys[i] & _PLACE]
            if not step.fused:
                product = np.float64(np.float32(product))
            acc = np.float64(np.float32(acc + product))
        sums[slots[leaf], lane] = acc
        previous, first = leaf, last


@_inner
def _fold(sums, slots, program, targets, stack, present):  # type: ignore[no-untyped-def]
    """Run ``program`` on a block of rows, which leaves its values in ``stack[0]``; ``sums`` is +0.0 again after that.

    What comes of untouched leaves alone is not ``present``: it is +0.0 in every row, and adding it rounds nothing.
    """
    depth = 0
    for i in range(program.shape[0]):
        op, argument = program[i, 0], program[i, 1]
        if op == _LEAF:
            slot = slots[argument]
            present[depth] = slot >= 0
            for j in range(LANES):
                stack[depth, j] = sums[slot, j]
                sums[slot, j] = 0.0
            depth += 1
        elif op == _ADD:
            depth -= 1
            rounds = present[depth - 1] and present[depth]
            present[depth - 1] |= present[depth]
            for j in range(LANES):
                total = stack[depth - 1, j] + stack[depth, j]
                stack[depth - 1, j] = np.float64(np.float32(total)) if rounds else total
        elif op == _ROUND:
            bits, least, infinity = int(targets[argument, 0]), int(targets[argument, 1]), targets[argument, 2]
            # True, but no literal, for which the function would be compiled again.
            nearest = op == _ROUND
            for j in range(LANES):
                x = _rounded(stack[depth - 1, j], bits, least, nearest)
                stack[depth - 1, j] = np.copysign(np.inf, x) if abs(x) >= infinity else x
        else:
            for j in range(LANES):
                x = stack[depth - 1, j]
                stack[depth - 1, j] = x + 0.0 if op != RELU or x > 0.0 else 0.0


@njit(nogil=True, cache=True)
def execute(out, k, products, step_of, leaf_of, program, targets, step, slots, sums, stack, present, keys):  # type: ignore[no-untyped-def]
    """Write into ``out`` (T,) what ``program`` makes of T sparse rows, NaN in its canonical form.

    ``k``, ``products``: (T, E).  ``step_of``, ``leaf_of``: a :class:`gemmdesc.rivals.sparse.Places`.  ``step``: a
    :class:`Step`.  ``program``: rows (instruction, argument); a rounding's argument is a row of ``targets``: fraction
    bits, least exponent, where infinity begins.

    Scratch: ``slots`` (leaves,), -1 throughout; ``sums``, +0.0 throughout, of ``LANES`` columns and of one row more
    than leaves that have an element; ``stack``, as deep as the program needs, and ``present`` beside it; ``keys`` (E,).
    """
    # Leaf i's sums are in row slots[i].  Those that no row touches keep slot -1: the last row, which stays +0.0.
    touched = 0
    for t in range(k.shape[0]):
        for e in range(k.shape[1]):
            leaf = leaf_of[step_of[k[t, e]]]
            if leaf >= 0 and slots[leaf] < 0:
                slots[leaf] = touched
                touched += 1
    for first in range(0, out.size, LANES):
        count = min(LANES, out.size - first)
        for j in range(count):
            _leaf_sums(sums, j, slots, step_of, leaf_of, k[first + j], products[first + j], keys, step)
        _fold(sums, slots, program, targets, stack, present)
        for j in range(count):
            x = stack[0, j]
            out[first + j] = x if x == x else np.nan
