"""Run by test_combinations.py in a process of its own, with TRITON_INTERPRET=1 and no GPU.

Arguments: a seed, how many schedules to run at least, and ``backwards`` for a merge that folds slices last to first.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from gemmdesc.kernels import launch
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.verification.combinations import Swept, combinations, sweep_point
from tests.interpreted_kernels import patch_interpreter

#: Products of larger points take the interpreter too long.
MOST_WORK = 1_000_000
CARD = card_arithmetic("sm_90")


def backwards() -> None:
    """The merge kernel is handed its scratch upside down."""
    whole: Any = launch.enqueue

    def enqueue(variant: Any, programs: int, *arguments: Any) -> None:
        if variant.kernel == "merge":
            arguments = (arguments[0].flip(0).contiguous(), *arguments[1:])
        whole(variant, programs, *arguments)

    launch.enqueue = enqueue


def main() -> None:
    patch_interpreter()
    if sys.argv[3:] == ["backwards"]:
        backwards()
    swept, seed, least = Swept(), int(sys.argv[1]), int(sys.argv[2])
    for number, point in enumerate(combinations("16-bit", CARD, seed)):
        if swept.configs >= least:
            break
        if point.m * point.n * point.k > MOST_WORK:
            continue
        meta = point.meta(sm_count=3, shared_bytes=232448)
        sweep_point(point, CARD, swept, meta=meta, place="cpu", draws=2, seed=seed + number)
    sys.stdout.write(json.dumps(dataclasses.asdict(swept)) + "\n")


if __name__ == "__main__":
    main()
