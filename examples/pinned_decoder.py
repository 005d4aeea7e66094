"""Do a decoder's logits depend on who shares the batch?  With stock products they do, pinned they do not.

    python examples/pinned_decoder.py [--dtype bfloat16] [--hidden 1024] [--inner WIDTH] [--layers 2] [--length 96]
                                      [--reference 8] [--batchings 200] [--attention each|batched] [--seed 0]
                                      [--out FILE.json]
    python examples/pinned_decoder.py --cpu        # small, without a GPU: made-up answers, the packaged profile's rules

A pool of 64 sequences of several lengths is padded on the right to one length, which is the reference length of the
keys: what a softmax runs over, and what its weights are multiplied with, is then of one size in every batch.  Products
are spelled out; ``--attention each`` multiplies sequence by sequence and head by head, since batched products decline
until the card's profile has rows for them.  All else that the model does is in OPERATIONS and tested alone first.

How wide the perceptron is, is looked up where ``--inner`` does not say: the first of some widths at which the library's
own order depends on the number of rows, or stock products would not depend on the batch, either.

The model runs once at the reference batch, where its products are noted.  Every sequence then runs alone, and in random
batches of 1, 2, 7, 32, 64 or any other size, pinned and as it is: all bytes of its own tokens' logits are compared.
At the reference batch, pinned logits are those of the stock products.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

import gemmdesc

sys.path.insert(0, str(Path(__file__).resolve().parent))

from layer_orders import Width, planner_of, width_of_several_orders
from packaged_rules import made_up_source

SIZES = (1, 2, 7, 32, 64)


class Shape(NamedTuple):
    """``inner``: the perceptron's width; ``length``: of every sequence with its padding."""

    hidden: int
    inner: int
    heads: int
    layers: int
    vocabulary: int
    length: int


class Sequences(NamedTuple):
    """``tokens``: (batch, length), padded on the right; ``lengths``: (batch,)."""

    tokens: torch.Tensor
    lengths: torch.Tensor

    def chosen(self, places: list[int]) -> Sequences:
        return Sequences(self.tokens[places], self.lengths[places])


# What the model does beside products, as functions of activations with a batch in front.
OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "scale": lambda x: x * 0.125,
    "mask": lambda x: x.masked_fill(x > 1, float("-inf")),
    "gate": lambda x: x.relu() * x,
    "residual": lambda x: x + x.flip(-1),
    "embedding": lambda x: F.embedding(x.argmax(-1) % len(x[0]), x[0]),
}


