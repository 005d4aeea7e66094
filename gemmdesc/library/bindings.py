"""cuBLASLt's C interface as ctypes declarations: status names, enumerators, structs and functions.

Numbers and signatures are those of NVIDIA's public header ``cublasLt.h`` (the same in CUDA 12 and 13); names are the
header's in lower case where they become fields or arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError, LibraryError
from gemmdesc.problem import ComputeType, Epilogue, Transpose

#: ``cublasStatus_t`` by number.
STATUS_NAMES = MappingProxyType(
    {
        0: "CUBLAS_STATUS_SUCCESS",
        1: "CUBLAS_STATUS_NOT_INITIALIZED",
        3: "CUBLAS_STATUS_ALLOC_FAILED",
        7: "CUBLAS_STATUS_INVALID_VALUE",
        8: "CUBLAS_STATUS_ARCH_MISMATCH",
        11: "CUBLAS_STATUS_MAPPING_ERROR",
        13: "CUBLAS_STATUS_EXECUTION_FAILED",
        14: "CUBLAS_STATUS_INTERNAL_ERROR",
        15: "CUBLAS_STATUS_NOT_SUPPORTED",
        16: "CUBLAS_STATUS_LICENSE_ERROR",
    }
)
SUCCESS = 0
NOT_SUPPORTED = "CUBLAS_STATUS_NOT_SUPPORTED"


def status_name(status: int) -> str:
    """The ``cublasStatus_t`` name of ``status``; ``CUBLAS_STATUS_<number>`` where the header has none."""
    return STATUS_NAMES.get(status, f"CUBLAS_STATUS_{status}")


#: ``cudaDataType_t``.  TF32 is a compute type there, not a storage type.
DATA_TYPES = MappingProxyType(
    {
        DType.FLOAT32: 0,
        DType.FLOAT64: 1,
        DType.FLOAT16: 2,
        DType.BFLOAT16: 14,
        DType.FLOAT8_E4M3FN: 28,
        DType.FLOAT8_E5M2: 29,
    }
)
#: ``cublasComputeType_t``.
COMPUTE_TYPES = MappingProxyType(
    {ComputeType.COMPUTE_32F: 68, ComputeType.COMPUTE_32F_FAST_TF32: 77, ComputeType.COMPUTE_64F: 70}
)
#: ``cublasOperation_t``.
OPERATIONS = MappingProxyType({Transpose.N: 0, Transpose.T: 1})
#: ``cublasLtEpilogue_t``.
EPILOGUES = MappingProxyType(
    {
        Epilogue.DEFAULT: 1,
        Epilogue.RELU: 2,
        Epilogue.BIAS: 4,
        Epilogue.RELU_BIAS: 6,
        Epilogue.GELU: 32,
        Epilogue.GELU_BIAS: 36,
    }
)


def data_type(name: str, dtype: DType) -> int:
    """``cudaDataType_t`` of ``dtype``; ``name`` is the argument's name in the message.

    Raises:
        InvalidInputError: cuBLASLt stores no such type.
    """
    try:
        return DATA_TYPES[dtype]
    except KeyError:
        raise InvalidInputError(f"{name} must be a storage type of cuBLASLt (got {dtype.value})") from None


class MatmulDescAttribute(IntEnum):
    """``cublasLtMatmulDescAttributes_t``, as far as used."""

    COMPUTE_TYPE = 0
    SCALE_TYPE = 1
    POINTER_MODE = 2
    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8
    SM_COUNT_TARGET = 15
    A_SCALE_POINTER = 17
    B_SCALE_POINTER = 18
    D_SCALE_POINTER = 20
    FAST_ACCUM = 25
    BIAS_DATA_TYPE = 26


class MatrixLayoutAttribute(IntEnum):
    """``cublasLtMatrixLayoutAttribute_t``: type, order and batch_count are 4 bytes, the others 8."""

    TYPE = 0
    ORDER = 1
    ROWS = 2
    COLS = 3
    LD = 4
    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class PreferenceAttribute(IntEnum):
    """``cublasLtMatmulPreferenceAttributes_t``: the workspace is 8 bytes, the others 4."""

    SEARCH_MODE = 0
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class AlgoCapAttribute(IntEnum):
    """``cublasLtMatmulAlgoCapAttributes_t``, as far as used; each is 4 bytes but ``NUMERICAL_IMPL_FLAGS`` (8)."""

    SPLITK_SUPPORT = 0
    REDUCTION_SCHEME_MASK = 1
    CTA_SWIZZLING_SUPPORT = 2
    CUSTOM_OPTION_MAX = 7
    NUMERICAL_IMPL_FLAGS = 15
    MIN_ALIGNMENT_A_BYTES = 16
    MIN_ALIGNMENT_B_BYTES = 17
    MIN_ALIGNMENT_C_BYTES = 18
    MIN_ALIGNMENT_D_BYTES = 19


#: ``cublasLtMatmulAlgoConfigAttributes_t``: AlgoConfig's field, its number, its size in bytes.  The two shape ids are
#: 16-bit; asking for four bytes fails.
ALGO_CONFIG_ATTRIBUTES = (
    ("algo_id", 0, 4),
    ("tile_id", 1, 4),
    ("splitk_num", 2, 4),
    ("reduction_scheme", 3, 4),
    ("cta_swizzling", 4, 4),
    ("custom_option", 5, 4),
    ("stages_id", 6, 4),
    ("inner_shape_id", 7, 2),
    ("cluster_shape_id", 8, 2),
)


class MatmulAlgo(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``: 64 opaque bytes, valid within one release."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algo", MatmulAlgo),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves_count", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_PTR, _INT, _SIZE, _U64, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int64
#: Calls that may take long or block: other Python threads run meanwhile.
_LONG_CALLS = MappingProxyType(
    {
        "cublasLtCreate": (_PTR,),
        "cublasLtDestroy": (_PTR,),
        "cublasLtMatmulAlgoGetHeuristic": (_PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _INT, _PTR, _PTR),
        "cublasLtMatmulAlgoCheck": (_PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR),
        "cublasLtMatmulAlgoInit": (_PTR, _INT, _INT, _INT, _INT, _INT, _INT, _INT, _PTR),
        "cublasLtMatmul": (
            *(_PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR),
            *(_PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _SIZE, _PTR),
        ),
    }
)
#: Calls of well under a microsecond, for which handing over the interpreter costs more than the call.
_SHORT_CALLS = MappingProxyType(
    {
        "cublasLtMatmulDescCreate": (_PTR, _INT, _INT),
        "cublasLtMatmulDescDestroy": (_PTR,),
        "cublasLtMatmulDescSetAttribute": (_PTR, _INT, _PTR, _SIZE),
        "cublasLtMatrixLayoutCreate": (_PTR, _INT, _U64, _U64, _I64),
        "cublasLtMatrixLayoutDestroy": (_PTR,),
        "cublasLtMatrixLayoutSetAttribute": (_PTR, _INT, _PTR, _SIZE),
        "cublasLtMatmulPreferenceCreate": (_PTR,),
        "cublasLtMatmulPreferenceDestroy": (_PTR,),
        "cublasLtMatmulPreferenceSetAttribute": (_PTR, _INT, _PTR, _SIZE),
        "cublasLtMatmulAlgoConfigGetAttribute": (_PTR, _INT, _PTR, _SIZE, _PTR),
        "cublasLtMatmulAlgoConfigSetAttribute": (_PTR, _INT, _PTR, _SIZE),
        "cublasLtMatmulAlgoCapGetAttribute": (_PTR, _INT, _PTR, _SIZE, _PTR),
    }
)

Function = Callable[..., int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Functions:
    """The functions of one loaded ``libcublasLt``, by the header's name; each returns a ``cublasStatus_t`` number."""

    path: Path
    packed_version: int
    by_name: MappingProxyType[str, Function]

    def __getitem__(self, name: str) -> Function:
        return self.by_name[name]


def load_functions(path: Path) -> Functions:
    """Load (or find again, if it is mapped already) the library file ``path`` and declare its functions.

    Raises:
        LibraryError: the file is missing, cannot be loaded, or is no cuBLASLt; the message names it.
    """
    if not path.is_file():
        raise LibraryError(f"path must name a libcublasLt file that exists (got {path})")
    try:
        long_calls, short_calls = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
    except OSError as error:
        raise LibraryError(f"path must name a loadable libcublasLt: {error} (got {path})") from None
    try:
        version = long_calls.cublasLtGetVersion
        version.argtypes, version.restype = (), ctypes.c_size_t
        found = {name: _declare(long_calls, name, types) for name, types in _LONG_CALLS.items()}
        found |= {name: _declare(short_calls, name, types) for name, types in _SHORT_CALLS.items()}
    except AttributeError as error:
        raise LibraryError(f"path must name a libcublasLt: {error} (got {path})") from None
    return Functions(path=path, packed_version=int(version()), by_name=MappingProxyType(found))


def _declare(library: ctypes.CDLL, name: str, argument_types: tuple[Any, ...]) -> Function:
    function = getattr(library, name)
    function.argtypes, function.restype = argument_types, ctypes.c_int
    declared: Function = function
    return declared
