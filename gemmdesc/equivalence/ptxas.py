"""What ptxas makes of float instructions that PTX does not say: products fused, scaled, dropped, and known constants.

Each rule was read from what ptxas 12.8 to 13.4 assemble; ``tests/test_equivalence_soundness.py`` has the texts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence import nodes
from gemmdesc.equivalence.extremes import dropping, may_be_extreme
from gemmdesc.equivalence.literals import is_literal
from gemmdesc.equivalence.machine import Machine
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.operations import LITERAL
from gemmdesc.equivalence.refusal import RefusalError
from gemmdesc.equivalence.syntax import Instruction
from gemmdesc.equivalence.values import FUSIBLE_PRODUCT, GUARDED_PRODUCT, NO_PRODUCT, Mask, Value

ROUNDINGS = frozenset(("rn", "rz", "rm", "rp"))
#: Operations on one value.
UNARY = ("neg", "abs", "ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt")
_EXACT = ("neg", "abs")
#: Exponent bits and fraction bits, to take a constant apart.
_FIELDS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
#: Powers of two that a product's result can be scaled by at once (2, 4, 8 and their inverses), and a little more.
_SCALES = 4
#: Powers of two whose reciprocal, and every step of a quotient by them, is exact.
_EXACT_POWERS = 64

Lanes = list[list[Ids]]

#: What an answer rests on where a text has what these speak of.
GUARDED = "ptxas fuses no sum into ex2.approx, lg2.approx, sqrt.approx, rsqrt.approx, sin, cos or tanh"
RECIPROCALS = "div.full and div.approx by a power of two multiply by its exact reciprocal, known to ptxas or not"
RECTIFIED = "max.NaN with 0 and a conversion to 16 bits, which ptxas makes one, give +0.0 for -0.0"


def product_of(m: Machine, i: Instruction, ids: Lanes) -> int:
    """Whether an instruction without a written rounding ends, once assembled, in a product that a sum may swallow.

    The quotients and the reciprocal end in a plain product, which ptxas does fuse; the others below end in a product
    under a predicate, which it does not.
    """
    base, modifiers, kind = i.parts[0], i.parts[1:-1], i.parts[-1]
    if not m.launch.contraction or not ROUNDINGS.isdisjoint(modifiers):
        return NO_PRODUCT
    if base == "mul":
        exact = all(m.table.is_widened(x) for lane in ids for x in lane)
        return NO_PRODUCT if exact else FUSIBLE_PRODUCT
    if base == "div":
        return FUSIBLE_PRODUCT
    if base in UNARY and base not in _EXACT:
        if kind != "f32":
            return FUSIBLE_PRODUCT
        if "ftz" not in modifiers:
            return FUSIBLE_PRODUCT if base == "rcp" else GUARDED_PRODUCT
    return NO_PRODUCT


def note_fusions(m: Machine, i: Instruction, kind: str, values: list[Value], ids: Lanes, act: Mask | None) -> None:
    """Note where ptxas may fuse what made an operand into this instruction, or leave this instruction out.

    Where any thread has data in an operand, ptxas, which makes one text for all threads, knows nothing of it.

    Raises:
        RefusalError: the instruction completes a clamp to [0, 1], which ptxas turns into a saturation.
    """
    base, rounded = i.parts[0], not ROUNDINGS.isdisjoint(i.parts[1:-1])
    if base in ("add", "sub"):
        if not rounded:
            note_taken(m, i, max(v.product for v in values))
        return
    if base not in ("mul", "div", "min", "max"):
        return
    ids = [[_active(m, x, act) for x in lane] for lane in ids]
    if base == "mul":
        # `x y` and then times 1/2 becomes one scaled product, whatever rounding the second one has written.
        for lane in ids:
            for constant, other in ((0, 1), (1, 0)):
                if values[other].product and _may_scale(m, lane[constant], kind):
                    note_taken(m, i, values[other].product)
                _note_dropped(m, i, kind, lane[constant], lane[other], rounded)
    elif base == "div" and not rounded:
        for lane in ids:
            if values[0].product and _may_scale(m, lane[1], kind):
                note_taken(m, i, values[0].product)
            _note_dropped(m, i, kind, lane[1], lane[0], rounded)
    elif base != "div" and "NaN" not in i.parts:
        for lane in ids:
            _refuse_clamp(m, i, kind, lane)


def _active(m: Machine, ids: Ids, act: Mask | None) -> Ids:
    """One element a lane that executes the instruction."""
    return m.spread(ids) if act is None else m.spread(ids)[act]


def _is_data(m: Machine, ids: Ids) -> bool:
    """Whether ptxas cannot know a value, in whichever lane."""
    return bool(m.table.varies(ids).any())


def note_taken(m: Machine, i: Instruction, product: int) -> None:
    """Note that an instruction may swallow an operand that a product made."""
    if product == FUSIBLE_PRODUCT:
        m.contractible[i.text] = None
    elif product == GUARDED_PRODUCT:
        m.assumed[GUARDED] = None


def _note_dropped(m: Machine, i: Instruction, kind: str, constant: Ids, other: Ids, rounded: bool) -> None:
    """A product with 1 is dropped, and with it the rewriting of a NaN's payload."""
    if rounded or not m.launch.contraction or _is_data(m, constant):
        return
    payload = (m.table.flags(other) & nodes.ARITHMETIC == 0) & (other != 0)
    if (payload & _may_be(m, constant, _patterns_of_one(kind))).any():
        m.contractible[i.text] = None


