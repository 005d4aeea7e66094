"""Stand-ins for approximate functions, where there is no card to ask: rounded correctly, then bent a little.

Only hardware defines what ``ex2.approx`` and its like give.  What happens under a stand-in says what could happen; what
happens for every one within the bounds of the manual happens on every card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.functions import Bits, Function
from gemmdesc.equivalence.operations import LITERAL
from gemmdesc.errors import InvalidInputError

#: From operands to the units in the last place by which a result is moved away from zero.
Bend = Callable[..., npt.NDArray[np.int64]]
Double = npt.NDArray[np.float64]
_TOP, _INFINITY, _SIGN, _NORMAL = 0x7F7FFFFF, 0x7F800000, np.uint64(0x80000000), np.uint64(0x00800000)
_FRACTION = np.uint64(0x7FFFFF)
_EXACT: Mapping[str, Callable[..., Double]] = {
    "ex2": np.exp2,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}


def _downward(a: Double, b: Double, c: Double) -> Double:
    """a b + c, rounded to float32 towards minus infinity."""
    total = a * b + c
    near = total.astype(np.float32)
    return np.where(near > total, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float64)


#: What the manual fixes but for the sign of a zero, or where a result is flushed: nothing is bent.
_FIXED: Mapping[str, Callable[..., Double]] = {
    "fma.rn.ftz.f32": lambda a, b, c: a * b + c,
    "fma.rm.ftz.f32": _downward,
    "cvt.ftz.sat.f32.f32": lambda x: np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0)),
    "abs.ftz.f32": np.abs,
}


def _by(units: int) -> Bend:
    return lambda *operands: np.full(np.broadcast_shapes(*(x.shape for x in operands)), units, np.int64)


def _scattered(*operands: Bits) -> npt.NDArray[np.int64]:
    """From -2 to 2, by a hash of the operands."""
    word = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for operand in operands:
            word = (word ^ operand) * np.uint64(0x9E3779B97F4A7C15)
            word = word ^ (word >> np.uint64(29))
    return (word % np.uint64(5)).astype(np.int64) - 2


#: Functions that a manual's bound of two units in the last place allows, by name.
STAND_INS: Mapping[str, Bend] = {
    "rounded correctly": _by(0),
    "two units up": _by(2),
    "two units down": _by(-2),
    "scattered": _scattered,
}
#: Twice what the manual allows.
LARGEST_BEND = 4


def stand_in(name: str, bend: Bend) -> Function:
    """The function of an approximate float32 instruction; zeros, infinities and NaN stay what they are.

    A quotient by a power of two is exact, as answers assume of literal ones.

    Raises:
        InvalidInputError: no stand-in is known.
    """
    stem = name.split(".")[0]
    fixed = _FIXED.get(name)
    if fixed is None and (stem not in _EXACT or not name.removesuffix(LITERAL).endswith(".f32")):
        raise InvalidInputError(f"name must be an instruction in float32 of {', '.join(_EXACT)} (got {name})")
    function = _EXACT[stem] if fixed is None else fixed
    flushes = ".ftz" in name

    def run(*operands: Bits) -> Bits:
        if flushes:
            operands = tuple(np.where((x & ~_SIGN) < _NORMAL, x & _SIGN, x) for x in operands)
        with np.errstate(all="ignore"):
            values = function(*(x.astype(np.uint32).view(np.float32).astype(np.float64) for x in operands))
            made = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        size = (made & ~_SIGN).astype(np.int64)
        units = np.zeros_like(size) if fixed is not None else bend(*operands)
        if stem == "div":
            units = np.where(operands[1] & _FRACTION, units, 0)
        bent = np.clip(size + units, 1, _TOP).astype(np.uint64) | (made & _SIGN)
        made = np.where((size == 0) | (size >= _INFINITY), made, bent)
        if flushes:
            made = np.where((made & ~_SIGN) < _NORMAL, made & _SIGN, made)
        return np.where(np.isnan(values), np.uint64(0x7FFFFFFF), made)

    return run


def largest(name: str) -> Function:
    """A function that is at least as far from zero as any within the manual's bound, and no power of two."""
    return _bound(name, 1)


def smallest(name: str) -> Function:
    """A function that is at least as close to zero as any within the manual's bound, and no power of two."""
    return _bound(name, -1)


def _bound(name: str, sign: int) -> Function:
    function = stand_in(name, _by(sign * LARGEST_BEND))

    def run(*operands: Bits) -> Bits:
        # By a power of two, which this could be by chance, a stand-in divides exactly.
        made = function(*operands)
        size = (made & ~_SIGN).astype(np.int64)
        chance = (size > 0) & (size < _INFINITY) & (made & _FRACTION == 0)
        return np.where(chance, np.clip(size + sign, 1, _TOP).astype(np.uint64) | (made & _SIGN), made)

    return run
