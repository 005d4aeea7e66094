"""Does torch pose the problems that the routes say?  Random calls of torch's, each product made again by cuBLASLt.

    PYTHONPATH=. python scripts/check_routes.py OUT.json [--seconds 150] [--calls N] [--seed S] [--captures 60]
                                                        [--only mm,linear] [--rehearse]

Every product inside the calls, those of backward passes included, is compared byte by byte with cublasLtMatmul's first
answer to the routed problem, on the same memory.  OUT.json holds counts by operator, types, layout and epilogue, why
calls declined, and each differing product with the routes that give torch's bytes and both sides' kernels.  It is
rewritten every few seconds.  A call that raises is recorded and the next one goes on; a lost CUDA context ends the run.
``--rehearse`` needs no GPU: small integers on the host, whose sums are exact, and a library that reads raw memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from gemmdesc.dropin.intercept import intercepted
from gemmdesc.library.profiler import executed_kernels
from gemmdesc.library.torch_settings import TorchSettings, read_settings
from gemmdesc.plain import to_plain
from gemmdesc.routes import Release
from gemmdesc.verification.route_draws import CALLS, Call, draw_call
from gemmdesc.verification.routed import Finding, PointerLibrary, RouteChecker, Tally

#: Seconds between two writes of the file.
WRITE_EVERY = 10.0
#: Differing products of one group that are told in full.
TOLD = 3


class Kernels:
    """Names of the kernels of torch's call, for as many calls as the run may afford."""

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, run: Callable[[], Any]) -> tuple[str, ...] | None:
        if self.left <= 0:
            return None
        self.left -= 1
        return executed_kernels(run)


class Run:
    """The findings so far, and the file that holds them."""

    def __init__(self, out: Path, stamp: dict[str, Any]) -> None:
        self.out, self.stamp = out, stamp
        self.tally, self.errors = Tally(), Counter[str]()
        self.told: Counter[Any] = Counter()
        self.calls, self.began, self.written = Counter[str](), time.monotonic(), 0.0

    def add(self, finding: Finding) -> None:
        kept = len(self.tally.told)
        self.tally.add(finding)
        if len(self.tally.told) > kept:
            key = (finding.group, finding.verdict)
            self.told[key] += 1
            if self.told[key] > TOLD:
                self.tally.told.pop()

    def write(self) -> None:
        counts = [{**to_plain(g), **dict(c)} for g, c in self.tally.counts.items()]
        counts.sort(key=lambda c: (-c.get("different", 0), c["operator"], c["dtypes"], c["epilogue"], c["layout"]))
        data = self.stamp | {
            "seconds": round(time.monotonic() - self.began, 1), "calls": dict(self.calls),
            "totals": dict(self.tally.totals), "counts": counts, "declined": dict(self.tally.reasons.most_common()),
            "errors": dict(self.errors.most_common()), "told": self.tally.told,
        }  # fmt: skip
        aside = self.out.with_suffix(".tmp")
        aside.write_text(json.dumps(data, indent=1))
        os.replace(aside, self.out)
        self.written = time.monotonic()


def check(run: Run, call: Call) -> None:
    """One call, its products intercepted, whatever becomes of it."""
    run.calls[call.name] += 1
    try:
        call.make()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        run.errors[f"{call.name}: out of memory"] += 1
    except Exception as error:  # noqa: BLE001 (a call that torch refuses or that fails must not end the run)
        run.errors[f"{call.name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}"] += 1


def is_alive(device: str) -> bool:
    """Whether the CUDA context still works."""
    if device != "cuda":
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def drawn(args: argparse.Namespace, device: str) -> Iterator[Call]:
    """Calls until the time or the count is over; those that cannot be drawn are passed over."""
    end = time.monotonic() + args.seconds
    only = None if args.only is None else set(args.only.split(","))
    index = 0
    while time.monotonic() < end and (args.calls is None or index < args.calls):
        try:
            if device == "cuda":
                torch.manual_seed((args.seed << 20) + index)
            call = draw_call(args.seed, index, device, exact=args.rehearse, largest=48 if args.rehearse else None)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        else:
            if only is None or call.name in only:
                yield call
        index += 1


def opened(args: argparse.Namespace) -> tuple[PointerLibrary, Callable[[], TorchSettings], dict[str, Any], str]:
    """The library, torch's settings, a stamp of both, and the device."""
    stamp: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "date": date.today().isoformat(), "torch": torch.__version__,
    }  # fmt: skip
    if args.rehearse:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from tests.pointer_library import HostLibrary

        return HostLibrary(), TorchSettings, stamp, "cpu"
    from gemmdesc.library.cublaslt import CublasLt

    library = CublasLt()
    sm = library.device.sm
    stamp |= {
        "card": to_plain(library.device), "library": to_plain(library.identity),
        "settings": asdict(read_settings(sm)), "environment": {k: v for k, v in os.environ.items() if "CUBLAS" in k},
    }  # fmt: skip
    return library, lambda: read_settings(sm), stamp, "cuda"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--calls", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--captures", type=int, default=60)
    parser.add_argument("--only", help=f"some of {','.join(CALLS)}")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    library, settings, stamp, device = opened(args)
    run = Run(args.out, stamp | {"seed": args.seed})
    release = Release.parse(torch.__version__)
    checker = RouteChecker(library, settings, release, run.add, Kernels(args.captures if device == "cuda" else 0))
    with intercepted(checker):
        for call in drawn(args, device):
            check(run, call)
            if not is_alive(device):
                run.errors["the CUDA context was lost"] += 1
                break
            if time.monotonic() - run.written > WRITE_EVERY:
                run.write()
    run.write()
    report(run)
    return 0


def report(run: Run) -> None:
    """The counts, by operator and types, and what differs."""
    print(f"{sum(run.calls.values())} calls; products {dict(run.tally.totals)}")
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for g, c in run.tally.counts.items():
        rows.setdefault((g.operator, g.dtypes, g.epilogue), Counter()).update(c)
    for key, c in sorted(rows.items()):
        print("  ".join(key), dict(c))
    for text, n in run.errors.most_common(20):
        print(f"error x{n}: {text}")
    for text, n in run.tally.reasons.most_common(20):
        print(f"declined x{n}: {text}")
    same = Counter((d["group"]["operator"], tuple(d.get("equal_with", ()))) for d in run.tally.told)
    for (operator, names), n in same.most_common(20):
        print(f"told x{n}: {operator}, equal with {list(names)}")


if __name__ == "__main__":
    sys.exit(main())
