"""One decoder block four ways: eager, overridden, compiled and pinned, and what each way's bytes have in common.

    python examples/decoder_block.py [--dtype bfloat16] [--hidden 1024] [--inner WIDTH] [--length 96] [--batch 8]
                                     [--reference 2] [--attention each|batched] [--backend inductor] [--json]
                                     [--out FILE.json]
    python examples/decoder_block.py --cpu      # small, without a GPU: the packaged profile's rules, made-up answers

eager       torch's own products (with --cpu, those that the made-up library would run, by the replay)
overridden  the same block inside ``gemmdesc.override()``: eager's bytes, from our kernels
functions   the block spelled with ``gemmdesc.linear`` and ``gemmdesc.matmul``: eager's bytes again
compiled    ``torch.compile`` of that, whole; what the compiler writes beside products is its own, so it is held
            against the very graph with the library's products in it
pinned      inside ``override(pin=...)``: rows no longer depend on their batch, and at the reference batch all is as
            in eager

``--attention each`` multiplies sequence by sequence and head by head, as batched products decline until the card's
profile has rows for them.  Where ``--inner`` does not say how wide the perceptron is, the first of some widths is taken
at which the library sums one sequence alone in another order than the batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

import gemmdesc
from gemmdesc.dropin import register_choices
from gemmdesc.errors import Declined

sys.path.insert(0, str(Path(__file__).resolve().parent))

from layer_orders import planner_of, width_of_several_orders
from packaged_rules import made_up_source


class Products(NamedTuple):
    """How a block's products are spelled."""

    linear: Callable[..., torch.Tensor]
    matmul: Callable[..., torch.Tensor]


TORCH = Products(F.linear, torch.matmul)


def named(choices: str) -> Products:
    """Our functions, by what ``choices`` stands for."""
    return Products(
        lambda x, weight: gemmdesc.linear(x, weight, named=choices), lambda a, b: gemmdesc.matmul(a, b, named=choices)
    )


