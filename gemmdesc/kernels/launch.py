"""Run a KernelChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from gemmdesc.descriptor import GEMMDesc, Start
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.card import CardArithmetic
from gemmdesc.kernels.choose import MAX_NARROW_OFFSET, KernelChoice, Packing, choose_kernel
from gemmdesc.kernels.choose_lanes import LaneChoice
from gemmdesc.kernels.compiling import KERNELS, constants_of, options_of
from gemmdesc.kernels.config import KernelConfig
from gemmdesc.kernels.launch_clustered import launch_clustered
from gemmdesc.kernels.launch_lanes import launch_lanes
from gemmdesc.kernels.launch_nest import launch_nest
from gemmdesc.kernels.launch_specialised import launch_specialised
from gemmdesc.kernels.meta import TMA_ALIGNMENT, KernelMeta, Layout, MatrixMeta
from gemmdesc.kernels.nest import NestChoice
from gemmdesc.kernels.recording import RECORDER, zero_counters
from gemmdesc.kernels.slices import Merge
from gemmdesc.kernels.steps import rounding_code
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants import (
    MERGE_BLOCK,
    PACK_LANES,
    PACK_ROWS,
    Variant,
    chain_variant,
    merge_variant,
    packing_variant,
)

TORCH_TYPES: Mapping[torch.dtype, DType] = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float8_e4m3fn: DType.FLOAT8_E4M3FN,
    torch.float8_e5m2: DType.FLOAT8_E5M2,
}


def matrix_meta(tensor: torch.Tensor) -> MatrixMeta:
    """What the chooser needs to know of a 2-D tensor.

    Raises:
        InvalidInputError: the type is none that the kernels know.
    """
    if tensor.dtype not in TORCH_TYPES:
        raise InvalidInputError(f"tensor must be float16, bfloat16, float32 or an 8-bit float (got {tensor.dtype})")
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
    card: Any = torch.cuda.get_device_properties(a.device)
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
    structure: Structure | None = None,
) -> KernelChoice | NestChoice | LaneChoice | Declined:
    """Choose and launch; ``out`` is written unless the choice declines.

    Raises:
        InvalidInputError: the tensors do not form a product.
    """
    choice = choose_kernel(desc, kernel_meta(a, b, out), card, config=config, structure=structure)
    if not isinstance(choice, Declined):
        launch(choice, a, b, out)
    return choice


def launch(
    choice: KernelChoice | NestChoice | LaneChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> None:
    """Launch ``choice`` on the tensors it was made for, on the current stream of their device."""
    with torch.cuda.device(a.device):
        launch_here(choice, a, b, out)


def launch_here(
    choice: KernelChoice | NestChoice | LaneChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> None:
    """:func:`launch` where the tensors' device is already the current one."""
    if isinstance(choice, NestChoice):
        launch_nest(choice, a, b, out, enqueue)
        return
    if isinstance(choice, LaneChoice):
        launch_lanes(choice, a, b, out, enqueue)
        return
    if choice.swapped:
        a, b, out = b.T, a.T, out.T
    if choice.structure.merged:
        _launch_merged(choice, a, b, out)
        return
    if not choice.merges:
        launch_chain(choice, a, b, out, slice_stride=0)
        return
    m, n = out.shape
    partials = torch.empty((choice.slices.count, m, n), dtype=torch.float32, device=a.device)
    launch_chain(choice, a, b, partials[0], slice_stride=m * n)
    assert choice.slices.merge is not None
    _launch_merge(choice.slices.merge, partials, out)


def launch_chain(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, *, slice_stride: int
) -> None:
    """The chain kernel of ``choice`` alone: a slice's sums go to ``target`` and ``slice_stride`` elements on."""
    if not choice.structure.by_descriptor:
        _launch_pointers(choice, a, b, target, slice_stride)
        return
    a, b, span = packed_operands(choice, a, b)
    if choice.structure is Structure.CHAIN_SPECIALISED:
        launch_specialised(choice, a, b, target, span, enqueue)
        return
    _launch_tma(choice, a, b, target, span, slice_stride)


