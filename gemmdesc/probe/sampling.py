"""Drawing problems: which sizes, layouts and alignments a scan or a verification asks about.

Sizes are unrounded integers, log-uniform unless a regime says otherwise, with 2mnk <= 1e12 and operands of at most
4 GiB.  A problem is fixed by (seed, index) alone, so that a scan resumes and any draw can be repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from random import Random

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.problem import DEFAULT_WORKSPACE_BYTES, GemmProblem, Transpose

LARGEST_FLOPS = 10**12
LARGEST_OPERAND_BYTES = 4 * 2**30


class Regime(Enum):
    """Where sizes are drawn from."""

    UNROUNDED = "unrounded"
    ALIGNED = "aligned"
    DEEP = "skinny_and_deep"
    DEEP_ALIGNED = "skinny_and_deep_aligned"
    SMALL = "small"
    VECTOR = "vector"
    LONG = "long"


#: (low, high) for m, n and k, each log-uniform.
_RANGES: dict[Regime, tuple[tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    Regime.UNROUNDED: ((1, 32768), (1, 32768), (1, 32768)),
    Regime.ALIGNED: ((8, 32768), (8, 32768), (8, 32768)),
    Regime.DEEP: ((1, 256), (1, 256), (2048, 300_000)),
    Regime.DEEP_ALIGNED: ((8, 256), (8, 256), (2048, 300_000)),
    Regime.SMALL: ((1, 128), (1, 128), (1, 2048)),
    Regime.VECTOR: ((1, 1), (1, 65536), (1, 65536)),
    Regime.LONG: ((4096, 120_000), (1, 1024), (1, 8192)),
}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a campaign covers: operand types, output types (None: the operands' own), regimes and their weights."""

    dtypes: tuple[DType, ...] = (DType.FLOAT16, DType.BFLOAT16)
    output_float32: bool = True
    regimes: tuple[Regime, ...] = tuple(Regime)
    workspace_limit_bytes: int = DEFAULT_WORKSPACE_BYTES
    misaligned_share: float = 0.25

    def __post_init__(self) -> None:
        if not self.dtypes or not self.regimes:
            raise InvalidInputError(f"scope must hold a dtype and a regime (got {self})")


def draw_problem(scope: Scope, seed: int, index: int, regime: Regime | None = None) -> GemmProblem:
    """Problem number ``index`` of ``seed``; its regime is drawn too unless given."""
    rng = Random((seed << 48) | index)
    chosen = regime or rng.choice(scope.regimes)
    m, n, k = draw_sizes(rng, chosen)
    dtype = rng.choice(scope.dtypes)
    d_dtype = DType.FLOAT32 if scope.output_float32 and rng.random() < 0.25 else dtype
    transa, transb = (Transpose.T if rng.random() < 0.5 else Transpose.N for _ in range(2))
    lda, ldb, ldd = (m if transa is Transpose.N else k), (k if transb is Transpose.N else n), m
    aligned = [256, 256, 256]
    if rng.random() < scope.misaligned_share:
        step = rng.choice((1, 2, 4, 8))
        lda, ldb, ldd = (x + step * rng.randrange(9) for x in (lda, ldb, ldd))
        aligned = [rng.choice((2, 4, 8, 16, 32, 256)) for _ in range(3)]
    d_alignment = max(aligned[2], d_dtype.itemsize)
    return GemmProblem(
        m=m, n=n, k=k, a_dtype=dtype, b_dtype=dtype, d_dtype=d_dtype, transa=transa, transb=transb,
        lda=lda, ldb=ldb, ldd=ldd, a_alignment_bytes=aligned[0], b_alignment_bytes=aligned[1],
        c_alignment_bytes=d_alignment, d_alignment_bytes=d_alignment,
        workspace_limit_bytes=scope.workspace_limit_bytes,
    )  # fmt: skip


def draw_sizes(rng: Random, regime: Regime) -> tuple[int, int, int]:
    """(m, n, k) of ``regime``, redrawn until flops and operand sizes fit."""
    while True:
        m, n, k = (_log_uniform(rng, low, high) for low, high in _RANGES[regime])
        if regime in (Regime.ALIGNED, Regime.DEEP_ALIGNED):
            m, n = (max(8, x // 8 * 8) for x in (m, n))
            # Kernels that ask for aligned rows take any k where both operands store m and n contiguously.
            k = max(8, k // 8 * 8) if regime is Regime.ALIGNED or rng.random() < 0.5 else k
        if regime in (Regime.VECTOR, Regime.LONG) and rng.random() < 0.5:
            m, n = n, m
        if 2 * m * n * k <= LARGEST_FLOPS and 4 * max(m * k, n * k, m * n) <= LARGEST_OPERAND_BYTES:
            return m, n, k


def _log_uniform(rng: Random, low: int, high: int) -> int:
    """Every integer of ``low`` .. ``high`` possible, density proportional to 1 / x."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
