"""390 products of language models, as tables 1 and 4 of "Taming Bitwise Behavior in GPU Kernels with Tensor Core" say.

Published are counts and ranges of layer groups and the models' widths, not the list.  What that leaves open is chosen
here, by a rule that anyone can run again: token counts are a group's ends and the powers of two between them, ranks the
powers of two, and attention projections are 9/4 of the hidden size out of it (queries of twice the hidden size, keys
and values of an eighth of it each) and twice the hidden size back into it.  A group's weights are dealt token counts in
turn, until it has as many products as published.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import islice

from gemmdesc.books import Shape
from gemmdesc.errors import InvalidInputError
from gemmdesc.speed.shapes import SpeedShape

#: The set's name.
MODEL = "model"
#: Ranks of adapters.
RANKS = (8, 16, 32, 64)
#: The widest output of an adapter, four times the largest hidden size.
_WIDEST_ADAPTER = 32768


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row of table 4; None where the model's configuration has no such key."""

    name: str
    hidden: int
    ffn: int | None
    expert: int | None
    vocab: int


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """A row of table 1: how many products, and the ranges of m, n and k."""

    name: str
    count: int
    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]

    def holds(self, n: int, k: int) -> bool:
        return self.n[0] <= n <= self.n[1] and self.k[0] <= k <= self.k[1]


GROUPS = (
    LayerGroup(name="attention projections", count=45, m=(256, 16384), n=(2048, 18432), k=(2048, 16384)),
    LayerGroup(name="MLP up", count=21, m=(256, 16384), n=(6144, 33792), k=(2048, 7168)),
    LayerGroup(name="MLP down", count=21, m=(256, 16384), n=(2048, 7168), k=(6144, 33792)),
    LayerGroup(name="MoE up", count=55, m=(16, 3072), n=(512, 3072), k=(2048, 8192)),
    LayerGroup(name="MoE down", count=57, m=(16, 6144), n=(2048, 8192), k=(512, 3072)),
    LayerGroup(name="LM head", count=54, m=(1, 256), n=(100352, 248320), k=(2048, 8192)),
    LayerGroup(name="LoRA B", count=137, m=(80, 16384), n=(768, 32768), k=(8, 64)),
)


def models() -> tuple[Model, ...]:
    """Table 4, in its order."""
    text = (resources.files("gemmdesc.speed") / "models.csv").read_text(encoding="utf-8")

    def number(value: str) -> int | None:
        return int(value) if value else None

    return tuple(
        Model(
            name=row["model"], hidden=int(row["hidden"]), ffn=number(row["ffn"]), expert=number(row["expert"]),
            vocab=int(row["vocab"]),
        )
        for row in csv.DictReader(text.splitlines())
    )  # fmt: skip


def tokens(group: LayerGroup) -> tuple[int, ...]:
    """Token counts of a group: the ends of its range and the powers of two between them, ascending."""
    low, high = group.m
    powers = (1 << e for e in range(high.bit_length()))
    return tuple(sorted({low, high, *(p for p in powers if low < p < high)}))


def weights(group: LayerGroup, known: Iterable[Model]) -> tuple[tuple[int, int, str], ...]:
    """(n, k, the first model that has it) of a group's distinct weights, in the order of the models."""
    found: dict[tuple[int, int], str] = {}
    for model in known:
        for n, k in _widths(group.name, model):
            if group.holds(n, k):
                found.setdefault((n, k), model.name)
    if group.name == "LoRA B":
        found |= {(_WIDEST_ADAPTER, rank): "widest" for rank in RANKS}
    return tuple((n, k, name) for (n, k), name in found.items())


def _widths(group: str, model: Model) -> Iterator[tuple[int, int]]:
    hidden = model.hidden
    match group:
        case "attention projections":
            yield from ((hidden * 9 // 4, hidden), (hidden, 2 * hidden))
        case "MLP up" | "MoE up":
            width = model.ffn if group == "MLP up" else model.expert
            yield from [(width, hidden)] if width else []
        case "MLP down" | "MoE down":
            width = model.ffn if group == "MLP down" else model.expert
            yield from [(hidden, width)] if width else []
        case "LM head":
            yield model.vocab, hidden
        case _:
            outputs = [w for w in (hidden, model.ffn, model.expert) if w]
            yield from ((n, rank) for n in outputs for rank in RANKS)


def deal(count: int, first: int, second: int) -> Iterator[tuple[int, int]]:
    """``count`` distinct pairs (i, j) of ``first`` x ``second``, every i as often as another, up to one.

    Raises:
        InvalidInputError: there are not so many.
    """
    if count > first * second:
        raise InvalidInputError(f"count must be at most {first} x {second} (got {count})")
    every = ((i, (turn + i) % second) for turn in range(second) for i in range(first))
    return islice(every, count)


def model_shapes() -> tuple[SpeedShape, ...]:
    """All 390, group by group: ``x @ weight.T`` of float16, x (m, k) and weight (n, k) by rows."""
    known = models()
    return tuple(shape for group in GROUPS for shape in _dealt(group, known))


def _dealt(group: LayerGroup, known: tuple[Model, ...]) -> Iterator[SpeedShape]:
    wide, long = weights(group, known), tokens(group)
    for i, j in deal(group.count, len(wide), len(long)):
        n, k, name = wide[i]
        product = Shape(m=long[j], n=n, k=k, layout="nt", label=name)
        yield SpeedShape(part=MODEL, group=group.name, product=product)
