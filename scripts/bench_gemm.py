"""How fast are our kernels beside cuBLAS, with its bytes?  On a GPU, or with --rehearse without one.

    PYTHONPATH=. python scripts/bench_gemm.py measure OUT [--earlier DIR ...] [--seconds 300] [--shard 0/1] [--runs 1]
                 [--parts model,decode,...] [--configs usual] [--compiled 8] [--only-compiled] [--rounds 7] [--seed 0]
                 [--untuned] [--rehearse]
    PYTHONPATH=. python scripts/bench_gemm.py summary OUT [--earlier DIR ...] [--parts ...] [--dropped] [--untuned]
    PYTHONPATH=. python scripts/bench_gemm.py list

``measure`` is one session: ten control products, then shapes of the shard that lack a run in the sessions of OUT and of
``--earlier``, sets in turn, until the time is over, then the control again.  OUT/<name>.speed.jsonl has a line for each
shape, written when it is timed: state, kernel, medians and quartiles of each call, the least that it can take.  A
session whose control moved by more than 2% is dropped, and its shapes are timed again by the next.  Ours is what a
caller gets: the model's choice, or that of a tuned table if one is found; a row's ``tuned`` says which (exact, class or
nothing).  Exits 1 where bytes differ, 3 where shapes are left.
``--untuned``: as if there were no table.  Sessions of either kind may lie in one folder: neither counts for the other,
so that ``summary`` and ``summary --untuned`` give each group's mean with and without the table.

``--configs``: also time other schedules of plain 16-bit products where they apply, bytes first; names between commas,
``two_launches``, ``plain``, or ``one_launch``, ``narrow``, ``dependent``, ``wide``, joined by + where several hold;
``usual`` for seven of them without ``wide``.
``--compiled``: of how many shapes a group torch.compile's code is timed, which takes 20 seconds a shape.

``summary`` writes OUT/speed.json (claims, for docs/results), OUT/speed.parquet (every row, dropped sessions', too) and
OUT/speed.png, and prints each group's geometric mean beside its bar, and each schedule's beside ours.  ``--dropped``:
from dropped sessions, too, for a first look.
``list`` prints the shapes as CSV, as in docs/speed_shapes.csv, which ``gemmdesc tune`` and ``gemmdesc record`` read.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemmdesc.errors import GemmdescError
from gemmdesc.speed.journal import Session, read_sessions
from gemmdesc.speed.measuring import State
from gemmdesc.speed.plot import plot_ratios
from gemmdesc.speed.rehearsal import RehearsalDevice
from gemmdesc.speed.schedules import schedules_named
from gemmdesc.speed.session import COMPILED_SHAPES, Plan, remaining, run_session
from gemmdesc.speed.sets import PARTS, speed_shapes
from gemmdesc.speed.shapes import SpeedShape
from gemmdesc.speed.summary import Collected, claims, write_rows

LEFT = 3


def command_line() -> str:
    return f"PYTHONPATH=. python scripts/bench_gemm.py {' '.join(sys.argv[1:])}"


def wanted(options: argparse.Namespace) -> tuple[SpeedShape, ...]:
    return speed_shapes(options.parts.split(","))


def sessions_of(options: argparse.Namespace, folders: Iterable[Path]) -> tuple[Session, ...]:
    """Those of ``folders`` with tuned tables, or with ``--untuned`` those without."""
    return tuple(s for s in read_sessions(folders) if s.untuned is options.untuned)


def measure(options: argparse.Namespace) -> int:
    folders = [options.out, *options.earlier]
    earlier = sessions_of(options, folders)
    index, _, count = options.shard.partition("/")
    compiled, schedules = options.compiled, schedules_named(options.configs)
    if compiled is None:
        compiled = COMPILED_SHAPES if options.only_compiled else 0
    plan = Plan(
        shapes=wanted(options), seconds=options.seconds, shard=(int(index), int(count or 1)), runs=options.runs,
        rounds=options.rounds, compiled=compiled, seed=options.seed, only_compiled=options.only_compiled,
    )  # fmt: skip
    now = datetime.now(UTC)
    name = f"{options.shard.replace('/', 'of')}-{now:%Y%m%dT%H%M%S%f}"
    if options.rehearse:
        device: Any = RehearsalDevice(schedules=schedules)
    else:
        from gemmdesc.speed.card import CudaDevice, require_gpu

        require_gpu()
        device = CudaDevice(seed=options.seed, schedules=schedules, untuned=options.untuned)
    about = {"command": command_line(), "date": f"{now:%Y-%m-%d}", "untuned": options.untuned}
    began = time.monotonic()

    def report(text: str, done: int, total: int) -> None:
        print(f"{done}/{total} {time.monotonic() - began:.0f} s  {text}", flush=True)

    try:
        done = run_session(device, plan, options.out, name, about, earlier, report)
    finally:
        device.close()
    sessions = sessions_of(options, folders)
    left = remaining(plan, sessions)
    own = next((s for s in sessions if s.name == name), None)
    if own is not None:
        moved = "unknown" if own.move is None else f"{own.move:+.2%}"
        print(f"session {name}: {done} shapes, control moved by {moved}{', dropped' if own.dropped else ''}")
    print(f"left in this shard: {len(left)}")
    rows = [r for s in sessions for r in s.rows]
    different = [r.shape.name for r in rows if r.state is State.DIFFERENT]
    different += [f"{r.shape.name}, {name}" for r in rows for name in r.sides.schedules if name in r.sides.different]
    for shape in dict.fromkeys(different):
        print(f"bytes differ: {shape}")
    return 1 if different else LEFT if left else 0


def summary(options: argparse.Namespace) -> int:
    sessions = sessions_of(options, [options.out, *options.earlier])
    collected = Collected(wanted(options), sessions, dropped=options.dropped)
    write_rows(collected, options.out / "speed.parquet")
    found = claims(collected, command_line())
    aside = options.out / "speed.json.part"
    aside.write_text(json.dumps({"claims": found}, indent=1) + "\n")
    aside.replace(options.out / "speed.json")
    plot_ratios(collected, options.out / "speed.png")
    for session in (s for s in sessions if s.dropped):
        print(f"{session.name}: {session.dropped}{', used all the same' if options.dropped else ', dropped'}")
    for name, group in found[0]["by_group"].items():
        words = "met" if group["met"] else "not met"
        over = f"over {group['timed']} of {group['shapes']}" + (f", {group['tuned']} tuned" if group["tuned"] else "")
        mean = "nothing timed" if group["geomean"] is None else f"{group['geomean']:.3f}"
        print(f"{name}: {mean} {over}, bar {group['bar']:.3f} {words}")
    for reason, by_part in found[0]["declined"].items():
        print(f"declined, {', '.join(f'{n} of {part}' for part, n in by_part.items())}: {reason}")
    others = next((c["by_schedule"] for c in found if "by_schedule" in c), {})
    for name, result in others.items():
        print(in_words(name, result))
        # The groups of models by layer are in the file.
        for group, inner in ((g, r) for g, r in result["by_group"].items() if ": " not in g):
            print(f"  {in_words(group, inner)}")
    print(found[0]["counts"])
    return 1 if found[0]["counts"]["different"] or any(r["different"] for r in others.values()) else 0


def in_words(name: str, result: dict[str, Any]) -> str:
    """One line about a schedule."""
    means = [result[key] for key in ("over_ours", "library_over_it", "library_over_ours")]
    words = "{:.3f} times as fast as ours, cuBLAS over it {:.3f}, over ours {:.3f}"
    told = "nothing timed" if None in means else words.format(*means)
    counts = ", ".join(f"{result[key]} {key.replace('_', ' ')}" for key in ("faster", "slower", "different", "failed"))
    return f"{name}: {told}; {result['timed']} of {result['applies']} timed, {result['as_ours']} as ours; {counts}"


def list_shapes(options: argparse.Namespace) -> int:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("m", "n", "k", "layout", "dtype", "out_dtype", "model", "layer", "label"))
    for s in wanted(options):
        p, label = s.product, f"{s.part} {s.following}".strip()
        writer.writerow((p.m, p.n, p.k, p.layout, p.dtype.value, p.out_dtype.value, p.label, s.group, label))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("measure", measure), ("summary", summary), ("list", list_shapes)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--parts", default=",".join(PARTS), help="sets, separated by commas")
        if name == "list":
            continue
        command.add_argument("out", type=Path)
        command.add_argument("--untuned", action="store_true", help="without tuned tables, and of sessions without")
        command.add_argument("--earlier", type=Path, action="append", default=[], help="a folder of earlier sessions")
        if name == "summary":
            command.add_argument("--dropped", action="store_true", help="use sessions that are dropped, too")
            continue
        command.add_argument("--seconds", type=float, default=300.0)
        command.add_argument("--shard", default="0/1", help="i/n: every n-th shape from the i-th on")
        command.add_argument("--runs", type=int, default=1, help="sessions that each shape is to be timed in")
        command.add_argument("--rounds", type=int, default=7)
        command.add_argument("--configs", default="", help="other schedules, such as usual or chain_specialised")
        command.add_argument("--compiled", type=int, help="shapes a group, torch.compile too; 8 with --only-compiled")
        command.add_argument("--only-compiled", action="store_true", help="those shapes alone")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--rehearse", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if hasattr(options, "out"):
            options.out.mkdir(parents=True, exist_ok=True)
        return int(options.run(options))
    except (GemmdescError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
