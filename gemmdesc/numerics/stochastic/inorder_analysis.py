"""What only drawing inside a product can tell: which sites cost digits, and whether outside estimates agree with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import check_operands, indices, replay
from gemmdesc.bits import Bits, to_float32
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.digits import Estimate, student_quantile
from gemmdesc.numerics.stochastic.formats import RoundingFormat
from gemmdesc.numerics.stochastic.inorder import draw_inside
from gemmdesc.numerics.stochastic.run import Mode, Settings, StochasticRun
from gemmdesc.numerics.stochastic.sites import single_sites

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SiteShare:
    """One kind of site drawn alone.

    ``variance_share``: its part of the summed variances of all kinds, the mean over elements that have any;
    ``digits``: median digits of what is stored, were it the only source; NaN where nothing is inexact.
    """

    sites: str
    variance_share: float
    digits: float


def attribute_sites(
    desc: GEMMDesc,
    a: Bits,
    b: Bits,
    *,
    rows: npt.ArrayLike | None = None,
    cols: npt.ArrayLike | None = None,
    samples: int = 3,
    seed: int = 0,
    epilogue: EpilogueInputs | None = None,
) -> tuple[SiteShare, ...]:
    """Draw each kind of site of ``desc`` alone, the others rounding as the library does.

    Steps, each cut's fold (the outermost first), the epilogue, and the output type.  A kind that is drawn alone still
    meets the output type's rounding to nearest, which hides what is smaller; variances are therefore those of the sums
    before it, but for the output type itself.

    Raises:
        InvalidInputError: as :func:`~gemmdesc.numerics.stochastic.inorder.draw_inside`.
    """
    inputs = EpilogueInputs() if epilogue is None else epilogue
    variances, digits = {}, {}
    for sites in single_sites(desc):
        found = draw_inside(desc, a, b, rows=rows, cols=cols, samples=samples, seed=seed, sites=sites, epilogue=inputs)
        drawn = found.samples if sites.output else found.before
        with np.errstate(all="ignore"):
            variances[sites.words] = np.nan_to_num(drawn.astype(np.float64).var(0, ddof=1), nan=0.0, posinf=0.0)
        estimate = found.plain_estimate() if sites.output else found.sum_estimate()
        inexact = estimate.digits[~estimate.exact & estimate.finite]
        digits[sites.words] = float(np.median(inexact)) if inexact.size else math.nan
    total = sum(variances.values())
    used = total > 0
    return tuple(
        SiteShare(
            sites=words,
            variance_share=float((variance[used] / total[used]).mean()) if used.any() else math.nan,
            digits=digits[words],
        )
        for words, variance in variances.items()
    )


@dataclass(frozen=True, kw_only=True)
class OrderSpread:
    """Several real orders of one product, beside the digits that the first one's samples promise.

    ``equal_share``: elements whose bytes are the same in all orders.  ``kept_share``: elements whose orders agree in at
    least the digits promised.  ``inside_share``: elements whose orders lie within one interval of one another, twice
    the half width apart at most.  ``median_agreement``, ``median_digits``: over elements that differ.
    """

    orders: int
    elements: int
    equal_share: float
    kept_share: float
    inside_share: float
    median_agreement: float
    median_digits: float


def compare_orders(
    orders: Sequence[GEMMDesc],
    a: Bits,
    b: Bits,
    *,
    rows: npt.ArrayLike | None = None,
    cols: npt.ArrayLike | None = None,
    samples: int = 3,
    seed: int = 0,
) -> OrderSpread:
    """Replay ``orders``, descriptors of one product, and hold their spread against the first one's digits.

    Raises:
        InvalidInputError: there are fewer than two orders, they differ in operand or output types, or as
            :func:`~gemmdesc.numerics.stochastic.inorder.draw_inside`.
    """
    kinds = {(o.a_dtype, o.b_dtype, o.output_dtype) for o in orders}
    if len(orders) < 2 or len(kinds) > 1:
        raise InvalidInputError(
            f"orders must be two or more descriptors of the same types (got {len(orders)} of {len(kinds)} kinds)"
        )
    found = draw_inside(orders[0], a, b, rows=rows, cols=cols, samples=samples, seed=seed)
    estimate = found.library_estimate()
    results = [found.library.astype(np.float64)]
    for desc in orders[1:]:
        results.append(to_float32(replay(desc, a, b, rows=rows, cols=cols), desc.output_dtype).astype(np.float64))
    every = np.stack(results)
    spread, middle = every.max(0) - every.min(0), np.abs(every.mean(0))
    differ = spread > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        agreement = np.where(differ, np.log10(middle / spread), np.inf)
    kept = agreement >= estimate.digits
    inside = spread <= 2 * estimate.half_width
    return OrderSpread(
        orders=len(orders),
        elements=int(spread.size),
        equal_share=_mean(~differ),
        kept_share=_mean(kept),
        inside_share=_mean(inside),
        median_agreement=_median(agreement[differ]),
        median_digits=_median(estimate.digits[differ]),
    )


def perturb_outside(
    desc: GEMMDesc,
    a: Bits,
    b: Bits,
    *,
    format: RoundingFormat,
    rows: npt.ArrayLike | None = None,
    cols: npt.ArrayLike | None = None,
    samples: int = 3,
    seed: int = 0,
) -> Float64Array:
    """The product as arXiv 2607.25494 samples it: float64 products of operands moved by 2^-fraction_bits of ``format``.

    Returns (samples, len(rows), len(cols)), each rounded once to ``format``.  What ``desc`` says of the order is not
    used; it gives the operand types.

    Raises:
        InvalidInputError: as :func:`gemmdesc.arithmetic.replay.replay`.
    """
    m, n, _ = check_operands(desc, a, b)
    run = StochasticRun(Settings(format=format, samples=samples, mode=Mode.PAPER, seed=seed))
    left = run.array(to_float32(a[indices("rows", rows, m)], desc.a_dtype))
    right = run.array(to_float32(b[:, indices("cols", cols, n)], desc.b_dtype))
    product: Float64Array = (left @ right).samples
    return product


@dataclass(frozen=True, kw_only=True)
class DigitGap:
    """Theorem 2 of arXiv 2607.25494, with samples drawn inside a product in the place of the ideal ones.

    ``within_conditions``: elements with \\|mean e\\| < \\|mean z\\| and std e < std z, where alone the theorem says
    anything; ``bounded``: those of them whose digits differ by no more than its bound.  ``median_bound`` and
    ``median_gap``: over them; ``median_difference``: digits outside minus digits inside, over all elements where both
    spreads are positive, ``largest_difference`` its greatest size.
    """

    elements: int
    within_conditions: int
    bounded: int
    median_bound: float
    median_gap: float
    median_difference: float
    largest_difference: float


def digit_gap(inside: npt.ArrayLike, outside: npt.ArrayLike, *, confidence: float = 0.95) -> DigitGap:
    """Compare samples of one product, both (s, \\*shape): ``inside`` is z, ``outside`` is z + e.

    Raises:
        InvalidInputError: the shapes differ, or there are fewer than two samples.
    """
    z, moved = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    if z.shape != moved.shape or z.shape[0] < 2:
        raise InvalidInputError(
            f"outside must have the shape of inside, {z.shape}, of two samples or more (got {moved.shape})"
        )
    e = moved - z
    (z_mean, z_std), (e_mean, e_std) = _moments(z), _moments(e)
    m_mean, m_std = _moments(moved)
    factor = math.sqrt(len(z)) / student_quantile(confidence, len(z) - 1)
    with np.errstate(all="ignore"):
        gap = np.log10(factor * m_mean / m_std) - np.log10(factor * z_mean / z_std)
        holds = (e_mean < z_mean) & (e_std < z_std)
        bound = np.log10((z_mean + e_mean) / (z_mean - e_mean)) + np.log10((z_std + e_std) / (z_std - e_std))
    both = np.isfinite(gap)
    used = holds & both
    # Two float64 logarithms of like size: the bound is met up to their rounding.
    met = np.abs(gap) <= bound * (1 + 1e-9) + 1e-12
    return DigitGap(
        elements=int(both.sum()),
        within_conditions=int(used.sum()),
        bounded=int((used & met).sum()),
        median_bound=_median(bound[used]),
        median_gap=_median(np.abs(gap[used])),
        median_difference=_median(gap[both]),
        largest_difference=float(np.abs(gap[both]).max()) if both.any() else math.nan,
    )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How an estimate fares against the exact product, over elements that are finite and not exact.

    ``covered``: elements whose error is within the half width.  ``slack``: median of log10(half width / error), the
    digits by which the estimate is too careful, over elements with an error.
    """

    elements: int
    covered: int
    slack: float


def cover(estimate: Estimate, value: Any, reference: Any, *, skip: Any = None) -> Coverage:
    """Hold ``value`` and the half width of ``estimate`` against ``reference``, float64 lanes; ``skip``: bool lanes."""
    used = estimate.finite & ~estimate.exact & np.isfinite(reference)
    if skip is not None:
        used = used & ~skip
    error = np.abs(np.asarray(value, dtype=np.float64) - reference)
    moved = used & (error > 0)
    return Coverage(
        elements=int(used.sum()),
        covered=int((error <= estimate.half_width)[used].sum()),
        slack=_median(np.log10(estimate.half_width[moved] / error[moved])),
    )


def _moments(samples: Float64Array) -> tuple[Float64Array, Float64Array]:
    return np.abs(samples.mean(0)), samples.std(0, ddof=1)


def _median(values: Any) -> float:
    return float(np.median(values)) if values.size else math.nan


def _mean(values: Any) -> float:
    return float(values.mean()) if values.size else math.nan
