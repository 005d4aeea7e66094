"""A nest of cuts as lanes: which nests of CUDA-core chains one kernel computes and folds in its registers.  Pure.

Those of vector kernels: k is split into parts, or dealt in tiles to blocks; a tile's k are dealt to a power of two of
lanes, ``unit`` neighbours to each; a lane's chain may be closed every ``chunk`` k.  Lanes are folded digit by digit of
their number, parts in turn, blocks digit by digit.  All sums are float32 and every fold starts from its first part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from gemmdesc.descriptor import Contiguous, Cut, GEMMDesc, Short, Start, Strided
from gemmdesc.dtypes import DType

#: Fold of a digit: the place of its lowest bit in what is left of the number, and how many bits it has.
Digit = tuple[int, int]
#: Digits, the one folded first before the others.
Digits = tuple[Digit, ...]
#: Stands for parts, tiles or chunks without an end.
ENDLESS = 2**30

def _butterfly(bits: int) -> Digits:
    return tuple((bit, 1) for bit in reversed(range(bits)))


#: Folds over lanes that kernels are compiled for: of one lane (nothing), butterflies, and sixteen lanes in turn.
BUTTERFLIES: tuple[Digits, ...] = tuple(map(_butterfly, range(6)))
IN_TURN: Digits = ((0, 4),)
LANE_FOLDS: tuple[Digits, ...] = (*BUTTERFLIES, IN_TURN)
#: The same over the lanes of a block: a butterfly, or pairs of neighbours first and then a butterfly over them.
DEALT_FOLDS: tuple[Digits, ...] = (_butterfly(7), ((0, 1), *_butterfly(7)))
#: Folds of lanes whose chains may be closed in chunks.
CHUNKED_FOLDS: tuple[Digits, ...] = ((), IN_TURN)
#: The fold over blocks that kernels are compiled for: by number modulo 4, in there by the next 8, 2 and 2.
BLOCK_DIGITS: Digits = ((6, 1), (5, 1), (2, 3), (0, 2))


def places(digits: Digits) -> int:
    """How many sums ``digits`` fold to one."""
    return 1 << sum(bits for _, bits in digits)


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A nest at one inner size, ``summed_k`` of them summed.

    Lane p of block b of part s sums k = s * span + (t * blocks + b) * lanes * unit + p * unit + v, for t = 0, 1, ...
    and for each of them v = 0 .. unit - 1, as far as they are below both summed_k and (s + 1) * span.  ``chunk``
    neighbours of that list at a time are one chain, and a lane's chains are folded in turn; then ``digits`` fold
    lanes, and parts are folded in turn, or blocks by :data:`BLOCK_DIGITS`.
    """

    summed_k: int
    span: int
    parts: int
    blocks: int
    unit: int
    chunk: int
    digits: Digits

    @property
    def lanes(self) -> int:
        return places(self.digits)

    @property
    def turn(self) -> int:
        """k from one tile of a block to its next one."""
        return self.blocks * self.lanes * self.unit

    @property
    def chain(self) -> int:
        """k that the first lane of the first block of the first part sums, chunks one after another."""
        whole, rest = divmod(min(self.span, self.summed_k), self.turn)
        return whole * self.unit + min(rest, self.unit)


