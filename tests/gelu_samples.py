"""A stand-in for a card's ``tanh.approx.f32``, and every form of gelu by it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from gemmdesc.descriptor import GeluArgument, GeluResult, GeluTanhApprox

FORMS = tuple(GeluTanhApprox(argument=a, result=r) for a, r in product(GeluArgument, GeluResult))


def stand_in_tanh(x: Any) -> Any:
    """Nearly the same values, about as coarse: a float32 tangent rounded to 18 bits."""
    with np.errstate(all="ignore"):
        found = np.tanh(np.asarray(x, np.float64)).astype(np.float32)
    return ((found.view(np.uint32) + np.uint32(0x20)) & np.uint32(0xFFFFFFC0)).view(np.float32)
