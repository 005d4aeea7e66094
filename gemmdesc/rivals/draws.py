"""Draws that two rival descriptors answer differently, built where their trees differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gemmdesc.descriptor import GEMMDesc, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.normal_form import same_bits
from gemmdesc.operands import ConstantOperand, Operand, PatternOperand, Patterns
from gemmdesc.rivals.candidates import (
    Candidates,
    Dice,
    View,
    overflowing_candidates,
    scattered_candidates,
    tiny_candidates,
)
from gemmdesc.rivals.sparse import Index, Reals, SparseRows, find_places, forecast
from gemmdesc.schedule import make_schedule

#: Patterns kept for one draw, how many are enough to stop looking, rounds of candidates before giving up, and
#: candidates of one round.
PATTERNS = 128
ENOUGH = 32
ROUNDS = 4
CANDIDATES = 2048
#: The same for each of several rivals met in one draw.
PATTERNS_EACH, CANDIDATES_EACH = 8, 256

_Maker = Callable[[tuple[View, View], int, DType, Dice, bool, int], Candidates | None]


def rival_operands(
    one: GEMMDesc, other: GEMMDesc, k: int, *, seed: int, draw: int, dtype: DType
) -> tuple[Operand, Operand] | None:
    """Operands (a, b) of inner size ``k`` and format ``dtype`` on which the two descriptors are expected to differ.

    a is +0.0 but for a small pattern in each row, chosen by a hash of the row among up to ``PATTERNS``: large values
    that cancel and small ones around a place where the two trees differ; or a tiny negative value in every leaf; or two
    values whose products overflow float32 one at a time.  b is one constant.  Every row is expected to differ between
    the two, in every column.  The same arguments give the same operands.

    None where the two owe each other the same bits at ``k``, where no pattern was found that tells them apart, or for
    float64.
    """
    if k == 0 or dtype is DType.FLOAT64 or same_bits(one, other, k):
        return None
    descs = (one, other)
    views = (_view(one, k), _view(other, k))
    odd_b = dtype is DType.FLOAT32 and any(isinstance(d.accumulator.step, ScalarStep) for d in descs)
    dice = Dice(seed, draw, k)
    makers: list[_Maker] = [scattered_candidates, tiny_candidates]
    if draw % 4 == 3:
        makers.reverse()
    for make in (*makers, overflowing_candidates):
        found = _search(descs, views, partial(make, views, k, dtype, dice, odd_b, CANDIDATES))
        if found is not None:
            candidates, chosen = found
            patterns = Patterns(k=candidates.rows.k[chosen], bits=candidates.a_bits[chosen])
            zero = ConstantOperand(dtype=dtype, value_bits=0)
            a = PatternOperand(background=zero, patterns=patterns, seed=seed, draw=draw)
            return a, ConstantOperand(dtype=dtype, value_bits=candidates.b_bits)
    return None


def rival_set_operands(
    one: GEMMDesc, others: Sequence[GEMMDesc], k: int, *, seed: int, draw: int, dtype: DType
) -> tuple[Operand, Operand] | None:
    """Operands as of :func:`rival_operands` against many rivals at once: each row is built against one of the others.

    Even draws hold large values that cancel and small ones, odd ones tiny negative values, which show where a fold
    starts.  A rival that such patterns do not tell from ``one`` has no rows.  None where there would be no rows at all,
    or for float64.
    """
    if k == 0 or dtype is DType.FLOAT64:
        return None
    make: _Maker = tiny_candidates if draw % 2 else scattered_candidates
    views = {desc: _view(desc, k) for desc in dict.fromkeys((one, *others))}
    sought: list[tuple[GEMMDesc, View, Candidates]] = []
    for place, other in enumerate(others):
        dice = Dice(seed, draw, k, place)
        candidates = make((views[one], views[other]), k, dtype, dice, False, CANDIDATES_EACH)
        if candidates is not None:
            sought.append((other, views[other], candidates))
    found = _told_apart((one, views[one]), sought)
    if not found:
        return None
    width = max(c.a_bits.shape[1] for c, _ in found)
    patterns = Patterns(
        k=np.concatenate([_widened(c.rows.k[chosen], width) for c, chosen in found]),
        bits=np.concatenate([_widened(c.a_bits[chosen], width) for c, chosen in found]),
    )
    zero = ConstantOperand(dtype=dtype, value_bits=0)
    a = PatternOperand(background=zero, patterns=patterns, seed=seed, draw=draw)
    return a, ConstantOperand(dtype=dtype, value_bits=found[0][0].b_bits)


def _told_apart(
    one: tuple[GEMMDesc, View], sought: Sequence[tuple[GEMMDesc, View, Candidates]]
) -> list[tuple[Candidates, Index]]:
    """Of each rival's candidates a few that it is expected to answer otherwise; rivals without any are left out.

    The candidates of all rivals are forecast at once under ``one``.
    """
    if not sought:
        return []
    desc, view = one
    width = max(c.a_bits.shape[1] for _, _, c in sought)
    rows = SparseRows(
        k=np.concatenate([_widened(c.rows.k, width) for _, _, c in sought]),
        products=np.concatenate([_padded(c.rows.products, width) for _, _, c in sought]),
    )
    own = forecast(desc, view.schedule, view.places, rows).view(np.int64)
    found, first = [], 0
    for other, its, candidates in sought:
        last = first + len(candidates.a_bits)
        theirs = forecast(other, its.schedule, its.places, candidates.rows).view(np.int64)
        chosen = np.flatnonzero(own[first:last] != theirs)[:PATTERNS_EACH]
        if len(chosen):
            found.append((candidates, chosen))
        first = last
    return found


def _padded(products: Reals, width: int) -> Reals:
    """(T, width) from (T, E): elements without a product fill the rest."""
    return np.pad(products, ((0, 0), (0, width - products.shape[1])))


def _widened(columns: Index, width: int) -> Index:
    """(T, width) from (T, E): the first column, again and again, fills the rest."""
    return np.concatenate([columns, np.repeat(columns[:, :1], width - columns.shape[1], axis=1)], axis=1)


def _search(
    descs: tuple[GEMMDesc, GEMMDesc], views: tuple[View, View], make: Callable[[], Candidates | None]
) -> tuple[Candidates, Index] | None:
    """The round of candidates with the most that differ, and which those are."""
    best: tuple[Candidates, Index] | None = None
    for _ in range(ROUNDS):
        candidates = make()
        if candidates is None:
            break
        chosen = _differing(descs, views, candidates)[:PATTERNS]
        if len(chosen) > (0 if best is None else len(best[1])):
            best = candidates, chosen
        if len(chosen) >= ENOUGH or len(candidates.a_bits) < ENOUGH:
            break
    return best


def _view(desc: GEMMDesc, k: int) -> View:
    schedule = make_schedule(desc, k)
    return View(k=k, schedule=schedule, places=find_places(schedule, k))


def _differing(descs: tuple[GEMMDesc, GEMMDesc], views: tuple[View, View], candidates: Candidates) -> Index:
    """Which candidates the two are expected to answer with different bytes."""
    first, second = (
        forecast(desc, view.schedule, view.places, candidates.rows).view(np.int64)
        for desc, view in zip(descs, views, strict=True)
    )
    return np.flatnonzero(first != second)
