"""Fresh processes that make their first calls, with and without saved plans, for ``bench_host.py``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

CHILD = """
import json, time
begin = time.perf_counter()
import torch, gemmdesc
a, b = (torch.ones(64, 4096, device={place!r}, dtype=torch.float16) for _ in range(2))
wait = torch.cuda.synchronize if {place!r} == "cuda" else (lambda: None)
product = torch.mm if {rehearse!r} else gemmdesc.matmul
torch.mm(a, b.T); wait()
ready = time.perf_counter()
product(a, b.T); wait()
first = time.perf_counter()
product(a[:48], b.T); wait()
second = time.perf_counter()
saved = None
if not {rehearse!r}:
    from gemmdesc.ops import default_planner
    held = default_planner().saved
    saved = None if held is None else [held.info().found, held.info().asked]
print(json.dumps({{"imports_and_torch": ready - begin, "first_call": first - ready, "second_shape": second - first,
                  "saved": saved}}))
"""


def started(folder: str, place: str, rehearse: bool) -> dict[str, Any]:
    """What a fresh process told of its first calls; ``folder``: of saved plans, or ``off``."""
    environment = {**os.environ, "GEMMDESC_SAVED_PLANS": folder}
    code = CHILD.format(place=place, rehearse=rehearse)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"a fresh process failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def start_claims(starts: int, place: str, rehearse: bool, until: float) -> Iterator[dict[str, Any]]:
    """Of a fresh process's first call with and without saved plans, in turn: a claim after each pair.

    At most ``starts`` pairs, and after the first none that would end past ``until`` (``time.perf_counter``).
    """
    told: dict[str, list[dict[str, Any]]] = {"without": [], "with saved plans": []}
    with tempfile.TemporaryDirectory() as folder:
        started(folder, place, rehearse)  # saves the plans, and fills Triton's cache
        longest = 0.0
        for pair in range(starts):
            begin = time.perf_counter()
            if pair and begin + longest > until:
                return
            told["without"].append(started("off", place, rehearse))
            told["with saved plans"].append(started(folder, place, rehearse))
            longest = max(longest, time.perf_counter() - begin)
            yield start_claim(told)


def start_claim(told: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What the processes of each kind told, as a claim: medians."""
    seconds = {
        name: {key: round(statistics.median(t[key] for t in runs), 4)
               for key in ("imports_and_torch", "first_call", "second_shape")}
        for name, runs in told.items()
    }  # fmt: skip
    asked = sorted({tuple(t["saved"]) for t in told["with saved plans"] if t["saved"]})
    return {
        "claim": "seconds of a fresh process's first call and of a second shape, with and without saved plans",
        "counts": {"processes": sum(map(len, told.values()))}, "seconds": seconds,
        "answers_found_and_asked": [list(pair) for pair in asked],
    }  # fmt: skip
