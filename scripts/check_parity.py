"""Do a decoder and random calls under ``gemmdesc.override`` give eager's bytes, every one?  On a GPU.

    PYTHONPATH=. python scripts/check_parity.py OUT.json [--seconds 240] [--hidden 1024,2048,4096] [--layers 4]
                                                         [--calls 5000] [--seed 0] [--batch 500] [--rehearse]

For each hidden size and type a decoder of explicit products and softmax, with unrounded batch and sequence, runs
forward and backward twice as it is, which must agree with itself, and once under an override that lets the library run
what we decline.  Then random calls of torch's products, those of ``check_routes.py``, each eager and under an override,
until the time or ``--calls`` is over.  OUT.json has a claim for each: what was compared, what differs, and products by
plan and declined by reason; a call counts as declined where a product of it was.  It is rewritten every few seconds.

Decoders run in a process of their own, and each ``--batch`` of calls does.  One that ends its process is counted as an
error, with its index, and the next goes on in another: ``--here --part calls --seed S --first I --calls 1`` makes the
call again in this process (``--part decoders --first I`` the decoder).  ``--rehearse`` needs no GPU: small sizes, and
an executor that asks torch; ``--dies 3,17``: there the process ends itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import torch
from run_stamp import run_stamp

from gemmdesc.dropin import Override, Report, override
from gemmdesc.dropin.memory import differing
from gemmdesc.verification.children import Died, Done, Journal, work_in_children
from gemmdesc.verification.route_draws import draw_call

#: Seconds between two writes of the file.
WRITE_EVERY = 5.0
Tensors = dict[str, torch.Tensor]


class Block(torch.nn.Module):
    """Attention and a gated perceptron, each behind a norm, with products spelled out."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = torch.nn.Linear(hidden, hidden)
        self.gate, self.up = (torch.nn.Linear(hidden, 2 * hidden, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(hidden) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        split = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = (t.transpose(1, 2) for t in split.unbind(2))
        scores = torch.matmul(q, k.mT) * (hidden // self.heads) ** -0.5
        ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, hidden)
        x = x + self.out(mixed)
        y = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(torch.nn.Module):
    """Embedding, blocks, a norm and a head."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, hidden)
        self.blocks = torch.nn.ModuleList(Block(hidden, max(1, hidden // 128)) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(hidden), torch.nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def step(model: Decoder, tokens: torch.Tensor) -> Tensors:
    """Logits, loss and all gradients."""
    model.zero_grad(set_to_none=True)
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    # An embedding's gradient is summed by atomics: it is no product, and its own bytes vary.
    grads = {f"grad {n}": p.grad.clone() for n, p in model.named_parameters() if "embedding" not in n}
    return {"logits": logits.detach().clone(), "loss": loss.detach().clone()} | grads


def unequal(one: Tensors, other: Tensors) -> list[str]:
    """Names of the tensors with other bytes."""
    return [name for name in one if differing(one[name], other[name])]


def claim_of(wrong: list[str], eager: list[str], report: Report, tensors: int) -> dict[str, Any]:
    """``wrong``: tensors that differ from eager's; ``eager``: those that differ between two runs of eager."""
    declined = {f"{x.operator} ({x.code}): {x.reason}": x.count for x in report.lines if x.code}
    return {
        "counts": {"tensors": tensors, "equal": tensors - len(wrong), "different": len(wrong),
                   "products_by_plan": report.ours, "declined": report.declined, "errors": 0},
        "differing": wrong[:10], "eager_differs_from_itself": eager[:10], "declined_products": declined,
    }  # fmt: skip


def title(case: dict[str, Any]) -> str:
    return (
        f"a decoder of {case['layers']} layers under an override against eager: {case['dtype']}, "
        f"hidden {case['hidden']}, batch {case['batch']}, length {case['length']}, vocabulary {case['vocabulary']}"
    )


def measured(case: dict[str, Any], over: Override, device: str) -> dict[str, Any]:
    torch.manual_seed(case["seed"])
    model = Decoder(case["vocabulary"], case["hidden"], case["layers"]).to(device, getattr(torch, case["dtype"]))
    tokens = torch.randint(case["vocabulary"], (case["batch"], case["length"] + 1), device=device)
    first, second = step(model, tokens), step(model, tokens)
    with over:
        ours = step(model, tokens)
    return claim_of(unequal(first, ours), unequal(first, second), over.report(), len(first))


def one_call(args: argparse.Namespace, index: int, device: str) -> dict[str, Any]:
    """A random call with the same values eager and under an override: its name, its fate, its products."""
    over, results, name, largest = opened(args), [], "none", 24 if args.rehearse else None
    for under in (False, True):
        torch.manual_seed(index)
        try:
            call = draw_call(args.seed + 1, index, device, exact=args.rehearse, largest=largest)
            name = call.name
            with over if under else nullcontext():
                results.append(call.make())
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return {"call": name, "fate": "lacked_memory", "ours": 0, "declined": {}}
        except RuntimeError as error:
            # Torch itself refuses some calls; what it takes alone must not fail under an override.
            fate, text = ("refused", "") if not under else ("errors", f"{type(error).__name__}: {str(error)[:300]}")
            return {"call": name, "fate": fate, "ours": 0, "declined": {}, "error": text}
    report = over.report()
    declined = {f"{x.operator} ({x.code}): {x.reason}": x.count for x in report.lines if x.code}
    fate = "different" if differing(*results) else "declined" if declined else "equal"
    return {"call": name, "fate": fate, "ours": report.ours, "declined": declined}


class Calls:
    """The claim on random calls, as far as they were made."""

    def __init__(self, stamp: dict[str, Any]) -> None:
        self.stamp = stamp
        fates = ("equal", "different", "declined", "refused", "lacked_memory", "errors", "products_by_plan")
        self.counts = Counter(dict.fromkeys(("calls", *fates), 0))
        self.reasons: Counter[str] = Counter()
        self.differing: list[str] = []
        self.failed: list[dict[str, Any]] = []

    def add(self, index: int, record: dict[str, Any]) -> None:
        self.counts.update(("calls", record["fate"]))
        self.counts["products_by_plan"] += record["ours"]
        self.reasons.update(record["declined"])
        if record["fate"] == "different":
            self.differing.append(f"{index}: {record['call']}")
        if record.get("error"):
            self.failed.append({"index": index, "how": f"{record['call']}: {record['error']}"})

    def fail(self, died: Died) -> None:
        self.counts.update(("calls", "errors"))
        self.failed.append({"index": died.index, "how": died.how})

    @property
    def claim(self) -> dict[str, Any]:
        return {
            "claim": "random calls of torch's products under an override against eager", **self.stamp,
            "counts": dict(self.counts), "differing": self.differing[:20], "failed": self.failed[:50],
            "declined_products": dict(self.reasons.most_common()),
        }  # fmt: skip


def opened(args: argparse.Namespace) -> Override:
    """An override in which the library runs what we decline."""
    if not args.rehearse:
        return override(on_decline="library")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.dropin_samples import AskTorch

    return Override(AskTorch(), "library")


def cases(args: argparse.Namespace) -> list[dict[str, Any]]:
    rng, found = Random(args.seed), []
    for hidden in (64,) if args.rehearse else map(int, args.hidden.split(",")):
        for dtype in ("float16", "bfloat16"):
            small = args.rehearse
            found.append(
                {"hidden": hidden, "dtype": dtype, "layers": 1 if small else args.layers,
                 "seed": rng.randrange(1 << 20), "batch": rng.randint(1, 2 if small else 5),
                 "length": rng.randint(5, 20 if small else 700), "vocabulary": rng.randint(50, 60) if small
                 else rng.randint(5000, 32000)}
            )  # fmt: skip
    return found


def work(args: argparse.Namespace, sink: Journal | Printed) -> None:
    """One part in this process: items from ``--first`` on, until ``--calls`` of them or the time is over."""
    end, device = time.monotonic() + args.seconds, "cpu" if args.rehearse else "cuda"
    decoders = cases(args)
    dies = [int(index) for index in args.dies.split(",") if index]
    for index in range(args.first, args.first + args.calls):
        if time.monotonic() > end or (args.part == "decoders" and index >= len(decoders)):
            return
        sink.begin(index)
        if index in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if args.part == "decoders":
            sink.done(index, measured(decoders[index], opened(args), device))
        else:
            sink.done(index, one_call(args, index, device))


class Printed:
    """Shows what each item came to."""

    def begin(self, index: int) -> None:
        print(index, end=" ", flush=True)

    def done(self, index: int, record: Any) -> None:
        print(json.dumps(record), flush=True)


class Written:
    """The claims so far, and the file that holds them."""

    def __init__(self, out: Path) -> None:
        self.out, self.claims, self.at = out, [], 0.0

    def write(self, *more: dict[str, Any], now: bool = True) -> None:
        if not now and time.monotonic() - self.at < WRITE_EVERY:
            return
        aside = self.out.with_suffix(".tmp")
        aside.write_text(json.dumps({"claims": [*self.claims, *more]}, indent=1))
        os.replace(aside, self.out)
        self.at = time.monotonic()

    def add(self, claim: dict[str, Any]) -> None:
        self.claims.append(claim)
        print(claim["claim"], claim["counts"], claim["differing"], claim.get("eager_differs_from_itself", ""))
        for reason, count in sorted(claim["declined_products"].items(), key=lambda x: -x[1])[:8]:
            print(f"  {count} x {reason[:200]}", flush=True)
        for failed in claim.get("failed", ())[:8]:
            print(f"  error at {failed['index']}: {failed['how'][:400]}", flush=True)
        self.write()


def supervise(args: argparse.Namespace, stamp: dict[str, Any]) -> None:
    """Both parts in children, until the time is over."""
    end, written, decoders = time.monotonic() + args.seconds, Written(args.out), cases(args)

    def command(part: str) -> Callable[[range, Path], list[str]]:
        def of(items: range, journal: Path) -> list[str]:
            own = [sys.executable, "-X", "faulthandler", __file__, str(journal), "--journal", "--part", part]
            own += ["--first", str(items.start), "--calls", str(len(items)), "--seed", str(args.seed)]
            own += ["--hidden", args.hidden, "--layers", str(args.layers), "--seconds", str(end - time.monotonic())]
            return own + ["--dies", args.dies if part == "calls" else ""] + ["--rehearse"] * args.rehearse

        return of

    def events(part: str, items: range) -> Iterator[Done | Died]:
        goes_on = lambda: time.monotonic() < end  # noqa: E731
        return work_in_children(command(part), items, batch=args.batch, silence_seconds=300.0, goes_on=goes_on)

    for event in events("decoders", range(len(decoders))):
        case = decoders[event.index or 0]
        found = event.record if isinstance(event, Done) else died_claim(event)
        written.add({"claim": title(case), **stamp, **found})
    calls = Calls(stamp)
    for event in events("calls", range(args.first, args.first + args.calls)):
        if isinstance(event, Died):
            calls.fail(event)
        else:
            calls.add(event.index, event.record)
        written.write(calls.claim, now=isinstance(event, Died))
    written.add(calls.claim)


def died_claim(died: Died) -> dict[str, Any]:
    counts = dict.fromkeys(("tensors", "equal", "different", "products_by_plan", "declined"), 0)
    failed = [{"index": died.index, "how": died.how}]
    return {"counts": counts | {"errors": 1}, "differing": [], "declined_products": {}, "failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--hidden", default="1024,2048,4096")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--part", choices=("decoders", "calls"), default="calls", help="of --here")
    parser.add_argument("--here", action="store_true", help="no child processes, and no file")
    parser.add_argument("--journal", action="store_true", help="be a child: OUT.json is its journal")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--dies", default="", help="calls at which a rehearsing process ends itself")
    args = parser.parse_args()
    if args.dies and not args.rehearse:
        parser.error("--dies is for a rehearsal")
    if args.here or args.journal:
        work(args, Journal(args.out) if args.journal else Printed())
    else:
        supervise(args, run_stamp("none (rehearsal)" if args.rehearse else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
