"""A grid over what a descriptor of a chain can say: at each point every schedule must give the replay's bytes.

The library's heuristic leads to a corner of this grid only; tuning picks schedules anywhere in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, bits_dtype, first_mismatch, from_float32
from gemmdesc.descriptor import (
    Accumulator,
    Contiguous,
    Cut,
    FusedDot,
    GEMMDesc,
    ResidueFirst,
    ResidueLast,
    ScalarStep,
    Scale,
    Start,
)
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.competing import TunableChoice, competing, pick_of
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.mutants import mutants

if TYPE_CHECKING:
    import torch

FP16, BF16, FP32, E4M3 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3FN
#: Types of a dense matrix's memory are aligned to so much on a card, in bytes.
_ALIGNMENT = 256
_FULL, _HALF = "full", "half"

#: What 16-bit chains vary in; every value of an axis meets every other axis's.  ``span`` is in k: 0 for no cut.
AXES: Mapping[str, tuple[Any, ...]] = {
    "dtype": (FP16, BF16),
    "output": (_HALF, _FULL),
    "step": (16, 8),
    "turn": (0, 16, 32, 64, 128),
    "span": (0, 16, 24, 37, 64, 96, 128, 192, 256),
    "partial": (_FULL, _HALF),
    "merge": (_FULL, _HALF),
    "start": (Start.FIRST, Start.ZERO),
    "tail": (0, 1, 8),
    "size": ((48, 40), (16, 136), (130, 9), (33, 65), (136, 152)),
    "k": (72, 131, 256, 333, 520),
    "layouts": ("rrr", "rcr", "crr", "ccr", "rcc", "rrc"),
}
#: And the 8-bit and the float32 ones.
FLOAT8_AXES: Mapping[str, tuple[Any, ...]] = {
    "dtype": (E4M3,), "output": (BF16, FP32, FP16), "step": (32, 16), "turn": (0, 64), "span": (0, 64, 128, 200),
    "partial": (_FULL,), "merge": (_FULL,), "start": (Start.FIRST, Start.ZERO), "tail": (0, 5), "scale": (False, True),
    "size": ((64, 48), (16, 208), (150, 33)), "k": (256, 400, 1040), "layouts": ("rcr", "rrr", "crc"),
}  # fmt: skip
FLOAT32_AXES: Mapping[str, tuple[Any, ...]] = {
    "dtype": (FP32,), "output": (_FULL,), "step": (1,), "turn": (0,), "span": (0, 32, 50, 64), "partial": (_FULL,),
    "merge": (_FULL,), "start": (Start.FIRST, Start.ZERO), "tail": (0, 3), "opening": (Start.ZERO, Start.FIRST),
    "size": ((64, 48), (33, 65), (16, 140)), "k": (64, 101, 259), "layouts": ("rrr", "rcr", "ccr", "crc"),
}  # fmt: skip
FAMILIES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "16-bit": AXES, "8-bit": FLOAT8_AXES, "float32": FLOAT32_AXES,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A descriptor, and a product of it on dense matrices, ``layouts`` r by rows and c by columns of a, b and out."""

    desc: GEMMDesc
    m: int
    n: int
    k: int
    layouts: str

    def meta(self, sm_count: int, shared_bytes: int) -> KernelMeta:
        """What the chooser sees of it."""
        sides = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        types = (self.desc.a_dtype, self.desc.b_dtype, self.desc.output_dtype)
        a, b, out = (
            MatrixMeta(
                dtype=t, row_stride=c if x == "r" else 1, column_stride=1 if x == "r" else r, alignment=_ALIGNMENT
            )
            for (r, c), t, x in zip(sides, types, self.layouts, strict=True)
        )  # fmt: skip
        return KernelMeta(
            m=self.m, n=self.n, k=self.k, a=a, b=b, out=out, sm_count=sm_count, shared_bytes=shared_bytes
        )

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.layouts} {self.desc}"


def grid_size(family: str) -> int:
    """How many points a family's grid has."""
    return math.prod(len(values) for values in FAMILIES[family].values())


