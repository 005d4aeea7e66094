"""Run a FusedChoice on CUDA tensors, on the current stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.kernels.beside import Beside
from gemmdesc.kernels.choose import KernelChoice
from gemmdesc.kernels.fused import MOST_STRIDE, FusedChoice
from gemmdesc.kernels.instructions import ALPHA, BIAS, MOST_OPERANDS, OPERAND_KINDS, Instructions
from gemmdesc.kernels.launch import TORCH_TYPES, enqueue, matrix_meta, packed_operands, tensor_descriptor
from gemmdesc.kernels.launch_specialised import described
from gemmdesc.kernels.meta import Layout
from gemmdesc.kernels.recording import address_of
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants_fused import AFTER_M, AFTER_N, chunks_of, fused_variant, operand_format

#: Launches a product alone: choice, a, b, out, what is beside them.
LaunchProduct = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, Beside], None]


def launch_fused(
    choice: FusedChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside, product: LaunchProduct
) -> None:
    """``out``, of the product of ``a`` and ``b`` and what follows it; operands are read as ``out`` is written.

    ``product``: launches the product alone, where it is not one kernel with the rest.  An operand may be ``out`` itself
    where it has its type and strides: each element is read by the thread that writes it.

    Raises:
        InvalidInputError: the program takes an operand that ``beside`` lacks, or one of another type or shape.
        NotRecordableError: a program is being recorded, and an operand has strides too large for kernels.
    """
    require_operands(choice.program, out, beside)
    if choice.in_chain:
        chain = choice.product
        turned = (b.T, a.T, out.T, beside.transposed) if chain.swapped else (a, b, out, beside)
        launch = _LAUNCHES[chain.structure]
        launch(choice, chain, *turned)
        return
    scratch = torch.empty(out.shape, dtype=_torch_type(choice.product_dtype), device=out.device)
    product(choice.product, a, b, scratch, beside)
    rows, columns = out.shape
    formats, arguments = program_arguments(choice, out, beside)
    enqueue(
        fused_variant(choice, formats), -(-rows // AFTER_M) * -(-columns // AFTER_N), address_of(scratch),
        address_of(out), rows, columns, scratch.stride(0), *out.stride(), *arguments,
    )  # fmt: skip


def require_operands(program: Instructions, out: torch.Tensor, beside: Beside) -> None:
    """Raise InvalidInputError unless ``beside`` has what ``program`` reads, each as it lies over ``out``."""
    for name in program.operands:
        given = _given(name, beside)
        if isinstance(given, int | float):
            continue
        fits = given is not None and given.shape == out.shape and TORCH_TYPES.get(given.dtype) in OPERAND_KINDS
        if given is None or not fits or given.device != out.device:
            got = None if given is None else (tuple(given.shape), given.dtype, str(given.device))
            raise InvalidInputError(
                f"{name.strip('<>')} must be a float, or {tuple(out.shape)} of a 16- or 32-bit float on {out.device} "
                f"(got {got})"
            )


def _given(name: str, beside: Beside) -> torch.Tensor | float | None:
    if name == ALPHA:
        return beside.alpha
    if name == BIAS:
        return beside.bias
    return beside.named.get(name)


def program_arguments(
    choice: FusedChoice, out: torch.Tensor, beside: Beside
) -> tuple[tuple[int, ...], tuple[int | float, ...]]:
    """The operands of the program over ``out``: how each lies, and what every fused kernel takes."""
    formats: list[int] = []
    addresses, rows, columns = ([0] * MOST_OPERANDS for _ in range(3))
    values = [0.0] * MOST_OPERANDS
    for i, name in enumerate(choice.program.operands):
        given = _given(name, beside)
        if isinstance(given, torch.Tensor):
            tensor = given if max(given.stride()) <= MOST_STRIDE else given.contiguous()
            addresses[i], (rows[i], columns[i]) = address_of(tensor), tensor.stride()
            formats.append(operand_format(matrix_meta(tensor), *out.shape))
        else:
            assert given is not None
            values[i] = given
            formats.append(operand_format(None, *out.shape))
    return tuple(formats), (*addresses, *values, *rows, *columns)


def _launch_tma(
    choice: FusedChoice, chain: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside
) -> None:
    config = chain.config
    a, b, span = packed_operands(chain, a, b)
    out_desc = None
    if choice.store_by_descriptor:
        parts = chunks_of(config, choice.program.program, choice.program.count)
        out_desc = tensor_descriptor(out, Layout.ROWS, config.block_m, config.block_n // parts)
    formats, arguments = program_arguments(choice, out, beside)
    enqueue(
        fused_variant(choice, formats), chain.programs,
        tensor_descriptor(a, chain.a_layout, config.block_m, config.block_k),
        tensor_descriptor(b, chain.b_layout, config.block_k, config.block_n), out_desc, address_of(out), *out.shape,
        -(-span // config.block_k), *out.stride(), *arguments,
    )  # fmt: skip


def _launch_pointer(
    choice: FusedChoice, chain: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside
) -> None:
    formats, arguments = program_arguments(choice, out, beside)
    enqueue(
        fused_variant(choice, formats), chain.programs, a, b, address_of(out), *out.shape, chain.slices.summed_k,
        *a.stride(), *b.stride(), *out.stride(), *arguments,
    )  # fmt: skip


def _launch_specialised(
    choice: FusedChoice, chain: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside
) -> None:
    a, b, span = packed_operands(chain, a, b)
    formats, arguments = program_arguments(choice, out, beside)
    variant = fused_variant(choice, formats)
    enqueue(
        variant, chain.programs, *described(chain, variant, a, b, out), *out.shape, -(-span // chain.config.block_k),
        *arguments,
    )  # fmt: skip


#: By the structure of the chain whose kernel does the rest, too.
_LAUNCHES = {
    Structure.CHAIN_TMA: _launch_tma, Structure.CHAIN_POINTER: _launch_pointer,
    Structure.CHAIN_SPECIALISED: _launch_specialised,
}  # fmt: skip


def _torch_type(dtype: DType) -> torch.dtype:
    return next(kind for kind, named in TORCH_TYPES.items() if named is dtype)
