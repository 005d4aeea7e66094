"""The interface that probing, planning and verification see; they never learn which adapter is behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gemmdesc.bits import Bits
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands import Operand
from gemmdesc.problem import (
    BIASED,
    AlgoConfig,
    DeviceId,
    Failed,
    GemmProblem,
    Launch,
    LibraryId,
    Refused,
    ScalarClass,
    is_float8,
)
from gemmdesc.regions import Region

if TYPE_CHECKING:
    from gemmdesc.arithmetic.pointwise import TanhApprox


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """Which rows (of m, or of all m of a batch) and columns (of n) of D to hand back; int64 index arrays."""

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """What a product takes beside A and B; a problem that does not take one of them gets its default.

    ``alpha``, ``beta``: float32 values.  ``a_scale``, ``b_scale``: those of 8-bit operands; ``d_scale``: that of an
    8-bit D.  ``c``: drawn as the rows of all D (``problem.d_outer`` x n) of ``problem.c_dtype``.  ``bias``: drawn as
    one row of m of ``problem.bias_dtype``, added to the rows of D of every matrix of a batch.
    """

    alpha: float = 1.0
    beta: float = 0.0
    a_scale: float = 1.0
    b_scale: float = 1.0
    d_scale: float = 1.0
    c: Operand | None = None
    bias: Operand | None = None


#: Of products that take nothing beside A and B.
NO_INPUTS = Inputs()


def require_inputs(problem: GemmProblem, inputs: Inputs) -> None:
    """Raise InvalidInputError, naming the field, where ``inputs`` are not what ``problem`` takes."""
    takes_bias, takes_c = problem.epilogue in BIASED, problem.beta is not ScalarClass.ZERO
    for name, given, taken, dtype in (
        ("c", inputs.c, takes_c, problem.c_dtype),
        ("bias", inputs.bias, takes_bias, problem.bias_dtype),
    ):
        if (given is not None) is not taken:
            raise InvalidInputError(f"{name} must be given where the problem takes one, and only there (got {given!r})")
        if given is not None and given.dtype is not dtype:
            raise InvalidInputError(f"{name} must be of {dtype.value} (got {given.dtype.value})")
    for name, value, kind in (("alpha", inputs.alpha, problem.alpha), ("beta", inputs.beta, problem.beta)):
        if kind is not ScalarClass.OTHER and value != {ScalarClass.ZERO: 0.0, ScalarClass.ONE: 1.0}[kind]:
            raise InvalidInputError(f"{name} must be {kind.value} for this problem (got {value})")
    scaled = is_float8(problem.a_dtype)
    for name, value, taken in (
        ("a_scale", inputs.a_scale, scaled),
        ("b_scale", inputs.b_scale, scaled),
        ("d_scale", inputs.d_scale, scaled and is_float8(problem.d_dtype)),
    ):
        if not math.isfinite(value) or (value != 1.0 and not taken):
            raise InvalidInputError(f"{name} must be finite, and 1 where the problem takes none (got {value})")


class Library(Protocol):
    """One cuBLASLt on one card.

    ``run`` builds op(A) (m x k) from ``a`` and op(B) (k x n, drawn as n rows of k) from ``b``, stores them as the
    problem's layouts say, executes the given answer, and returns the bit patterns of D as an array of shape (m, n), or
    (len(window.rows), len(window.columns)).  The matrices of a batch lie below one another: row i of matrix j is row
    j m + i of A and of D, and column i of B is row j n + i of what ``b`` draws.  An answer that the library refuses at
    these sizes is ``Failed``.
    """

    @property
    def identity(self) -> LibraryId: ...

    @property
    def device(self) -> DeviceId: ...

    def answer(self, problem: GemmProblem) -> AlgoConfig | Refused: ...

    def check(self, problem: GemmProblem, answer: AlgoConfig) -> bool: ...

    def launch(self, problem: GemmProblem, answer: AlgoConfig) -> Launch | None: ...

    def run(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window | None = None,
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> Bits | Failed: ...


def tanh_approx_of(library: Library) -> TanhApprox | None:
    """``tanh.approx.f32`` of the library's card; None where there is no card to ask.

    A library that has one, or stands in for one, hands it out as its ``tanh_approx``.
    """
    found: TanhApprox | None = getattr(library, "tanh_approx", None)
    return found


@runtime_checkable
class Replaying(Protocol):
    """A library that can replay descriptors where the operands of its product lie."""

    def run_and_replay(
        self,
        problem: GemmProblem,
        answer: AlgoConfig,
        a: Operand,
        b: Operand,
        window: Window,
        orders: Sequence[Sequence[Region]],
        *,
        inputs: Inputs = NO_INPUTS,
    ) -> tuple[Bits, tuple[Bits, ...]] | Failed:
        """The window of D as :meth:`Library.run` hands it back, and what each of ``orders`` gives there."""
        ...