class Block(torch.nn.Module):
    """Causal attention and a gated perceptron, each behind a norm."""

    def __init__(self, hidden: int, inner: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        sizes = {"qkv": (3 * hidden, hidden), "out": (hidden, hidden), "gate": (inner, hidden),
                 "up": (inner, hidden), "down": (hidden, inner)}  # fmt: skip
        self.weights = torch.nn.ParameterDict({n: torch.randn(s) * s[1] ** -0.5 for n, s in sizes.items()})

    def forward(self, x: torch.Tensor, p: Products = TORCH) -> torch.Tensor:
        """(batch, length, hidden) to the same."""
        w, (batch, length, hidden) = self.weights, x.shape
        split = p.linear(norm(x), w["qkv"]).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        multiply = p.matmul if self.attention == "batched" else lambda a, b: each(a, b, p)
        ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = multiply(q, k.mT) * (hidden // self.heads) ** -0.5
        mixed = multiply(scores.masked_fill(ahead, float("-inf")).softmax(-1), v)
        x = x + p.linear(mixed.transpose(1, 2).reshape(batch, length, hidden), w["out"])
        y = norm(x)
        return x + p.linear(F.silu(p.linear(y, w["gate"])) * p.linear(y, w["up"]), w["down"])


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def each(a: torch.Tensor, b: torch.Tensor, p: Products) -> torch.Tensor:
    """``torch.matmul(a, b)`` of (batch, heads, ...), one product of two matrices after the other."""
    rows = [torch.stack([p.matmul(x, y) for x, y in zip(*s, strict=True)]) for s in zip(a, b, strict=True)]
    return torch.stack(rows)


def differing(one: torch.Tensor, other: torch.Tensor) -> int:
    """How many elements have other bytes."""
    return int((one.contiguous().view(torch.int16) != other.contiguous().view(torch.int16)).sum())


class Way(NamedTuple):
    """``unlike``: elements that differ from what the way is held against; ``rows``: sequences whose bytes depend on the
    batch; of all products, how many were ours and how many declined."""

    way: str
    against: str
    unlike: int
    rows: int
    by_plan: int
    declined: int


Run = Callable[[torch.Tensor], torch.Tensor]


def dependent(run: Run, x: torch.Tensor, whole: torch.Tensor) -> int:
    """How many sequences have other bytes alone than in the batch."""
    return sum(differing(run(x[i : i + 1])[0], whole[i]) > 0 for i in range(len(x)))


def measured(
    way: str, against: str, want: torch.Tensor, run: Run, x: torch.Tensor, under: Callable[[], Any], place: slice
) -> Way:
    """``run`` inside ``under()``; its sequences at ``place`` are held against ``want``."""
    before = gemmdesc.report()
    with under(), torch.no_grad():
        got = run(x)
        rows = dependent(run, x, got)
    after = gemmdesc.report()
    counts = after.ours - before.ours, after.declined - before.declined
    return Way(way, against, differing(got[place], want), rows, *counts)


def compiled(block: Block, products: Products, backend: str) -> Run:
    torch._dynamo.reset()
    return torch.compile(lambda x: block(x, products), backend=backend, fullgraph=True, dynamic=False)


def ways(block: Block, x: torch.Tensor, reference: int, backend: str, choices: dict[str, Any]) -> list[Way]:
    """Every way; ``choices``: those of ``gemmdesc.override``."""

    def stock() -> AbstractContextManager[Any]:
        return gemmdesc.override(**choices) if choices else nullcontext()

    everything, first = slice(None), slice(0, reference)
    with stock(), torch.no_grad():
        want, at_reference = block(x), block(x[first])
    register_choices("ours", **choices)
    graph_wanted = library_graph(block, x, backend, choices)
    with gemmdesc.reference(**choices) as noted, torch.no_grad():
        block(x[first])
    ours = lambda y: block(y, named("ours"))  # noqa: E731
    found = [
        measured("eager", "itself", want, block, x, stock, everything),
        measured("overridden", "eager", want, block, x, lambda: gemmdesc.override(**choices), everything),
        measured("functions", "eager", want, ours, x, nullcontext, everything),
        measured("compiled", "the graph with the library's products", graph_wanted,
                 compiled(block, named("ours"), backend), x, nullcontext, everything),
    ]  # fmt: skip
    pinned = lambda: gemmdesc.override(pin=noted, **choices)  # noqa: E731
    # The batch's first sequences are those of the reference batch, and nobody beside them matters any more.
    return [*found, measured("pinned", "eager at the reference batch", at_reference, block, x, pinned, first)]


def library_graph(block: Block, x: torch.Tensor, backend: str, choices: dict[str, Any]) -> torch.Tensor:
    """What the compiled block gives with the library's own products in the same graph."""
    if choices:
        # Without a GPU the library's products are the replay's, here through the dispatcher.
        torch._dynamo.reset()
        run = torch.compile(lambda y: block(y), backend=backend, fullgraph=True, dynamic=False)
        with gemmdesc.override(**choices), torch.no_grad():
            return run(x)
    from gemmdesc.library.cublaslt import CublasLt
    from gemmdesc.plan import Planner

    nothing = Declined(code="no_profile", reason="the library runs everything here")
    register_choices("library's", planner=Planner(CublasLt, lambda *_: nothing), on_decline="library")
    with torch.no_grad():
        return compiled(block, named("library's"), backend)(x)


def table(found: list[Way]) -> str:
    """For people."""
    title = f"{'':<12}{'unlike':>9}{'depend':>9}{'by plan':>9}{'declined':>10}  held against"
    rows = [f"{w.way:<12}{w.unlike:>9}{w.rows:>9}{w.by_plan:>9}{w.declined:>10}  {w.against}" for w in found]
    notes = ("unlike: elements with other bytes; depend: sequences whose bytes depend on the batch;",
             "by plan: products that were ours, of the whole batch and of each sequence alone")  # fmt: skip
    return "\n".join([title, *rows, *notes])


def failures(found: list[Way]) -> list[str]:
    """What is not as promised."""
    wrong = [f"{w.way} differs from {w.against}" for w in found if w.unlike]
    wrong += [f"{w.way}: {w.declined} products declined" for w in found[1:] if w.declined]
    wrong += [f"{w.way} computed no product" for w in found[1:] if not w.by_plan]
    return wrong + ["pinned rows depend on the batch"] * (found[-1].rows > 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="bfloat16")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--inner", type=int, help="the perceptron's width; looked up by default")
    parser.add_argument("--length", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--reference", type=int, help="sequences of the reference batch")
    parser.add_argument("--attention", choices=("each", "batched"), default="each")
    parser.add_argument("--backend", help="of torch.compile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--out", type=Path, help="write a claim")
    args = parser.parse_args()
    small = {"hidden": 192, "length": 10, "batch": 4, "reference": 2, "backend": "aot_eager"}
    large = {"hidden": 1024, "length": 96, "batch": 8, "reference": 2, "backend": "inductor"}
    for name, value in (small if args.cpu else large).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def main() -> int:
    args = parsed()
    device, dtype = "cpu" if args.cpu else "cuda", getattr(torch, args.dtype)
    choices = {"replay": made_up_source()} if args.cpu else {}
    orders = ""
    if args.inner is None:
        planner = planner_of(choices["replay"]) if args.cpu else None
        rows = [args.length, args.length * args.batch]
        width = width_of_several_orders(args.hidden, rows, args.length * args.reference, dtype, planner)
        args.inner, orders = width.inner, str(width)
    torch.manual_seed(args.seed)
    heads = max(1, args.hidden // (64 if args.cpu else 128))
    block = Block(args.hidden, args.inner, heads, args.attention).to(device, dtype)
    x = torch.randn(args.batch, args.length, args.hidden).to(device, dtype)
    found = ways(block, x, args.reference, args.backend, choices)
    wrong = failures(found)
    card = "none (replay on a CPU)" if args.cpu else torch.cuda.get_device_name()
    claim = {
        "claim": "a decoder block eager, overridden, compiled and pinned",
        "command": " ".join(["python", *sys.argv]), "card": card, "versions": {"torch": torch.__version__},
        "date": date.today().isoformat(), "orders": orders,
        "counts": {w.way: {"different": w.unlike, "sequences_dependent_on_the_batch": w.rows,
                           "products_by_plan": w.by_plan, "declined": w.declined} for w in found},
        "failures": wrong,
    }  # fmt: skip
    if args.out is not None:
        args.out.write_text(json.dumps({"claims": [claim]}, indent=1))
    print(json.dumps(claim, indent=1) if args.json else "\n".join([card, *orders.splitlines(), table(found), *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
