"""What torch gives cuBLAS with each call: workspace, backend and the flags that change results."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from gemmdesc.errors import LibraryError
from gemmdesc.library.late import NO_FUSED_BIAS, late_words, process_watch
from gemmdesc.problem import DEFAULT_WORKSPACE_BYTES

_PAIR = re.compile(r":([0-9]+):([0-9]+)")
_KIB = 1024
#: ``:4096:2:16:8``, torch's default on every architecture but sm_90.
_OTHER_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * _KIB
_LT_DEFAULT_KIB = 1024


@dataclass(frozen=True, kw_only=True)
class TorchSettings:
    """torch's state at one moment, as far as a matrix product depends on it.

    ``blas_library`` is ``default``, ``cublas``, ``cublaslt`` or another name that torch may have.
    ``lt_workspace_bytes`` is what torch's own cuBLASLt calls get: biased products, or all if ``cublaslt`` is preferred.

    A tuple assigned to ``torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction`` (or ``bf16``) sets that
    flag and ``allow_fp16_splitk``; torch knows three states, as it refuses (True, False).

    ``fuses_bias``: whether biases may go to cuBLASLt's epilogue, which ``DISABLE_ADDMM_CUDA_LT=1`` forbids.

    ``unsettled``: why something of this is not known after all, in words; "" where it is.
    """

    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES
    lt_workspace_bytes: int = _LT_DEFAULT_KIB * _KIB
    blas_library: str = "default"
    allow_fp16_reduced_precision_reduction: bool = True
    allow_bf16_reduced_precision_reduction: bool = True
    allow_fp16_splitk: bool = True
    allow_bf16_splitk: bool = True
    allow_fp16_accumulation: bool = False
    allow_tf32: bool = False
    deterministic_algorithms: bool = False
    tunable_op: bool = False
    fuses_bias: bool = True
    unsettled: str = ""


def default_workspace_bytes(sm: str) -> int:
    """torch's workspace where no variable says otherwise: 32 MiB on sm_90, 8.125 MiB elsewhere.

    After ``getChosenWorkspaceSize`` in ATen's CublasHandlePool.cpp.
    """
    return DEFAULT_WORKSPACE_BYTES if sm == "sm_90" else _OTHER_WORKSPACE_BYTES


def parse_workspace_config(text: str | None, default: int) -> int:
    """Bytes that ``CUBLAS_WORKSPACE_CONFIG`` = ``text`` means to torch: SIZE KiB x COUNT of its ``:SIZE:COUNT`` pairs.

    ``default`` where ``text`` is None or holds no such pair; other characters are passed over, as torch does.
    """
    pairs = _PAIR.findall(text or "")
    return sum(int(size) * int(count) * _KIB for size, count in pairs) if pairs else default


def parse_lt_workspace(text: str | None, workspace_bytes: int) -> int:
    """Bytes that ``CUBLASLT_WORKSPACE_SIZE`` = ``text`` (KiB) means to torch, never more than ``workspace_bytes``."""
    match = re.match(r"\s*(\d+)", text or "")
    return min((int(match[1]) if match else _LT_DEFAULT_KIB) * _KIB, workspace_bytes)


def read_settings(sm: str, environment: Mapping[str, str] | None = None) -> TorchSettings:
    """torch's settings now, for calls on a card of architecture ``sm``.  ``environment``: ``os.environ`` by default.

    Workspaces are torch's own word where its release gives it.  Else they follow from the environment; of a variable
    that was changed after CUDA was initialised it is not known what torch makes of it (``unsettled``).

    Raises:
        LibraryError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise LibraryError("torch must be installed to read its settings (got no torch)") from None
    told = _told_workspaces() if environment is None else None
    variables = os.environ if environment is None else environment
    late = process_watch().late(variables) if environment is None else ()
    # Of its workspaces torch's own word is taken, where it gives one.
    late = tuple(v for v in late if told is None or v.name == NO_FUSED_BIAS)
    matmul = torch.backends.cuda.matmul
    workspace, lt_workspace = told or _parsed_workspaces(variables, sm)
    return TorchSettings(
        workspace_bytes=workspace,
        lt_workspace_bytes=lt_workspace,
        unsettled=late_words(late),
        blas_library=_blas_library(),
        allow_fp16_reduced_precision_reduction=bool(matmul.allow_fp16_reduced_precision_reduction),
        allow_bf16_reduced_precision_reduction=bool(matmul.allow_bf16_reduced_precision_reduction),
        allow_fp16_splitk=bool(matmul.allow_fp16_reduced_precision_reduction_split_k),
        allow_bf16_splitk=bool(matmul.allow_bf16_reduced_precision_reduction_split_k),
        allow_fp16_accumulation=bool(getattr(matmul, "allow_fp16_accumulation", False)),
        allow_tf32=_allow_tf32(),
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        tunable_op=torch.cuda.is_available() and bool(torch.cuda.tunable.is_enabled()),
        fuses_bias=variables.get(NO_FUSED_BIAS) != "1",
    )