def combinations(family: str, card: CardArithmetic, seed: int) -> Iterator[Combination]:
    """Every point of a family's grid once, in an order that ``seed`` shuffles.

    Points that say the same, as those without a cut do whose partials differ, are met once.

    Raises:
        InvalidInputError: the family is unknown.
    """
    if family not in FAMILIES:
        raise InvalidInputError(f"family must be one of {', '.join(FAMILIES)} (got {family!r})")
    axes, seen = FAMILIES[family], set()
    for index in np.random.default_rng(seed).permutation(grid_size(family)).tolist():
        values: dict[str, Any] = {}
        for name, options in axes.items():
            index, at = divmod(index, len(options))
            values[name] = options[at]
        made = _made(values, card)
        if made not in seen:
            seen.add(made)
            yield made


def _made(values: Mapping[str, Any], card: CardArithmetic) -> Combination:
    dtype, k = values["dtype"], values["k"]

    def width(word: Any) -> DType:
        named: dict[Any, DType] = {_FULL: FP32, _HALF: dtype}
        return named.get(word) or DType(word)

    cut = Cut(
        layout=Contiguous(span=values["span"] or 1), partial_dtype=width(values["partial"]),
        merge_dtype=width(values["merge"]), start=values["start"],
    )  # fmt: skip
    turn = values["turn"]
    leaf = Accumulator(
        instruction_k=values["step"], residue=ResidueFirst(k_loop_step=turn) if turn else ResidueLast(),
        step=_step(dtype, values, card),
    )  # fmt: skip
    desc = GEMMDesc(
        a_dtype=dtype, b_dtype=dtype, output_dtype=width(values["output"]), summed_k=k - values["tail"],
        cuts=(cut,) if values["span"] else (), accumulator=leaf, epilogue=(Scale(),) if values.get("scale") else (),
    )  # fmt: skip
    return Combination(desc=desc, m=values["size"][0], n=values["size"][1], k=k, layouts=values["layouts"])


def _step(dtype: DType, values: Mapping[str, Any], card: CardArithmetic) -> FusedDot | ScalarStep:
    if dtype is FP32:
        return ScalarStep(fused=True, start=values["opening"])
    known = card.step_for(dtype)
    if known is None:
        raise InvalidInputError(f"card must have matrix steps of {dtype.value} (got none)")
    return known.step


