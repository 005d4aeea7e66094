"""Compiling variants without a GPU, and counting what this process has compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton.language as tl
from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.chain import chain_pointer_kernel, chain_tma_kernel
from gemmdesc.kernels.finish import finish_kernel
from gemmdesc.kernels.fma_chain import fma_chain_kernel
from gemmdesc.kernels.folded_chain import folded_chain_kernel
from gemmdesc.kernels.fused_chain import fused_after_kernel, fused_pointer_kernel, fused_tma_kernel
from gemmdesc.kernels.fused_specialised import fused_specialised_kernel
from gemmdesc.kernels.gluon_host import descriptor_type, source_of
from gemmdesc.kernels.grouped_chain import grouped_chain_kernel
from gemmdesc.kernels.kmajor_chain import kmajor_chain_kernel, kmajor_pack_kernel, scaled_merge_kernel
from gemmdesc.kernels.lane_nest import lane_join_kernel, lane_nest_kernel
from gemmdesc.kernels.merge import merge_kernel
from gemmdesc.kernels.merged_chain import merged_grouped_kernel, merged_pointer_kernel, merged_tma_kernel
from gemmdesc.kernels.repack import repack_kernel
from gemmdesc.kernels.scalar_nest import fold_level_kernel, scalar_leaves_kernel
from gemmdesc.kernels.specialised_chain import chain_specialised_kernel
from gemmdesc.kernels.variants import Variant
from gemmdesc.kernels.variants_fused import BYTES
from gemmdesc.kernels.variants_specialised import boxes_of
from gemmdesc.kernels.wide_chain import chain_wide_kernel

#: The kernels by the name that a Variant carries.
KERNELS: Mapping[str, Any] = {
    "chain_tma": chain_tma_kernel,
    "chain_wide": chain_wide_kernel,
    "folded_chain": folded_chain_kernel,
    "chain_pointer": chain_pointer_kernel,
    "grouped_chain": grouped_chain_kernel,
    "merge": merge_kernel,
    "merged_tma": merged_tma_kernel,
    "merged_pointer": merged_pointer_kernel,
    "merged_grouped": merged_grouped_kernel,
    "repack": repack_kernel,
    "scalar_leaves": scalar_leaves_kernel,
    "fold_level": fold_level_kernel,
    "lane_nest": lane_nest_kernel,
    "lane_join": lane_join_kernel,
    "finish": finish_kernel,
    "fma_chain": fma_chain_kernel,
    "kmajor_chain": kmajor_chain_kernel,
    "kmajor_pack": kmajor_pack_kernel,
    "scaled_merge": scaled_merge_kernel,
    "fused_tma": fused_tma_kernel,
    "fused_pointer": fused_pointer_kernel,
    "fused_after": fused_after_kernel,
    "fused_specialised": fused_specialised_kernel,
    "chain_specialised": chain_specialised_kernel,
}
#: Of these, those in Gluon, whose descriptors name their layouts.
SPECIALISED_KERNELS = ("chain_specialised", "fused_specialised")
#: Pointers to buffers of our own, whose alignment the compiler may rely on.
ALIGNED = ("packed_ptr", "a_packed_ptr", "b_packed_ptr", "scratch_ptr")
#: What lies behind pointers that are neither operands nor outputs.
_SCRATCH = {
    "sums_ptr": "*fp32", "order_ptr": "*i32", "offsets_ptr": "*i32", "scale_ptr": "*fp32", "output_scale_ptr": "*fp32",
    "scratch_ptr": "*fp32", "counters_ptr": "*i32",
}  # fmt: skip
_POINTERS = {
    DType.FLOAT16: "*fp16", DType.BFLOAT16: "*bf16", DType.FLOAT32: "*fp32", DType.FLOAT8_E4M3FN: "*fp8e4nv",
    DType.FLOAT8_E5M2: "*fp8e5",
}  # fmt: skip
_TYPES = {DType.FLOAT16: tl.float16, DType.BFLOAT16: tl.bfloat16, DType.FLOAT32: tl.float32}


def constants_of(variant: Variant) -> dict[str, Any]:
    """The variant's constants as Triton takes them."""
    named = {BYTES: tl.int8, **{d.value: _TYPES[d] for d in _TYPES}}
    return {name: named[value] if isinstance(value, str) else value for name, value in variant.constants}


