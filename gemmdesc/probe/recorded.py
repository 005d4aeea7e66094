"""Holding a rule against experiments that were recorded: what it would have given, beside what the library gave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmdesc.library.simulated import SimulatedLibrary
from gemmdesc.probe.experiments import Floats
from gemmdesc.probe.raw import RawReader
from gemmdesc.probe.reader import LibraryReader
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, LibraryId, LibraryVersion
from gemmdesc.rule import Rule


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of so many recorded ``experiments``, how many came out ``equal``, zeros by their sign too."""

    experiments: int
    equal: int

    @property
    def whole(self) -> bool:
        return self.equal == self.experiments

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(experiments=self.experiments + other.experiments, equal=self.equal + other.equal)


def hold_against(rule: Rule, problem: GemmProblem, answer: AlgoConfig, raw: RawReader) -> Agreement:
    """Replay all experiments of ``raw`` under ``rule``.

    Raises:
        ReferenceFailed: the rule declines there.
    """
    replayed = SimulatedLibrary(
        identity=_NOBODY, device=_NOWHERE, heuristic=lambda _: answer, rules=lambda *_: rule
    )
    reader = LibraryReader(replayed, problem, answer)
    found = Agreement(experiments=0, equal=0)
    for other, patterns, values in raw.recorded():
        found += _compared(reader.values(patterns, other=other), values)
    beside = raw.outputs(())
    if beside:
        mine = np.array([b.output for b in reader.outputs(beside)])
        found += _compared(mine, np.array([b.output for b in beside]))
    return found


def _compared(mine: Floats, theirs: Floats) -> Agreement:
    same = (mine == theirs) & (np.signbit(mine) == np.signbit(theirs)) | np.isnan(mine) & np.isnan(theirs)
    return Agreement(experiments=len(theirs), equal=int(same.sum()))


#: A replay stands for the library; nobody asks who it is.
_NOBODY = LibraryId(version=LibraryVersion(major=0, minor=0, patch=0), build_id="")
_NOWHERE = DeviceId(sm="", sm_count=0)
