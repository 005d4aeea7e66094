"""A kernel of Triton's, compiled and loaded on a device, as launches see it: a handle, and what its parameters are.

Triton has no public description of a compiled kernel's parameters.  What is taken from it here is the same in 3.6 and
3.9: ``JITFunction.warmup`` gives a ``CompiledKernel`` without launching it, whose ``run`` loads it on the current
device, after which ``function`` is a ``CUfunction``; ``metadata`` says how it is launched, and ``src.signature`` what
its arguments are.  Whether parameters are what they are taken to be is read off the PTX of each kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmdesc.errors import GemmdescError
from gemmdesc.kernels.compiling import KERNELS, constants_of, options_of
from gemmdesc.kernels.driver import TENSOR_MAP_BYTES
from gemmdesc.kernels.program import Step

#: Bytes of a parameter by its type in a signature.
_SIZES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "fp32": 4}
_PTX_SIZES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8,
              "u64": 8, "s64": 8, "f64": 8}  # fmt: skip
_POINTER_BYTES = 8
#: Triton passes two more pointers at the end: scratch of its own, and a profiler's.
_TRITONS_OWN = 2
_CONSTANT = "constexpr"
_DESCRIPTOR = "tensordesc"
_PTX_ENTRY = re.compile(r"\.entry\s+\S+?\(([^)]*)\)", re.DOTALL)
_PTX_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,\[]*(?:\[(\d+)\])?")


class NotPreparableError(GemmdescError):
    """A kernel that only Triton's own launcher can start."""


@dataclass(frozen=True, kw_only=True)
class BoxFormat:
    """How a tensor descriptor of a kernel is encoded, beside its tensor: swizzle mode, element bytes, the box."""

    swizzle: int
    element_bytes: int
    block: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedKernel:
    """``function``: a ``CUfunction``, valid while ``owner`` lives.

    ``types``: those of the arguments that are no constants, in order.  ``boxes``: of each descriptor among them.
    ``clusters``: blocks of a program, which are a cluster; a variant's programs may come in clusters of their own.
    ``dependent``: may begin before the kernel in front of it has ended.
    """

    function: int
    types: tuple[str, ...]
    boxes: tuple[BoxFormat, ...]
    threads: int
    shared_bytes: int
    clusters: int = 1
    cooperative: bool = False
    dependent: bool = False
    owner: Any = None


def load_step(step: Step) -> LoadedKernel:
    """The kernel of ``step``, compiled if need be, and loaded on the current device.

    Raises:
        NotPreparableError: it runs in Triton's interpreter, or only Triton's own launcher can start it.
    """
    kernel = KERNELS[step.variant.kernel]
    if not hasattr(kernel, "device_caches"):
        raise NotPreparableError("kernels must be compiled (got Triton's interpreter)")
    compiled = kernel.warmup(*step.stand_ins, grid=(1,), **constants_of(step.variant), **options_of(step.variant))
    if hasattr(compiled, "result"):
        compiled = compiled.result()
    assert compiled.run is not None  # asking for it loads the kernel
    return loaded_kernel(compiled, int(compiled.function))


def loaded_kernel(compiled: Any, function: int) -> LoadedKernel:
    """``compiled`` as launches see it; ``function`` is its handle.

    Raises:
        NotPreparableError: it takes memory of Triton's, or its parameters are not those of its signature.
    """
    metadata = compiled.metadata
    for name in ("global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, name, 0):
            raise NotPreparableError(f"{name} must be 0 (got {getattr(metadata, name)})")
    types = tuple(t for t in compiled.src.signature.values() if t != _CONSTANT)
    boxes = tuple(map(_box_format, getattr(metadata, "tensordesc_meta", None) or ()))
    if sum(_is_descriptor(t) for t in types) != len(boxes):
        raise NotPreparableError("tensor descriptors must be encoded by the host (got a kernel that makes its own)")
    wanted = parameter_sizes(types, boxes) + (_POINTER_BYTES,) * _TRITONS_OWN
    got = ptx_parameter_sizes(compiled.asm["ptx"])
    if got != wanted:
        raise NotPreparableError(f"parameters must have {wanted} bytes (got {got} in the PTX of {metadata.name})")
    return LoadedKernel(
        function=function, types=types, boxes=boxes, threads=32 * metadata.num_warps, shared_bytes=metadata.shared,
        clusters=metadata.num_ctas, cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        dependent=bool(getattr(metadata, "launch_pdl", False)), owner=compiled,
    )  # fmt: skip


def _box_format(data: Mapping[str, Any]) -> BoxFormat:
    if data.get("fp4_padded") or data.get("is_im2col"):
        raise NotPreparableError(f"tensor descriptors must be of plain tiles (got {data})")
    return BoxFormat(
        swizzle=int(data["swizzle"]), element_bytes=int(data["elem_size"]), block=tuple(map(int, data["block_size"]))
    )


def _is_descriptor(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith(_DESCRIPTOR)


def flat_types(types: Sequence[str], boxes: Sequence[BoxFormat]) -> tuple[str, ...]:
    """The types of the parameters: a descriptor is its map, then its sizes, then its strides.

    Raises:
        NotPreparableError: a type that is none of ours.
    """
    flat: list[str] = []
    formats = iter(boxes)
    for kind in types:
        if _is_descriptor(kind):
            rank = len(next(formats).block)
            flat += [_DESCRIPTOR, *("i32",) * rank, *("i64",) * rank]
        elif isinstance(kind, str) and (kind in _SIZES or kind.startswith("*")):
            flat.append(kind)
        else:
            raise NotPreparableError(f"an argument must be a number, a pointer or a descriptor (got {kind})")
    return tuple(flat)


def parameter_sizes(types: Sequence[str], boxes: Sequence[BoxFormat]) -> tuple[int, ...]:
    """Bytes of each parameter but Triton's own."""
    sizes = {**_SIZES, _DESCRIPTOR: TENSOR_MAP_BYTES}
    return tuple(sizes.get(kind, _POINTER_BYTES) for kind in flat_types(types, boxes))


def ptx_parameter_sizes(ptx: str) -> tuple[int, ...]:
    """Bytes of each parameter of the first kernel in ``ptx``.

    Raises:
        NotPreparableError: there is none, or a parameter of another type.
    """
    entry = _PTX_ENTRY.search(ptx)
    if entry is None:
        raise NotPreparableError("PTX must hold an entry with parameters (got none)")
    sizes = []
    for kind, count in _PTX_PARAMETER.findall(entry[1]):
        if kind not in _PTX_SIZES:
            raise NotPreparableError(f"a parameter must be a number or bytes (got .{kind})")
        sizes.append(_PTX_SIZES[kind] * int(count or 1))
    return tuple(sizes)
