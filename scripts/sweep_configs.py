"""Does every schedule that tuning may pick give the replay's bytes?  On a GPU, for as long as it is told.

    PYTHONPATH=. python scripts/sweep_configs.py OUT.json --seconds 420 [--draws 10] [--seed 0] [--start 0]
                                                 [--families 16-bit,8-bit,float32]
                                                 [--features one_launch,narrow,dependent,wide] [--most 0] [--rehearse]

Descriptors are points of a grid (cuts, spans, partials, merges, starts, k per step, turns of the main loop, lost tails,
types, layouts, odd sizes), in an order that the seed shuffles; at each, every structure and every config that may be
chosen runs on every draw, narrow and wide exponents in turn, and all bytes are compared with the CPU's replay.  Kernels
are compiled ahead by all cores.  OUT.json has a claim with counts, and of each kind of mutant on how many points the
same draws would have shown it; it is rewritten after every batch, and says at which point of the grid to ``--start``
next.  Exits 1 where bytes differ.

``--features``: of 16-bit chains only configs that have one of these, or are of such a structure (chain_specialised),
beside the default; points without any are left out.  ``--most``: so many configs at a point, drawn anew at each, as
every one takes seconds to compile.

``--rehearse`` needs no GPU: Triton's interpreter (TRITON_INTERPRET=1) with the tests' exact matrix steps, 16-bit only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from gemmdesc.errors import Declined
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.competing import TunableChoice, competing, pick_of
from gemmdesc.kernels.config import Feature
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.tuned import TunedPick
from gemmdesc.kernels.unasked import features_of
from gemmdesc.kernels.variant import Variant
from gemmdesc.plan import needed_variants
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.tuning.ahead import Ahead
from gemmdesc.verification.combinations import FAMILIES, Combination, Swept, combinations, sweep_point

#: Points of one family that are compiled and compared together.
BATCH = 24
CARD = card_arithmetic("sm_90")
Keep = Callable[[TunableChoice], bool]


@dataclass
class Place:
    """Where kernels run: the card's numbers, and what compiles, None in the interpreter."""

    device: str
    sm_count: int
    shared_bytes: int
    name: str
    ahead: Ahead | None = None
    card: CardArithmetic = CARD

    def meta(self, point: Combination) -> KernelMeta:
        return point.meta(self.sm_count, self.shared_bytes)

    def picks(self, point: Combination, keep: Keep, most: int) -> frozenset[TunedPick]:
        """What runs at ``point`` beside the default: all that ``keep`` says, or ``most`` of them, drawn."""
        choices = competing(point.desc, self.meta(point), self.card)
        found = [] if isinstance(choices, Declined) else [pick_of(c) for c in choices[1:] if keep(c)]
        return frozenset(Random(str(point)).sample(found, most) if 0 < most < len(found) else found)

    def compile(self, points: Mapping[Combination, frozenset[TunedPick]]) -> None:
        """Compile what ``points`` need into Triton's disk cache."""
        if self.ahead is None:
            return
        wanted: dict[Variant, None] = {}
        for point, picks in points.items():
            meta = self.meta(point)
            choices = competing(point.desc, meta, self.card)
            if not isinstance(choices, Declined):
                kept = (choices[0], *(c for c in choices[1:] if pick_of(c) in picks))
                wanted |= dict.fromkeys(v for c in kept for v in needed_variants(c, meta))
        self.ahead(wanted)


def keeping(names: str) -> Keep:
    """Configs with one of the features, or of one of the structures, named between commas; all without a name."""
    known = {f.value for f in Feature}
    given = [*filter(None, names.split(","))]
    features = {Feature(name) for name in given if name in known}
    structures = {Structure(name) for name in given if name not in known}

    def keep(choice: TunableChoice) -> bool:
        return not given or choice.structure in structures or (
            isinstance(choice, KernelChoice) and bool(features & features_of(choice.structure, choice.config))
        )

    return keep


