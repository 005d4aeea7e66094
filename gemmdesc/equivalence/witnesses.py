"""Operands on which two kernels that are called different store different bytes.

Draws that were launched may fail to tell two classes apart that are different functions.  Here both expressions are
worked out on draws that are aimed at what sets such classes apart.  A witness is *exact* where the manual fixes every
function that the two are made of, and *bounded* where an element differs whatever approximate functions give within
their bounds.  Where neither is to be had, a draw is looked for under each of several stand-ins for such functions: that
says what the card has to be asked, and no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.bounds import Range, applies, ranges
from gemmdesc.equivalence.draws import AIMED, FORMATS, FURTHER, draw
from gemmdesc.equivalence.evaluate import MatrixStep, evaluate, has_extremes, loaded_bytes, missing_functions
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.stand_ins import STAND_INS, stand_in
from gemmdesc.equivalence.walk import Walked

EXACT, BOUNDED, STAND_IN, CARD = "exact", "bounded", "stand-ins", "card"
_STRENGTH = (CARD, EXACT, BOUNDED, STAND_IN)
#: Kinds that show two classes to differ; the others say what is to be expected.
SHOWN = (CARD, EXACT, BOUNDED)
Aim = tuple[str, int]
Bytes = npt.NDArray[np.uint8]
Stored = Mapping[int, tuple[Ids, Bytes]]
Pair = tuple[int, int]
#: Kinds of draws that go on after the first seeds: what they tell apart they do by luck.
_GO_ON = ("specks", "positive", "plain")
_EACH = 8
#: What is tried where a difference has to show within bounds: order decides by much, or whether a sum is finite.
_BY_MUCH = ("large, cancelling, and specks", "squares that sum to infinity, or almost")
_BOUNDED_SEEDS = 256
#: Elements, of all draws of one batch, and draws in one.
_MOST_ELEMENTS, _MOST_DRAWS = 1 << 20, 256


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two kernels differ on one draw.

    ``functions``: what stood in for approximate ones, "" where there are none; ``one``, ``other``: the bytes in
    hexadecimal, or the least and the largest pattern of the element that the bounds allow.
    """

    functions: str
    draw: str
    seed: int
    parameter: int
    offset: int
    one: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Witness:
    """What tells two kernels apart.  ``kind``: ``exact``, ``bounded`` or ``stand-ins``, one difference for each."""

    kind: str
    found: tuple[Difference, ...]


