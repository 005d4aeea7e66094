"""Hold the merges of matrix steps, and the models that work them out, against a card.

    python scripts/check_merges.py OUT.json [--elements 1048576] [--seconds 100]
    python scripts/check_merges.py OUT.json --enter        # no card: enter the cards that OUT.json has into the rows

Each row of ``gemmdesc/equivalence/merges.json`` is tried on every type that it is stated for: both forms run on the
card, on the ten draws of the gate (wide exponents, NaN, infinities, subnormals, -0.0), and their bytes are compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.equivalence.card import Card
from gemmdesc.equivalence.draws import DRAWS, FORMATS, draw
from gemmdesc.equivalence.matrix_steps import multiply_pairs, step_model
from gemmdesc.equivalence.merges import PADDED, SWAPPED, halved, load_merges, rows_text, statement, with_evidence
from gemmdesc.library.device import driver_version

Words = npt.NDArray[np.uint32]
Bits = npt.NDArray[np.uint64]
#: The shape with eight words a side, and the Triton type of an operand or accumulator.
SHAPES = {"f16": "m16n8k16", "bf16": "m16n8k16", "tf32": "m16n8k8"}
KINDS = {"f16": "fp16", "bf16": "bf16", "tf32": "fp32", "f32": "fp32"}
TARGET, VERSION, ARCHITECTURE = "sm_90a", "8.7", "Hopper"


def operands(types: str, name: str, count: int) -> tuple[Words, Words, Bits]:
    """Rows and columns of eight words, and accumulators, of one draw."""
    result, kind = types.split(".")[0], KINDS[types.split(".")[1]]
    each = 32 // FORMATS[kind].bytes
    rows, columns = (draw(name, kind, p, count * each).view(np.uint32).reshape(count, 8) for p in (0, 1))
    before = draw(name, KINDS[result], 2, count).view(f"u{FORMATS[KINDS[result]].bytes}")
    return rows, columns, before.astype(np.uint64)


def forms(merge: str, types: str, step: Any, rows: Words, columns: Words, before: Bits) -> tuple[Bits, Bits]:
    """What the two forms that a merge takes for one give."""
    shape = SHAPES[types.split(".")[1]]
    if merge == SWAPPED:
        name = f"mma.{shape}.{types}"
        return step(name, rows, columns, before), step(name, columns, rows, before)
    if merge == PADDED:
        upper = np.zeros((len(rows), 4), np.uint32)
        padded = (np.concatenate([side[:, :4], upper], axis=1) for side in (rows, columns))
        low = (np.ascontiguousarray(side[:, :4]) for side in (rows, columns))
        return step(f"mma.{shape}.{types}", *padded, before), step(f"mma.{halved(shape)}.{types}", *low, before)
    raise ValueError(f"no forms are written for {merge}")


def enter(results: Path, rows: Path) -> None:
    """Write into ``rows`` on which cards each merge held, by the claims in ``results``."""
    claims = json.loads(results.read_text(encoding="utf-8"))["claims"]
    made = [with_evidence(merge, claims) for merge in load_merges()]
    rows.write_text(rows_text(made), encoding="utf-8")
    print("\n".join(map(str, made)))


def main() -> None:
    """Try every row, write and print the counts; exit 1 if a byte differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of each merge and type, over the ten draws")
    parser.add_argument("--seconds", type=float, default=100.0, help="no further trial is begun after these")
    parser.add_argument("--enter", action="store_true", help="try nothing; take OUT.json into the packaged rows")
    options = parser.parse_args()
    if options.enter:
        enter(options.out, Path(str(resources.files("gemmdesc.equivalence").joinpath("merges.json"))))
        return
    began = time.time()
    import triton

    card = Card()
    step = card.matrix_step(TARGET, VERSION)
    versions = {"triton": triton.__version__, "driver": driver_version(), "python": platform.python_version()}
    facts = {
        "command": "python scripts/check_merges.py OUT.json",
        "card": card.name,
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }
    claims = []
    trials = [(m.name, m.says, t) for m in load_merges() for t in m.types]
    kinds = sorted({t for _, _, t in trials})
    trials += [("model", "a step is what the accumulator model of gemmdesc.arithmetic gives", t) for t in kinds]
    each = -(-options.elements // len(DRAWS))
    for merge, says, types in trials:
        if time.time() - began > options.seconds:
            print(f"no time for {merge}, {types}", file=sys.stderr)
            continue
        counts = {"draws": len(DRAWS), "elements": each * len(DRAWS), "equal": 0, "different": 0}
        for name in DRAWS:
            rows, columns, before = operands(types, name, each)
            if merge == "model":
                full = f"mma.{SHAPES[types.split('.')[1]]}.{types}"
                model = step_model(full, ARCHITECTURE)
                if model is None:
                    raise SystemExit(f"the table has no model of {full}")
                one, other = step(full, rows, columns, before), multiply_pairs(model, rows, columns, before)
            else:
                one, other = forms(merge, types, step, rows, columns, before)
            counts["equal"] += int((one == other).sum())
            counts["different"] += int((one != other).sum())
        claims.append({"claim": statement(merge, says, types), **facts, "counts": counts})
        print(json.dumps(claims[-1]["counts"]), merge, types, flush=True)
        options.out.write_text(json.dumps({"claims": claims}, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(c["counts"]["different"] for c in claims) else 0)


if __name__ == "__main__":
    main()
