"""Drawing problems: which sizes, layouts and alignments a scan or a verification asks about.

Sizes are unrounded integers, log-uniform unless a regime says otherwise, with 2mnk <= 1e12 and operands of at most
4 GiB.  A problem is fixed by (seed, index) alone, so that a scan resumes and any draw can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from types import MappingProxyType

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.probe.facets import FACETS, Kind
from gemmdesc.problem import DEFAULT_WORKSPACE_BYTES, GemmProblem, Transpose, is_float8

LARGEST_FLOPS = 10**12
LARGEST_OPERAND_BYTES = 4 * 2**30
#: What the sizes, leading dimensions and addresses of 8-bit operands must be a multiple of.
FLOAT8_MULTIPLE = 16
#: Matrices of a batch, at most.
_LARGEST_BATCH = 64


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
    """What a campaign covers: operand types, output types (None: the operands' own), regimes and their weights.

    ``dtypes`` are those of the operands of one side; 8-bit kinds draw both sides' types from them.
    """

    dtypes: tuple[DType, ...] = (DType.FLOAT16, DType.BFLOAT16)
    output_float32: bool = True
    regimes: tuple[Regime, ...] = tuple(Regime)
    workspace_limit_bytes: int = DEFAULT_WORKSPACE_BYTES
    misaligned_share: float = 0.25
    kind: Kind = Kind.PLAIN

    def __post_init__(self) -> None:
        if not self.dtypes or not self.regimes:
            raise InvalidInputError(f"scope must hold a dtype and a regime (got {self})")
        wanted = FACETS[self.kind].dtypes
        if not all(d in wanted if wanted else not is_float8(d) for d in self.dtypes):
            named = ", ".join(d.value for d in self.dtypes)
            raise InvalidInputError(f"dtypes must be operand types of {self.kind.value} problems (got {named})")


def scope_of_kind(kind: Kind, dtypes: tuple[DType, ...] = ()) -> Scope:
    """The scope of a kind with its usual operand types, or with ``dtypes``.

    Raises:
        InvalidInputError: the kind has no problems with operands of these types.
    """
    return Scope(dtypes=dtypes or FACETS[kind].dtypes or Scope.dtypes, kind=kind)


#: Kinds of 16-bit operands that torch asks for with float32 ones as well.
_ALSO_FLOAT32 = (Kind.BIAS, Kind.ADD_C, Kind.ALPHA_ADD_C, Kind.BATCH_ADD_C, Kind.BATCH_ALPHA_ADD_C)
#: What a command may name: a kind with its usual operand types, or with others.
_NAMED: MappingProxyType[str, tuple[Kind, tuple[DType, ...]]] = MappingProxyType(
    {
        Kind.PLAIN.value: (Kind.PLAIN, ()),
        "float32": (Kind.PLAIN, (DType.FLOAT32,)),
        **{kind.value: (kind, ()) for kind in Kind if kind not in (Kind.PLAIN, Kind.BATCH)},
        Kind.BATCH.value: (Kind.BATCH, ()),
        "batch_float32": (Kind.BATCH, (DType.FLOAT32,)),
        **{f"{kind.value}_float32": (kind, (DType.FLOAT32,)) for kind in _ALSO_FLOAT32},
    }
)
#: All such names.
KIND_NAMES: tuple[str, ...] = tuple(_NAMED)
#: Those of kinds that walks can be read of: what comes out of one is gelu's, whose rules are found otherwise.
WALKED_KINDS: tuple[str, ...] = tuple(n for n in KIND_NAMES if not n.startswith("gelu"))
_ALL = "all"


def scope_named(name: str) -> Scope:
    """The scope of one of ``KIND_NAMES``.

    Raises:
        InvalidInputError: there is no such name.
    """
    if name not in _NAMED:
        raise InvalidInputError(f"kind must be of {', '.join(KIND_NAMES)} (got {name!r})")
    kind, dtypes = _NAMED[name]
    return scope_of_kind(kind, dtypes)


def name_of(scope: Scope) -> str:
    """Which of ``KIND_NAMES`` the scope's problems are of; the kind's own name where operand types were chosen."""
    named = (n for n, (kind, dtypes) in _NAMED.items() if kind is scope.kind and dtypes == scope.dtypes)
    return next(named, scope.kind.value)


def chosen_kinds(names: Sequence[str]) -> tuple[str, ...]:
    """Names given on a command line, each once, in their usual order; ``all`` stands for ``KIND_NAMES``.

    Raises:
        InvalidInputError: there is no such name.
    """
    found = {x for name in names for x in (KIND_NAMES if name == _ALL else (name,))}
    for name in sorted(found):
        scope_named(name)
    return tuple(n for n in KIND_NAMES if n in found)


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
    a_alignment, b_alignment = (max(x, dtype.itemsize) for x in aligned[:2])
    d_alignment = max(aligned[2], d_dtype.itemsize)
    problem = GemmProblem(
        m=m, n=n, k=k, a_dtype=dtype, b_dtype=dtype, d_dtype=d_dtype, transa=transa, transb=transb,
        lda=lda, ldb=ldb, ldd=ldd, a_alignment_bytes=a_alignment, b_alignment_bytes=b_alignment,
        c_alignment_bytes=d_alignment, d_alignment_bytes=d_alignment,
        workspace_limit_bytes=scope.workspace_limit_bytes,
    )  # fmt: skip
    facets = FACETS[scope.kind]
    problem = _float8(problem, scope, rng) if facets.float8 else problem
    problem = _batch(problem, scope, rng) if facets.batched else problem
    return replace(
        problem, compute_type=facets.compute_type, epilogue=facets.epilogue, alpha=facets.alpha, beta=facets.beta,
        fast_accumulation=facets.fast,
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


def _float8(problem: GemmProblem, scope: Scope, rng: Random) -> GemmProblem:
    """Sizes rounded up to what the library takes, both operands with neighbouring k side by side."""
    m, n, k = (-(-x // FLOAT8_MULTIPLE) * FLOAT8_MULTIPLE for x in (problem.m, problem.n, problem.k))
    b_dtype = rng.choice(scope.dtypes)
    outputs = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32) if scope.output_float32 else (DType.FLOAT16,)
    d_dtype = rng.choice((*outputs, *scope.dtypes))
    pads, aligned = (0, 0, 0), [256, 256, 256]
    if rng.random() < scope.misaligned_share:
        pads = (rng.randrange(9), rng.randrange(9), rng.randrange(9))
        aligned = [rng.choice((16, 32, 64, 128, 256)) for _ in range(3)]
    lda, ldb, ldd = (x + FLOAT8_MULTIPLE * pad for x, pad in zip((k, k, m), pads, strict=True))
    return replace(
        problem, m=m, n=n, k=k, b_dtype=b_dtype, d_dtype=d_dtype, transa=Transpose.T, transb=Transpose.N, lda=lda,
        ldb=ldb, ldd=ldd, a_alignment_bytes=aligned[0], b_alignment_bytes=aligned[1], c_alignment_bytes=aligned[2],
        d_alignment_bytes=aligned[2],
    )  # fmt: skip


def _batch(problem: GemmProblem, scope: Scope, rng: Random) -> GemmProblem:
    """A batch whose matrices follow one another, now and then with a gap, of no more work than one product may be."""
    p = problem
    work = 2 * p.m * p.n * p.k
    held = 4 * max(p.lda * p.a_columns, p.ldb * p.b_columns, p.ldd * p.n)
    most = min(_LARGEST_BATCH, LARGEST_FLOPS // work, LARGEST_OPERAND_BYTES // held)
    count = _log_uniform(rng, 2, max(2, most))
    gaps = [8 * rng.randrange(5) if rng.random() < scope.misaligned_share else 0 for _ in range(3)]
    extents = (p.lda * p.a_columns, p.ldb * p.b_columns, p.ldd * p.n)
    a, b, d = (extent + gap for extent, gap in zip(extents, gaps, strict=True))
    return replace(p, batch_count=count, a_batch_stride=a, b_batch_stride=b, d_batch_stride=d)
