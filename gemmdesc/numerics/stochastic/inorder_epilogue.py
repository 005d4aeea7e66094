"""The epilogue with drawn directions: each float32 operation exactly, then up or down."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.epilogue import EpilogueInputs, apply_epilogue
from gemmdesc.bits import from_float32, to_float32
from gemmdesc.descriptor import AddBias, AddC, CastTo, EpilogueStep, Relu, Scale, ScaleOutput
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.formats import format_of
from gemmdesc.numerics.stochastic.rounding import add_exact, power_of_two, quantum_exponents, round_directed
from gemmdesc.numerics.stochastic.sites import site_direction

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


class DrawnEpilogue:
    """Epilogue steps of one sample of the elements ``rows`` x ``cols`` of a product of ``shape``.

    ``keys``: their words (see ``sites``).  ``gaps``: float64 of their shape, the summed squares of the gaps that values
    lay in when they were rounded, in units of the value as it is: scaled with it, and added to.
    """

    def __init__(
        self,
        inputs: EpilogueInputs,
        *,
        shape: tuple[int, int],
        rows: Any,
        cols: Any,
        keys: Any,
        opposite: bool,
        gaps: Float64Array,
    ) -> None:
        self._place: dict[str, Any] = {"shape": shape, "rows": rows, "cols": cols}
        self._inputs = inputs
        self._keys, self._opposite, self._gaps = keys, opposite, gaps

    def apply(self, values: Float32Array, steps: tuple[EpilogueStep, ...], first_site: int) -> Float32Array:
        """``values`` after ``steps``, whose sites count from ``first_site``, two for each."""
        for i, step in enumerate(steps):
            with np.errstate(all="ignore"):
                values = self._step(values, step, first_site + 2 * i)
        return values

    def store(self, values: Float32Array, dtype: DType, site: int) -> Float32Array:
        """``values`` rounded to ``dtype``."""
        with np.errstate(all="ignore"):
            return self._round(values.astype(np.float64), np.zeros(values.shape), site, dtype)

    def _step(self, values: Float32Array, step: EpilogueStep, site: int) -> Float32Array:
        x = values.astype(np.float64)
        nothing = np.zeros(x.shape)
        match step:
            case Scale():
                self._gaps *= self._inputs.alpha**2
                return self._round(x * self._inputs.alpha, nothing, site)
            case ScaleOutput():
                self._gaps *= self._inputs.output_scale**2
                return self._round(x * self._inputs.output_scale, nothing, site)
            case AddBias():
                return self._round(*add_exact(np, x, self._other(AddBias(), 1.0)), site)
            case AddC(fused=fused):
                # One times C is C, so that the library's own step reads the operand; the product is exact in float64.
                c = self._other(AddC(fused=True), 1.0) * self._inputs.beta
                scaled = c if fused else self._round(c, nothing, site).astype(np.float64)
                return self._round(*add_exact(np, scaled, x), site + 1)
            case CastTo(dtype=dtype):
                return self._round(x, nothing, site, dtype)
            case Relu():
                return apply_epilogue(values, (step,), self._inputs, **self._place)
            case _:
                raise InvalidInputError(f"epilogue must hold steps of a product's own only (got {step})")

    def _other(self, step: AddBias | AddC, beta: float) -> npt.NDArray[np.float64]:
        """The operand that ``step`` adds, read by adding it to -0.0."""
        given = self._inputs
        plain = EpilogueInputs(
            beta=beta, c=given.c, c_dtype=given.c_dtype, bias=given.bias, bias_dtype=given.bias_dtype
        )
        zeros = np.full(self._gaps.shape, -0.0, np.float32)
        return apply_epilogue(zeros, (step,), plain, **self._place).astype(np.float64)

    def _round(
        self, value: Any, rest: Any, site: int, dtype: DType = DType.FLOAT32
    ) -> Float32Array:
        up = site_direction(self._keys, site, opposite=self._opposite)
        fmt = format_of(dtype)
        result = round_directed(np, value, rest, up, fmt)
        between = np.isfinite(value) & ((result != value) | (rest != 0))
        unit = power_of_two(np, quantum_exponents(np, np.where(between, value, 1.0), fmt).clip(-1022, None))
        self._gaps += np.where(between, np.where(np.isfinite(result), unit * unit, np.inf), 0.0)
        return to_float32(from_float32(result.astype(np.float32), dtype), dtype)
