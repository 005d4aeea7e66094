# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Folds of a nest of lanes: sums by number, added digit by digit of it, each digit's parts as one ascending chain.

Halves of a tile are added as they are: a reduction of Triton's would choose the order by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemmdesc.kernels.tile import minus_zero

#: The fold over blocks, coded as lanes' folds are, and how many it has room for at a time.
BLOCK_DIGITS = tl.constexpr(0x02_13_29_31)
_BLOCK_PLACES = tl.constexpr(128)
#: Parts whose sums are loaded at once.
_TOGETHER = tl.constexpr(16)


@triton.jit
def halves(tile):
    """The lower and the upper half of a tile's last axis."""
    rows: tl.constexpr = tile.shape[0]
    width: tl.constexpr = tile.shape[1]
    return tl.split(tl.permute(tl.reshape(tile, (rows, 2, width // 2)), (0, 2, 1)))


@triton.jit
def joined(total, tile):
    """``total`` (rows, 1) plus the columns of ``tile``, one after the other."""
    if tile.shape[1] == 1:
        return total + tile
    elif tile.shape[1] == 2:
        low, high = halves(tile)
        return (total + low) + high
    elif tile.shape[1] == 4:
        low, high = halves(tile)
        a, b = halves(low)
        c, d = halves(high)
        return (((total + a) + b) + c) + d
    else:
        tl.static_assert(tile.shape[1] == 8)
        low, high = halves(tile)
        a, b = halves(low)
        c, d = halves(high)
        e, f = halves(a)
        g, h = halves(b)
        i, j = halves(c)
        o, p = halves(d)
        return (((((((total + e) + f) + g) + h) + i) + j) + o) + p


@triton.jit
def fold_digit(tile, LOW: tl.constexpr, BITS: tl.constexpr):
    """Sums (rows, 2^n) by number to (rows, 2^(n - BITS)): the parts that differ in one digit, ascending, as a chain."""
    rows: tl.constexpr = tile.shape[0]
    width: tl.constexpr = tile.shape[1]
    below: tl.constexpr = 2**LOW
    parts: tl.constexpr = 2**BITS
    above: tl.constexpr = width // below // parts
    by_part = tl.permute(tl.reshape(tile, (rows, above, parts, below)), (0, 1, 3, 2))
    flat = tl.reshape(by_part, (rows * above * below, parts))
    low, high = halves(flat)
    if BITS == 1:
        total = low + high
    elif BITS == 2:
        a, b = halves(low)
        total = joined(a + b, high)
    else:
        a, b = halves(low)
        if BITS == 3:
            c, d = halves(a)
            total = joined(joined(c + d, b), high)
        else:
            tl.static_assert(BITS == 4)
            c, d = halves(a)
            e, f = halves(c)
            total = joined(joined(joined(e + f, d), b), high)
    return tl.reshape(total, (rows, above * below))


@triton.jit
def fold_digits(tile, DIGITS: tl.constexpr, COUNT: tl.constexpr):
    """(rows, 2^n) to (rows,), digit by digit, the code's lowest one first; a digit's place is among those left.

    A digit's code has eight bits, of which three are its length.
    """
    for i in tl.static_range(COUNT):
        tile = fold_digit(tile, (DIGITS >> (8 * i + 3)) % 32, (DIGITS >> (8 * i)) % 8)
    return tl.reshape(tile, (tile.shape[0],))


@triton.jit
def fold_parts(scratch_ptr, apart, parts, OUTPUTS: tl.constexpr):
    """The sums of one tile, of every part, added in turn."""
    ptrs = scratch_ptr + tl.arange(0, OUTPUTS)
    total = tl.load(ptrs, cache_modifier=".cg")
    for begin in range(1, parts, _TOGETHER):
        for i in tl.static_range(_TOGETHER):
            there = tl.full((OUTPUTS,), begin + i, dtype=tl.int32) < parts
            total += tl.load(ptrs + (begin + i) * apart, mask=there, other=minus_zero(tl.float32), cache_modifier=".cg")
    return total


@triton.jit
def fold_blocks(scratch_ptr, apart, parts, blocks, start, OUTPUTS: tl.constexpr):
    """The sums of one tile, of every block, by the digits of its number; blocks of one number modulo 128 in turn.

    A block without k, and a group without a block, sum to what an empty chain gives.
    """
    block = tl.arange(0, _BLOCK_PLACES)[None, :]
    ptrs = scratch_ptr + tl.arange(0, OUTPUTS)[:, None] + block * apart
    there = tl.broadcast_to(block < parts, (OUTPUTS, _BLOCK_PLACES))
    total = tl.load(ptrs, mask=there, other=start, cache_modifier=".cg")
    for begin in range(_BLOCK_PLACES, blocks, _BLOCK_PLACES):
        there = tl.broadcast_to(block + begin < parts, (OUTPUTS, _BLOCK_PLACES))
        known = tl.load(ptrs + begin * apart, mask=there, other=start, cache_modifier=".cg")
        total += tl.where(block + begin < blocks, known, minus_zero(tl.float32))
    return fold_digits(total, BLOCK_DIGITS, 4)
