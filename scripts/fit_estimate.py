"""Fit the costs of the chooser's estimate to what was timed, and say how well they rank it.

    PYTHONPATH=. python scripts/fit_estimate.py SOURCE... [--keep] [--rounds 30]

A source is a folder of the benchmark's journals, whose float16 schedules are rows, or a file that ``gemmdesc tune
--times`` wrote, of whose whole chains every config is a row (spans of slices are not in it).  Cards differ in heat from
one session to the next, so a product's rows are compared with each other; their times weigh less.  All three sets of
costs (:func:`gemmdesc.kernels.estimate.costs_of`) are fitted together, those that no row depends on stay.

Printed are the rank correlation of estimated and measured times, their mean distance, and the mean regret: how much
slower than the fastest of a product's schedules the one is that the estimate puts first among those that may be picked
unasked.  Groups are left out in turn: the costs are fitted to all others, and the group is judged by them.  Last come
costs fitted to all rows.  ``--keep`` judges the present costs.  Reads only; needs scipy.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import configs_of
from gemmdesc.kernels.config import THIN_SIDE, KernelConfig
from gemmdesc.kernels.estimate import H200, H200_SPECIALISED, H200_WHOLE, Costs, costs_of, estimated_us
from gemmdesc.kernels.meta import KernelMeta, Layout, MatrixMeta
from gemmdesc.kernels.slices import NO_LOOP_STEP, Merge, Slices
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import pays_unasked, without_twins
from gemmdesc.speed.journal import read_sessions
from gemmdesc.speed.measuring import OURS, Row
from gemmdesc.tuning.times import TimedProduct, read_times

SMS, SHARED = 132, 232448
WORDS = re.compile(r"(\w+) (?:packed )?(\d+)x(\d+)x(\d+), (\d) warps, (\d+) stages(, dependent)?$")
SETS = {"slices and few columns": H200, "whole chains": H200_WHOLE, "specialised warps": H200_SPECIALISED}
#: How fast a schedule's weight falls with how much slower it is than the fastest, and what a time weighs beside ranks.
_FALLING, _ABSOLUTE = 8.0, 0.15
#: Costs stay within this factor of where they begin; rates that the benchmark reads itself within a smaller one.
_MOST = 5.0
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Timed:
    """A schedule of a product, and its median.  ``product``: what it is compared within."""

    product: str
    group: str
    structure: Structure
    config: KernelConfig
    meta: KernelMeta
    slices: Slices
    span: int
    us: float

    @property
    def pays(self) -> bool:
        return pays_unasked(self.structure, self.config, self.meta, self.slices, self.span)

    @property
    def kind(self) -> str:
        costs = costs_of(self.structure, self.meta, self.slices)
        return next(name for name, known in SETS.items() if known is costs)

    def estimate(self, costs: Mapping[str, Costs]) -> float:
        return estimated_us(self.structure, self.config, self.meta, self.slices, self.span, costs[self.kind])


def of_journal(row: Row) -> Iterator[Timed]:
    """The schedules of a row that the estimate is for; none of copied operands, whose copies are in the time."""
    p, sides = row.shape.product, row.sides
    if row.shape.following or p.dtype is not DType.FLOAT16 or " packed" in sides.kernel:
        return
    m, n = (p.n, p.m) if p.m < p.n and p.m <= THIN_SIDE else (p.m, p.n)
    matrix = MatrixMeta(dtype=p.dtype, row_stride=max(n, p.k), column_stride=1, alignment=256)
    out = matrix if (m, n) == (p.m, p.n) else matrix.transposed
    meta = KernelMeta(m=m, n=n, k=p.k, a=matrix, b=matrix, out=out, sm_count=SMS, shared_bytes=SHARED)
    slices = _slices(p.k, sides.slices or 1)
    for call, words in ((OURS, sides.kernel), *sides.schedules.items()):
        match, timing = WORDS.match(words), row.device.get(call)
        if match is None or timing is None or not Structure(match[1]).by_descriptor:
            continue
        tile = tuple(map(int, match.groups()[1:6]))
        for config in configs_of(Structure(match[1])):
            c = (config.block_m, config.columns, config.block_k, config.num_warps, config.num_stages)
            if c == tile and config.dependent == bool(match[7]):
                yield Timed(
                    product=f"journal {row.shape.name}", group=f"{row.shape.part} {row.shape.group}", meta=meta,
                    slices=slices, structure=Structure(match[1]), config=config, span=slices.span, us=timing.median,
                )  # fmt: skip


def of_times(timed: TimedProduct) -> Iterator[Timed]:
    """Every config of a whole chain of 16-bit operands that reads by descriptor."""
    found, key = timed.measured, timed.measured.key
    if key.sliced or key.steps != "plain" or key.a_dtype.itemsize != 2:
        return
    m, n, k = found.sizes

    def side(layout: Layout, rows: int, columns: int, dtype: DType) -> MatrixMeta:
        strides = (columns, 1) if layout is Layout.ROWS else (1, rows)
        return MatrixMeta(dtype=dtype, row_stride=strides[0], column_stride=strides[1], alignment=256)

    meta = KernelMeta(
        m=m, n=n, k=k, a=side(key.a_layout, m, k, key.a_dtype), b=side(key.b_layout, k, n, key.b_dtype),
        out=side(Layout.ROWS, m, n, key.output_dtype), sm_count=SMS, shared_bytes=SHARED,
    )  # fmt: skip
    middles = {pick: math.sqrt(one * two) for pick, (one, two) in found.halves.items()}
    for pick, us in {**found.hopeless, **middles}.items():
        if pick.structure.by_descriptor:
            yield Timed(
                product=f"times {timed.shape}", group=timed.shape.label.split(" ", 1)[-1], structure=pick.structure,
                config=pick.config, meta=meta, slices=_slices(k, 1), span=k, us=us,
            )  # fmt: skip


def _slices(k: int, count: int) -> Slices:
    """Journals do not hold spans; this is the library's in most products."""
    merge = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)
    span = ((k + count - 1) // count + 7) // 8 * 8 if count > 1 else k
    return Slices(
        summed_k=k, span=span, count=count, instruction_k=16, k_loop_step=NO_LOOP_STEP,
        merge=merge if count > 1 else None,
    )  # fmt: skip


class Fit:
    """Rows by product, with what a schedule near the fastest weighs."""

    def __init__(self, rows: Sequence[Timed], left_out: str = "") -> None:
        products: dict[str, list[Timed]] = defaultdict(list)
        for row in rows:
            if row.group != left_out:
                products[row.product].append(row)
        self.products = [timed for timed in products.values() if len(timed) > 1]
        self.rows = [row for timed in self.products for row in timed]
        best = [min(row.us for row in timed) for timed in self.products for _ in timed]
        self._logs = np.log([row.us for row in self.rows])
        self._weights = 1 / (1 + _FALLING * (np.exp(self._logs) / best - 1))
        ends = np.cumsum([len(timed) for timed in self.products])
        self._parts = list(zip([0, *ends[:-1]], ends, strict=True))

    def estimates(self, costs: Mapping[str, Costs]) -> Numbers:
        return np.array([row.estimate(costs) for row in self.rows])

    def residuals(self, costs: Mapping[str, Costs]) -> Numbers:
        off = np.log(self.estimates(costs)) - self._logs
        within = np.empty_like(off)
        for begin, end in self._parts:
            weights = self._weights[begin:end]
            within[begin:end] = off[begin:end] - np.average(off[begin:end], weights=weights)
        roots = np.sqrt(self._weights)
        return np.concatenate([within * roots, _ABSOLUTE * off * roots])


def fitted(fit: Fit, rounds: int) -> dict[str, Costs]:
    """The costs of least distance of logarithms, outliers weakened."""
    from scipy.optimize import least_squares

    places = [(kind, name) for kind in SETS for name in asdict(H200) if _matters(kind, name, fit.rows)]
    start = np.log([getattr(SETS[kind], name) for kind, name in places])

    def costs(at: Sequence[float]) -> dict[str, Costs]:
        given: dict[str, dict[str, float]] = {kind: {} for kind in SETS}
        for (kind, name), value in zip(places, at, strict=True):
            given[kind][name] = math.exp(value)
        return {kind: replace(SETS[kind], **values) for kind, values in given.items()}

    found = least_squares(
        lambda at: fit.residuals(costs(at)), start, loss="soft_l1", f_scale=0.03, max_nfev=rounds,
        bounds=(start - math.log(_MOST), start + math.log(_MOST)),
    )  # fmt: skip
    return costs(found.x)


def _matters(kind: str, name: str, rows: Sequence[Timed]) -> bool:
    """Whether the cost is part of an estimate of some row."""
    more = {**SETS, kind: replace(SETS[kind], **{name: 2 * getattr(SETS[kind], name)})}
    return any(row.kind == kind and row.estimate(more) != row.estimate(SETS) for row in rows)


def judged(fit: Fit, costs: Mapping[str, Costs]) -> str:
    from scipy.stats import spearmanr

    estimates = dict(zip(fit.rows, fit.estimates(costs), strict=True))
    off = [abs(math.log(e / row.us)) for row, e in estimates.items()]
    regrets = []
    for timed in fit.products:
        allowed = without_twins([row.config for row in timed if row.pays])
        open_to_all = [row for row in timed if row.pays and row.config in allowed]
        if open_to_all:
            picked = min(open_to_all, key=lambda row: estimates[row])
            regrets.append(picked.us / min(row.us for row in timed) - 1)
    rank = spearmanr(list(estimates.values()), [row.us for row in estimates]).statistic
    mean = sum(regrets) / len(regrets) if regrets else math.nan
    ranks = f"{len(off)} rows, rank {rank:.4f}, off by {sum(off) / len(off):.1%}"
    return f"{ranks}, regret {mean:.2%} over {len(regrets)} products"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--keep", action="store_true", help="judge the costs as they are")
    parser.add_argument("--rounds", type=int, default=30, help="of the solver, at most")
    options = parser.parse_args()
    rows = [t for s in read_sessions([p for p in options.sources if p.is_dir()]) for r in s.rows for t in of_journal(r)]
    rows += [t for path in options.sources if path.is_file() for one in read_times(path) for t in of_times(one)]
    whole = Fit(rows)
    if not whole.rows:
        print("sources must have products with several schedules by tensor descriptors (got none)", file=sys.stderr)
        return 2
    print(f"present costs: {judged(whole, SETS)}", flush=True)
    if options.keep:
        return 0
    for group in dict.fromkeys(row.group for row in whole.rows):
        inside = Fit([row for row in rows if row.group == group])
        print(f"  without {group}: {judged(inside, fitted(Fit(rows, group), options.rounds))}", flush=True)
    costs = fitted(whole, options.rounds)
    print(f"fitted to all: {judged(whole, costs)}")
    for kind, found in costs.items():
        print(f"{kind}: " + ", ".join(f"{n}={v:.4g}" for n, v in asdict(found).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
