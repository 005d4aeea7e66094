"""Do a trainer and a server agree on log-probabilities, bit for bit?  Pinned to one reference they do, else not.

    python examples/logprob_parity.py [--dtype bfloat16] [--hidden 1024] [--layers 2] [--length 32] [--sequences 12]
                                      [--reference 4] [--seed 0] [--json] [--out FILE.json]
    python examples/logprob_parity.py --cpu      # small, without a GPU: the packaged profile's rules, made-up answers

The trainer sees whole sequences at once, in micro-batches (teacher forcing).  The server goes token by token with a
cache of keys and values, in batches of other sizes, one of which holds the sequences in another order.  Both pad keys
to one length, so that what a softmax runs over, and what its weights are multiplied with, has one size on both sides.

Both pin to one reference: the products that a forward pass over ``--reference`` whole sequences makes.  Whatever else
the model does is in OPERATIONS, and is first tested alone for bytes that depend on how many rows there are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

import gemmdesc

sys.path.insert(0, str(Path(__file__).resolve().parent))

from packaged_rules import made_up_source


class Shape(NamedTuple):
    hidden: int
    heads: int
    layers: int
    vocabulary: int
    length: int


#: What the model does beside products, as functions of rows.
OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "scale": lambda x: x * 0.125,
    "mask": lambda x: x.masked_fill(x > 1, float("-inf")),
    "silu": F.silu,
    "residual": lambda x: x + x.flip(-1),
    "log softmax": lambda x: x.float().log_softmax(-1),
}


class Cache:
    """Keys and values of every layer and head, zeros where no token was yet: (batch, heads, length, size)."""

    def __init__(self, shape: Shape, batch: int, like: torch.Tensor) -> None:
        size = (batch, shape.heads, shape.length, shape.hidden // shape.heads)
        self.keys, self.values = ([like.new_zeros(size) for _ in range(shape.layers)] for _ in range(2))


class Model(torch.nn.Module):
    """A causal language model whose products are spelled out, one sequence and head after the other in attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, h = shape, shape.hidden
        self.embedding = torch.nn.Embedding(shape.vocabulary, h)
        sizes = {"qkv": (3 * h, h), "out": (h, h), "gate": (2 * h, h), "up": (2 * h, h), "down": (h, 2 * h)}
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({n: torch.randn(s) * s[1] ** -0.5 for n, s in sizes.items()})
            for _ in range(shape.layers)
        )
        self.head = torch.nn.Parameter(torch.randn(shape.vocabulary, h) * h**-0.5)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Logits, (batch, new, vocabulary), of new tokens at ``places``; ``cache`` takes their keys and values."""
        x = self.embedding(tokens)
        hidden = torch.arange(self.shape.length, device=x.device)[None, :] > places[:, None]
        for i, w in enumerate(self.layers):
            x = x + F.linear(self.attended(F.linear(norm(x), w["qkv"]), i, places, hidden, cache), w["out"])
            y = norm(x)
            x = x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])
        return F.linear(norm(x), self.head)

    def attended(
        self, qkv: torch.Tensor, layer: int, places: torch.Tensor, hidden: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        batch, new, heads = len(qkv), len(places), self.shape.heads
        q, k, v = qkv.view(batch, new, 3, heads, -1).permute(2, 0, 3, 1, 4)
        keys, values = cache.keys[layer], cache.values[layer]
        keys[:, :, places], values[:, :, places] = k, v
        scores = each(q.contiguous(), keys.mT) * (self.shape.hidden // heads) ** -0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return each(weights, values).transpose(1, 2).reshape(batch, new, -1)


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``torch.matmul(a, b)`` of (batch, heads, ...), one product of two matrices after the other."""
    return torch.stack([torch.stack([torch.mm(x, y) for x, y in zip(*s, strict=True)]) for s in zip(a, b, strict=True)])


