"""A first look at the other kinds of problems: float32, TF32, 8-bit, batched, with an epilogue, with C added.

    python scripts/read_kinds.py OUT [--seconds 140] [--workers 14] [--kinds tf32,float8] [--library PATH|--simulated]
                                     [--again READINGS.jsonl]

Scans each kind, then reads answers, the most frequent groups first and one of every group before the second of any,
until the time is over.  OUT/scan.json holds the counts; OUT/readings.jsonl one record a reading, with all raw
experiments, so that `python scripts/infer_kinds.py OUT/readings.jsonl` infers again without a library.  What OUT holds
is not read again, but for failures: the same command goes on where it was stopped.  With ``--again`` those of an
earlier session come first whose rule was not found or gave other bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from kind_libraries import Real, Simulated

from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import bits_dtype
from gemmdesc.descriptor import Accumulator, FusedDot, GEMMDesc, ResidueLast, Rounding, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.library.interface import Library
from gemmdesc.mutants import mutants
from gemmdesc.probe.epilogues import plan_beside
from gemmdesc.probe.kinds import ReadItem, ScanItem, Scanned, equal_verdicts, in_turn, merged, read_kind, scan_kind
from gemmdesc.probe.sampling import KIND_NAMES, WALKED_KINDS, Regime, Scope, scope_named
from gemmdesc.probe.workers import InProcess, ProcessPool, Workers
from gemmdesc.problem import dense_problem
from gemmdesc.rivals import rival_set_operands

SEED = 20
#: Problems of one block of a scan.
BLOCK = 500
#: Readings of one group, at most.
EACH = 4


def scope_in(name: str, regimes: tuple[Regime, ...] | None) -> Scope:
    scope = scope_named(name)
    return scope if regimes is None else replace(scope, regimes=regimes)


def careful_read(library: Library, work: tuple[ReadItem, float]) -> dict[str, Any] | None:
    """:func:`read_kind`, unless its time is over; what it raises becomes a record, as the time on a card is short."""
    item, until = work
    if time.time() > until:
        return None
    try:
        return read_kind(library, item)
    except Exception as error:  # noqa: BLE001 - one strange answer must not end the session
        if "CUDA error" in str(error):
            # This process's context is lost; others should take what is left.
            time.sleep(5.0)
        where = "".join(traceback.format_exc().splitlines(keepends=True)[-8:])
        return {"kind": item.scope.kind.value, "number": item.number, "failure": f"{type(error).__name__}: {error}",
                "traceback": where}  # fmt: skip


def known(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The last records of a file by kind and number; a last line that a stop cut short is taken off it."""
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    rows = [json.loads(line) for line in whole.splitlines()]
    return {(r["name"], r["number"]): r for r in rows}


def scan(workers: Workers, names: list[str], scopes: dict[str, Scope], problems: int) -> dict[str, Scanned]:
    """All blocks of all kinds."""
    items = {
        ScanItem(scope=scopes[name], seed=SEED, first=first, count=min(BLOCK, problems - first)): name
        for first in range(0, problems, BLOCK)
        for name in names
    }
    parts: dict[str, list[Scanned]] = {name: [] for name in names}
    for item, part in workers.run(scan_kind, list(items)):
        parts[items[item]].append(part)
    return {name: merged(found) for name, found in parts.items()}


def write_scan(path: Path, scanned: dict[str, Scanned]) -> None:
    found = {
        name: {
            "refused": s.refused,
            "groups": [{"group": f"{g.key} several={g.several}", "count": c} for g, c in sorted(
                s.counts.items(), key=lambda x: -x[1]
            )],
        }
        for name, s in scanned.items()
    }  # fmt: skip
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read(
    workers: Workers, queues: dict[str, list[int]], scopes: dict[str, Scope], path: Path, until: float
) -> None:
    """Read kinds in turn until the time is over."""
    done = known(path)
    work = [
        (name, queues[name][turn])
        for turn in range(max(map(len, queues.values()), default=0))
        for name in queues
        if turn < len(queues[name]) and "failure" in done.get((name, queues[name][turn]), {"failure": "not read yet"})
    ]
    names = {(scopes[name], number): name for name, number in work}
    items = [(ReadItem(scope=scopes[name], seed=SEED, number=number), until) for name, number in work]
    with path.open("a", encoding="utf-8") as out:
        for (item, _), record in workers.run(careful_read, items):
            if record is not None:
                out.write(json.dumps({"name": names[item.scope, item.number], **record}) + "\n")
                out.flush()