def pair_key(line: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes a line about two ``classes`` of a ``case`` the line of its pair."""
    return (line["case"], *sorted(line["classes"]))


def strongest(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """By pair, the line with the strongest witness that there is: on a card, exact, bounded, under stand-ins."""
    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for line in lines:
        key = pair_key(line)
        if line["kind"] is not None:
            found[key] = min(found.get(key, line), line, key=lambda x: _STRENGTH.index(x["kind"]))
    return found


def repeated(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many exact witnesses a card was asked for, and on how many it first stored the bytes that were worked out."""
    said: dict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    for line in lines:
        if line["kind"] in (EXACT, CARD):
            (found,) = line["found"]
            place = [found[name] for name in ("draw", "seed", "parameter", "offset")]
            stored = dict(zip(line["classes"], (found["one"], found["other"]), strict=True))
            said[pair_key(line)][line["kind"]] = place, stored
    both = [found for found in said.values() if len(found) == 2]
    return {"asked": len(both), "repeated": sum(found[EXACT] == found[CARD] for found in both)}


def unseen(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Classes of one case that stored the same bytes on every draw, one row of each; groups of two or more."""
    groups: dict[tuple[str, tuple[str, ...]], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        if "outputs" in row:
            groups[(row["case"], tuple(row["outputs"]))].setdefault(row["class"], row)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def aims(seeds: int) -> list[Aim]:
    """Draws to try, by name and seed: every kind of draw with the first seeds, a few kinds with all of them."""
    first = [(name, seed) for seed in range(min(seeds, _EACH)) for name in (*AIMED, *FURTHER, "plain")]
    return first + [(name, seed) for seed in range(_EACH, seeds) for name in _GO_ON]


def trials(walks: Sequence[Walked], seeds: int) -> list[Aim]:
    """Draws in the order in which they are tried: where bounds can show a difference, those made for it come first."""
    return [*(_by_much() if _bounded(walks) else ()), *aims(seeds)]


def _by_much() -> list[Aim]:
    return [(name, seed) for seed in range(_BOUNDED_SEEDS) for name in _BY_MUCH]


def _bounded(walks: Sequence[Walked]) -> bool:
    return any(map(missing_functions, walks)) and all(map(applies, walks))


def operands(walks: Sequence[Walked], kinds: Sequence[str], wanted: Sequence[Aim]) -> dict[int, Bytes]:
    """The bytes behind each pointer that some kernel loads from, shape (draws, bytes)."""
    sizes: dict[int, int] = {}
    for walked in walks:
        for parameter, size in loaded_bytes(walked).items():
            sizes[parameter] = max(size, sizes.get(parameter, 0))
    return {
        p: np.stack([draw(name, kinds[p], p, -(-size // FORMATS[kinds[p]].bytes), seed) for name, seed in wanted])
        for p, size in sizes.items()
    }


def find_witnesses(
    walks: Sequence[Walked], kinds: Sequence[str], wanted: Sequence[Aim], matrix_step: MatrixStep | None = None
) -> dict[Pair, Witness]:
    """What tells each two of some kernels apart, by their places in ``walks``; a pair without a witness is left out.

    ``kinds``: Triton's element types of the pointer arguments.
    """
    pairs = set(combinations(range(len(walks)), 2))
    names = sorted({name for walked in walks for name in missing_functions(walked)})
    if not names:
        found = _by_functions(walks, kinds, wanted, pairs, "", matrix_step)
        return {pair: Witness(kind=EXACT, found=(d,)) for pair, d in found.items()}
    bounded = _by_bounds(walks, kinds, _by_much(), pairs) if _bounded(walks) else {}
    made = {pair: Witness(kind=BOUNDED, found=(d,)) for pair, d in bounded.items()}
    left = pairs - set(made)
    each = [_by_functions(walks, kinds, wanted, left, style, matrix_step) for style in STAND_INS]
    for pair in left:
        if all(pair in found for found in each):
            made[pair] = Witness(kind=STAND_IN, found=tuple(found[pair] for found in each))
    return made


def batches(
    walks: Sequence[Walked], kinds: Sequence[str], wanted: Sequence[Aim], pairs: set[Pair], found: Mapping[Pair, Any]
) -> Iterator[tuple[Sequence[Aim], dict[int, Bytes], set[Pair], list[int]]]:
    """Draws, operands, the pairs that nothing tells apart yet, and the kernels in them; few draws at first."""
    each = sum(size for p, size in loaded_bytes(walks[0]).items()) // 2
    most = max(1, min(_MOST_DRAWS, _MOST_ELEMENTS // max(each, 1)))
    begin, count = 0, min(8, most)
    while begin < len(wanted):
        left = pairs - set(found)
        if not left:
            return
        batch = wanted[begin : begin + count]
        begin, count = begin + count, min(2 * count, most)
        yield batch, operands(walks, kinds, batch), left, sorted({i for pair in left for i in pair})


def _by_functions(
    walks: Sequence[Walked],
    kinds: Sequence[str],
    wanted: Sequence[Aim],
    pairs: set[Pair],
    style: str,
    matrix_step: MatrixStep | None,
) -> dict[Pair, Difference]:
    found: dict[Pair, Difference] = {}
    for batch, memory, left, needed in batches(walks, kinds, wanted, pairs, found):
        values = {}
        for i in needed:
            functions = {n: stand_in(n, STAND_INS[style]) for n in missing_functions(walks[i])}
            work_out = partial(evaluate, walks[i], memory, functions=functions, matrix_step=matrix_step)
            # What ptxas may make a maximum of gives one NaN or the other.
            readings = (False, True) if has_extremes(walks[i]) else (False,)
            values[i] = [work_out(as_extremes=which) for which in readings]
        for pair in left:
            (one, other), *more = product(values[pair[0]], values[pair[1]])
            difference = first_difference(one, other, batch, kinds, style, more)
            if difference is not None:
                found[pair] = difference
    return found


def first_difference(
    one: Stored,
    other: Stored,
    wanted: Sequence[Aim],
    kinds: Sequence[str],
    style: str,
    more: Sequence[tuple[Stored, Stored]] = (),
) -> Difference | None:
    """The element around the first byte that differs on the first draw on which any does.

    ``more``: further pairs of stored bytes that have to differ in that byte as well.
    """
    for number, (name, seed) in enumerate(wanted):
        for parameter, (offsets, first) in one.items():
            second = other[parameter][1]
            differ = first[number] != second[number]
            for a, b in more:
                differ &= a[parameter][1][number] != b[parameter][1][number]
            places = np.flatnonzero(differ)
            if len(places):
                size = FORMATS[kinds[parameter]].bytes if kinds[parameter] in FORMATS else 4
                begin = int(offsets[places[0]]) // size * size
                here = (offsets >= begin) & (offsets < begin + size)
                texts = (data[number, here][np.argsort(offsets[here])].tobytes().hex() for data in (first, second))
                return _difference(style, (name, seed), parameter, begin, *texts)
    return None


def _difference(style: str, aim: Aim, parameter: int, offset: int, one: str, other: str) -> Difference:
    return Difference(
        functions=style, draw=aim[0], seed=aim[1], parameter=parameter, offset=offset, one=one, other=other
    )


def _by_bounds(
    walks: Sequence[Walked], kinds: Sequence[str], wanted: Sequence[Aim], pairs: set[Pair]
) -> dict[Pair, Difference]:
    found: dict[Pair, Difference] = {}
    for batch, memory, left, needed in batches(walks, kinds, wanted, pairs, found):
        each = {i: ranges(walks[i], memory, kinds) for i in needed}
        for pair in left:
            difference = _apart(each[pair[0]], each[pair[1]], batch)
            if difference is not None:
                found[pair] = difference
    return found


def _apart(one: Mapping[int, Range], other: Mapping[int, Range], wanted: Sequence[Aim]) -> Difference | None:
    for parameter, first in one.items():
        places = np.argwhere(first.apart(other[parameter]))
        if len(places):
            number, place = (int(x) for x in places[0])
            texts = (r.text(number, place) for r in (first, other[parameter]))
            return _difference("every one within bounds", wanted[number], parameter, int(first.offset[place]), *texts)
    return None
