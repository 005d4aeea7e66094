"""Directions of rounding from a counter: keyed by (seed, operation, element), the same from NumPy and torch."""

from __future__ import annotations

import math
from typing import Any

from gemmdesc.operands.lanes import absorb, field, row_words

#: One word of an element holds the directions of all samples.
MOST_SAMPLES = 64


def directions(
    xp: Any, shape: tuple[int, ...], *, seed: int, operation: int, samples: int, antithetic: bool, like: Any
) -> Any:
    """Bool lanes (samples, \\*shape): whether each sample of each element is rounded up.

    With ``antithetic`` the last sample takes the opposite of the one before it, so that the samples of an inexact
    result never all agree; its marginal stays a fair coin.  ``like``: lanes of ``xp`` whose device is used.
    """
    where = {"device": like.device} if hasattr(like, "is_cuda") else {}
    index = xp.arange(math.prod(shape), dtype=xp.int64, **where)
    words = row_words(absorb(seed, operation), index).reshape(shape)
    drawn = [field(words, j, 1) == 1 for j in range(samples)]
    if antithetic:
        drawn[-1] = ~drawn[-2]
    return xp.stack(drawn, 0)
