"""One call to cuBLASLt as plain values: what is asked, what the library answers, what it launches, who it is.

Everything is stated in cuBLASLt's own column-major terms: D (m x n) = alpha op(A) op(B) + beta C with leading
dimensions in elements.  torch's row-major product C = A B is the problem of its transposes, C^T = B^T A^T.

Who it is stands in :mod:`gemmdesc.identities`; its names are to be had here too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.identities import DeviceId as DeviceId
from gemmdesc.identities import LibraryId as LibraryId
from gemmdesc.identities import LibraryVersion as LibraryVersion


class Transpose(Enum):
    """cuBLAS's operation flag on a stored matrix (``CUBLAS_OP_N``, ``CUBLAS_OP_T``)."""

    N = "n"
    T = "t"


class ComputeType(Enum):
    """``cublasComputeType_t`` of the product."""

    COMPUTE_32F = "32f"
    COMPUTE_32F_FAST_TF32 = "32f_fast_tf32"
    COMPUTE_64F = "64f"


class ScalarClass(Enum):
    """What is known of alpha or beta before the call."""

    ZERO = "zero"
    ONE = "one"
    OTHER = "other"


class Epilogue(Enum):
    """``cublasLtEpilogue_t``, lower case."""

    DEFAULT = "default"
    BIAS = "bias"
    RELU = "relu"
    RELU_BIAS = "relu_bias"
    GELU = "gelu"
    GELU_BIAS = "gelu_bias"


#: Epilogues that add a bias, which has one value for each row of D.
BIASED = frozenset((Epilogue.BIAS, Epilogue.RELU_BIAS, Epilogue.GELU_BIAS))
#: cuBLASLt is told alignments of at most this many bytes.
MAX_ALIGNMENT_BYTES = 256
#: What torch gives cuBLAS on sm_90 unless CUBLAS_WORKSPACE_CONFIG says otherwise.
DEFAULT_WORKSPACE_BYTES = 32 * 1024 * 1024
#: In the names of kernels that share out k among the processors when they are launched.
SEGMENT_K = "segment_k_on"
#: Bits of ``cublasLtReductionScheme_t`` that the library may use: in place, compute type, output type.
ALL_REDUCTION_SCHEMES = 7


def is_float8(dtype: DType) -> bool:
    """Whether ``dtype`` is an 8-bit format, whose products take a scale for each operand."""
    return dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)


@dataclass(frozen=True, kw_only=True)
class GemmProblem:
    """All that cuBLASLt's heuristic may look at.

    ``a_alignment_bytes`` .. ``d_alignment_bytes``: the largest power of two, up to 256, that divides the address;
    ``bias_alignment_bytes``: of the bias, where the epilogue takes one (the heuristic sees its address).
    ``batch_count`` 1 means no batch; the strides, in elements, are then 0.  Tensor scales of 8-bit types are no part of
    it: products of such operands always take one for A and one for B, and an 8-bit D takes its own.

    Raises:
        InvalidInputError: a size, leading dimension or alignment that no such call can have.
    """

    m: int
    n: int
    k: int
    a_dtype: DType
    b_dtype: DType
    d_dtype: DType
    transa: Transpose
    transb: Transpose
    lda: int
    ldb: int
    ldd: int
    compute_type: ComputeType = ComputeType.COMPUTE_32F
    scale_dtype: DType = DType.FLOAT32
    alpha: ScalarClass = ScalarClass.ONE
    beta: ScalarClass = ScalarClass.ZERO
    epilogue: Epilogue = Epilogue.DEFAULT
    fast_accumulation: bool = False
    batch_count: int = 1
    a_batch_stride: int = 0
    b_batch_stride: int = 0
    d_batch_stride: int = 0
    a_alignment_bytes: int = MAX_ALIGNMENT_BYTES
    b_alignment_bytes: int = MAX_ALIGNMENT_BYTES
    c_alignment_bytes: int = MAX_ALIGNMENT_BYTES
    d_alignment_bytes: int = MAX_ALIGNMENT_BYTES
    bias_alignment_bytes: int = MAX_ALIGNMENT_BYTES
    workspace_limit_bytes: int = DEFAULT_WORKSPACE_BYTES
    reduction_scheme_mask: int = ALL_REDUCTION_SCHEMES

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise InvalidInputError(f"{f.name} must be an integer of at least 0 (got {value!r})")
        for name in ("m", "n", "k", "batch_count"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1 (got {getattr(self, name)})")
        for name, least in (("lda", self.a_rows), ("ldb", self.b_rows), ("ldd", self.m)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} must be at least {least} (got {getattr(self, name)})")
        for name in ("a", "b", "c", "d", "bias"):
            value = getattr(self, f"{name}_alignment_bytes")
            if value < 1 or value > MAX_ALIGNMENT_BYTES or value & (value - 1):
                raise InvalidInputError(f"{name}_alignment_bytes must be a power of two up to 256 (got {value})")

    @property
    def a_rows(self) -> int:
        """Rows of A as stored (column-major): m for N, k for T."""
        return self.m if self.transa is Transpose.N else self.k

    @property
    def b_rows(self) -> int:
        """Rows of B as stored (column-major): k for N, n for T."""
        return self.k if self.transb is Transpose.N else self.n

    @property
    def a_columns(self) -> int:
        return self.k if self.transa is Transpose.N else self.m

    @property
    def b_columns(self) -> int:
        return self.n if self.transb is Transpose.N else self.k

    @property
    def c_dtype(self) -> DType:
        """C's type: D's, or float16 where D has 8 bits, as torch states such calls."""
        return DType.FLOAT16 if is_float8(self.d_dtype) else self.d_dtype

    @property
    def bias_dtype(self) -> DType:
        """The bias's type, which is C's."""
        return self.c_dtype

    @property
    def a_outer(self) -> int:
        """Rows of all op(A): m for each matrix of the batch; one matrix where the batch shares it (stride 0)."""
        return self.m * (self.batch_count if self.a_batch_stride else 1)

    @property
    def b_outer(self) -> int:
        """Columns of all op(B): n for each matrix of the batch; one matrix where the batch shares it (stride 0)."""
        return self.n * (self.batch_count if self.b_batch_stride else 1)

    @property
    def d_outer(self) -> int:
        """Rows of all D: m for each matrix of the batch."""
        return self.m * self.batch_count


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """A heuristic answer: the attributes of ``cublasLtMatmulAlgo_t`` under the header's names.

    ``opaque`` is the struct itself (64 bytes, hex) and ``workspace_bytes`` what it needs; neither takes part in
    equality, since the struct may hold more than the attributes say.
    """

    algo_id: int
    tile_id: int
    splitk_num: int
    reduction_scheme: int
    cta_swizzling: int
    custom_option: int
    stages_id: int
    inner_shape_id: int
    cluster_shape_id: int
    opaque: str = field(default="", compare=False)
    workspace_bytes: int = field(default=0, compare=False)


#: The attributes of an answer that a profile key may project on, in the header's order.
ANSWER_ATTRIBUTES = tuple(f.name for f in fields(AlgoConfig) if f.compare)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The heuristic has no answer; ``status`` is the ``cublasStatus_t`` name."""

    status: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """An answer did not run: the reference failed, which is neither equal nor different."""

    status: str


@dataclass(frozen=True, kw_only=True)
class KernelNode:
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one call enqueues: kernels in order, and the sizes of the memsets before them."""

    kernels: tuple[KernelNode, ...]
    memset_bytes: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.kernels)


