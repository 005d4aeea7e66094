"""Fit the costs of the chooser's estimate to journals of the benchmark, and say how well they rank what was timed.

    PYTHONPATH=. python scripts/fit_estimate.py FOLDER... [--keep]

Every schedule of a float16 product in the journals that a tensor-descriptor kernel ran is a row.  Printed are the rank
correlation of estimated and measured times, their mean distance, and the mean regret: how much slower than the fastest
of a product's schedules the one is that the estimate puts first among those that may be picked unasked.  Groups are
left out in turn: the costs are fitted to all others, and the group is judged by them.  Last come costs fitted to all
rows.  ``--keep`` judges the present costs.  Reads only; needs scipy.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gemmdesc.descriptor import Start
from gemmdesc.dtypes import DType
from gemmdesc.kernels.choose import THIN_SIDE, configs_of
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.estimate import H200, Costs, estimated_us
from gemmdesc.kernels.meta import KernelMeta, MatrixMeta
from gemmdesc.kernels.slices import NO_LOOP_STEP, Merge, Slices
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.unasked import pays_unasked, without_twins
from gemmdesc.speed.journal import read_sessions
from gemmdesc.speed.measuring import OURS, Row

SMS, SHARED = 132, 232448
WORDS = re.compile(r"(\w+) (?:packed )?(\d+)x(\d+)x(\d+), (\d) warps, (\d+) stages(, dependent)?$")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A schedule of a product, and its median."""

    name: str
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

    def estimate(self, costs: Costs) -> float:
        return estimated_us(self.structure, self.config, self.meta, self.slices, self.span, costs)


def timed_of(row: Row) -> list[Timed]:
    """The schedules of a row that the estimate is for; none of copied operands, whose copies are in the time."""
    p, sides = row.shape.product, row.sides
    if row.shape.following or p.dtype is not DType.FLOAT16 or " packed" in sides.kernel:
        return []
    turned = p.m < p.n and p.m <= THIN_SIDE
    m, n = (p.n, p.m) if turned else (p.m, p.n)
    matrix = MatrixMeta(dtype=p.dtype, row_stride=max(n, p.k), column_stride=1, alignment=256)
    out = matrix.transposed if turned else matrix
    meta = KernelMeta(m=m, n=n, k=p.k, a=matrix, b=matrix, out=out, sm_count=SMS, shared_bytes=SHARED)
    count = sides.slices or 1
    merge = Merge(partial_dtype=DType.FLOAT32, merge_dtype=DType.FLOAT32, start=Start.FIRST)
    # Journals do not hold spans; this is the library's in most products.
    span = ((p.k + count - 1) // count + 7) // 8 * 8 if count > 1 else p.k
    slices = Slices(
        summed_k=p.k, span=span, count=count, instruction_k=16, k_loop_step=NO_LOOP_STEP,
        merge=merge if count > 1 else None,
    )  # fmt: skip
    found = []
    for call, words in ((OURS, sides.kernel), *sides.schedules.items()):
        match, timing = WORDS.match(words), row.device.get(call)
        if match is None or timing is None or not Structure(match[1]).by_descriptor:
            continue
        tile = tuple(map(int, match.groups()[1:6]))
        for config in configs_of(Structure(match[1])):
            c = (config.block_m, config.columns, config.block_k, config.num_warps, config.num_stages)
            if c == tile and config.dependent == bool(match[7]):
                found.append(
                    Timed(
                        name=row.shape.name, group=f"{row.shape.part} {row.shape.group}", meta=meta, slices=slices,
                        structure=Structure(match[1]), config=config, span=span, us=timing.median,
                    )
                )  # fmt: skip
    return found


def fitted(rows: Sequence[Timed], begin: Costs) -> Costs:
    """The costs of least distance of logarithms, outliers weakened, each within a factor of 8 of where it begins."""
    from scipy.optimize import least_squares

    names = [n for n in asdict(begin) if n != "gigahertz" and _matters(n, rows, begin)]
    start = [math.log(getattr(begin, n)) for n in names]

    def costs(x: Sequence[float]) -> Costs:
        return replace(begin, **{n: math.exp(v) for n, v in zip(names, x, strict=True)})

    def distances(x: Sequence[float]) -> list[float]:
        at = costs(x)
        return [math.log(r.estimate(at) / r.us) for r in rows]

    bounds = [[v - math.log(8) for v in start], [v + math.log(8) for v in start]]
    for i, name in enumerate(names):
        if name in ("tera_operations", "terabytes"):  # rates that the benchmark reads itself
            bounds[0][i], bounds[1][i] = start[i] - 0.1, start[i] + 0.1
    return costs(least_squares(distances, start, loss="soft_l1", f_scale=0.05, bounds=bounds).x)


def _matters(name: str, rows: Sequence[Timed], costs: Costs) -> bool:
    """Whether the cost is part of an estimate of some row."""
    more = replace(costs, **{name: 2 * getattr(costs, name)})
    return any(r.estimate(more) != r.estimate(costs) for r in rows)


def judged(rows: Sequence[Timed], estimates: Sequence[float]) -> str:
    from scipy.stats import spearmanr

    off = [abs(math.log(e / r.us)) for e, r in zip(estimates, rows, strict=True)]
    products: dict[str, list[tuple[float, Timed]]] = {}
    for e, r in zip(estimates, rows, strict=True):
        products.setdefault(r.name, []).append((e, r))
    regrets, before = [], []
    for timed in (p for p in products.values() if len(p) > 1):
        allowed = without_twins([r.config for _, r in timed if r.pays])
        best = min(r.us for _, r in timed)
        picked = min(((e, r) for e, r in timed if r.pays and r.config in allowed), key=lambda pair: pair[0])[1]
        regrets.append(picked.us / best - 1)
        before.append(timed[0][1].us / best - 1)
    rank = spearmanr(estimates, [r.us for r in rows]).statistic if len(rows) > 2 else math.nan
    within = spearmanr(
        [e / r.us for e, r in zip(estimates, rows, strict=True)], [r.us for r in rows]
    ).statistic if len(rows) > 2 else math.nan  # fmt: skip
    mean, chosen = (sum(r) / len(r) if r else math.nan for r in (regrets, before))
    return (
        f"{len(rows)} rows, rank {rank:.4f}, off by {sum(off) / len(off):.1%}, trend of ratios {within:+.2f}, "
        f"regret {mean:.2%} (of what was chosen: {chosen:.2%}) over {len(regrets)} products"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--keep", action="store_true", help="judge the costs as they are")
    options = parser.parse_args()
    rows = [t for s in read_sessions(options.folders) for r in s.rows for t in timed_of(r)]
    if not rows:
        print("folders must hold journals with rows of tensor-descriptor kernels (got none)", file=sys.stderr)
        return 2
    print(f"present costs: {judged(rows, [r.estimate(H200) for r in rows])}")
    if options.keep:
        return 0
    held: dict[int, float] = {}
    for group in dict.fromkeys(r.group for r in rows):
        costs = fitted([r for r in rows if r.group != group], H200)
        inside = [i for i, r in enumerate(rows) if r.group == group]
        held |= {i: rows[i].estimate(costs) for i in inside}
        print(f"  without {group}: {judged([rows[i] for i in inside], [held[i] for i in inside])}")
    print(f"groups left out in turn: {judged(rows, [held[i] for i in range(len(rows))])}")
    costs = fitted(rows, H200)
    print(f"fitted to all: {judged(rows, [r.estimate(costs) for r in rows])}")
    print(", ".join(f"{n}={v:.4g}" for n, v in asdict(costs).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
