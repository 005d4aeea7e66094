"""What a launch is, read from its kernels' names alone: which family, and whether it runs on the tensor cores.

The profile has no say here, so that a profile which declines too much cannot shrink what it is measured against.
"""

from __future__ import annotations

import re
from enum import Enum

from gemmdesc.problem import SEGMENT_K, Launch

#: Words in the names of kernels that issue matrix instructions ("gemma.." is a gemm that goes on with an a).
_TENSOR_CORE = re.compile(r"nvjet|tensorop|xmma|wmma|gmma|hmma|imma|(?<![a-z])mma|s1688|s16816|h884|s884")
#: Words that mark a kernel on the CUDA cores whatever else its name holds.
_CUDA_CORE = re.compile(r"simt|_sgemm_|gemv|_ffma_")
_SIZES = re.compile(r"\d+(?:x\d+)+")
_TEMPLATE = re.compile(r"<.*")
_LENGTH = re.compile(r"(\d+)")


class Scope(Enum):
    """Where a launch's products are made.  UNKNOWN: the launch could not be captured.

    SEGMENT_K: on the tensor cores, by kernels that share out k among the processors when they are launched, so that
    the order differs from tile to tile.
    """

    TENSOR_CORES = "tensor_cores"
    SEGMENT_K = "segment_k"
    CUDA_CORES = "cuda_cores"
    UNKNOWN = "unknown"


def scope_of(launch: Launch | None) -> Scope:
    """TENSOR_CORES where any kernel's name says so; a launch without names is UNKNOWN."""
    if launch is None or not any(launch.names):
        return Scope.UNKNOWN
    if any(SEGMENT_K in n.lower() for n in launch.names):
        return Scope.SEGMENT_K
    return Scope.TENSOR_CORES if any(names_tensor_cores(n) for n in launch.names) else Scope.CUDA_CORES


def names_tensor_cores(name: str) -> bool:
    """Whether a kernel's name says that it issues matrix instructions."""
    text = name.lower()
    return bool(_TENSOR_CORE.search(text)) and not _CUDA_CORE.search(text)


def family_of(launch: Launch | None) -> str:
    """The launch's kernels without tile sizes and template arguments, joined by `` + ``; ``unknown`` without names."""
    if launch is None or not any(launch.names):
        return "unknown"
    memset = ["memset"] if launch.memset_bytes else []
    return " + ".join([*memset, *(short_name(n) for n in launch.names)])


def short_name(name: str) -> str:
    """A kernel's name without namespaces, template arguments and tile sizes (``#`` stands for those)."""
    plain = _identifier(name) if name.startswith("_Z") else _TEMPLATE.sub("", name).rpartition("::")[2]
    return _SIZES.sub("#", plain.removeprefix("void ").strip())


def _identifier(mangled: str) -> str:
    """The last identifier of a mangled C++ name: the function's own."""
    at, last = 2 + (mangled[2:3] == "N"), mangled
    while (match := _LENGTH.match(mangled, at)) is not None:
        begin = match.end()
        at = begin + int(match[1])
        last = mangled[begin:at]
    return last
