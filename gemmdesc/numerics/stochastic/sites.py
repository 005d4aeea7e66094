"""The rounding sites of a descriptor: which there are, their numbers, and which of them draw a direction.

Sites are numbered in the order in which a kernel meets them, whatever is drawn: the steps of all leaves (two for each
product of a CUDA-core chain that rounds products, else one for each step), the rows of the stack program, the
epilogue's steps, the opening's steps (two each), and the rounding to the output type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemmdesc.descriptor import GEMMDesc, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands.lanes import STRIDE, Lanes, absorb, as_signed, element_words, finalise, row_words, shift_right
from gemmdesc.schedule import Schedule

#: Sites whose directions come from one 64-bit word.
SITES_PER_WORD = 64
#: Tells these draws from all others with one seed.
_INSIDE = 0x696E7369


@dataclass(frozen=True, kw_only=True)
class Sites:
    """Which sites draw; at the others the library's own rounding is done.

    ``step``: the closing rounding of every step of the accumulator, alignment included.  ``folds``: the cuts, counted
    from the outermost, whose additions and storage roundings draw: merges of slices, and the promotions of 8-bit
    operands, which are the folds of an innermost cut.  ``epilogue``: its steps, and those that open a fold.
    ``output``: the rounding to the output type.
    """

    step: bool
    folds: tuple[int, ...]
    epilogue: bool
    output: bool

    @property
    def words(self) -> str:
        """What draws, such as ``step, fold 0``."""
        parts = ["step"] * self.step + [f"fold {i}" for i in self.folds]
        return ", ".join(parts + ["epilogue"] * self.epilogue + ["output"] * self.output)


NO_SITES = Sites(step=False, folds=(), epilogue=False, output=False)


def all_sites(desc: GEMMDesc) -> Sites:
    """Every site of ``desc``."""
    return Sites(step=True, folds=tuple(range(len(desc.cuts))), epilogue=True, output=True)


def single_sites(desc: GEMMDesc) -> Iterator[Sites]:
    """The kinds of sites that ``desc`` has, one at a time: steps, each cut's fold, epilogue, output."""
    yield Sites(step=True, folds=(), epilogue=False, output=False)
    for i in range(len(desc.cuts)):
        yield Sites(step=False, folds=(i,), epilogue=False, output=False)
    if desc.epilogue or any(cut.opening for cut in desc.cuts):
        yield Sites(step=False, folds=(), epilogue=True, output=False)
    if desc.output_dtype is not DType.FLOAT32:
        yield Sites(step=False, folds=(), epilogue=False, output=True)


def check_sites(desc: GEMMDesc, sites: Sites) -> None:
    """Refuse folds that ``desc`` lacks.

    Raises:
        InvalidInputError: a fold is none of the descriptor's cuts.
    """
    for i in sites.folds:
        if not 0 <= i < len(desc.cuts):
            raise InvalidInputError(f"sites.folds must be cuts below {len(desc.cuts)} (got {i})")


@dataclass(frozen=True, kw_only=True)
class Numbering:
    """First site numbers of each part; steps count from 0, of a CUDA-core chain two for each product."""

    program: int
    epilogue: int
    opening: int
    output: int


def number_sites(desc: GEMMDesc, schedule: Schedule) -> Numbering:
    """The numbers of a descriptor's sites at one inner size."""
    per_product = isinstance(desc.accumulator.step, ScalarStep)
    program = 2 * len(schedule.order) if per_product else len(schedule.step_ends)
    epilogue = program + len(schedule.program)
    opening = epilogue + 2 * len(desc.epilogue)
    opened = sum(len(cut.opening) for cut in desc.cuts)
    return Numbering(
        program=program,
        epilogue=epilogue,
        opening=opening,
        output=opening + 2 * opened,
    )


def sample_word(seed: int, sample: int) -> int:
    """The signed 64-bit word from which a sample's keys are made."""
    return absorb(seed, sample, _INSIDE)


def element_keys(seed: int, sample: int, rows: Lanes, cols: Lanes) -> Lanes:
    """One int64 word per element of D, shape (len(rows), len(cols)); rows and columns are those of the whole D."""
    base = sample_word(seed, sample)
    with np.errstate(over="ignore"):
        return element_words(row_words(base, np.asarray(rows)[:, None]), np.asarray(cols)[None, :])


def site_direction(keys: Lanes, site: int, *, opposite: bool) -> Lanes:
    """Bool lanes: up at ``site``, or the ``opposite``."""
    word = finalise(keys + as_signed(STRIDE * (site // SITES_PER_WORD + 1)))
    bit = site % SITES_PER_WORD
    up: Lanes = ((word if bit == 0 else shift_right(word, bit)) & 1) == (0 if opposite else 1)
    return up
