"""Does torch pose the problems that the routes say?  Random calls of torch's, each product made again by cuBLASLt.

    PYTHONPATH=. python scripts/check_routes.py OUT.json [--seconds 150] [--calls N] [--first I] [--seed S]
                                                        [--captures 60] [--batch 500] [--only mm,linear] [--rehearse]

Every product inside the calls, those of backward passes included, is compared byte by byte with cublasLtMatmul's first
answer to the routed problem, on the same memory.  OUT.json holds counts by operator, types, layout and epilogue, why
calls declined, and each differing product with the routes that give torch's bytes and both sides' kernels.  It is
rewritten every few seconds.

Calls run in child processes, ``--batch`` of them in each.  A call that raises is recorded, one that ends its process
too, with the index that gives the call again: ``--here --seed S --first I --calls 1`` runs it in this process.
``--rehearse`` needs no GPU: small integers on the host, whose sums are exact, and a library that reads raw memory;
``--dies 3,17``: there the child ends itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, Protocol

import torch

from gemmdesc.dropin.intercept import intercepted
from gemmdesc.library.profiler import executed_kernels
from gemmdesc.library.torch_settings import TorchSettings, read_settings
from gemmdesc.plain import to_plain
from gemmdesc.routes import Release
from gemmdesc.verification.children import Died, Journal, work_in_children
from gemmdesc.verification.route_draws import CALLS, Call, draw_call
from gemmdesc.verification.routed import Finding, PointerLibrary, RouteChecker, Tally, Verdict, finding_from_plain

#: Seconds between two writes of the file.
WRITE_EVERY = 5.0
#: Differing products of one group that are told in full.
TOLD = 3
#: Calls of a run that names no number.
MOST_CALLS = 1 << 30


class Sink(Protocol):
    """Where the calls' records go: to the counts, or to a parent's journal."""

    def begin(self, index: int) -> None: ...

    def done(self, index: int, record: Any) -> None: ...


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

    def __init__(self, out: Path, stamp: dict[str, Any], captures: int) -> None:
        self.out, self.stamp, self.captures = out, stamp, captures
        self.tally, self.errors = Tally(), Counter[str]()
        self.told: Counter[Any] = Counter()
        self.failed: list[dict[str, Any]] = []
        self.calls, self.began, self.written = Counter[str](), time.monotonic(), 0.0

    def begin(self, index: int) -> None:
        """Nothing is known of a call before it is over."""

    def done(self, index: int, record: dict[str, Any] | None) -> None:
        """Count what a call came to; None: there was none to make."""
        if record is None:
            return
        self.calls[record["call"]] += 1
        self.captures -= record["captures"]
        for finding in record["findings"]:
            self.add(finding_from_plain(finding))
        if record["error"] is not None:
            self.fail(index, f"{record['call']}: {record['error']}")
        if time.monotonic() - self.written > WRITE_EVERY:
            self.write()

    def fail(self, index: int | None, text: str, how: str = "") -> None:
        self.errors[text] += 1
        self.failed.append({"index": index, "error": text, "how": how})

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
            "errors": dict(self.errors.most_common()), "failed": self.failed[:100], "told": self.tally.told,
        }  # fmt: skip
        aside = self.out.with_suffix(".tmp")
        aside.write_text(json.dumps(data, indent=1))
        os.replace(aside, self.out)
        self.written = time.monotonic()


def made(call: Call) -> str | None:
    """What the call raised, if anything: one that torch refuses or that fails must not end the run."""
    try:
        call.make()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return "out of memory"
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
    return None


def is_alive(device: str) -> bool:
    """Whether the CUDA context still works."""
    if device != "cuda":
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def drawn(args: argparse.Namespace, index: int, device: str) -> Call | None:
    """A call, None where memory is lacking or another operator is asked for."""
    try:
        if device == "cuda":
            torch.manual_seed((args.seed << 20) + index)
        call = draw_call(args.seed, index, device, exact=args.rehearse, largest=48 if args.rehearse else None)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return call if args.only is None or call.name in args.only.split(",") else None


def work(args: argparse.Namespace, sink: Sink) -> None:
    """Calls in this process, until their number or the time is over or the CUDA context is lost."""
    end, device = time.monotonic() + args.seconds, "cpu" if args.rehearse else "cuda"
    library, settings = opened(args)
    findings: list[Finding] = []
    kernels = Kernels(0 if args.rehearse else args.captures)
    checker = RouteChecker(library, settings, Release.parse(torch.__version__), findings.append, kernels)
    dies = [int(index) for index in args.dies.split(",") if index]
    with intercepted(checker):
        for index in range(args.first, args.first + (args.calls or MOST_CALLS)):
            if time.monotonic() > end:
                return
            sink.begin(index)
            call, left = drawn(args, index, device), kernels.left
            if index in dies:
                os.kill(os.getpid(), signal.SIGSEGV)
            if call is None:
                sink.done(index, None)
                continue
            findings.clear()
            error = made(call)
            alive = is_alive(device)
            if not alive:
                error = f"the CUDA context was lost ({error})"
            kept = [to_plain(f if f.verdict is not Verdict.EQUAL else bare(f)) for f in findings]
            sink.done(index, {"call": call.name, "error": error, "findings": kept, "captures": left - kernels.left})
            if not alive:
                return


def bare(finding: Finding) -> Finding:
    return Finding(group=finding.group, verdict=finding.verdict, detail={})


def supervise(args: argparse.Namespace, run: Run) -> None:
    """Calls in children, until their number or the time is over."""
    end = time.monotonic() + args.seconds

    def command(part: range, journal: Path) -> list[str]:
        own = [sys.executable, "-X", "faulthandler", __file__, str(journal), "--journal", "--seed", str(args.seed)]
        own += ["--first", str(part.start), "--calls", str(len(part)), "--captures", str(run.captures)]
        own += ["--seconds", str(end - time.monotonic()), "--dies", args.dies]
        own += ["--only", args.only] if args.only is not None else []
        return own + (["--rehearse"] if args.rehearse else [])

    items = range(args.first, args.first + (args.calls or MOST_CALLS))
    for event in work_in_children(
        command, items, batch=args.batch, silence_seconds=120.0, goes_on=lambda: time.monotonic() < end
    ):
        if isinstance(event, Died):
            run.fail(event.index, "the process died", event.how)
            run.write()
        else:
            run.done(event.index, event.record)


def opened(args: argparse.Namespace) -> tuple[PointerLibrary, Callable[[], TorchSettings]]:
    """The library, and torch's settings."""
    if args.rehearse:
        from tests.pointer_library import HostLibrary

        return HostLibrary(), TorchSettings
    from gemmdesc.library.cublaslt import CublasLt

    library = CublasLt()
    sm = library.device.sm
    return library, lambda: read_settings(sm)


