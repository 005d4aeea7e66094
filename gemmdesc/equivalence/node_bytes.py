"""Bitwise operations on data, as moves of bytes where they are no more than that."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gemmdesc.equivalence.nodes import CONSTANT, concat_one, constant_one, extract_one, make_one


@njit(nogil=True, cache=True)
def bytes_many(s: Any, op: Any, a: Any, b: Any, width: Any, mode: Any, out: Any) -> None:
    """A bitwise operation on data, as a move of bytes where it is one, else as a node of ``op``.

    ``mode`` 0 is ``or``, 1 is ``and``, 2 is a shift left, 3 a logical shift right; shifts count in constants.
    """
    piece = np.zeros(8, np.int64)
    zero = constant_one(s, np.int64(0), 1)
    for i in range(len(out)):
        x, y = a[i % len(a)], b[i % len(b)]
        if x == 0 or y == 0:
            out[i] = 0
            continue
        moved = True
        if mode >= 2:
            shift = s.attribute[y, 0]
            moved = s.op[y] == CONSTANT and shift % 8 == 0 and shift < 8 * width
            if moved:
                for j in range(width):
                    source = j - shift // 8 if mode == 2 else j + shift // 8
                    piece[j] = extract_one(s, x, source, 1) if 0 <= source < width else zero
        else:
            keep = np.int64(0) if mode == 0 else np.int64(255)
            for j in range(width):
                p, q = extract_one(s, x, j, 1), extract_one(s, y, j, 1)
                if s.op[p] == CONSTANT:
                    p, q = q, p
                if s.op[q] != CONSTANT:
                    moved = False
                    break
                value = s.attribute[q, 0]
                if s.op[p] == CONSTANT:
                    both = s.attribute[p, 0] | value if mode == 0 else s.attribute[p, 0] & value
                    piece[j] = constant_one(s, both, 1)
                elif value == keep:
                    piece[j] = p
                elif value == 255 - keep:
                    piece[j] = q
                else:
                    moved = False
                    break
        out[i] = join(s, piece, width) if moved else make_one(s, op, width, 2, x, y, 0, 0)


@njit(nogil=True, cache=True)
def join(s: Any, piece: Any, width: Any) -> Any:
    """``width`` one-byte nodes as one value; uses ``piece`` up."""
    count = width
    while count > 1:
        count //= 2
        for j in range(count):
            piece[j] = concat_one(s, piece[2 * j], piece[2 * j + 1])
    return piece[0]
