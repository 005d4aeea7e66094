"""Random rounding inside a matrix product, at the library's own rounding sites in its own order.

Where the order of a product is known, CESTAC's directions can be drawn where the roundings happen, instead of moving
the operands of a product whose inside is opaque.  Directions come from a counter keyed by (seed, sample, i, j, site),
so that any rows can be drawn alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.decode import decode_rows, decode_tiles
from gemmdesc.arithmetic.epilogue import EpilogueInputs, apply_epilogue
from gemmdesc.arithmetic.kernels import LANES, Operand, Program, tasks
from gemmdesc.arithmetic.parameters import step_parameters, storage_targets
from gemmdesc.arithmetic.replay import check_operands, indices, side_of, spread
from gemmdesc.bits import Bits, from_float32, to_float32
from gemmdesc.descriptor import FusedDot, GEMMDesc, ScalarStep
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.coins import MOST_SAMPLES
from gemmdesc.numerics.stochastic.digits import student_quantile
from gemmdesc.numerics.stochastic.formats import RoundingFormat, format_of
from gemmdesc.numerics.stochastic.inorder_epilogue import DrawnEpilogue, Float32Array, Float64Array
from gemmdesc.numerics.stochastic.inorder_kernels import Draws, execute_drawn
from gemmdesc.numerics.stochastic.inorder_samples import InOrderSamples
from gemmdesc.numerics.stochastic.sites import (
    NO_SITES,
    Numbering,
    Sites,
    all_sites,
    check_sites,
    element_keys,
    number_sites,
)
from gemmdesc.schedule import Op, Schedule, make_schedule

_NO_EPILOGUE = EpilogueInputs()


def draw_inside(
    desc: GEMMDesc,
    a: Bits,
    b: Bits,
    *,
    rows: npt.ArrayLike | None = None,
    cols: npt.ArrayLike | None = None,
    samples: int = 3,
    seed: int = 0,
    sites: Sites | None = None,
    antithetic: bool = True,
    confidence: float = 0.95,
    epilogue: EpilogueInputs = _NO_EPILOGUE,
) -> InOrderSamples:
    """``samples`` products A B in the order of ``desc``, rounded up or down by a coin at ``sites`` (default: all).

    Operands, ``rows``, ``cols`` and ``epilogue`` as in :func:`gemmdesc.arithmetic.replay.replay`.  A step's exact sum
    of products and accumulator is rounded once, to the neighbour above or below it among the values that the step can
    give; so the samples lie about the exact product, while the library's own result may lie to one side of them (an
    accumulator that truncates): :meth:`InOrderSamples.bias` tells.  An exact result is kept.  With ``antithetic`` the
    last sample takes the opposite of the directions of the one before it.

    Raises:
        InvalidInputError: ``samples`` is outside 2..64, ``seed`` outside [0, 2^63), ``confidence`` outside (0, 1);
            ``sites`` names a cut that the descriptor lacks; or as :func:`gemmdesc.arithmetic.replay.replay`.
    """
    if not isinstance(samples, int) or not 2 <= samples <= MOST_SAMPLES:
        raise InvalidInputError(f"samples must be an integer from 2 to {MOST_SAMPLES} (got {samples!r})")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise InvalidInputError(f"seed must be an integer in [0, 2^63) (got {seed!r})")
    student_quantile(confidence, samples - 1)
    chosen = all_sites(desc) if sites is None else sites
    check_sites(desc, chosen)
    inside = _Inside(desc, a, b, rows=rows, cols=cols, epilogue=epilogue)
    own = inside.run(NO_SITES, seed=seed, sample=0, opposite=False)
    drawn = [inside.run(chosen, seed=seed, **_identity(i, samples, antithetic)) for i in range(samples)]
    return InOrderSamples(
        desc=desc,
        rows=inside.rows,
        cols=inside.cols,
        sites=chosen,
        antithetic=antithetic,
        resolution=inside.resolution,
        confidence=confidence,
        before=np.stack([d.before for d in drawn]),
        samples=np.stack([d.stored for d in drawn]),
        exact=~np.any([d.lost for d in drawn], axis=0),
        gaps=np.mean([d.gaps for d in drawn], axis=0),
        library_before=own.before,
        library=own.stored,
    )


def draw_each(
    desc: GEMMDesc, a: Bits, b: Bits, *, seed: int = 0, antithetic: bool = True, epilogue: EpilogueInputs = _NO_EPILOGUE
) -> tuple[Float32Array, npt.NDArray[np.bool_]]:
    """Samples of a product of operands that are samples themselves: sample i of ``a`` times sample i of ``b``.

    ``a``: (s, m, k) bit patterns, ``b``: (s, k, n).  Directions, as those of :func:`draw_inside`, at all sites.
    Returns float32 values (s, m, n) of the output type, and where no drawn rounding lost anything (m, n).

    Raises:
        InvalidInputError: the numbers of samples differ, or as :func:`draw_inside`.
    """
    if a.ndim != 3 or b.ndim != 3 or len(a) != len(b):
        raise InvalidInputError(f"b must have as many samples as a, {a.shape} (got {b.shape})")
    outputs, losses = [], []
    for i, (left, right) in enumerate(zip(a, b, strict=True)):
        inside = _Inside(desc, left, right, rows=None, cols=None, epilogue=epilogue)
        drawn = inside.run(all_sites(desc), seed=seed, **_identity(i, len(a), antithetic))
        outputs.append(drawn.stored)
        losses.append(drawn.lost)
    return np.stack(outputs), ~np.any(losses, axis=0)


def _identity(sample: int, samples: int, antithetic: bool) -> dict[str, Any]:
    opposite = antithetic and sample == samples - 1
    return {"sample": sample - 1 if opposite else sample, "opposite": opposite}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Drawn:
    """One sample: values before the output type and of it, the summed squares of the gaps before it, and losses."""

    before: Float32Array
    stored: Float32Array
    gaps: Float64Array
    lost: npt.NDArray[np.bool_]


class _Inside:
    """One product made ready once, to be run with different draws."""

    def __init__(self, desc: GEMMDesc, a: Bits, b: Bits, *, rows: Any, cols: Any, epilogue: EpilogueInputs) -> None:
        self._desc, self._inputs = desc, epilogue
        m, n, k = check_operands(desc, a, b)
        self._shape = (m, n)
        self.rows, self.cols = indices("rows", rows, m), indices("cols", cols, n)
        self._schedule = make_schedule(desc, k)
        self._numbers = number_sites(desc, self._schedule)
        left = side_of(a, desc.a_dtype, desc.a_cast, self.rows)
        right = side_of(b.T, desc.b_dtype, desc.b_cast, self.cols)
        # Lanes run along columns and a step is symmetric in its operands: the longer side becomes the columns.
        self._turned = len(self.cols) < len(self.rows)
        if self._turned:
            left, right = right, left
        order = self._schedule.order
        self._left = Operand(*decode_rows(left.bits, left.dtype, left.chosen, order))
        self._right = Operand(*decode_tiles(right.bits.T, right.dtype, order, right.chosen, LANES))
        self._sizes = (len(left.chosen), len(right.chosen))

    @property
    def resolution(self) -> RoundingFormat:
        """Of the last rounding before the output type."""
        desc, step = self._desc, self._desc.accumulator.step
        single = format_of(DType.FLOAT32)
        folded = len(self._schedule.leaf_offsets) > 2
        if desc.epilogue or (folded and desc.cuts[0].open_end):
            return single
        if folded:
            return format_of(desc.cuts[0].merge_dtype)
        if isinstance(step, FusedDot):
            wide = format_of(step.accumulator_dtype)
            return replace(wide, fraction_bits=step.output_bits)
        return single

    def run(self, sites: Sites, *, seed: int, sample: int, opposite: bool) -> _Drawn:
        """One sample."""
        keys = element_keys(seed, sample, self.rows, self.cols)
        gaps = np.zeros(keys.shape)
        finish = DrawnEpilogue(
            self._inputs, shape=self._shape, rows=self.rows, cols=self.cols, keys=keys, opposite=opposite, gaps=gaps
        )
        place = {"shape": self._shape, "rows": self.rows, "cols": self.cols}

        def steps(values: Float32Array, which: Any, first_site: int) -> Float32Array:
            if sites.epilogue:
                return finish.apply(values, which, first_site)
            return apply_epilogue(values, which, self._inputs, **place)  # type: ignore[arg-type]

        schedule, program = self._schedule, self._schedule.program
        (places,) = np.nonzero(program[:, 0] == Op.OPEN)
        opened, begin = None, 0
        if len(places):
            begin = int(places[0])
            first = self._sum(schedule, slice(0, begin), None, sites, keys, opposite, gaps)
            opened = steps(first, self._desc.cuts[0].opening, self._numbers.opening)
        values = self._sum(schedule, slice(begin, None), opened, sites, keys, opposite, gaps)
        values = steps(values, self._desc.epilogue, self._numbers.epilogue)
        before, dtype = gaps.copy(), self._desc.output_dtype
        if sites.output and dtype is not DType.FLOAT32:
            stored = finish.store(values, dtype, self._numbers.output)
        else:
            stored = to_float32(from_float32(values, dtype), dtype)
        return _Drawn(before=values, stored=stored, gaps=before, lost=gaps > 0)

    def _sum(
        self,
        schedule: Schedule,
        part: slice,
        given: Float32Array | None,
        sites: Sites,
        keys: Any,
        opposite: bool,
        gaps: Float64Array,
    ) -> Float32Array:
        """Float32 sums of the rows ``part`` of the program; ``given`` is what its OPEN stands for; adds to ``gaps``."""
        m, n = self._sizes
        if m == 0 or n == 0:
            return np.zeros((len(self.rows), len(self.cols)), dtype=np.float32)
        width = -(-n // LANES) * LANES
        step = self._desc.accumulator.step
        start = np.full((m, width), step.opening if isinstance(step, ScalarStep) else 0.0, dtype=np.float32)
        opened = start if given is None else _padded(given.T if self._turned else given, width)
        out, met = np.empty((m, width), dtype=np.float32), np.zeros((m, width))
        draws = _draws(schedule, part, self._numbers, sites, _padded(keys.T if self._turned else keys, width), opposite)
        rows = schedule.program[part]
        program = Program(
            schedule.leaf_offsets, schedule.step_ends, schedule.step_offsets, rows, schedule.stack_depth
        )
        targets = storage_targets()
        fused = isinstance(step, ScalarStep) and step.fused
        parameters = step_parameters(step, schedule)
        settings = (targets, isinstance(step, FusedDot), fused, parameters, draws)

        def work(first: int, last: int) -> None:
            execute_drawn(out, met, start, opened, self._left, self._right, program, *settings, first, last)

        spread(work, tasks(m, width // LANES), out.size * len(schedule.order))
        values, met = out[:, :n], met[:, :n]
        if self._turned:
            values, met = values.T, met.T
        gaps += met
        return np.ascontiguousarray(values)


def _draws(schedule: Schedule, part: slice, numbers: Numbering, sites: Sites, keys: Any, opposite: bool) -> Draws:
    begin = part.start or 0
    rows = np.isin(schedule.levels[part], list(sites.folds)) & (schedule.program[part][:, 0] != Op.LEAF)
    return Draws(
        keys=keys.view(np.uint64),
        opposite=opposite,
        step=sites.step,
        rows=rows,
        first_row=numbers.program + begin,
    )


def _padded(lanes: Any, width: int) -> Any:
    """``lanes`` with zeros up to ``width`` columns."""
    out = np.zeros((lanes.shape[0], width), dtype=lanes.dtype)
    out[:, : lanes.shape[1]] = lanes
    return out
