"""A library that multiplies whatever lies at the addresses it is given, as the problem says; sums are those of NumPy.

With small integers as operands every sum is exact, so that the problem of a call gives the call's own bytes exactly
where it describes the memory that the call multiplies.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import bits_dtype, from_float32, to_float32
from gemmdesc.dtypes import DType
from gemmdesc.library.interface import NO_INPUTS, Inputs, require_inputs
from gemmdesc.problem import BIASED, AlgoConfig, Epilogue, Failed, GemmProblem, Launch, Refused, ScalarClass, Transpose
from tests.probe_samples import sample_answer


@dataclass(kw_only=True)
class HostLibrary:
    """Implements :class:`gemmdesc.verification.routed.PointerLibrary` on the host's memory."""

    problems: list[GemmProblem] = field(default_factory=list)
    inputs: Inputs = NO_INPUTS
    splitk_num: int = 1
    refuses: bool = False

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        self.problems.append(problem)
        return Refused(status="no") if self.refuses else sample_answer(algo_id=66, splitk_num=self.splitk_num)

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        return None

    def set_inputs(self, problem: GemmProblem, inputs: Inputs) -> None:
        self.inputs = inputs

    def matmul(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a_pointer: int,
        b_pointer: int,
        d_pointer: int,
        *,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Failed | None:
        p, bias = problem, self.inputs.bias
        if p.beta is ScalarClass.ZERO:
            require_inputs(p, self.inputs)
        for i in range(p.batch_count):
            a = _matrix(a_pointer, p.a_dtype, p.a_rows, p.a_columns, p.lda, i * p.a_batch_stride)
            b = _matrix(b_pointer, p.b_dtype, p.b_rows, p.b_columns, p.ldb, i * p.b_batch_stride)
            d = _matrix(d_pointer, p.d_dtype, p.m, p.n, p.ldd, i * p.d_batch_stride)
            left = a.T if p.transa is Transpose.T else a
            right = b.T if p.transb is Transpose.T else b
            times = np.float32(alpha) * np.float32(self.inputs.a_scale) * np.float32(self.inputs.b_scale)
            values = times * (_values(left, p.a_dtype) @ _values(right, p.b_dtype))
            if p.beta is not ScalarClass.ZERO:
                values = values + np.float32(beta) * _values(d, p.d_dtype)
            if p.epilogue in BIASED:
                assert bias is not None
                values = values + to_float32(bias.bits(1, p.m)[0], p.bias_dtype)[:, None]
            if p.epilogue in (Epilogue.RELU, Epilogue.RELU_BIAS):
                values = np.maximum(values, np.float32(0))
            d[...] = from_float32(np.asarray(values, dtype=np.float32), p.d_dtype)
        return None


def _values(bits: npt.NDArray[Any], dtype: DType) -> npt.NDArray[np.float32]:
    return np.asarray(to_float32(np.ascontiguousarray(bits), dtype), dtype=np.float32)


def _matrix(pointer: int, dtype: DType, rows: int, columns: int, ld: int, offset: int) -> npt.NDArray[Any]:
    """The column-major matrix at an address, as a writable view of bit patterns."""
    size = dtype.itemsize
    extent = (columns - 1) * ld + rows
    raw = (ctypes.c_uint8 * (extent * size)).from_address(pointer + offset * size)
    flat = np.frombuffer(raw, dtype=bits_dtype(dtype))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size))
