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
    seen = _largest_step(readings)
    instruction_ks = [seen] if seen is not None else list(range(1, LARGEST_INSTRUCTION_K + 1))
    for g in instruction_ks:
        yield StepOption(instruction_k=g, k_loop_step=None)
    for g in instruction_ks:
        for turn in range(g, LARGEST_LOOP_STEP + 1, g):
            yield StepOption(instruction_k=g, k_loop_step=turn)


def _largest_step(readings: Sequence[Reading]) -> int | None:
    """The largest distance between two boundaries read one after the other, with every position between them read."""
    return max((b - a for r in readings for w in r.windows for a, b in pairwise(w.ends)), default=None)


def _fits(option: StepOption, reading: Reading, window: StepWindow) -> bool:
    expected: set[int] = set()
    for begin, end in pairwise([0, *reading.part_ends]):
        if end <= window.begin or begin >= window.end:
            continue
        expected.add(begin)
        expected.update(int(e) + begin for e in step_ends(end - begin, option.instruction_k, option.residue))
    readable = range(window.begin + 2, window.end)
    return {e for e in expected if e in readable} == set(window.ends)
