"""Which ratios are asked of which products: groups, what is divided by what, and the bar of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gemmdesc.speed.layers import GROUPS, MODEL
from gemmdesc.speed.measuring import INDUCTOR_MAX, LIBRARY, OURS, PRODUCT, Row
from gemmdesc.speed.sets import DECODE_WEIGHTS
from gemmdesc.speed.shapes import FOLLOWING, SpeedShape

#: Within 5% of the library's product alone.
_FREE = 1 / 1.05
#: What a bar of "above" asks for.
_ABOVE = 1.0


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The geometric mean of ``over``'s time / ``under``'s must reach ``least`` over the shapes that ``holds`` picks.

    ``host``: launch and device time together.  ``strict``: must be above it.  ``sampled``: some shapes only have that
    call, as those that torch.compile was timed for.  ``picks``: a further choice by what was measured.
    """

    name: str
    least: float
    holds: Callable[[SpeedShape], bool]
    over: str = LIBRARY
    under: str = OURS
    host: bool = False
    strict: bool = False
    sampled: bool = False
    picks: Callable[[Row], bool] = lambda row: True

    def met(self, mean: float) -> bool:
        return mean > self.least if self.strict else mean >= self.least


def _part(part: str, group: str | None = None, large: bool | None = None) -> Callable[[SpeedShape], bool]:
    def holds(shape: SpeedShape) -> bool:
        return (
            shape.part == part and (group is None or shape.group == group) and (large is None or shape.large == large)
        )

    return holds


def _model_bars() -> Iterator[Bar]:
    for large, words, whole, each in ((True, "above", 1.01, 0.96), (False, "below", 1.0, 0.92)):
        yield Bar(name=f"models, {words} 5 GFLOP", least=whole, holds=_part(MODEL, None, large))
        for group in GROUPS:
            yield Bar(
                name=f"models, {words} 5 GFLOP: {group.name}", least=each, holds=_part(MODEL, group.name, large)
            )


def _small_weight(shape: SpeedShape) -> bool:
    return _part("decode", "4096x4096")(shape) and shape.product.m <= 32


def _decode_bars() -> Iterator[Bar]:
    yield Bar(name="decode, M 1 to 64", least=1.08, holds=_part("decode"))
    yield Bar(name="decode, 4096x4096, M to 32", least=1.15, holds=_small_weight)
    for n, k in DECODE_WEIGHTS:
        yield Bar(name=f"decode, {n}x{k}", least=1.0, holds=_part("decode", f"{n}x{k}"))


def _cube(shape: SpeedShape) -> bool:
    p = shape.product
    return _part("float8")(shape) and p.m == p.n == p.k == 4096


def _few_rows(shape: SpeedShape) -> bool:
    return _part("fused")(shape) and shape.product.m <= 64


def _fused_bars() -> Iterator[Bar]:
    yield Bar(name="fused, device", least=1.06, holds=_part("fused"))
    yield Bar(name="fused, beside the product alone", least=_FREE, over=PRODUCT, holds=_part("fused"))
    yield Bar(name="fused, launch and device, M to 64", least=1.3, holds=_few_rows, host=True)
    for following in FOLLOWING:
        yield Bar(
            name=f"fused, {following}, beside max-autotune", least=_ABOVE, strict=True, sampled=True,
            over=INDUCTOR_MAX, holds=_part("fused", following),
        )  # fmt: skip


def bars() -> tuple[Bar, ...]:
    """Every bar, in the order in which it is shown."""
    unrounded = _part("unrounded", None, True)
    return (
        *_model_bars(),
        Bar(name="unrounded, above 5 GFLOP", least=2.1, holds=unrounded),
        Bar(
            name="unrounded, above 5 GFLOP, one pass", least=2.3, holds=unrounded, sampled=True,
            picks=lambda row: row.sides.slices == 1,
        ),
        *_decode_bars(),
        Bar(name="float8", least=0.95, holds=_part("float8")),
        Bar(name="float8, 4096^3", least=1.0, holds=_cube),
        Bar(name="CUDA cores", least=1.0, holds=_part("cuda_core")),
        Bar(name="vectors", least=1.0, holds=_part("vector")),
        *_fused_bars(),
    )  # fmt: skip


def asked(bar: Bar, shapes: Iterable[SpeedShape]) -> tuple[str, ...]:
    """The names of the shapes that a bar is over."""
    return tuple(s.name for s in shapes if bar.holds(s))
