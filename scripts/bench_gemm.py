"""Speed of plain products against torch.mm: bytes first, then CUDA-graph replays in turn.

    python scripts/bench_gemm.py docs/results/gemm_speed.json [--dtype float16] [--rounds 7]

A row whose bytes differ from torch.mm is counted and not timed: there the library's answer is no plain chain.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

from check_kernels import CARD, TORCH_NAMES, make_desc, time_round_robin

from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import KernelChoice

SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (16384, 4096, 4096),
    (2048, 2048, 2048), (1024, 4096, 4096), (512, 4096, 4096), (256, 4096, 4096),
)  # fmt: skip
#: Layouts of A and B: ``N`` stored by rows, ``T`` stored by columns.
LAYOUTS = ("NN", "NT")


def run_shape(m: int, n: int, k: int, layouts: str, dtype: DType, rounds: int) -> dict[str, Any]:
    """One shape: its bytes, then its times."""
    import torch

    from gemmdesc.kernels import launch

    kind = getattr(torch, TORCH_NAMES[dtype])
    a = torch.randn((m, k) if layouts[0] == "N" else (k, m), device="cuda").to(kind)
    b = torch.randn((k, n) if layouts[1] == "N" else (n, k), device="cuda").to(kind)
    a, b = (a if layouts[0] == "N" else a.T), (b if layouts[1] == "N" else b.T)
    ours, theirs = torch.empty(m, n, dtype=kind, device="cuda"), torch.empty(m, n, dtype=kind, device="cuda")
    torch.mm(a, b, out=theirs)
    choice = launch.run(make_desc(k, dtype=dtype), a, b, ours, CARD)
    row: dict[str, Any] = {"shape": [m, n, k], "layouts": layouts}
    if not isinstance(choice, KernelChoice):
        return row | {"state": "declined", "reason": choice.reason}
    if not torch.equal(ours.view(torch.int16), theirs.view(torch.int16)):
        return row | {"state": "different"}
    calls = {
        "cublas": lambda: torch.mm(a, b, out=theirs),
        "ours": lambda: launch.launch(choice, a, b, ours),
    }
    times = time_round_robin(calls, max(2, min(100, int(4e12 / (2 * m * n * k)))), rounds)
    return row | {"state": "equal", "us": times, "ratio": times["cublas"] / times["ours"], "config": str(choice.config)}


def limits(row: dict[str, Any], bandwidth: float, rate: float) -> dict[str, float]:
    """The least microseconds that moving each byte once, and that multiplying, take."""
    m, n, k = row["shape"]
    return {"bytes_us": 2e6 * (m * k + k * n + m * n) / bandwidth, "flops_us": 2e6 * m * n * k / rate}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--dtype", default="float16", choices=[d.value for d in (DType.FLOAT16, DType.BFLOAT16)])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bandwidth", type=float, default=4.43e12, help="bytes a second that the card reads")
    parser.add_argument("--rate", type=float, default=989e12, help="floating-point operations a second of the card")
    arguments = parser.parse_args()

    import torch
    import triton

    rows = []
    for shape, layouts in product(SHAPES, LAYOUTS):
        row = run_shape(*shape, layouts, DType(arguments.dtype), arguments.rounds)
        row |= limits(row, arguments.bandwidth, arguments.rate)
        rows.append(row)
        took = (
            f"{row['us']['ours']:.1f} us, cuBLAS {row['us']['cublas']:.1f} us, ratio {row['ratio']:.3f}"
            if "us" in row
            else row["state"]
        )
        least = f"limits {row['bytes_us']:.1f} (bytes) {row['flops_us']:.1f} (flops) us"
        print(f"{'x'.join(map(str, shape))} {layouts}: {took}; {least}")
    ratios = {f"{'x'.join(map(str, r['shape']))} {r['layouts']}": r["ratio"] for r in rows if "ratio" in r}
    geomean = math.exp(sum(map(math.log, ratios.values())) / len(ratios)) if ratios else None
    claim = {
        "claim": f"plain {arguments.dtype} products: cuBLAS time / ours, bytes equal",
        "command": "python " + " ".join(sys.argv),
        "card": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "date": time.strftime("%Y-%m-%d"),
        "counts": {
            "shapes": len(rows), "draws": len(rows),
            **{s: sum(r["state"] == s for r in rows) for s in ("equal", "different", "declined")},
            "nondeterministic": 0, "reference_failed": 0,
        },
        "ratio": ratios,
        "geomean": {"all": geomean},
        "rows": rows,
    }  # fmt: skip
    aside = arguments.path.with_suffix(".tmp")
    aside.write_text(json.dumps({"claims": [claim]}, indent=1))
    aside.replace(arguments.path)
    return 0 if ratios else 1


if __name__ == "__main__":
    sys.exit(main())