def chosen(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probability of each next token, (batch, new), in float32."""
    return logits.float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def trained(model: Model, tokens: torch.Tensor, micro_batch: int) -> torch.Tensor:
    """The trainer's log-probabilities of ``tokens[:, 1:]``: whole sequences, some at a time."""
    length = model.shape.length
    places, found = torch.arange(length, device=tokens.device), []
    for part in tokens.split(micro_batch):
        logits = model(part[:, :length], places, Cache(model.shape, len(part), model.head))
        found.append(chosen(logits, part[:, 1:]))
    return torch.cat(found)


def served(model: Model, tokens: torch.Tensor, batches: list[list[int]]) -> torch.Tensor:
    """The server's: batches of sequences, token by token."""
    found = torch.empty(len(tokens), model.shape.length, device=tokens.device)
    for places in batches:
        part, cache = tokens[places], Cache(model.shape, len(places), model.head)
        for at in range(model.shape.length):
            logits = model(part[:, at : at + 1], torch.tensor([at], device=tokens.device), cache)
            found[places, at] = chosen(logits, part[:, at + 1 : at + 2])[:, 0]
    return found


def dependent_operations(shape: Shape, dtype: torch.dtype, device: str) -> list[str]:
    """Names of the operations in which a row's bytes depend on how many rows there are."""
    made, found = torch.Generator(device=device).manual_seed(0), []
    for name, operation in OPERATIONS.items():
        for width in {shape.hidden, 2 * shape.hidden, shape.length, shape.vocabulary}:
            x = torch.randn(64, shape.length, width, generator=made, device=device).to(dtype)
            whole = operation(x)
            parts = [operation(x[:count, at : at + 1]) for count in (1, 3, 64) for at in (0, shape.length - 1)]
            wanted = [whole[:count, at : at + 1] for count in (1, 3, 64) for at in (0, shape.length - 1)]
            if any(unequal(one, other) for one, other in zip(parts, wanted, strict=True)):
                found.append(name)
                break
    return found


def unequal(one: torch.Tensor, other: torch.Tensor) -> int:
    """How many elements have other bytes."""
    kind = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return int((one.contiguous().view(kind) != other.contiguous().view(kind)).sum())


def batchings(count: int) -> Iterator[tuple[str, list[list[int]]]]:
    """Ways to serve so many sequences: one by one, all at once, and in threes that are mixed up."""
    mixed = [(5 * i + 2) % count for i in range(count)] if count % 5 else list(range(count))[::-1]
    yield "one by one", [[i] for i in range(count)]
    yield "all at once", [list(range(count))]
    yield "in threes, mixed", [mixed[i : i + 3] for i in range(0, count, 3)]


class Outcome(NamedTuple):
    """Of one way to serve: log-probabilities, those with other bytes than the trainer's, and the largest difference."""

    way: str
    tokens: int
    different: int
    largest: float


def compared(model: Model, tokens: torch.Tensor, micro_batch: int, under: Callable[[], Any]) -> list[Outcome]:
    """The server held against the trainer, both inside ``under()``."""
    with under(), torch.no_grad():
        want = trained(model, tokens, micro_batch)
        again = trained(model, tokens, len(tokens))
        found = [Outcome("trainer, one batch", want.numel(), unequal(again, want), float((again - want).abs().max()))]
        for way, batches in batchings(len(tokens)):
            got = served(model, tokens, batches)
            found.append(Outcome(way, want.numel(), unequal(got, want), float((got - want).abs().max())))
    return found


def demonstrated(
    model: Model, tokens: torch.Tensor, micro_batch: int, reference: int, choices: dict[str, Any]
) -> tuple[list[Outcome], list[Outcome], Any]:
    """Pinned, stock, and the report of what was pinned; ``choices``: those of ``gemmdesc.override``."""

    def stock() -> AbstractContextManager[Any]:
        return gemmdesc.override(**choices) if choices else nullcontext()

    with gemmdesc.reference(**choices) as noted, torch.no_grad():
        trained(model, tokens[:reference], reference)
    pinned = gemmdesc.override(pin=noted, **choices)
    fixed = compared(model, tokens, micro_batch, lambda: pinned)
    return fixed, compared(model, tokens, micro_batch, stock), pinned.report()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="bfloat16")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--sequences", type=int)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--reference", type=int, help="sequences of the reference batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--out", type=Path, help="write a claim")
    args = parser.parse_args()
    small = {"hidden": 192, "layers": 1, "length": 5, "sequences": 7, "micro_batch": 4, "reference": 3}
    large = {"hidden": 1024, "layers": 2, "length": 32, "sequences": 12, "micro_batch": 5, "reference": 4}
    for name, value in (small if args.cpu else large).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def table(fixed: list[Outcome], free: list[Outcome]) -> str:
    """For people."""
    lines = [f"{'':<22}{'log-probs':>10}{'pinned: unlike':>16}{'stock: unlike':>16}{'largest difference':>20}"]
    for one, other in zip(fixed, free, strict=True):
        lines.append(f"{one.way:<22}{one.tokens:>10}{one.different:>16}{other.different:>16}{other.largest:>20.3g}")
    return "\n".join([*lines, "each against the trainer's micro-batches; the difference is stock's"])


def main() -> int:
    args = parsed()
    device, dtype = "cpu" if args.cpu else "cuda", getattr(torch, args.dtype)
    heads = max(1, args.hidden // 128)
    shape = Shape(args.hidden, heads, args.layers, 50 if args.cpu else 1000, args.length)
    torch.manual_seed(args.seed)
    model = Model(shape).to(device, dtype)
    tokens = torch.randint(shape.vocabulary, (args.sequences, args.length + 1), device=device)
    dependent = dependent_operations(shape, dtype, device)
    choices = {"replay": made_up_source()} if args.cpu else {}
    fixed, free, report = demonstrated(model, tokens, args.micro_batch, args.reference, choices)
    card = "none (replay on a CPU)" if args.cpu else torch.cuda.get_device_name()
    counts = {
        "log_probs": sum(o.tokens for o in fixed), "different": sum(o.different for o in fixed),
        "stock_different": sum(o.different for o in free), "products_by_plan": report.ours, "declined": report.declined,
    }  # fmt: skip
    claim = {
        "claim": "a trainer's and a server's log-probabilities, both pinned to one reference",
        "command": " ".join(["python", *sys.argv]), "card": card, "versions": {"torch": torch.__version__},
        "date": date.today().isoformat(), "counts": counts, "operations_dependent": dependent,
        "ways": [{"way": o.way, "log_probs": o.tokens, "pinned_different": o.different, "stock_different": s.different,
                  "stock_largest_difference": s.largest} for o, s in zip(fixed, free, strict=True)],
    }  # fmt: skip
    if args.out is not None:
        args.out.write_text(json.dumps({"claims": [claim]}, indent=1))
    told = f"operations beside products that depend on the number of rows: {', '.join(dependent) or 'none'}"
    print(json.dumps(claim, indent=1) if args.json else "\n".join([card, told, table(fixed, free)]))
    return 1 if counts["different"] or counts["declined"] or dependent else 0


if __name__ == "__main__":
    sys.exit(main())