def packed_operands(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """What a tensor-descriptor kernel of ``choice`` reads, copied where it says so, and the span of slices there."""
    slices, packing = choice.slices, choice.packing
    if packing is None:
        return a[:, : slices.summed_k], b[: slices.summed_k], slices.span
    b = b.T  # (n, k), as the copying sees it
    copies = [_empty_copy(choice, packing, *side) for side in ((a, packing.a_source), (b, packing.b_source.transposed))]
    (a_copy, a_stride), (b_copy, b_stride) = copies
    blocks_k = slices.count * packing.span // PACK_LANES
    a_programs, b_programs = (-(-x.shape[0] // PACK_ROWS) * blocks_k for x in (a, b))
    enqueue(
        packing_variant(choice, packing), a_programs + b_programs, a, a_copy, b, b_copy, a_programs, a.shape[0],
        b.shape[0], slices.count, slices.summed_k, slices.span, packing.span, slices.k_loop_step,
        *a.stride(), a_stride, *b.stride(), b_stride,
    )  # fmt: skip
    return a_copy, b_copy.T, packing.span


def enqueue(variant: Variant, programs: int, *arguments: Any) -> None:
    """Start one kernel on the current stream, or hand it to the recorder of this thread."""
    recorder = RECORDER.get()
    if recorder is not None:
        recorder.add(variant, programs, arguments)
        return
    if variant.cluster > 1:
        launch_clustered(variant, programs, arguments)
        return
    kernel = KERNELS[variant.kernel]
    kernel[(programs,)](*arguments, **constants_of(variant), **options_of(variant))


def _empty_copy(
    choice: KernelChoice, packing: Packing, source: torch.Tensor, layout: Layout
) -> tuple[torch.Tensor, int]:
    """Room for a copy (rows, lanes) of ``source`` (rows, k), and the pitch of its lines."""
    rows, lanes = source.shape[0], choice.slices.count * packing.span
    if layout is Layout.COLUMNS:
        padded = -(-rows // PACK_ROWS) * PACK_ROWS
        return torch.empty((lanes, padded), dtype=source.dtype, device=source.device)[:, :rows].T, padded
    return torch.empty((rows, lanes), dtype=source.dtype, device=source.device), lanes


def tensor_descriptor(tensor: torch.Tensor, layout: Layout, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor over the stored orientation, with boxes of rows x columns of ``tensor``."""
    stored, box = (tensor, [rows, columns]) if layout is Layout.ROWS else (tensor.T, [columns, rows])
    lines, length = stored.shape
    # Where there is one line, what a descriptor must say of the next is free.
    stride = stored.stride(0) if lines > 1 else -(-length // TMA_ALIGNMENT) * TMA_ALIGNMENT
    return TensorDescriptor(stored, [lines, length], [stride, 1], box)


def _launch_tma(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, span: int, slice_stride: int
) -> None:
    config, count = choice.config, choice.slices.count
    a_desc = tensor_descriptor(a, choice.a_layout, config.block_m, config.block_k)
    widths = (config.block_n, config.beside_n) if config.beside_n else (config.block_n,)
    b_descs = [tensor_descriptor(b, choice.b_layout, config.block_k, width) for width in widths]
    out_descs: list[TensorDescriptor | None] = [None for _ in widths]
    if choice.store_by_descriptor:
        out_descs = [tensor_descriptor(target, Layout.ROWS, config.block_m, width) for width in widths]
    common = (a_desc, *b_descs, *out_descs, target, *target.shape, count, span, -(-span // config.block_k))
    variant = chain_variant(choice)
    if choice.structure is Structure.FOLDED_CHAIN:
        assert choice.slices.merge is not None
        enqueue(variant, choice.programs, *common, _start(choice.slices.merge), *target.stride())
    else:
        enqueue(variant, choice.programs, *common, slice_stride, *target.stride())


def _launch_pointers(
    choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, slice_stride: int
) -> None:
    slices = choice.slices
    arguments = [a, b, target, *target.shape, slices.summed_k, slices.span]
    if choice.structure is Structure.GROUPED_CHAIN:
        arguments.append(slices.k_loop_step)
    enqueue(
        chain_variant(choice), choice.programs, *arguments, *a.stride(), *b.stride(), slice_stride, *target.stride()
    )


def _launch_merged(choice: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Slices and their fold by one kernel, whose last program of a tile folds what all of them left in scratch."""
    config, slices, merge = choice.config, choice.slices, choice.slices.merge
    assert merge is not None
    tiles = config.tiles(*out.shape)
    scratch = torch.empty(
        (slices.count, tiles, config.block_m, config.block_n), dtype=torch.float32, device=a.device
    )  # fmt: skip
    fold = (
        out, scratch, zero_counters(tiles, a.device), *out.shape, slices.count, _start(merge),
        rounding_code(merge.partial_dtype), rounding_code(merge.merge_dtype),
    )  # fmt: skip
    variant = chain_variant(choice)
    if choice.structure.by_descriptor:
        a, b, span = packed_operands(choice, a, b)
        a_desc = tensor_descriptor(a, choice.a_layout, config.block_m, config.block_k)
        b_desc = tensor_descriptor(b, choice.b_layout, config.block_k, config.block_n)
        enqueue(variant, choice.programs, a_desc, b_desc, *fold, span, -(-span // config.block_k), *out.stride())
        return
    turn = (slices.k_loop_step,) if choice.structure is Structure.MERGED_GROUPED else ()
    enqueue(
        variant, choice.programs, a, b, *fold, slices.summed_k, slices.span, *turn, *a.stride(), *b.stride(),
        *out.stride(),
    )  # fmt: skip


def _start(merge: Merge) -> float:
    """What the fold's first addition adds to: -0.0 leaves every value as it is."""
    return -0.0 if merge.start is Start.FIRST else 0.0


def _launch_merge(merge: Merge, partials: torch.Tensor, out: torch.Tensor) -> None:
    count, m, n = partials.shape
    last = max(m * n, (m - 1) * out.stride(0) + (n - 1) * out.stride(1)) + MERGE_BLOCK
    variant = merge_variant(merge, TORCH_TYPES[out.dtype], wide_offsets=last > MAX_NARROW_OFFSET)
    programs = -(-m * n // MERGE_BLOCK)
    enqueue(variant, programs, partials, out, m * n, n, count, _start(merge), *out.stride())
