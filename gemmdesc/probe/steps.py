"""Which step structures explain the step boundaries read: instruction_k, and a short turn of the main loop or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gemmdesc.descriptor import ResidueFirst, ResidueLast
from gemmdesc.probe.reading import Reading, StepWindow
from gemmdesc.schedule import step_ends

#: The largest instruction_k and k_loop_step searched.
LARGEST_INSTRUCTION_K = 64
LARGEST_LOOP_STEP = 512


@dataclass(frozen=True, kw_only=True)
class StepOption:
    """``k_loop_step`` None: the short step comes last.  Otherwise the partial turn of the loop comes first."""

    instruction_k: int
    k_loop_step: int | None

    @property
    def residue(self) -> ResidueLast | ResidueFirst:
        return ResidueLast() if self.k_loop_step is None else ResidueFirst(k_loop_step=self.k_loop_step)


def step_options(readings: Sequence[Reading]) -> list[StepOption]:
    """Options that fit every reading, those with the residue last first, then by instruction_k and k_loop_step."""
    options = list(_universe(readings))
    for reading in readings:
        options = [o for o in options if all(_fits(o, reading, w) for w in reading.windows)]
    return options


def _universe(readings: Sequence[Reading]) -> Iterator[StepOption]:
    instruction_ks = _steps_seen(readings) or list(range(1, LARGEST_INSTRUCTION_K + 1))
    for g in instruction_ks:
        yield StepOption(instruction_k=g, k_loop_step=None)
    for g in instruction_ks:
        for turn in range(g, LARGEST_LOOP_STEP + 1, g):
            yield StepOption(instruction_k=g, k_loop_step=turn)


def _steps_seen(readings: Sequence[Reading]) -> list[int]:
    """What the largest distance between two neighbouring boundaries allows; empty where no window holds two.

    A boundary just after a part's first k is not seen (see :func:`_boundaries`): a distance from a part's begin may be
    one too long.
    """
    sure = unsure = 0
    for reading in readings:
        for a, b in (pair for w in reading.windows for pair in pairwise(w.ends)):
            if a in reading.part_ends:
                unsure = max(unsure, b - a)
            else:
                sure = max(sure, b - a)
    return sorted({sure, *((unsure - 1, unsure) if unsure > sure else ())} - {0})


def _fits(option: StepOption, reading: Reading, window: StepWindow) -> bool:
    ends = reading.part_ends
    first, last = ends[0], ends[-1] - (ends[-2] if len(ends) > 1 else 0)
    # A last part of a single k is not seen as one (walks.read_part_ends), but its begin is as a boundary.
    hidden = [(*ends[:-1], ends[-1] - 1, ends[-1])] if last > 1 and (len(ends) == 1 or last == first + 1) else []
    readable = range(window.begin + 2, window.end)
    return any({b for b in _boundaries(option, e) if b in readable} == set(window.ends) for e in (ends, *hidden))


def _boundaries(option: StepOption, part_ends: Sequence[int]) -> set[int]:
    """Boundaries that the walk sees if parts end there.

    Not the one after the first k of a part, other than the first part: the pair before it lies in two accumulators.
    """
    expected: set[int] = set()
    for begin, end in pairwise([0, *part_ends]):
        steps = {int(e) + begin for e in step_ends(end - begin, option.instruction_k, option.residue)}
        expected |= {begin, *(steps - {begin + 1} if begin and end - begin > 1 else steps)}
    return expected