def _patterns_of_one(kind: str) -> tuple[int, ...]:
    exponent, fraction = _FIELDS[kind]
    return (((1 << (exponent - 1)) - 1) << fraction,)


def _may_be(m: Machine, ids: Ids, patterns: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Where a value is one of these constants, or another constant expression, which may be."""
    bits, what = m.table.patterns(ids)
    return np.where(what == 1, np.isin(bits, np.array(patterns, np.uint64)), what == 2)


def _powers_of_two(m: Machine, ids: Ids, kind: str, most: int) -> npt.NDArray[np.bool_]:
    """Where a value is a constant power of two, of either sign, up to 2**most or down to 2**-most."""
    exponent, fraction = _FIELDS[kind]
    bits, what = m.table.patterns(ids)
    field = (bits >> np.uint64(fraction) & np.uint64((1 << exponent) - 1)).astype(np.int64)
    power = field - ((1 << (exponent - 1)) - 1)
    bare: npt.NDArray[np.bool_] = bits & np.uint64((1 << fraction) - 1) == 0
    found: npt.NDArray[np.bool_] = (what == 1) & bare & (np.abs(power) <= most)
    return found


def _may_scale(m: Machine, ids: Ids, kind: str) -> bool:
    if _is_data(m, ids):
        return False
    return bool(((m.table.patterns(ids)[1] == 2) | _powers_of_two(m, ids, kind, _SCALES)).any())


def _refuse_clamp(m: Machine, i: Instruction, kind: str, lane: list[Ids]) -> None:
    """min with 1, then max with 0, or the other way round with -0.0: a saturation treats NaN or -0.0 otherwise."""
    for constant, other in ((0, 1), (1, 0)) if len(lane) == 2 else ():
        if not _is_data(m, lane[constant]):
            _refuse_bounds(m, i, kind, i.parts[0], lane[constant], lane[other])


def refuse_selected_clamp(m: Machine, i: Instruction, made: Ids, act: Mask | None) -> None:
    """The same for a selection of 4 bytes by data that ptxas may make a maximum or a minimum that drops a NaN.

    Raises:
        RefusalError: it completes a clamp to [0, 1].
    """
    made = _active(m, made, act)
    store = m.table.store
    for side in (0, 1):
        here = made[dropping(m.table, made, side)]
        if len(here):
            for base in ("max", "min"):
                _refuse_bounds(m, i, "f32", base, store.child[here, side], store.child[here, 1 - side])


def _refuse_bounds(m: Machine, i: Instruction, kind: str, base: str, constant: Ids, other: Ids) -> None:
    """Refuse a maximum (``base``) with 0 of a minimum with 1, or a minimum with 1 of a maximum with -0.0."""
    exponent, fraction = _FIELDS[kind]
    one, minus = _patterns_of_one(kind), 1 << (exponent + fraction)
    mine, theirs, first = ((0, minus), one, "min") if base == "max" else (one, (minus,), "max")
    inner, store = m.table.code(f"{first}.{kind}"), m.table.store
    outer = _may_be(m, constant, mine)
    for side in (0, 1) if outer.any() else ():
        bound = store.child[other, side]
        below = store.op[other] == inner
        if kind == "f32":
            below |= dropping(m.table, other, side)
        if (outer & below & ~m.table.varies(bound) & _may_be(m, bound, theirs)).any():
            reason = f"ptxas makes a saturation of a clamp, which treats NaN otherwise: {i.text}"
            raise RefusalError("contraction", reason)


def note_rectified(m: Machine, target: str, ids: Ids) -> None:
    """Note a conversion that ptxas may merge with the maximum before it."""
    if target not in ("f16", "bf16"):
        return
    store, zeros = m.table.store, (0, 1 << 31)
    rectified = store.op[ids] == m.table.code("max.NaN.f32")
    selected = may_be_extreme(m.table, ids)
    if selected.any():
        sides = (store.child[ids, side] for side in (0, 1))
        selected &= np.logical_or(*(~m.table.varies(x) & _may_be(m, x, zeros) for x in sides))
    if rectified.any() or selected.any():
        m.assumed[RECTIFIED] = None


def known_name(m: Machine, i: Instruction, name: str, kind: str, ids: Lanes, act: Mask | None) -> str:
    """The name of a function whose operand may be a constant that ptxas knows.

    Raises:
        RefusalError: a constant reaches an approximate function, and the text does not say whether ptxas knows it.
    """
    base = i.parts[0]
    if not ROUNDINGS.isdisjoint(i.parts[1:-1]) or base in _EXACT or base not in ("div", *UNARY):
        return name
    at = 1 if base == "div" else 0
    lanes = [_active(m, lane[at], act) for lane in ids]
    fixed = [x for x in lanes if not _is_data(m, x) and (x != 0).any()]
    if not fixed:
        return name
    if base == "div" and all((_powers_of_two(m, x, kind, _EXACT_POWERS) | (x == 0)).all() for x in fixed):
        m.assumed[RECIPROCALS] = None
        return name
    if len(ids) == 1 and is_literal(i.operands[1 + at], m.literals):
        return f"{name}{LITERAL}"
    raise RefusalError("contraction", f"ptxas may know a constant and work out a function of it otherwise: {i.text}")
