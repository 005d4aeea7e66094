"""Run a KernelChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from gemmdesc.descriptor import GEMMDesc
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.chain import chain_pointer_kernel, chain_tma_kernel
from gemmdesc.kernels.choose import (
    MAX_NARROW_OFFSET,
    KernelChoice,
    KernelMeta,
    Layout,
    MatrixMeta,
    Merge,
    Structure,
    choose_kernel,
)
from gemmdesc.kernels.compiling import constants_of
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.grouped_chain import grouped_chain_kernel
from gemmdesc.kernels.merge import merge_kernel
from gemmdesc.kernels.variants import MERGE_BLOCK, Variant, chain_variant, merge_variant

TORCH_TYPES: Mapping[torch.dtype, DType] = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
}


def matrix_meta(tensor: torch.Tensor) -> MatrixMeta:
    """What the chooser needs to know of a 2-D tensor.

    Raises:
        InvalidInputError: the type is none that the kernels know.
    """
    if tensor.dtype not in TORCH_TYPES:
        raise InvalidInputError(f"tensor must be float16, bfloat16 or float32 (got {tensor.dtype})")
    address = tensor.data_ptr()
    return MatrixMeta(
        dtype=TORCH_TYPES[tensor.dtype],
        row_stride=tensor.stride(0),
        column_stride=tensor.stride(1),
        alignment=min(address & -address, 256) if address else 256,
    )


def kernel_meta(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> KernelMeta:
    """The chooser's view of ``out = a @ b``.

    Raises:
        InvalidInputError: a tensor is not 2-D, or the sizes or devices do not match.
    """
    if a.dim() != 2 or b.dim() != 2 or out.dim() != 2:
        raise InvalidInputError(f"a, b and out must be 2-D (got {a.dim()}-D, {b.dim()}-D, {out.dim()}-D)")
    (m, k), (k_of_b, n) = a.shape, b.shape
    if k != k_of_b or tuple(out.shape) != (m, n):
        raise InvalidInputError(
            f"a, b and out must be (m, k), (k, n), (m, n) (got {tuple(a.shape)}, {tuple(b.shape)}, {tuple(out.shape)})"
        )
    if not a.device == b.device == out.device:
        raise InvalidInputError(f"a, b and out must share a device (got {a.device}, {b.device}, {out.device})")
    card = torch.cuda.get_device_properties(a.device)
    return KernelMeta(
        m=m,
        n=n,
        k=k,
        a=matrix_meta(a),
        b=matrix_meta(b),
        out=matrix_meta(out),
        sm_count=card.multi_processor_count,
        shared_bytes=card.shared_memory_per_block_optin,
    )


def run(
    desc: GEMMDesc,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    card: CardArithmetic,
    *,
    config: KernelConfig | None = None,
) -> KernelChoice | Declined:
    """Choose and launch; ``out`` is written unless the choice declines.

    Raises:
        InvalidInputError: the tensors do not form a product.
    """
    choice = choose_kernel(desc, kernel_meta(a, b, out), card, config=config)
    if isinstance(choice, KernelChoice):
        launch(choice, a, b, out)
    return choice


def launch(choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Launch ``choice`` on the tensors it was made for, on the current stream of their device."""
    with torch.cuda.device(a.device):
        launch_here(choice, a, b, out)


def launch_here(choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """:func:`launch` where the tensors' device is already the current one."""
    if choice.swapped:
        a, b, out = b.T, a.T, out.T
    merge = choice.slices.merge
    if merge is None:
        _launch_chain(choice, a, b, out, slice_stride=0)
        return
    m, n = out.shape
    partials = torch.empty((choice.slices.count, m, n), dtype=torch.float32, device=a.device)
    _launch_chain(choice, a, b, partials[0], slice_stride=m * n)
    _launch_merge(merge, partials, out)


def _launch_chain(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, *, slice_stride: int
) -> None:
    launcher = _launch_tma if choice.structure is Structure.CHAIN_TMA else _launch_pointers
    launcher(choice, a, b, target, slice_stride)


def _options(variant: Variant) -> dict[str, Any]:
    return {**constants_of(variant), "num_warps": variant.num_warps, "num_stages": variant.num_stages}


def _descriptor(tensor: torch.Tensor, layout: Layout, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor over the stored orientation, with boxes of rows x columns of ``tensor``."""
    if layout is Layout.ROWS:
        return TensorDescriptor.from_tensor(tensor, [rows, columns])
    return TensorDescriptor.from_tensor(tensor.T, [columns, rows])


def _launch_tma(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, slice_stride: int
) -> None:
    m, n = target.shape
    config, slices = choice.config, choice.slices
    a_desc = _descriptor(a[:, : slices.summed_k], choice.a_layout, config.block_m, config.block_k)
    b_desc = _descriptor(b[: slices.summed_k], choice.b_layout, config.block_k, config.block_n)
    out_desc = None
    if choice.store_by_descriptor:
        out_desc = TensorDescriptor.from_tensor(target, [config.block_m, config.block_n])
    chain_tma_kernel[(choice.programs,)](
        a_desc, b_desc, out_desc, target, m, n, slices.count, slices.span, -(-slices.span // config.block_k),
        slice_stride, target.stride(0), target.stride(1), **_options(chain_variant(choice)),
    )  # fmt: skip


def _launch_pointers(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, slice_stride: int
) -> None:
    m, n = target.shape
    slices = choice.slices
    arguments = (a, b, target, m, n, slices.summed_k, slices.span)
    strides = (*a.stride(), *b.stride(), slice_stride, *target.stride())
    options = _options(chain_variant(choice))
    if choice.structure is Structure.CHAIN_POINTER:
        chain_pointer_kernel[(choice.programs,)](*arguments, *strides, **options)
        return
    grouped_chain_kernel[(choice.programs,)](*arguments, slices.k_loop_step, *strides, **options)


def _launch_merge(merge: Merge, partials: torch.Tensor, out: torch.Tensor) -> None:
    count, m, n = partials.shape
    last = max(m * n, (m - 1) * out.stride(0) + (n - 1) * out.stride(1)) + MERGE_BLOCK
    variant = merge_variant(merge, TORCH_TYPES[out.dtype], wide_offsets=last > MAX_NARROW_OFFSET)
    grid = (-(-m * n // MERGE_BLOCK),)
    merge_kernel[grid](partials, out, m * n, n, count, *out.stride(), **_options(variant))
