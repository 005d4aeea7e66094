"""Do a decoder and random calls under ``gemmdesc.override`` give eager's bytes, every one?  On a GPU.

    PYTHONPATH=. python scripts/check_parity.py OUT.json [--seconds 240] [--hidden 1024,2048,4096] [--layers 4]
                                                         [--calls 5000] [--seed 0] [--rehearse]

For each hidden size and type a decoder of explicit products and softmax, with unrounded batch and sequence, runs
forward and backward twice as it is, which must agree with itself, and once under an override that lets the library run
what we decline.  Then random calls of torch's products, those of ``check_routes.py``, each eager and under an override,
until the time or ``--calls`` is over.  OUT.json has a claim for each: what was compared, what differs, and products by
plan and declined by reason; a call counts as declined where a product of it was.  ``--rehearse`` needs no GPU: small
sizes, and an executor that asks torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import torch

from gemmdesc.dropin import Override, Report, override
from gemmdesc.dropin.memory import differing
from gemmdesc.verification.route_draws import draw_call

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


def claim_of(
    stamp: dict[str, Any], case: dict[str, Any], wrong: list[str], eager: list[str], report: Report, tensors: int
) -> dict[str, Any]:
    """``wrong``: tensors that differ from eager's; ``eager``: those that differ between two runs of eager."""
    declined = {f"{x.operator} ({x.code}): {x.reason}": x.count for x in report.lines if x.code}
    return {
        "claim": f"a decoder of {case['layers']} layers under an override against eager: {case['dtype']}, "
        f"hidden {case['hidden']}, batch {case['batch']}, length {case['length']}, vocabulary {case['vocabulary']}",
        **stamp,
        "counts": {"tensors": tensors, "equal": tensors - len(wrong), "different": len(wrong),
                   "products_by_plan": report.ours, "declined": report.declined},
        "differing": wrong[:10], "eager_differs_from_itself": eager[:10], "declined_products": declined,
    }  # fmt: skip


def measured(case: dict[str, Any], over: Override, stamp: dict[str, Any], device: str) -> dict[str, Any]:
    torch.manual_seed(case["seed"])
    model = Decoder(case["vocabulary"], case["hidden"], case["layers"]).to(device, getattr(torch, case["dtype"]))
    tokens = torch.randint(case["vocabulary"], (case["batch"], case["length"] + 1), device=device)
    first, second = step(model, tokens), step(model, tokens)
    with over:
        ours = step(model, tokens)
    return claim_of(stamp, case, unequal(first, ours), unequal(first, second), over.report(), len(first))


def random_calls(args: argparse.Namespace, stamp: dict[str, Any], device: str, end: float) -> dict[str, Any]:
    """A claim on random calls: each with the same values eager and under an override."""
    counts = dict.fromkeys(("calls", "equal", "different", "declined", "refused"), 0)
    differing_calls: list[str] = []
    over = opened(args)
    declined = 0
    largest = 24 if args.rehearse else None
    for index in range(args.calls):
        if time.monotonic() > end:
            break
        results = []
        for under in (False, True):
            torch.manual_seed(index)
            call = draw_call(args.seed + 1, index, device, exact=args.rehearse, largest=largest)
            try:
                with over if under else nullcontext():
                    results.append(call.make())
            except RuntimeError:  # torch refuses it, or memory is lacking
                break
        counts["calls"] += 1
        now, declined = over.report().declined - declined, over.report().declined
        if len(results) < 2:
            counts["refused"] += 1
        elif differing(*results):
            counts["different"] += 1
            differing_calls.append(f"{index}: {call.name}")
        else:
            counts["declined" if now else "equal"] += 1
    reasons = {f"{x.operator} ({x.code}): {x.reason}": x.count for x in over.report().lines if x.code}
    return {
        "claim": "random calls of torch's products under an override against eager", **stamp,
        "counts": counts | {"products_by_plan": over.report().ours}, "differing": differing_calls[:20],
        "declined_products": reasons,
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


def stamped(args: argparse.Namespace) -> dict[str, Any]:
    card, versions = "none (rehearsal)", {"torch": torch.__version__}
    if not args.rehearse:
        from gemmdesc.library.device import device_id
        from gemmdesc.library.identity import library_id, torch_library

        here = device_id(0)
        card = f"{here.name} ({here.sm}, {here.sm_count} SMs)"
        versions |= {"cuBLASLt": str(library_id(torch_library().path).version), "driver": here.driver}
    command = " ".join(["python", *sys.argv])
    return {"command": command, "card": card, "versions": versions, "date": date.today().isoformat()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--hidden", default="1024,2048,4096")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    stamp, end, claims = stamped(args), time.monotonic() + args.seconds, []
    device = "cpu" if args.rehearse else "cuda"
    for case in cases(args):
        if time.monotonic() > end:
            break
        claims.append(measured(case, opened(args), stamp, device))
        told(claims, args.out)
    if args.calls:
        claims.append(random_calls(args, stamp, device, end))
        told(claims, args.out)
    return 0


def told(claims: list[dict[str, Any]], out: Path) -> None:
    """Print the last claim, and write all of them."""
    last = claims[-1]
    print(last["claim"], last["counts"], last["differing"], last.get("eager_differs_from_itself", ""), flush=True)
    for reason, count in sorted(last["declined_products"].items(), key=lambda x: -x[1])[:8]:
        print(f"  {count} x {reason[:200]}", flush=True)
    aside = out.with_suffix(".tmp")
    aside.write_text(json.dumps({"claims": claims}, indent=1))
    os.replace(aside, out)


if __name__ == "__main__":
    sys.exit(main())
