"""Directed rounding of float64 lanes to any format, and what float64 operations leave out.

One program for NumPy arrays and torch tensors: ``xp`` is the module, ``numpy`` or ``torch``, and lanes are its float64
arrays.  Only operations that IEEE 754 fixes are used, so both give the same bits.

An exact result z travels as ``(value, rest)``: ``value`` is z rounded to nearest in float64, and ``rest`` has the sign
of z - ``value`` (its size is not used).  The error-free transformations are those of Knuth and Dekker
(J.-M. Muller et al., *Handbook of Floating-Point Arithmetic*, 2nd ed., 4.3 and 4.4).
"""

from __future__ import annotations

from typing import Any

from gemmdesc.numerics.stochastic.formats import RoundingFormat

#: The module ``numpy`` or ``torch``.
Namespace = Any
#: A float64 (or, where said, bool or int64) array of that module.
Lanes = Any

_SPLITTER = 134217729.0


def power_of_two(xp: Namespace, exponent: Lanes) -> Lanes:
    """2^``exponent`` for int64 lanes in [-1022, 1023]."""
    return ((exponent + 1023) << 52).view(xp.float64)


def scaled(xp: Namespace, x: Lanes, exponent: Lanes) -> Lanes:
    """x 2^``exponent`` in two factors, so that neither overflows where the result does not."""
    half = exponent >> 1
    return x * power_of_two(xp, half) * power_of_two(xp, exponent - half)


def quantum_exponents(xp: Namespace, x: Lanes, fmt: RoundingFormat) -> Lanes:
    """The exponent of one unit in the last place of ``fmt`` at finite ``x`` (int64)."""
    leading = ((xp.abs(x).view(xp.int64) >> 52) & 0x7FF) - 1023
    return leading.clip(fmt.min_exponent, None) - fmt.fraction_bits


def round_directed(xp: Namespace, value: Lanes, rest: Lanes, up: Lanes, fmt: RoundingFormat) -> Lanes:
    """The neighbour of z = (``value``, ``rest``) in ``fmt``: above it where ``up`` (bool), else below; or z itself.

    A finite z whose neighbour lies beyond ``fmt.largest`` becomes infinity (or ``largest``, where the format
    saturates), also when rounded toward zero from beyond; a z that becomes 0 keeps its sign.  NaN and infinities pass,
    but that a saturating format clamps infinities.
    """
    finite = xp.isfinite(value)
    v = xp.where(finite, value, 0.0)
    q = quantum_exponents(xp, v, fmt)
    units = scaled(xp, v, -q)
    low = xp.floor(units)
    on_grid = low == units
    above = on_grid & (rest > 0)
    below = on_grid & (rest < 0)
    # Under a power of two the next value toward zero is half a unit away.
    leading = xp.abs(units) == float(1 << fmt.fraction_bits)
    finer = leading & (q + fmt.fraction_bits > fmt.min_exponent)
    inward = xp.where(finer, 0.5, 1.0)
    lower = xp.where(below, units - xp.where(units > 0, inward, 1.0), low)
    upper = xp.where(above, units + xp.where(units < 0, inward, 1.0), xp.where(on_grid, units, low + 1.0))
    chosen = xp.copysign(scaled(xp, xp.where(up, upper, lower), q), v)
    return xp.where(finite | fmt.saturates, _bounded(xp, xp.where(finite, chosen, value), fmt), value)


def round_nearest(xp: Namespace, value: Lanes, fmt: RoundingFormat) -> Lanes:
    """``value`` rounded to nearest even in ``fmt``."""
    finite = xp.isfinite(value)
    v = xp.where(finite, value, 0.0)
    q = quantum_exponents(xp, v, fmt)
    chosen = xp.copysign(scaled(xp, xp.round(scaled(xp, v, -q)), q), v)
    return xp.where(finite | fmt.saturates, _bounded(xp, xp.where(finite, chosen, value), fmt), value)


