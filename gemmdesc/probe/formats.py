"""How float32 operands take part: the bits of each that are multiplied, and whether a product is rounded by itself.

16-bit operands and their products are exact wherever they go; those of float32 are not, so that both show here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gemmdesc.descriptor import GEMMDesc, OperandCast, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.probe.experiments import Floats, Reader
from gemmdesc.probe.reading import OperandFormat, Reading
from gemmdesc.probe.tree import Tree, chain_pairs
from gemmdesc.rule import Rule

_BITS = DType.FLOAT32.format.fraction_bits
#: Pairs of sites that are tried.
_PAIRS = 192


def read_formats(reader: Reader) -> tuple[OperandFormat, OperandFormat]:
    """What is kept of the operand that the patterns lie in, and of the other one; both must be of float32.

    Products with 1 at k = 0, which must be summed, and float32 outputs: 1 + 2^-d comes out as it is as long as the
    operand keeps d bits; three quarters of the last one, and ties above an even and an odd value, show the rounding.
    """

    def walked(values: Sequence[float]) -> Floats:
        return reader.values([((0, v),) for v in values])

    def steady(values: Sequence[float]) -> Floats:
        return np.concatenate([reader.values([((0, 1.0),)], other=v) for v in values])

    return _format(walked), _format(steady)


def _format(ask: Callable[[Sequence[float]], Floats]) -> OperandFormat:
    depths = range(1, _BITS + 1)
    wanted = [1.0 + 2.0**-d for d in depths]
    kept = [d for d, w, got in zip(depths, wanted, ask(wanted), strict=True) if w == got]
    bits = len(kept)
    if kept != list(range(1, bits + 1)) or bits == 0:
        return OperandFormat(fraction_bits=None, rounding=None)
    if bits == _BITS:
        return OperandFormat(fraction_bits=bits, rounding=None)
    last = 2.0**-bits
    most, even, odd = ask([1.0 + 0.75 * last, 1.0 + 0.5 * last, 1.0 + 1.5 * last]).tolist()
    outcomes = {
        Rounding.TOWARD_ZERO: (1.0, 1.0, 1.0 + last),
        Rounding.NEAREST_EVEN: (1.0 + last, 1.0, 1.0 + 2.0 * last),
        Rounding.NEAREST_AWAY: (1.0 + last, 1.0 + last, 1.0 + 2.0 * last),
    }
    rounding = next((r for r, values in outcomes.items() if values == (most, even, odd)), None)
    return OperandFormat(fraction_bits=None if rounding is None else bits, rounding=rounding)


def read_fused_products(reader: Reader, tree: Tree) -> bool | None:
    """Whether float32 products enter their sums unrounded; None where no two sites of ``tree`` can tell.

    -1 and x = 1 + 2^-12 at two k, both times x: -x + x^2 is 2^-12 + 2^-24, whose last bit is lost where the product
    is rounded before it is added.  Two sites of one chain show it: pairs are those of which one is added by itself to a
    sum that holds the other, whichever of the two is the later one.
    """
    x = 1.0 + 2.0**-12
    pairs = chain_pairs(tree)[:_PAIRS]
    if not pairs:
        return None
    got = reader.values([((i, -1.0), (j, x)) for one in pairs for i, j in (one, one[::-1])], other=x)
    if not np.isin(got, (2.0**-12, 2.0**-12 + 2.0**-24)).all():
        return None
    return bool((got != 2.0**-12).any())


def operand_casts(readings: Sequence[Reading]) -> tuple[OperandCast | None, OperandCast | None] | None:
    """The casts of A and B that all readings show; None where one of them fits no cast, or two contradict."""
    found: list[OperandCast | None] = []
    for name in ("a_format", "b_format"):
        formats = {getattr(r, name) for r in readings} - {None}
        if len(formats) > 1:
            return None
        kept: OperandFormat | None = next(iter(formats), None)
        if kept is None or kept.fraction_bits == _BITS:
            found.append(None)
        elif kept.rounding is not None and kept.fraction_bits == DType.TFLOAT32.format.fraction_bits:
            found.append(OperandCast(dtype=DType.TFLOAT32, rounding=kept.rounding))
        else:
            return None
    return found[0], found[1]


def with_formats(rules: Sequence[Rule], readings: Sequence[Reading]) -> tuple[Rule, ...]:
    """Rules of scalar chains with the casts, and with products rounded by themselves, where the readings show it.

    A fused product in any reading is one in all: where few k are summed, sites that seem to follow one another may be
    lanes of a single product each.  Empty where the readings contradict one another.
    """
    casts = operand_casts(readings)
    if casts is None:
        return ()
    seen = {r.fused_products for r in readings}
    return tuple(_with(rule, casts, True in seen or False not in seen) for rule in rules)


def _with(rule: Rule, casts: tuple[OperandCast | None, OperandCast | None], fused: bool) -> Rule:
    def formed(desc: GEMMDesc) -> GEMMDesc:
        leaf = desc.accumulator
        if isinstance(leaf.step, ScalarStep):
            leaf = replace(leaf, step=replace(leaf.step, fused=fused))
        return replace(desc, accumulator=leaf, a_cast=casts[0], b_cast=casts[1])

    return rule.restructured(formed)