def attributes(answer: AlgoConfig) -> dict[str, int]:
    """The answer's compared attributes by name."""
    return {name: getattr(answer, name) for name in ANSWER_ATTRIBUTES}


def environment(problem: GemmProblem, answer: AlgoConfig, launch: Launch | None) -> dict[str, int]:
    """The variables that a rule may use.

    ``m``, ``n``, ``k``; ``splitk_num`` (at least 1); ``transa`` and ``transb`` (1 for T, else 0); ``k_contiguous``, how
    many of the two operands are stored along k by their flag; ``a_unit_k`` and ``b_unit_k``, 1 where neighbouring k of
    the operand are neighbours in memory, be it only because its rows are one element apart; and, if the launch is
    known, the first kernel's grid and block, ``kernel_count``, ``memset_bytes`` (of the last memset, 0 without one) and
    ``segment_k``: 1 where the first kernel's name says that it shares out k when it is launched, else 0.
    """
    transa, transb = (int(t is Transpose.T) for t in (problem.transa, problem.transb))
    values = {"m": problem.m, "n": problem.n, "k": problem.k, "splitk_num": max(1, answer.splitk_num)}
    values |= {"transa": transa, "transb": transb, "k_contiguous": transa + 1 - transb}
    values |= {"a_unit_k": int(transa == 1 or problem.lda == 1), "b_unit_k": int(transb == 0 or problem.ldb == 1)}
    if launch is not None and launch.kernels:
        kernel = launch.kernels[0]
        values |= {f"grid_{axis}": size for axis, size in zip("xyz", kernel.grid, strict=True)}
        values |= {f"block_{axis}": size for axis, size in zip("xyz", kernel.block, strict=True)}
        values |= {"kernel_count": len(launch.kernels), "memset_bytes": max(launch.memset_bytes[-1:], default=0)}
        values |= {"segment_k": int(SEGMENT_K in kernel.name.lower())}
    return values


def dense_problem(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    *,
    d_dtype: DType | None = None,
    transa: Transpose = Transpose.N,
    transb: Transpose = Transpose.N,
) -> GemmProblem:
    """A problem on whole, densely stored, well aligned matrices; sizes in column-major terms."""
    return GemmProblem(
        m=m, n=n, k=k, a_dtype=dtype, b_dtype=dtype, d_dtype=d_dtype or dtype, transa=transa, transb=transb,
        lda=m if transa is Transpose.N else k, ldb=k if transb is Transpose.N else n, ldd=m,
    )  # fmt: skip