class Decoder(torch.nn.Module):
    """Causal attention and a gated perceptron, each behind a norm, with products spelled out."""

    def __init__(self, shape: Shape, attention: str) -> None:
        super().__init__()
        self.shape, self.attention = shape, attention
        h, inner = shape.hidden, shape.inner
        self.embedding = torch.nn.Embedding(shape.vocabulary, h)
        sizes = {"qkv": (3 * h, h), "out": (h, h), "gate": (inner, h), "up": (inner, h), "down": (h, inner)}
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({n: torch.randn(s) * s[1] ** -0.5 for n, s in sizes.items()})
            for _ in range(shape.layers)
        )
        self.head = torch.nn.Parameter(torch.randn(shape.vocabulary, h) * h**-0.5)

    def forward(self, batch: Sequences) -> torch.Tensor:
        """Logits, (batch, length, vocabulary); those behind a sequence's end mean nothing."""
        length = self.shape.length
        places = torch.arange(length, device=batch.tokens.device)
        hidden = (places[None, :] > places[:, None]) | (places >= batch.lengths[:, None])[:, None, :]
        hidden[:, places, places] = False  # a softmax of nothing would be NaN
        x = self.embedding(batch.tokens)
        for layer in self.layers:
            x = x + F.linear(self.attended(F.linear(norm(x), layer["qkv"]), hidden), layer["out"])
            y = norm(x)
            x = x + F.linear(F.linear(y, layer["gate"]).relu() * F.linear(y, layer["up"]), layer["down"])
        return F.linear(norm(x), self.head)

    def attended(self, qkv: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        count, length, heads = len(qkv), self.shape.length, self.shape.heads
        q, k, v = qkv.view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        multiply = torch.matmul if self.attention == "batched" else each
        scores = multiply(q, k.mT) * (self.shape.hidden // heads) ** -0.5
        weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
        return multiply(weights, v).transpose(1, 2).reshape(count, length, -1)


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``torch.matmul(a, b)`` of (batch, heads, ...), one product of two matrices after the other."""
    return torch.stack([torch.stack([torch.mm(x, y) for x, y in zip(*s, strict=True)]) for s in zip(a, b, strict=True)])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.int16)


def batches(pool: int, count: int, seed: int) -> Iterator[list[int]]:
    """Places of the pool, in any order, of each of the sizes first and of any others then."""
    rng, sizes = Random(seed), [s for s in SIZES if s <= pool]
    for number in range(count):
        size = sizes[number] if number < len(sizes) else rng.choice([*sizes, rng.randint(1, pool)])
        yield rng.sample(range(pool), size)


def dependent_operations(shape: Shape, pool: int, dtype: torch.dtype, device: str) -> list[str]:
    """Names of the operations whose bytes depend on the batch."""
    made = torch.Generator(device=device).manual_seed(0)
    found = []
    for name, operation in OPERATIONS.items():
        for width in (shape.hidden, shape.length):
            x = torch.randn(pool, shape.length, width, generator=made, device=device).to(dtype)
            whole = operation(x)
            for places in batches(pool, 12, 1):
                # The embedding's table is the first one's.
                given = x[[0, *places]]
                if not torch.equal(bits(operation(given)[1:]), bits(whole[places])):
                    found.append(name)
                    break
    return sorted(set(found))


class Outcome(NamedTuple):
    sequences: int
    different: int


def compared(
    model: Decoder, pool: Sequences, count: int, seed: int, under: Callable[[], AbstractContextManager[Any]]
) -> Outcome:
    """How many sequences of the random batches have other logits than alone."""
    sequences = different = 0
    with under(), torch.no_grad():
        alone = [model(pool.chosen([i]))[0, : pool.lengths[i]] for i in range(len(pool.tokens))]
        for places in batches(len(alone), count, seed):
            logits = model(pool.chosen(places))
            for row, place in enumerate(places):
                sequences += 1
                own = logits[row, : pool.lengths[place]]
                different += not torch.equal(bits(own), bits(alone[place]))
    return Outcome(sequences, different)


def found_width(hidden: int, length: int, reference: int, dtype: torch.dtype, choices: dict[str, Any]) -> Width:
    """A perceptron's width at which batches of SIZES have several orders."""
    planner = planner_of(choices["replay"]) if choices else None
    return width_of_several_orders(hidden, [length * size for size in SIZES], length * reference, dtype, planner)


def demonstrated(
    model: Decoder, pool: Sequences, reference: int, count: int, seed: int, choices: dict[str, Any]
) -> dict[str, int]:
    """Counts of the whole demonstration; ``choices``: those of ``gemmdesc.override``."""

    def stock() -> AbstractContextManager[Any]:
        return gemmdesc.override(**choices) if choices else nullcontext()

    first = pool.chosen(list(range(reference)))
    with gemmdesc.reference(**choices) as noted, torch.no_grad():
        model(first)
    pinned = gemmdesc.override(pin=noted, on_decline="library", **choices)
    with pinned, torch.no_grad():
        at_reference = model(first)
    with stock(), torch.no_grad():
        wanted = model(first)
    fixed = compared(model, pool, count, seed, lambda: pinned)
    free = compared(model, pool, min(count, 12), seed, stock)
    report = pinned.report()
    if report.declined:
        print(report)
    return {
        "batchings": count, "sequences": fixed.sequences, "different": fixed.different,
        "equal": fixed.sequences - fixed.different, "products_by_plan": report.ours, "declined": report.declined,
        "elements_unlike_stock_at_reference": int((bits(at_reference) != bits(wanted)).sum()),
        "stock_sequences": free.sequences, "stock_different": free.different,
    }  # fmt: skip


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="bfloat16")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--inner", type=int, help="the perceptron's width; looked up by default")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--reference", type=int, help="sequences of the reference batch")
    parser.add_argument("--batchings", type=int)
    parser.add_argument("--attention", choices=("each", "batched"), default="each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    small = {"hidden": 192, "layers": 1, "length": 10, "reference": 3, "batchings": 6}
    large = {"hidden": 1024, "layers": 2, "length": 96, "reference": 8, "batchings": 200}
    for name, value in (small if args.cpu else large).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def main() -> int:
    args = parsed()
    device, dtype = "cpu" if args.cpu else "cuda", getattr(torch, args.dtype)
    choices = {"replay": made_up_source()} if args.cpu else {}
    if args.inner is None:
        width = found_width(args.hidden, args.length, args.reference, dtype, choices)
        args.inner = width.inner
        print(width)
    heads, vocabulary = max(1, args.hidden // 128), 50 if args.cpu else 1000
    shape = Shape(args.hidden, args.inner, heads, args.layers, vocabulary, args.length)
    torch.manual_seed(args.seed)
    model = Decoder(shape, args.attention).to(device, dtype)
    pool = 8 if args.cpu else 64
    lengths = torch.randint(1, shape.length + 1, (pool,))
    tokens = torch.randint(shape.vocabulary, (pool, shape.length), device=device)
    sequences = Sequences(tokens, lengths.to(device))
    dependent = dependent_operations(shape, pool, dtype, device)
    print(f"operations beside products: {', '.join(OPERATIONS)}; depend on the batch: {', '.join(dependent) or 'none'}")
    counts = demonstrated(model, sequences, args.reference, args.batchings, args.seed, choices)
    for name, count in counts.items():
        print(f"{name:<36}{count:>10}")
    if args.out is not None:
        card = "none (replay on a CPU)" if args.cpu else torch.cuda.get_device_name()
        claim = {
            "claim": "logits of a pinned decoder are the same in every batch",
            "command": " ".join(["python", *sys.argv]), "card": card, "versions": {"torch": torch.__version__},
            "date": date.today().isoformat(), "shape": shape._asdict(), "counts": counts,
            "operations_dependent": dependent,
        }  # fmt: skip
        args.out.write_text(json.dumps({"claims": [claim]}, indent=1))
    failed = counts["different"] or counts["declined"] or counts["elements_unlike_stock_at_reference"]
    return 1 if failed or dependent else 0


if __name__ == "__main__":
    sys.exit(main())