def as_lanes(desc: GEMMDesc, k: int) -> Lanes | None:
    """The cuts of ``desc`` at inner size ``k`` as lanes, where they are lanes that kernels are compiled for."""
    summed = min(k, desc.summed_k)
    if summed < 1 or summed > ENDLESS or not all(map(_plain, desc.cuts)):
        return None
    cuts = list(desc.cuts)
    span, parts, blocks = ENDLESS, 1, 1
    #: (distance in k, how many) of each digit of a part's own k, lowest first; the last one has no end.
    digits: list[tuple[int, int]] = [(1, ENDLESS)]
    if cuts and isinstance(cuts[0].layout, Contiguous):
        first = cuts.pop(0).layout
        assert isinstance(first, Contiguous)
        if first.short is Short.FIRST and summed > first.span and summed % first.span:
            return None
        span = min(first.span, ENDLESS)
        parts = -(-summed // span)
    elif cuts and isinstance(cuts[0].layout, Strided) and cuts[0].fold:
        dealt = cuts.pop(0)
        assert isinstance(dealt.layout, Strided)
        if _block_fold(dealt) != BLOCK_DIGITS or dealt.layout.count == 1:
            return None
        blocks, size = dealt.layout.count, dealt.layout.unit
        digits = [(1, size), (blocks * size, ENDLESS)]
    chunk = ENDLESS
    if cuts and isinstance(cuts[-1].layout, Contiguous):
        last = cuts.pop().layout
        assert isinstance(last, Contiguous)
        if last.short is Short.FIRST:
            return None
        chunk = min(last.span, ENDLESS)
    if any(cut.fold or not isinstance(cut.layout, Strided) for cut in cuts):
        return None
    taken: list[tuple[int, int]] = []
    for cut in cuts:
        assert isinstance(cut.layout, Strided)
        digit = _taken(digits, cut.layout)
        if digit is None:
            return None
        taken.append(digit)
    return _assembled(
        Lanes(summed_k=summed, span=span, parts=parts, blocks=blocks, unit=1, chunk=chunk, digits=()), digits, taken
    )


def _plain(cut: Cut) -> bool:
    types = {cut.partial_dtype, cut.merge_dtype}
    return types == {DType.FLOAT32} and cut.start is Start.FIRST and not cut.opening


def _block_fold(cut: Cut) -> Digits | None:
    """The digits of the numbers of the parts by which ``cut`` groups them, or None where it is not by digits."""
    found: list[Digit] = []
    low = 0
    for layout in cut.fold:
        if not isinstance(layout, Strided) or layout.unit != 1 or layout.count & (layout.count - 1):
            return None
        bits = layout.count.bit_length() - 1
        found.append((low, bits))
        low += bits
    return tuple(reversed(found))


def _taken(digits: list[tuple[int, int]], layout: Strided) -> tuple[int, int] | None:
    """Take the digit that ``layout`` deals by out of those of a list of k: (distance, how many), or None."""
    below, place = 1, 0
    while place < len(digits) and below < layout.unit:
        distance, count = digits[place]
        wanted = layout.unit // below
        if layout.unit % below:
            return None
        if count > wanted:
            if count != ENDLESS and count % wanted:
                return None
            rest = ENDLESS if count == ENDLESS else count // wanted
            digits[place : place + 1] = [(distance, wanted), (distance * wanted, rest)]
            count = wanted
        below *= count
        place += 1
    if below != layout.unit or place == len(digits):
        return None
    distance, count = digits[place]
    if count != ENDLESS and count % layout.count:
        return None
    rest = ENDLESS if count == ENDLESS else count // layout.count
    digits[place] = (distance * layout.count, rest)
    digits[:] = [d for d in digits if d[1] > 1]
    return distance, layout.count


def _assembled(found: Lanes, digits: list[tuple[int, int]], taken: list[tuple[int, int]]) -> Lanes | None:
    """``found`` with the digits that lanes are numbered by, outermost cut first, and those left for chains."""
    digits = [d for d in digits if d[1] > 1]
    taken = [t for t in taken if t[1] > 1]
    ascending = sorted(taken)
    if any(count & (count - 1) for _, count in taken):
        return None
    if any(low * count != high for (low, count), (high, _) in pairwise(ascending)):
        return None
    unit = ascending[0][0] if taken else 1
    if found.blocks > 1 and not taken:
        return None
    runs = [d for d in digits if d[1] != ENDLESS]
    if runs != ([(1, unit)] if unit > 1 else []):
        return None
    lanes = replace(found, unit=unit, digits=_digits(taken))
    if digits[-1] != (lanes.turn, ENDLESS) or lanes.turn > ENDLESS:
        return None
    if lanes.chunk >= lanes.chain:
        lanes = replace(lanes, chunk=ENDLESS)
    return lanes if _compiled(lanes) else None


def _compiled(lanes: Lanes) -> bool:
    """Whether there are kernels for such a fold, such runs and such chunks together."""
    chunked = lanes.chunk < ENDLESS
    if lanes.blocks > 1:
        return lanes.digits in DEALT_FOLDS and lanes.unit == 1 and not chunked
    if chunked and (lanes.unit > 1 or lanes.digits not in CHUNKED_FOLDS):
        return False
    return lanes.digits in LANE_FOLDS and (lanes.unit == 1 or lanes.digits in BUTTERFLIES)


def _digits(taken: list[tuple[int, int]]) -> Digits:
    """The fold program: the innermost cut's digit first, each one's place among those not folded yet."""
    left, order = sorted(taken), []
    for one in reversed(taken):
        low = sum(count.bit_length() - 1 for distance, count in left if distance < one[0])
        order.append((low, one[1].bit_length() - 1))
        left.remove(one)
    return tuple(order)