def options_of(variant: Variant) -> dict[str, Any]:
    """How Triton is to compile it."""
    options: dict[str, Any] = {
        "num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": variant.fp_fusion,
    }  # fmt: skip
    return options | {"launch_pdl": True} if variant.dependent else options


def compile_variant(variant: Variant, *, capability: int) -> Any:
    """Compile ``variant`` for an NVIDIA ``capability`` such as 90; Triton's compiled kernel, with its PTX in ``asm``.

    Raises:
        InvalidInputError: the variant names no kernel.
    """
    if variant.kernel not in KERNELS:
        raise InvalidInputError(f"variant.kernel must be one of {', '.join(KERNELS)} (got {variant.kernel})")
    kernel = KERNELS[variant.kernel]
    constants = constants_of(variant)
    descriptors = _descriptors(variant, constants)
    absent = [p.name for p in kernel.params if p.name.endswith("_desc") and p.name not in descriptors]
    if constants.get("STORE_BY_DESCRIPTOR") is False:
        absent += [name for name in descriptors if name.startswith("out")]
    constants |= dict.fromkeys(absent)
    signature: dict[str, str] = {}
    attributes = {}
    for position, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in constants:
            signature[name] = "constexpr"
        elif name in descriptors:
            signature[name] = descriptors[name]
        elif name in _SCRATCH:
            signature[name] = _SCRATCH[name]
        elif name.endswith("_ptr"):
            signature[name] = _POINTERS[variant.stored if name == "out_ptr" else variant.loaded]
        else:
            signature[name] = parameter.annotation_type
        if name in ALIGNED:
            attributes[(position,)] = [["tt.divisibility", 16]]
    return triton_compile(
        source_of(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options=options_of(variant),
    )


def _descriptors(variant: Variant, constants: Mapping[str, Any]) -> dict[str, str]:
    """The signature of every tensor descriptor that the variant's kernel takes."""
    if variant.kernel in SPECIALISED_KERNELS:
        return {
            name: _specialised(variant.stored if name.startswith("out") else variant.loaded, box)
            for name, box in boxes_of(constants).items()
        }
    kmajor = variant.kernel == "kmajor_chain"
    if not kmajor and "A_ROWS" not in constants:
        return {}
    m, n, k = constants["BLOCK_M"], constants["BLOCK_N"], constants["BLOCK_K"]
    a = (m, k) if kmajor or constants["A_ROWS"] else (k, m)
    b = (k, n) if not kmajor and constants["B_ROWS"] else (n, k)
    boxes = {"a_desc": (variant.loaded, a), "b_desc": (variant.loaded_b or variant.loaded, b)}
    if not kmajor:
        boxes["out_desc"] = (variant.stored, (m, n // int(constants.get("CHUNKS", 1))))
    if beside := constants.get("BESIDE_N"):
        boxes["b_beside_desc"] = (variant.loaded, (k, beside) if constants["B_ROWS"] else (beside, k))
        boxes["out_beside_desc"] = (variant.stored, (m, beside))
    return {
        name: f"tensordesc<{_POINTERS[dtype].lstrip('*')}[{box[0]}, {box[1]}]>" for name, (dtype, box) in boxes.items()
    }


def _specialised(dtype: DType, box: tuple[int, int]) -> str:
    return descriptor_type(_POINTERS[dtype].lstrip("*"), box, dtype.itemsize)


def compiled_variants() -> dict[str, int]:
    """How many variants of each kernel this process has compiled or loaded, over all devices."""
    return {
        name: sum(len(caches[0]) for caches in getattr(kernel, "device_caches", {}).values())
        for name, kernel in KERNELS.items()
    }
