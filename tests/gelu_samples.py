"""A stand-in for a card's ``tanh.approx.f32``, and every form of gelu by it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from gemmdesc.descriptor import GeluArgument, GeluResult, GeluTanhApprox

FORMS = tuple(GeluTanhApprox(argument=a, result=r) for a, r in product(GeluArgument, GeluResult))


def stand_in_tanh(x: Any) -> Any:
    """Off the tangent as an approximation is: its 11 lowest bits come of a hash, but for small or large x."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        found = np.tanh(x.astype(np.float64)).astype(np.float32).view(np.uint32)
        noise = (x.view(np.uint32) * np.uint32(0x9E3779B1)) >> np.uint32(21)
        rough = (np.abs(x) > 2.0**-12) & (np.abs(x) < 3.0)
    return np.where(rough, found ^ noise, found).view(np.float32)