def here(rehearse: bool) -> Place:
    if rehearse:
        from tests.interpreted_kernels import patch_interpreter

        patch_interpreter()
        # Warps that wait for one another are nothing that the interpreter runs.
        card = replace(CARD, wgmma=False)
        return Place(device="cpu", sm_count=3, shared_bytes=232448, name="none (interpreter)", card=card)
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("device must be a CUDA GPU; --rehearse goes without one (got none)")
    card = torch.cuda.get_device_properties(0)
    return Place(
        device="cuda", sm_count=card.multi_processor_count, shared_bytes=card.shared_memory_per_block_optin,
        name=f"{card.name} (sm_{card.major}{card.minor})", ahead=Ahead(10 * card.major + card.minor),
    )  # fmt: skip


def claim(place: Place, families: dict[str, Swept], reached: int, options: argparse.Namespace) -> dict[str, Any]:
    import torch
    import triton

    counts = {
        family: {
            "points": s.points, "declined": s.declined, "schedules": s.configs, "draws": s.compared,
            "equal": s.compared - len(s.wrong), "different": len(s.wrong),
        }
        for family, s in families.items()
    }  # fmt: skip
    return {
        "claim": "Every schedule that tuning may pick gives the replay's bytes, all elements compared, over a grid of "
        "descriptors",
        "command": f"PYTHONPATH=. python scripts/sweep_configs.py {' '.join(sys.argv[1:])}",
        "card": place.name, "date": date.today().isoformat(),
        "versions": {"torch": str(torch.__version__), "triton": str(triton.__version__)},
        "counts": counts,
        "by_structure": {
            f"{family} {structure}": {"schedules": count}
            for family, s in families.items() for structure, count in s.by_structure.items()
        },
        "power": {
            f"{family} {kind}": {"points": tried, "shown": shown}
            for family, s in families.items() for kind, (shown, tried) in s.power.items()
        },
        "draws_of_each_schedule": options.draws, "seed": options.seed, "next_start": reached,
        "compiled": 0 if place.ahead is None else len(place.ahead.compiled),
        "not_compiled": [] if place.ahead is None else place.ahead.failures[:20],
        "differences": [wrong for s in families.values() for wrong in s.wrong][:50],
    }  # fmt: skip


def write(path: Path, found: dict[str, Any]) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps({"claims": [found]}, indent=1) + "\n")
    aside.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="points of each family's grid that are skipped")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--features", default="", help="only configs with one of these")
    parser.add_argument("--most", type=int, default=0, help="so many configs at a point; 0 for all")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    keep = keeping(options.features)
    began, place = time.monotonic(), here(options.rehearse)
    names = ["16-bit"] if options.rehearse else options.families.split(",")
    streams = {name: islice(combinations(name, CARD, options.seed), options.start, None) for name in names}
    families, reached = {name: Swept() for name in names}, options.start
    batch = 2 if options.rehearse else BATCH
    while time.monotonic() - began < options.seconds and streams:
        for name in list(streams):
            points = list(islice(streams[name], batch))
            if not points:
                del streams[name]
                continue
            picks = {point: place.picks(point, keep, options.most) for point in points}
            if options.features:
                picks = {point: found for point, found in picks.items() if found}
            place.compile(picks)
            for i, point in enumerate(points):
                if time.monotonic() - began > options.seconds:
                    break
                if point in picks:
                    sweep_point(
                        point, place.card, families[name], meta=place.meta(point), place=place.device,
                        draws=options.draws, seed=options.seed + reached + i, keep=lambda c, kept=picks[point]: pick_of(c) in kept,
                    )  # fmt: skip
        if time.monotonic() - began <= options.seconds:
            reached += batch
        write(options.path, claim(place, families, reached, options))
        done = ", ".join(f"{n}: {s.points} points, {s.configs} schedules" for n, s in families.items())
        print(f"{time.monotonic() - began:.0f} s  {done}", flush=True)
    wrong = [w for s in families.values() for w in s.wrong]
    for line in wrong[:20]:
        print(f"differs: {line}")
    if place.ahead is not None:
        place.ahead.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
