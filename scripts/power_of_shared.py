"""Single-field mutants of balanced slices (segment-k) that a comparison's draws catch, on launches recorded on a card.

    PYTHONPATH=. python scripts/power_of_shared.py OUT.json [--trials 25] [--draws 10] [--readings FILE]

As `gemmdesc verify --power`, for the orders that only launches give, which few of its shapes have.  Needs no GPU: the
launches, with the rules found for them, were recorded on the card, and the library's bytes are those of the rule, which
gave them in every comparison made there.  A mutant is caught where some of the draws, half of them built against it and
half plain, give another byte under it on the window that a comparison looks at.  Exits 1 where a kind is below 99%.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from gemmdesc.bits import bitwise_equal
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.mutants import Mutant, mutants
from gemmdesc.operands import Operand
from gemmdesc.probe.compare import plain_draws, plain_operands
from gemmdesc.probe.shared import SharedReading, shared_from_plain
from gemmdesc.problem import GemmProblem
from gemmdesc.regions import Region, evaluate_regions
from gemmdesc.rivals import rival_operands
from gemmdesc.rule import parse_rule
from gemmdesc.verification.replayed import replay_window, spread_window
from gemmdesc.verification.structure import structure_of

READINGS = Path(__file__).resolve().parent.parent / "tests" / "observations" / "h200-shared-slices-13.1.0.jsonl.gz"
#: Elements of the operands of a launch, at most.
MOST = 1 << 26
SEED = 2


def recorded(path: Path) -> Iterator[tuple[SharedReading, Region]]:
    """Every launch of a class with a rule, and the largest rectangle whose k is cut."""
    with gzip.open(path, "rt") as file:
        _, *lines = file.read().splitlines()
    for line in lines:
        data = json.loads(line)
        rule = None if data["rule"] is None else parse_rule(data["rule"])
        for reading in map(shared_from_plain, data["shared"]) if rule is not None else ():
            p = reading.problem
            regions = evaluate_regions(rule, reading.environment) if rule is not None else ()
            if isinstance(regions, Declined) or (p.m + p.n) * p.k > MOST:
                continue
            cut = [r for r in regions if r.descriptor.cuts]
            if cut:
                yield reading, max(cut, key=lambda r: r.elements)


def caught(problem: GemmProblem, region: Region, mutant: GEMMDesc, draws: int, seed: int) -> tuple[bool, bool]:
    """Whether a draw built against the mutant tells it, and whether a plain one does."""
    tells = {True: False, False: False}
    for number, draw in enumerate(plain_draws(seed, draws)):
        a, b, rival = _operands(problem, region.descriptor, mutant, draw.seed, draw.number)
        window = spread_window(problem, number, region)
        if not tells[rival]:
            ours = replay_window(region.descriptor, problem, a, b, window)
            tells[rival] = not bitwise_equal(ours, replay_window(mutant, problem, a, b, window))
    return tells[True], tells[False]


def _operands(
    problem: GemmProblem, desc: GEMMDesc, mutant: GEMMDesc, seed: int, number: int
) -> tuple[Operand, Operand, bool]:
    if number % 2 == 0:
        made = rival_operands(desc, mutant, problem.k, seed=seed, draw=number, dtype=problem.a_dtype)
        if made is not None:
            # The patterns lie along the longer output axis.
            return (*(made if problem.m >= problem.n else made[::-1]), True)
    (draw,) = plain_draws(seed, 1, first=number)
    return (*plain_operands(problem, draw), False)


def run(path: Path, wanted: int, draws: int) -> dict[str, dict[str, Counter[str]]]:
    """By structure and kind of mutant: trials, and what caught them."""
    found: dict[str, dict[str, Counter[str]]] = {}
    launches = sorted(recorded(path), key=lambda x: (x[0].problem.m + x[0].problem.n) * x[0].problem.k)
    for turn in range(wanted):
        for place, (reading, region) in enumerate(launches):
            kinds = found.setdefault(structure_of(region.descriptor), {})
            by_kind: dict[str, list[Mutant]] = {}
            for mutant in mutants(region.descriptor, reading.problem.k):
                by_kind.setdefault(mutant.kind, []).append(mutant)
            for kind, several in by_kind.items():
                counts = kinds.setdefault(kind, Counter())
                if counts["trials"] >= wanted:
                    continue
                chosen = several[(turn + place) % len(several)].desc
                rivals, plain = caught(reading.problem, region, chosen, draws, SEED + turn)
                counts.update(trials=1, caught=int(rivals or plain), by_rival_draws=int(rivals), by_plain=int(plain))
        print(f"turn {turn + 1}: {sum(c['trials'] for k in found.values() for c in k.values())} trials", flush=True)
        if all(c["trials"] >= wanted for kinds in found.values() for c in kinds.values()):
            break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=25, help="of each structure and kind of mutant")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--readings", type=Path, default=READINGS)
    given = parser.parse_args()
    began = time.monotonic()
    found = run(given.readings, given.trials, given.draws)
    trials = sum(c["trials"] for kinds in found.values() for c in kinds.values())
    held = sum(c["caught"] for kinds in found.values() for c in kinds.values())
    claim: dict[str, Any] = {
        "claim": (
            "Power for balanced slices (segment-k): single-field mutants caught by the draws of a comparison, by "
            "structure and kind, on launches that were recorded on the card; the library's bytes are those of the "
            "rule, which gave them in every comparison there"
        ),
        "command": "python scripts/power_of_shared.py OUT.json",
        "card": "none: on a CPU, of launches recorded on an NVIDIA H200 (sm_90, 132 SMs)",
        "versions": {"cublaslt": "13.1.0", "python": platform.python_version()},
        "date": date.today().isoformat(),
        "counts": {"trials": trials, "caught": held, "structures": len(found)},
        "by_structure": {name: {kind: dict(c) for kind, c in kinds.items()} for name, kinds in found.items()},
    }
    given.out.write_text(json.dumps(claim, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(claim["counts"]), f"{time.monotonic() - began:.0f} s")
    low = [1 for kinds in found.values() for c in kinds.values() if c["caught"] < 0.99 * c["trials"]]
    return 1 if low or not trials else 0


if __name__ == "__main__":
    sys.exit(main())