def open_cases(path: Path) -> dict[str, list[int]]:
    """By kind, the numbers of an earlier session whose answers were not explained, or not with the library's bytes."""
    found: dict[str, list[int]] = {}
    for (name, number), record in known(path).items():
        if record.get("verdict") != "equal":
            found.setdefault(name, []).append(number)
    return found


def compile_once() -> None:
    """Compile what the workers run on the CPU, in a process of its own: they find it in Numba's cache."""
    fused = FusedDot(fraction_bits=25, output_bits=23, rounding=Rounding.TOWARD_ZERO, zero_exponent=-133)
    for step, per in ((fused, 8), (ScalarStep(fused=True), 1)):
        leaf = Accumulator(instruction_k=per, residue=ResidueLast(), step=step)
        for dtype in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3FN):
            desc = GEMMDesc(
                a_dtype=dtype, b_dtype=dtype, output_dtype=DType.FLOAT32, summed_k=64, cuts=(), accumulator=leaf
            )
            rows = np.zeros((3, 64), bits_dtype(dtype))
            replay(desc, rows, rows.T)
            replay(desc, rows, np.ascontiguousarray(rows.T))
            others = tuple(m.desc for m in mutants(desc, 64))
            rival_set_operands(desc, others, 64, seed=1, draw=0, dtype=dtype)
    plan_beside(dense_problem(8, 8, 8, DType.FLOAT16), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--workers", type=int, default=14, help="0: in this process")
    parser.add_argument("--kinds", default=",".join(n for n in WALKED_KINDS if n != "plain"))
    parser.add_argument("--problems", type=int, default=6000, help="scanned of each kind")
    parser.add_argument("--again", type=Path, help="readings of an earlier session on the same library")
    parser.add_argument("--library", help="default: torch's own")
    parser.add_argument("--simulated", action="store_true", help="rehearse on hidden rules, small problems only")
    options = parser.parse_args()
    began = time.monotonic()
    names = options.kinds.split(",")
    unknown = sorted(set(names) - set(KIND_NAMES))
    if unknown:
        sys.exit(f"kinds must be of {', '.join(KIND_NAMES)} (got {', '.join(unknown)})")
    options.out.mkdir(parents=True, exist_ok=True)
    scopes = {n: scope_in(n, (Regime.SMALL,) if options.simulated else None) for n in names}
    opener = Simulated() if options.simulated else Real(options.library)
    path = options.out / "readings.jsonl"
    compiling = get_context("spawn").Process(target=compile_once)
    compiling.start()
    with InProcess(opener()) if options.workers == 0 else ProcessPool(opener, options.workers) as workers:
        scanned = scan(workers, names, scopes, options.problems)
        write_scan(options.out / "scan.json", scanned)
        print(f"{time.monotonic() - began:.0f} s: scanned", {n: len(s.counts) for n, s in scanned.items()}, flush=True)
        compiling.join()
        print(f"{time.monotonic() - began:.0f} s: compiled", flush=True)
        first = {} if options.again is None else open_cases(options.again)
        queues = {
            n: list(dict.fromkeys([*first.get(n, ()), *(number for _, number in in_turn(s, EACH))]))
            for n, s in scanned.items()
        }
        read(workers, queues, scopes, path, time.time() + options.seconds - (time.monotonic() - began))
    records = list(known(path).values())
    for name in names:
        print(name, equal_verdicts([r for r in records if r["name"] == name]))
    print(f"{time.monotonic() - began:.0f} s, {len(records)} readings in {path}")
    # Workers that hold a CUDA context may hang on the way out.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
