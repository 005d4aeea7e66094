"""Compare every accumulator model with MMA-Sim on at least ``--calls`` calls, and write the counts as JSON.

    python scripts/check_accumulators.py --calls 10000 --output accumulators.json

Exit status 1 where any call differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gemmdesc.arithmetic.models import load_models
from gemmdesc.arithmetic.oracle import DISTRIBUTIONS, compare_model


def count(calls: int, seed: int) -> list[dict[str, Any]]:
    """One row per model and distribution; together at least ``calls`` calls of each model."""
    size = math.ceil(math.sqrt(calls / len(DISTRIBUTIONS)))
    rows = []
    for i, model in enumerate(load_models()):
        for j, distribution in enumerate(DISTRIBUTIONS):
            result = compare_model(model, distribution=distribution, size=size, seed=seed + i * len(DISTRIBUTIONS) + j)
            row = asdict(result)
            rows.append({k: getattr(v, "value", v) for k, v in row.items()})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="least number of calls per model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the counts here; default: standard output")
    options = parser.parse_args()
    rows = count(options.calls, options.seed)
    report = {
        "claim": "accumulator models give the bytes of an independent model",
        "versions": {name: version(name) for name in ("mmasim", "numpy", "numba", "torch")},
        "calls": sum(r["calls"] for r in rows),
        "different": sum(r["different"] for r in rows),
        "rows": rows,
    }
    text = json.dumps(report, indent=1)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
        print(f"{report['calls']} calls, {report['different']} different")
    else:
        print(text)
    return int(report["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