def _parsed_workspaces(variables: Mapping[str, str], sm: str) -> tuple[int, int]:
    workspace = parse_workspace_config(variables.get("CUBLAS_WORKSPACE_CONFIG"), default_workspace_bytes(sm))
    return workspace, parse_lt_workspace(variables.get("CUBLASLT_WORKSPACE_SIZE"), workspace)


def _told_workspaces() -> tuple[int, int] | None:
    """What torch says of its workspaces, for cuBLAS and for its own cuBLASLt calls; None where it does not."""
    import torch

    own = torch.backends.cuda
    if not hasattr(own, "cublas_workspace_size") or not torch.cuda.is_initialized():
        return None
    return int(own.cublas_workspace_size()), int(own.cublaslt_workspace_size())


def _blas_library() -> str:
    import torch

    name = str(torch.backends.cuda.preferred_blas_library())
    return name.rpartition(".")[2].lower()


def _allow_tf32() -> bool:
    import torch

    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # set through torch's newer precision interface, which the old one refuses to read
        return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


@cache
def settings_key() -> Callable[[], tuple[Any, ...]]:
    """A function that tells torch's settings apart: two calls give equal tuples only where :func:`read_settings` would.

    CUDA is to be initialised by then.

    Raises:
        LibraryError: torch is not installed.
    """
    fp16, bf16, accumulation, blas, tunable, deterministic, single, workspace, lt_workspace, told, unfused = (
        settings_parts()
    )
    return lambda: (
        fp16(), bf16(), accumulation(), blas(), tunable(), deterministic(), single(), workspace(), lt_workspace(),
        told(), unfused(),
    )  # fmt: skip


@cache
def settings_parts() -> tuple[Callable[[], Any], ...]:
    """Functions, each of which gives one part of :func:`settings_key`'s tuple.

    They read what lies behind torch's public properties, and behind ``os.environ``, since these take half a microsecond
    each; where a torch or a Python has no such thing, the public way serves.

    Raises:
        LibraryError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise LibraryError("torch must be installed to read its settings (got no torch)") from None
    matmul = torch.backends.cuda.matmul
    blas = _behind("_get_blas_preferred_backend", _blas_library)
    # Comparing values of this enumeration costs a microsecond, and comparing their numbers nothing.
    numbered = type(getattr(blas(), "value", None)) is int
    tf32 = _behind("_get_cublas_allow_tf32", _allow_tf32)

    def single() -> Any:
        try:
            return tf32()
        except RuntimeError:  # as in _allow_tf32
            return _allow_tf32()

    return (
        _behind("_get_cublas_allow_fp16_reduced_precision_reduction", lambda: _reduction(matmul, "fp16")),
        _behind("_get_cublas_allow_bf16_reduced_precision_reduction", lambda: _reduction(matmul, "bf16")),
        _behind("_get_cublas_allow_fp16_accumulation", lambda: getattr(matmul, "allow_fp16_accumulation", False)),
        (lambda: blas().value) if numbered else blas,
        _behind("_cuda_tunableop_is_enabled", bool),
        _behind("_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled),
        single,
        _variable("CUBLAS_WORKSPACE_CONFIG"),
        _variable("CUBLASLT_WORKSPACE_SIZE"),
        _quick_workspaces(),
        _variable(NO_FUSED_BIAS),
    )


def _behind(name: str, otherwise: Callable[[], Any]) -> Callable[[], Any]:
    """torch's own getter of that name, or ``otherwise``."""
    import torch

    found: Callable[[], Any] = getattr(torch._C, name, otherwise)
    return found


def _quick_workspaces() -> Callable[[], Any]:
    """What :func:`_told_workspaces` gives once CUDA is initialised, without asking whether it is."""
    import torch

    own, lt = (getattr(torch._C, f"_cuda_getCublas{kind}WorkspaceSize", None) for kind in ("", "Lt"))
    if own is not None and lt is not None:
        return lambda: (own(), lt())
    return _told_workspaces if hasattr(torch.backends.cuda, "cublas_workspace_size") else _nothing


def _nothing() -> None:
    """Of a torch that tells none."""


def _reduction(matmul: Any, kind: str) -> tuple[bool, bool]:
    name = f"allow_{kind}_reduced_precision_reduction"
    return bool(getattr(matmul, name)), bool(getattr(matmul, f"{name}_split_k"))


def _variable(name: str) -> Callable[[], Any]:
    """Reads an environment variable, from the dictionary that ``os.environ`` wraps where there is one."""
    held = getattr(os.environ, "_data", None)
    encode = getattr(os.environ, "encodekey", None)
    if isinstance(held, dict) and encode is not None:
        return partial(held.get, encode(name))
    return partial(os.environ.get, name)
