"""Making nodes for whole arrays of lanes: the loops over the functions of ``nodes``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gemmdesc.equivalence.nodes import (
    attribute_one,
    chain_one,
    concat_one,
    constant_one,
    extract_one,
    longer_one,
    make_one,
)


@njit(nogil=True, cache=True)
def make_many(s: Any, op: Any, width: Any, count: Any, a: Any, b: Any, c: Any, d: Any, out: Any) -> None:
    """:func:`make_one` for each lane; arrays of one element are shared by all lanes."""
    for i in range(len(out)):
        out[i] = make_one(s, op, width, count, a[i % len(a)], b[i % len(b)], c[i % len(c)], d[i % len(d)])


@njit(nogil=True, cache=True)
def attribute_many(s: Any, op: Any, width: Any, x: Any, y: Any, out: Any) -> None:
    """Nodes that have two integers and no children."""
    for i in range(len(out)):
        out[i] = attribute_one(s, op, width, x[i % len(x)], y[i % len(y)])


@njit(nogil=True, cache=True)
def constant_many(s: Any, bits: Any, width: Any, out: Any) -> None:
    """Constants with the given patterns."""
    for i in range(len(out)):
        out[i] = constant_one(s, np.int64(bits[i]), width)


@njit(nogil=True, cache=True)
def extract_many(s: Any, node: Any, offset: Any, width: Any, out: Any) -> None:
    """:func:`extract_one` for each lane."""
    for i in range(len(out)):
        out[i] = extract_one(s, node[i], offset, width)


@njit(nogil=True, cache=True)
def pieces_many(s: Any, node: Any, width: Any, out: Any) -> None:
    """:func:`extract_one` of neighbouring pieces."""
    for k in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[k, i] = extract_one(s, node[i], k * width, width)


@njit(nogil=True, cache=True)
def streams_many(s: Any, code: Any, words: Any, out: Any) -> None:
    """Tuples of what four lanes hold, and of such tuples where there are several registers (two or four)."""
    part = np.zeros(4, np.int64)
    count = words.shape[0]
    for i in range(len(out)):
        for k in range(count):
            w = words[k, 4 * i : 4 * i + 4]
            part[k] = make_one(s, code, 16, 4, w[0], w[1], w[2], w[3])
        out[i] = part[0] if count == 1 else make_one(s, code, 16 * count, count, part[0], part[1], part[2], part[3])


@njit(nogil=True, cache=True)
def concat_many(s: Any, low: Any, high: Any, out: Any) -> None:
    """:func:`concat_one` for each lane."""
    for i in range(len(out)):
        out[i] = concat_one(s, low[i % len(low)], high[i % len(high)])


@njit(nogil=True, cache=True)
def longer_many(s: Any, steps: Any, stream: Any, out: Any) -> None:
    """:func:`longer_one` for each list."""
    for i in range(len(out)):
        out[i] = longer_one(s, steps[i % len(steps)], stream[i])


@njit(nogil=True, cache=True)
def chain_many(s: Any, op: Any, width: Any, rows: Any, columns: Any, start: Any, out: Any) -> None:
    """:func:`chain_one` for each lane."""
    for i in range(len(out)):
        out[i] = chain_one(s, op, width, rows[i], columns[i], start[i])
