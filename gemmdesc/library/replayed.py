"""A problem's bytes by the replay of a descriptor: what a library that follows it would hand back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gemmdesc.arithmetic.device_replay import replay_on_device
from gemmdesc.arithmetic.epilogue import EpilogueInputs
from gemmdesc.arithmetic.pointwise import TanhApprox, cpu_decline
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import Bits, bits_dtype
from gemmdesc.descriptor import GEMMDesc
from gemmdesc.errors import Declined
from gemmdesc.library.interface import NO_INPUTS, Inputs, Window, require_inputs
from gemmdesc.operands import HashOperand, Operand
from gemmdesc.problem import GemmProblem
from gemmdesc.regions import Region

if TYPE_CHECKING:
    import torch

Index = npt.NDArray[np.int64]
#: The outputs of a descriptor at chosen rows of A and of what B is drawn as, and what its epilogue takes there.
Multiply = Callable[[GEMMDesc, Index, Index, EpilogueInputs], Bits]


def replay_problem(
    desc: GEMMDesc | Sequence[Region],
    problem: GemmProblem,
    a: Operand,
    b: Operand,
    window: Window | None = None,
    *,
    inputs: Inputs = NO_INPUTS,
    tanh_approx: TanhApprox | None = None,
) -> Bits:
    """D of ``problem`` under ``desc``, as :meth:`gemmdesc.library.interface.Library.run` hands it back.

    ``desc``: of all elements, or D's rectangles with theirs, which hold for every matrix of a batch.  Only the rows and
    columns of ``window`` are made and computed.  ``tanh_approx``: the card's, which a library's gelu takes.

    Raises:
        InvalidInputError: the inputs are not what the problem takes, or the replay refuses the descriptor.
        DeclinedError: :func:`replay_decline` declines, and there is no ``tanh_approx``.
    """
    def multiply(one: GEMMDesc, a_rows: Index, b_rows: Index, beside: EpilogueInputs) -> Bits:
        a_bits = a.bits(problem.a_outer, problem.k, a_rows)
        b_bits = b.bits(problem.b_outer, problem.k, b_rows)
        epilogue = replace(beside, tanh_approx=tanh_approx)
        return replay(one, a_bits, np.ascontiguousarray(b_bits.T), epilogue=epilogue)

    return _replayed(desc, problem, window, inputs, multiply)


def replay_decline(desc: GEMMDesc | Sequence[Region]) -> Declined | None:
    """Why no CPU replays ``desc``, which takes a function that only a card has; None where it does."""
    descs = [desc] if isinstance(desc, GEMMDesc) else [r.descriptor for r in desc]
    return cpu_decline(step for d in descs for step in d.epilogue)


def replay_problem_on_device(
    desc: GEMMDesc | Sequence[Region],
    problem: GemmProblem,
    a: torch.Tensor,
    b: torch.Tensor,
    window: Window | None = None,
    *,
    inputs: Inputs = NO_INPUTS,
) -> Bits:
    """:func:`replay_problem` of operands on a CUDA device: (``a_outer``, k) and (``b_outer``, k) patterns, contiguous.

    Raises:
        InvalidInputError: as :func:`replay_problem`.
        LibraryError: the device refuses a kernel.
        torch.OutOfMemoryError: the card has no room for it.
    """

    def multiply(one: GEMMDesc, a_rows: Index, b_rows: Index, beside: EpilogueInputs) -> Bits:
        return replay_on_device(one, a, b, rows=a_rows, cols=b_rows, epilogue=beside)

    return _replayed(desc, problem, window, inputs, multiply)


def _replayed(
    desc: GEMMDesc | Sequence[Region], problem: GemmProblem, window: Window | None, inputs: Inputs, multiply: Multiply
) -> Bits:
    require_inputs(problem, inputs)
    p = problem
    if window is None:
        window = Window(rows=np.arange(p.d_outer), columns=np.arange(p.n))
    if not isinstance(desc, GEMMDesc):
        return _by_region(desc, problem, window, inputs, multiply)
    out = np.empty((len(window.rows), len(window.columns)), dtype=bits_dtype(p.d_dtype))
    for batch in np.unique(window.rows // p.m):
        chosen = np.flatnonzero(window.rows // p.m == batch)
        rows = window.rows[chosen] - batch * p.m
        a_rows = rows + (batch * p.m if p.a_batch_stride else 0)
        b_rows = window.columns + (batch * p.n if p.b_batch_stride else 0)
        beside = _epilogue_inputs(p, inputs, Window(rows=window.rows[chosen], columns=window.columns))
        out[chosen] = multiply(desc, a_rows, b_rows, beside)
    return out


def _by_region(
    regions: Sequence[Region], problem: GemmProblem, window: Window, inputs: Inputs, multiply: Multiply
) -> Bits:
    out = np.empty((len(window.rows), len(window.columns)), dtype=bits_dtype(problem.d_dtype))
    in_matrix = window.rows % problem.m
    for r in regions:
        rows = np.flatnonzero((in_matrix >= r.row_begin) & (in_matrix < r.row_end))
        columns = np.flatnonzero((window.columns >= r.column_begin) & (window.columns < r.column_end))
        if len(rows) and len(columns):
            inside = Window(rows=window.rows[rows], columns=window.columns[columns])
            out[np.ix_(rows, columns)] = _replayed(r.descriptor, problem, inside, inputs, multiply)
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