def stamped(args: argparse.Namespace) -> dict[str, Any]:
    """What the file says of the run, the card and the library; no library is opened in this process."""
    stamp: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "date": date.today().isoformat(), "torch": torch.__version__,
        "seed": args.seed,
    }  # fmt: skip
    if args.rehearse:
        return stamp
    from gemmdesc.library.device import device_id
    from gemmdesc.library.identity import library_id, torch_library

    here = device_id(0)
    return stamp | {
        "card": to_plain(here), "library": to_plain(library_id(torch_library().path)),
        "settings": asdict(read_settings(here.sm)),
        "environment": {k: v for k, v in os.environ.items() if "CUBLAS" in k},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--calls", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--captures", type=int, default=60)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--only", help=f"some of {','.join(CALLS)}")
    parser.add_argument("--here", action="store_true", help="no child processes")
    parser.add_argument("--journal", action="store_true", help="be a child: OUT.json is its journal")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--dies", default="", help="indices at which a rehearsing process ends itself")
    args = parser.parse_args()
    if args.dies and not args.rehearse:
        parser.error("--dies is for a rehearsal")
    warnings.filterwarnings("ignore")
    if args.rehearse:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    if args.journal:
        work(args, Journal(args.out))
        return 0
    run = Run(args.out, stamped(args), args.captures)
    try:
        if args.here:
            work(args, run)
        else:
            supervise(args, run)
    finally:
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