def round_kicked(xp: Namespace, value: Lanes, away: Lanes, fmt: RoundingFormat) -> Lanes:
    """The rule of arXiv 2607.25494: a neighbour of ``value`` away from zero or toward it, never ``value`` itself.

    Both neighbours of a representable value are one unit of its own binade away.  Zero, NaN and infinities pass; what
    exceeds ``fmt.largest`` becomes infinity.
    """
    finite = xp.isfinite(value) & (value != 0)
    v = xp.where(finite, value, 1.0)
    q = quantum_exponents(xp, v, fmt)
    units = scaled(xp, xp.abs(v), -q)
    low = xp.floor(units)
    toward = xp.where(low == units, (low - 1.0).clip(0.0, None), low)
    chosen = xp.copysign(scaled(xp, xp.where(away, low + 1.0, toward), q), v)
    infinite = xp.copysign(xp.full_like(v, float("inf")), v)
    return xp.where(finite, xp.where(xp.abs(chosen) > fmt.largest, infinite, chosen), value)


def _bounded(xp: Namespace, x: Lanes, fmt: RoundingFormat) -> Lanes:
    limit = xp.full_like(x, fmt.largest if fmt.saturates else float("inf"))
    return xp.where(xp.abs(x) > fmt.largest, xp.copysign(limit, x), x)


def add_exact(xp: Namespace, x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """x + y."""
    total = x + y
    part = total - x
    rest = (x - (total - part)) + (y - part)
    return total, xp.where(xp.isfinite(total), rest, 0.0)


def multiply_exact(xp: Namespace, x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """x y, over the whole range of float64."""
    product = x * y
    (a, p), (b, q) = _parts(xp, x), _parts(xp, y)
    high, low = _two_product(a, b)
    # Where the product is subnormal it was rounded on a coarser grid than ``high``.
    rest = (high - scaled(xp, product, _bare(-(p + q)))) + low
    return product, xp.where(_usable(xp, x) & _usable(xp, y) & xp.isfinite(product), rest, 0.0)


def divide_exact(xp: Namespace, x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """x / y."""
    quotient = x / y
    (a, p), (b, q) = _parts(xp, x), _parts(xp, y)
    plain = a / b
    high, low = _two_product(plain, b)
    left = ((a - high) - low) / b
    rest = (plain - scaled(xp, quotient, _bare(q - p))) + left
    return quotient, xp.where(_usable(xp, x) & _usable(xp, y) & xp.isfinite(quotient), rest, 0.0)


def root_exact(xp: Namespace, x: Lanes) -> tuple[Lanes, Lanes]:
    """The square root of x.

    torch's may be one unit off (vector libraries promise no more), so a Newton step rounds it to nearest.
    """
    positive = _usable(xp, x) & (x > 0)
    a, p = _parts(xp, xp.where(positive, x, 1.0))
    odd = p & 1
    a, half = xp.where(odd == 1, 2.0 * a, a), (p - odd) >> 1
    guess = xp.sqrt(a)
    root = guess + _short_of_square(a, guess) / (2.0 * guess)
    rest = _short_of_square(a, root)
    return xp.where(positive, scaled(xp, root, half), xp.sqrt(x)), xp.where(positive, rest, 0.0)


def _short_of_square(a: Lanes, root: Lanes) -> Lanes:
    high, low = _two_product(root, root)
    return (a - high) - low


def _usable(xp: Namespace, x: Lanes) -> Lanes:
    return xp.isfinite(x) & (x != 0)


def _bare(exponent: Lanes) -> Lanes:
    """Exponents that :func:`scaled` takes; beyond them the scaled value is 0 or was infinite."""
    return exponent.clip(-2000, 2000)


def _parts(xp: Namespace, x: Lanes) -> tuple[Lanes, Lanes]:
    """x as a 2^p with 0.5 <= \\|a\\| < 1 and int64 p; anything without such parts as 0.5, 0."""
    mantissa, exponent = xp.frexp(xp.where(_usable(xp, x), x, 0.5))
    return mantissa, xp.asarray(exponent, dtype=xp.int64)


def _two_product(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    product = x * y
    big, more = _SPLITTER * x, _SPLITTER * y
    x_high = big - (big - x)
    y_high = more - (more - y)
    x_low, y_low = x - x_high, y - y_high
    return product, ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
