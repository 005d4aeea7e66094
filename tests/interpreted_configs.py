"""Run by test_combinations.py in a process of its own, with TRITON_INTERPRET=1 and no GPU.

Arguments: a seed, how many schedules to run at least, and ``backwards`` for a merge that folds slices last to first, or
``trials`` for a tuner's trials of so many points.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from itertools import islice
from random import Random
from typing import Any

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.kernels import launch
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.competing import TunableChoice, competing
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.tuning.card_trial import CardTrial
from gemmdesc.verification import combinations as sweeping
from gemmdesc.verification.combinations import Combination, Swept, combinations, sweep_point
from tests.interpreted_kernels import patch_interpreter

#: Products of larger points take the interpreter too long.
MOST_WORK = 1_000_000
#: Warps that wait for one another are nothing that the interpreter runs.
CARD = replace(card_arithmetic("sm_90"), wgmma=False)


#: Of each structure so many configs run at a point, drawn anew at each; the interpreter takes seconds for one.
MOST_OF_EACH = 2


def few(desc: GEMMDesc, meta: KernelMeta, card: CardArithmetic) -> tuple[TunableChoice, ...] | Declined:
    """The default and some of what competes with it."""
    choices = competing(desc, meta, card)
    if isinstance(choices, Declined):
        return choices
    found, random = [choices[0]], Random(str(desc))
    for structure in dict.fromkeys(c.structure for c in choices):
        others = [c for c in choices[1:] if c.structure is structure]
        found += random.sample(others, min(MOST_OF_EACH, len(others)))
    return tuple(found)


def backwards() -> None:
    """The merge kernel is handed its scratch upside down."""
    whole: Any = launch.enqueue

    def enqueue(variant: Any, programs: int, *arguments: Any) -> None:
        if variant.kernel == "merge":
            arguments = (arguments[0].flip(0).contiguous(), *arguments[1:])
        whole(variant, programs, *arguments)

    launch.enqueue = enqueue


def trials(points: list[Combination]) -> int:
    """How many schedules had the default's bytes in a tuner's trial, and one of another descriptor must not have."""
    equal = 0
    for point in points:
        meta = point.meta(sm_count=3, shared_bytes=232448)
        trial = CardTrial(meta, seed=1, place="cpu")
        choices = few(point.desc, meta, CARD)
        assert not isinstance(choices, Declined)
        expected = trial.output(choices[0])
        assert all(trial.output(choice) == expected for choice in choices[1:]), point
        other = few(replace(point.desc, summed_k=point.desc.summed_k - 3), meta, CARD)
        assert not isinstance(other, Declined)
        assert trial.output(other[0]) != expected
        equal += len(choices)
    return equal


def main() -> None:
    patch_interpreter()
    sweeping.competing = few
    if sys.argv[3:] == ["trials"]:
        small = (p for p in combinations("16-bit", CARD, 2) if p.m * p.n * p.k <= MOST_WORK // 4)
        sys.stdout.write(json.dumps({"equal": trials(list(islice(small, int(sys.argv[2]))))}) + "\n")
        return
    upside_down = sys.argv[3:] == ["backwards"]
    if upside_down:
        backwards()
    swept, seed, least = Swept(), int(sys.argv[1]), int(sys.argv[2])
    for number, point in enumerate(combinations("16-bit", CARD, seed)):
        if swept.configs >= least:
            break
        if point.m * point.n * point.k > MOST_WORK or (upside_down and not point.desc.cuts):
            continue
        meta = point.meta(sm_count=3, shared_bytes=232448)
        sweep_point(point, CARD, swept, meta=meta, place="cpu", draws=2, seed=seed + number)
    sys.stdout.write(json.dumps(asdict(swept)) + "\n")


if __name__ == "__main__":
    main()