def operands(point: Combination, rng: np.random.Generator, *, wide: bool) -> tuple[Bits, Bits]:
    """A (m, k) and B (k, n): normal values, or wide exponents with NaN, infinities, -0.0 and subnormals among them."""
    spread = {FP16: 6, BF16: 30, FP32: 30, E4M3: 4}[point.desc.a_dtype] if wide else 0

    def draw(rows: int, columns: int) -> Bits:
        values = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-spread, spread + 1, (rows, columns)))
        return from_float32(values.astype(np.float32), point.desc.a_dtype)

    a, b = draw(point.m, point.k), draw(point.k, point.n)
    if wide:
        high = 1 << (8 * point.desc.a_dtype.itemsize - 1)
        a[0] = high
        a[1] = rng.integers(0, 8, point.k)
        a[2, point.k // 2] = high - 1
        if point.desc.a_dtype is not E4M3:
            infinity = {FP16: 0x7C00, BF16: 0x7F80, FP32: 0x7F800000}[point.desc.a_dtype]
            a[3, 0], b[point.k // 3, point.n // 2] = infinity, infinity | high
    return a, b


@dataclass(kw_only=True)
class Swept:
    """Counts: ``points`` of the grid, of which ``declined`` have no kernel; ``configs`` of all, each a schedule of one.

    ``compared``: draws of a config.  ``wrong``: what differed.  ``power``: by kind of mutant, on how many points the
    mutant's own bytes differed from the descriptor's on these draws, and on how many it was tried.
    """

    points: int = 0
    declined: int = 0
    configs: int = 0
    compared: int = 0
    by_structure: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    power: dict[str, list[int]] = field(default_factory=dict)


def sweep_point(
    point: Combination, card: CardArithmetic, swept: Swept, *, meta: KernelMeta, place: str, draws: int, seed: int,
    keep: Callable[[TunableChoice], bool] = lambda choice: True,
) -> None:  # fmt: skip
    """Run every schedule that may be chosen for ``point`` on ``draws`` draws, and compare all of its bytes.

    ``place``: a torch device; the host's is Triton's interpreter.  ``keep``: which schedules beside the default.
    """
    swept.points += 1
    found = competing(point.desc, meta, card)
    if isinstance(found, Declined):
        swept.declined += 1
        return
    choices = (found[0], *filter(keep, found[1:]))
    swept.configs += len(choices)
    for choice in choices:
        name = choice.structure.value
        swept.by_structure[name] = swept.by_structure.get(name, 0) + 1
    rng, caught = np.random.default_rng(seed), _Caught(point)
    for draw in range(draws):
        a_bits, b_bits = operands(point, rng, wide=draw % 2 == 1)
        scale = float(np.float32(rng.standard_normal()))
        inputs = EpilogueInputs(alpha=scale)
        expected = replay(point.desc, a_bits, b_bits, epilogue=inputs)
        caught.look(a_bits, b_bits, expected, inputs)
        a, b = (to_tensor(x, point.desc.a_dtype, y, place) for x, y in ((a_bits, point.layouts[0]),
                                                                        (b_bits, point.layouts[1])))  # fmt: skip
        for choice in choices:
            wrong = first_mismatch(expected, _output(choice, point, a, b, scale, place))
            swept.compared += 1
            if wrong is not None:
                swept.wrong.append(f"{pick_of(choice)} draw {draw} {wrong} {point}")
    caught.count(swept)


class _Caught:
    """Which mutants of a point's descriptor have other bytes on the draws looked at: one of each kind."""

    def __init__(self, point: Combination) -> None:
        first = {m.kind: m.desc for m in reversed(mutants(point.desc, point.k))}
        self._open, self._seen = dict(first), dict.fromkeys(first, False)

    def look(self, a: Bits, b: Bits, expected: Bits, inputs: EpilogueInputs) -> None:
        for kind, desc in list(self._open.items()):
            if first_mismatch(expected, replay(desc, a, b, epilogue=inputs)) is not None:
                self._seen[kind] = True
                del self._open[kind]

    def count(self, swept: Swept) -> None:
        for kind, seen in self._seen.items():
            found = swept.power.setdefault(kind, [0, 0])
            found[0] += seen
            found[1] += 1


def to_tensor(bits: Bits, dtype: DType, layout: str, place: str) -> torch.Tensor:
    """Patterns as a tensor of their type, stored by rows (r) or columns (c)."""
    import torch

    stored = np.ascontiguousarray(bits if layout == "r" else bits.T)
    kind = "u1" if dtype.itemsize == 1 else f"i{dtype.itemsize}"
    tensor = torch.from_numpy(stored.view(kind).copy()).to(place).view(getattr(torch, dtype.value))
    return tensor if layout == "r" else tensor.T


def _output(
    choice: TunableChoice, point: Combination, a: torch.Tensor, b: torch.Tensor, scale: float, place: str
) -> Bits:
    import torch

    from gemmdesc.kernels.beside import NOTHING
    from gemmdesc.kernels.launch_kmajor import Scales
    from gemmdesc.kernels.launch_tiled import launch_choice

    dtype = point.desc.output_dtype
    blank = np.full((point.m, point.n), 0x5A5A5A5A & ((1 << 8 * dtype.itemsize) - 1), bits_dtype(dtype))
    out = to_tensor(blank, dtype, point.layouts[2], place)
    if point.desc.epilogue:
        scales = Scales(scale=torch.tensor([scale], dtype=torch.float32, device=place))
        launch_choice(choice, a, b, out, NOTHING, scales=scales)
    else:
        launch_choice(choice, a, b, out)
    held = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    found: Bits = out.contiguous().view(held).cpu().numpy().view(bits_dtype(dtype))
    return found


def merged(parts: Iterable[Swept]) -> Swept:
    """The counts of several sweeps together."""
    total = Swept()
    for part in parts:
        total = replace(
            total, points=total.points + part.points, declined=total.declined + part.declined,
            configs=total.configs + part.configs, compared=total.compared + part.compared,
            wrong=[*total.wrong, *part.wrong],
            by_structure={s: total.by_structure.get(s, 0) + part.by_structure.get(s, 0)
                          for s in {**total.by_structure, **part.by_structure}},
            power={kind: [sum(x) for x in zip(total.power.get(kind, [0, 0]), part.power.get(kind, [0, 0]), strict=True)]
                   for kind in {**total.power, **part.power}},
        )  # fmt: skip
    return total
