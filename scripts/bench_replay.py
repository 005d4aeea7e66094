"""Multiply-adds per second of the replay and of MMA-Sim, in one run on one machine, as JSON.

python scripts/bench_replay.py --m 128 --n 128 --k 4096 --output replay.json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numba import config

from gemmdesc.arithmetic.models import AccumulatorModel, find_model
from gemmdesc.arithmetic.oracle import draw, independent_dot
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import bitwise_equal
from gemmdesc.descriptor import Accumulator, FusedDot, GEMMDesc, ResidueLast, ScalarStep
from gemmdesc.dtypes import DType


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=128)
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the figures here; default: standard output")
    options = parser.parse_args()
    text = json.dumps(measure(options.m, options.n, options.k, options.repeats), indent=1)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


def measure(m: int, n: int, k: int, repeats: int) -> dict[str, Any]:
    """Rates in multiply-adds per second: the median and the best of ``repeats``; the first call is timed apart."""
    rng = np.random.default_rng(0)
    a, b = draw(rng, "normal", (m, k), DType.FLOAT16), draw(rng, "normal", (k, n), DType.FLOAT16)
    model = find_model(
        architecture="Hopper",
        instruction="wgmma",
        a_dtype=DType.FLOAT16,
        b_dtype=DType.FLOAT16,
        accumulator_dtype=DType.FLOAT32,
    )
    begin = time.perf_counter()
    ours = replay(_desc(model.step, model.instruction_k, k), a, b)
    first_call = time.perf_counter() - begin
    theirs, seconds = _mmasim(model, a, b)
    matrix = _rate(lambda: replay(_desc(model.step, model.instruction_k, k), a, b), m * n * k, repeats)
    scalar = _rate(lambda: replay(_desc(ScalarStep(fused=True), 1, k), a, b), m * n * k, repeats)
    return {
        "sizes": {"m": m, "n": n, "k": k},
        "threads": config.NUMBA_NUM_THREADS,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numba", "numpy", "mmasim", "torch")},
        "first_call_seconds": first_call,
        "hopper_float16": matrix,
        "scalar_fma": scalar,
        "mmasim_hopper_float16": {"rate": m * n * k / seconds},
        "ratio": matrix["median_rate"] * seconds / (m * n * k),
        "bytes_equal": bitwise_equal(ours, theirs),
    }


def _desc(step: FusedDot | ScalarStep, instruction_k: int, k: int) -> GEMMDesc:
    return GEMMDesc(
        a_dtype=DType.FLOAT16,
        b_dtype=DType.FLOAT16,
        output_dtype=DType.FLOAT32,
        summed_k=k,
        cuts=(),
        accumulator=Accumulator(instruction_k=instruction_k, residue=ResidueLast(), step=step),
    )


def _mmasim(model: AccumulatorModel, a: Any, b: Any) -> tuple[Any, float]:
    c = np.zeros((a.shape[0], b.shape[1]), np.uint32)
    begin = time.perf_counter()
    result = independent_dot(model, a, b, c)
    return result, time.perf_counter() - begin


def _rate(work: Callable[[], Any], products: int, repeats: int) -> dict[str, float]:
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return {"median_rate": products / float(np.median(seconds)), "best_rate": products / min(seconds)}


if __name__ == "__main__":
    main()
