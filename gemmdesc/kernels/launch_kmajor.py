"""Run a KMajorChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gemmdesc.descriptor import Start
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.kmajor import FINISH_BLOCK, PACK_ROWS, KMajorChoice, KMajorPacking
from gemmdesc.kernels.launch import TORCH_TYPES, enqueue, tensor_descriptor
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.variants_kmajor import (
    kmajor_chain_variant,
    kmajor_pack_variant,
    scaled_merge_variant,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scales:
    """What an epilogue multiplies by: float32 tensors of one element on the operands' device.

    ``scale``: alpha times the product of the operands' scales, formed in float32.  ``output``: the scale of an 8-bit
    output.

    Raises:
        InvalidInputError: a tensor has another type or more than one element.
    """

    scale: torch.Tensor | None = None
    output: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in (("scale", self.scale), ("output", self.output)):
            if value is not None and (value.dtype is not torch.float32 or value.numel() != 1):
                raise InvalidInputError(f"{name} must be one float32 (got {value.dtype}, {tuple(value.shape)})")


def launch_kmajor(
    choice: KMajorChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scales: Scales | None = None
) -> None:
    """Launch ``choice`` on the tensors it was made for; their device is already the current one.

    Raises:
        InvalidInputError: the choice has an epilogue, and ``scales`` lacks what it takes, or has it on another device.
    """
    given = (None, None) if scales is None else (scales.scale, scales.output)
    for name, value in list(zip(("scale", "output"), given, strict=True))[: choice.scales]:
        if value is None or value.device != a.device:
            raise InvalidInputError(f"scales.{name} must be given on {a.device} (got {value})")
    if choice.swapped:
        a, b, out = b.T, a.T, out.T
    if not choice.finishes:
        _launch_chain(choice, a, b.T, out, 0)
        return
    m, n = out.shape
    sums = torch.empty((choice.blocks.slices, m, n), dtype=torch.float32, device=a.device)
    _launch_chain(choice, a, b.T, sums[0], m * n)
    merge = choice.merge
    variant = scaled_merge_variant(merge, choice.output_dtype, scales=choice.scales, wide_offsets=choice.wide_merge)
    unused = sums
    enqueue(
        variant, -(-m * n // FINISH_BLOCK), sums, out, unused if given[0] is None else given[0],
        unused if given[1] is None else given[1], m * n, n, len(sums), _opening(merge.start), *out.stride(),
    )  # fmt: skip


def _launch_chain(
    choice: KMajorChoice, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, slice_stride: int
) -> None:
    """``a`` is (m, k) and ``b`` is (n, k); a slice's sums go to ``target`` and ``slice_stride`` elements on."""
    blocks, config = choice.blocks, choice.config
    if choice.packings is None:
        a, b = a[:, : blocks.summed_k], b[:, : blocks.summed_k]
    else:
        a, b = (_pack(choice, packing, x) for packing, x in zip(choice.packings, (a, b), strict=True))
    enqueue(
        kmajor_chain_variant(choice), choice.programs,
        tensor_descriptor(a, Layout.ROWS, config.block_m, config.block_k),
        tensor_descriptor(b, Layout.ROWS, config.block_n, config.block_k),
        target, *target.shape, blocks.slices, blocks.count, blocks.per_slice, choice.k_tiles,
        _opening(blocks.fold), 0.0, slice_stride, *target.stride(),
    )  # fmt: skip


def _pack(choice: KMajorChoice, packing: KMajorPacking, source: torch.Tensor) -> torch.Tensor:
    """A copy (rows, lanes) of ``source`` (rows, k): see :func:`gemmdesc.kernels.kmajor_chain.kmajor_pack_kernel`."""
    blocks, rows = choice.blocks, source.shape[0]
    lanes = blocks.count * choice.span
    packed = torch.empty((rows, lanes), dtype=source.dtype, device=source.device)
    variant = kmajor_pack_variant(
        packing.source, dtype=TORCH_TYPES[source.dtype], cast=packing.cast, instruction_k=choice.instruction_k,
        step_lanes=choice.step_lanes, wide_offsets=packing.wide,
    )  # fmt: skip
    programs = -(-rows // PACK_ROWS) * (lanes // choice.config.block_k)
    enqueue(
        variant, programs, source, packed, rows, blocks.count, blocks.summed_k, blocks.span, choice.span,
        choice.k_loop_step, *source.stride(), packed.stride(0),
    )  # fmt: skip
    return packed


def _opening(start: Start | None) -> float:
    """What a fold's first addition adds to: -0.0 leaves every value as it is."""
    return 0.0 if start is Start.ZERO else -0.0
