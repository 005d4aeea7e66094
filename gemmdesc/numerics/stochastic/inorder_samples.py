"""What the samples of a product drawn in order say: digits, bias, and what each kind of site adds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import Bits, from_float32
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.numerics.stochastic.digits import Estimate, estimate, mean_variance, widening
from gemmdesc.numerics.stochastic.formats import RoundingFormat, format_of
from gemmdesc.numerics.stochastic.sites import Sites

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BiasSummary:
    """How the library's sums, before they are stored, lie beside the samples' means.

    ``toward_zero``: mean over elements of the difference toward zero, relative to the mean's magnitude, and
    ``standard_error`` of that mean; ``share_toward_zero``: elements whose difference is toward zero, among those that
    differ; ``in_half_widths``: median of the difference's size in half widths of the confidence interval.
    """

    toward_zero: float
    standard_error: float
    share_toward_zero: float
    in_half_widths: float


@dataclass(frozen=True, kw_only=True, eq=False)
class InOrderSamples:
    """Samples (s, len(rows), len(cols)) of the chosen elements, float32 values.

    ``before``: before the rounding to the output type; ``samples``: after it.  ``exact``: no drawn rounding lay between
    two values.  ``gaps``: the squares of the gaps between a value's two neighbours, summed over the drawn roundings
    before the output type, the mean over samples.  ``resolution``: what the sums before the output type are rounded to
    last.  ``library``, ``library_before``: the library's own result, that of a plain replay, and the same before the
    output type.
    """

    desc: GEMMDesc
    rows: npt.NDArray[np.int64]
    cols: npt.NDArray[np.int64]
    sites: Sites
    antithetic: bool
    resolution: RoundingFormat
    confidence: float
    before: Float32Array
    samples: Float32Array
    exact: npt.NDArray[np.bool_]
    gaps: Float64Array
    library: Float32Array
    library_before: Float32Array

    def bits(self, sample: int) -> Bits:
        """One sample as patterns of the output type."""
        return from_float32(self.samples[sample], self.desc.output_dtype)

    def plain_estimate(self) -> Estimate:
        """The formula on the stored samples, as for any stochastic value of the output type."""
        return self._estimate(self.samples, format_of(self.desc.output_dtype))

    def sum_estimate(self) -> Estimate:
        """The formula on the sums before they are stored."""
        return self._estimate(self.before, self.resolution)

    def site_half_width(self) -> Float64Array:
        """How far the mean of the sums can be off at the confidence asked for, from the sites that were met.

        A drawn rounding in a gap g moves the samples' mean by the mean coin less the fraction, times g; with fractions
        uniform and roundings independent the variances add (see :func:`~.digits.widening` for that of one).  Nothing is
        estimated from the spread of a few samples, so the normal quantile stands in the place of Student's.
        """
        one = mean_variance(len(self.before), antithetic=self.antithetic)
        half: Float64Array = NormalDist().inv_cdf((1 + self.confidence) / 2) * np.sqrt(one * self.gaps)
        return half

    def estimate(self) -> Estimate:
        """The stored samples' mean, and how far it can lie from the exact product.

        What storing moved is known: the distance of the stored samples' mean from the mean of the sums.  What the sums
        can be off follows from the sites (:meth:`site_half_width`).  The half width is both together, so that it is not
        as wide as the spread of three samples, of a coarse output type above all, would have it.
        """
        sums, stored = self.sum_estimate(), self.plain_estimate()
        return self._about(stored.mean, sums, stored)

    def library_estimate(self) -> Estimate:
        """The library's own result, and how far it can lie from the exact product, its bias included."""
        sums, stored = self.sum_estimate(), self.plain_estimate()
        return self._about(self.library.astype(np.float64), sums, stored)

    def bias(self) -> Float64Array:
        """The library's sums before they are stored minus the samples' means."""
        difference: Float64Array = self.library_before.astype(np.float64) - self.sum_estimate().mean
        return difference

    def bias_summary(self) -> BiasSummary:
        """The bias over all finite elements; NaN where none is left to average."""
        sums = self.sum_estimate()
        difference, mean = self.bias(), sums.mean
        used = np.isfinite(difference) & (mean != 0)
        toward = -np.sign(mean[used]) * difference[used] / np.abs(mean[used])
        moved = used & (difference != 0)
        wide = moved & (sums.half_width > 0)
        widths = np.abs(difference[wide]) / sums.half_width[wide]
        return BiasSummary(
            toward_zero=float(toward.mean()) if toward.size else math.nan,
            standard_error=float(toward.std(ddof=1) / math.sqrt(toward.size)) if toward.size > 1 else math.nan,
            share_toward_zero=float((difference[moved] * mean[moved] < 0).mean()) if moved.any() else math.nan,
            in_half_widths=float(np.median(widths)) if wide.any() else math.nan,
        )

    def _about(self, value: Float64Array, sums: Estimate, stored: Estimate) -> Estimate:
        """The estimate of ``value``, whose distance from the mean of the sums is known."""
        half = np.where(stored.finite, np.abs(value - sums.mean) + self.site_half_width(), np.inf)
        cap = format_of(self.desc.output_dtype).decimal_digits
        with np.errstate(divide="ignore", invalid="ignore"):
            digits = np.log10(np.where(value == 0, 1.0, np.abs(value)) / half).clip(0.0, cap)
        digits = np.where(half == 0, cap, np.where(value == 0, 0.0, digits))
        return Estimate(
            mean=value,
            std=stored.std,
            half_width=half,
            digits=np.where(stored.finite, digits, 0.0),
            exact=stored.exact,
            zero=(value == 0) & stored.finite,
            finite=stored.finite,
        )

    def _estimate(self, samples: Float32Array, resolution: RoundingFormat) -> Estimate:
        cap = resolution.decimal_digits
        with np.errstate(all="ignore"):
            return estimate(
                np,
                samples.astype(np.float64),
                self.exact,
                confidence=self.confidence,
                cap=cap,
                resolution=resolution,
                wider=widening(len(samples), antithetic=self.antithetic),
            )
