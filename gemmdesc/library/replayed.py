"""A problem's bytes by the CPU replay of a descriptor: what a library that follows it would hand back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window, require_inputs
from gemmdesc.operands import HashOperand, Operand
from gemmdesc.problem import GemmProblem
from gemmdesc.regions import Region


def replay_problem(
    desc: GEMMDesc | Sequence[Region],
    problem: GemmProblem,
    a: Operand,
    b: Operand,
    window: Window | None = None,
    *,
    inputs: Inputs = NO_INPUTS,
) -> Bits:
    """D of ``problem`` under ``desc``, as :meth:`gemmdesc.library.interface.Library.run` hands it back.

    ``desc``: of all elements, or D's rectangles with theirs, which hold for every matrix of a batch.  Only the rows and
    columns of ``window`` are made and computed.

    Raises:
        InvalidInputError: the inputs are not what the problem takes, or the replay refuses the descriptor.
    """
    require_inputs(problem, inputs)
    p = problem
    if window is None:
        window = Window(rows=np.arange(p.d_outer), columns=np.arange(p.n))
    if not isinstance(desc, GEMMDesc):
        return _by_region(desc, problem, a, b, window, inputs)
    out = np.empty((len(window.rows), len(window.columns)), dtype=bits_dtype(p.d_dtype))
    for batch in np.unique(window.rows // p.m):
        chosen = np.flatnonzero(window.rows // p.m == batch)
        rows = window.rows[chosen] - batch * p.m
        a_rows = rows + (batch * p.m if p.a_batch_stride else 0)
        b_rows = window.columns + (batch * p.n if p.b_batch_stride else 0)
        a_bits, b_bits = a.bits(p.a_outer, p.k, a_rows), b.bits(p.b_outer, p.k, b_rows)
        beside = _epilogue_inputs(p, inputs, Window(rows=window.rows[chosen], columns=window.columns))
        out[chosen] = replay(desc, a_bits, np.ascontiguousarray(b_bits.T), epilogue=beside)
    return out


def _by_region(
    regions: Sequence[Region], problem: GemmProblem, a: Operand, b: Operand, window: Window, inputs: Inputs
) -> Bits:
    out = np.empty((len(window.rows), len(window.columns)), dtype=bits_dtype(problem.d_dtype))
    in_matrix = window.rows % problem.m
    for r in regions:
        rows = np.flatnonzero((in_matrix >= r.row_begin) & (in_matrix < r.row_end))
        columns = np.flatnonzero((window.columns >= r.column_begin) & (window.columns < r.column_end))
        if len(rows) and len(columns):
            inside = Window(rows=window.rows[rows], columns=window.columns[columns])
            out[np.ix_(rows, columns)] = replay_problem(r.descriptor, problem, a, b, inside, inputs=inputs)
    return out


def _epilogue_inputs(problem: GemmProblem, inputs: Inputs, window: Window) -> EpilogueInputs:
    """The inputs of the epilogue for the rows and columns of ``window``, all rows of one matrix of a batch.

    The scales of A and B are one float32 product, which joins alpha.
    """
    with np.errstate(over="ignore", under="ignore"):
        scale = np.float32(inputs.a_scale) * np.float32(inputs.b_scale)
        alpha = np.float32(inputs.alpha) * scale
    c = bias = None
    if inputs.c is not None:
        c = _elements(inputs.c, problem.d_outer, problem.n, window)
    if inputs.bias is not None:
        of_bias = Window(rows=np.zeros(1, np.int64), columns=window.rows % problem.m)
        bias = _elements(inputs.bias, 1, problem.m, of_bias)[0][:, None]
    return EpilogueInputs(
        alpha=float(alpha), beta=inputs.beta, output_scale=inputs.d_scale, c=c, c_dtype=problem.c_dtype, bias=bias,
        bias_dtype=problem.bias_dtype,
    )  # fmt: skip


def _elements(operand: Operand, outer: int, k: int, window: Window) -> Bits:
    """Rows and columns of an operand; a hashed one makes no other columns."""
    if isinstance(operand, HashOperand):
        return operand.elements(outer, k, window.rows, window.columns)
    return operand.bits(outer, k, window.rows)[:, window.columns]
