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
from gemmdesc.kernels.instructions import ALPHA, BIAS, MOST_OPERANDS, NUMBER, OPERAND_KINDS, Instructions
from gemmdesc.kernels.launch import TORCH_TYPES, enqueue, packed_operands, tensor_descriptor
from gemmdesc.kernels.recording import RECORDER, NotRecordableError
from gemmdesc.kernels.structure import Structure
from gemmdesc.kernels.variants_fused import AFTER_M, AFTER_N, fused_variant

_FLOAT8 = {DType.FLOAT8_E4M3FN: 1, DType.FLOAT8_E5M2: 2}
#: Bits of the kind of one operand.
_KIND_BITS = 4

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
        NotRecordableError: a program is being recorded.
    """
    if RECORDER.get() is not None:
        raise NotRecordableError("operands by name, whose layouts differ from call to call")
    require_operands(choice.program, out, beside)
    if choice.in_chain:
        chain = choice.product
        turned = (b.T, a.T, out.T, beside.transposed) if chain.swapped else (a, b, out, beside)
        launch = _launch_tma if chain.structure is Structure.CHAIN_TMA else _launch_pointer
        launch(choice, chain, *turned)
        return
    scratch = torch.empty(out.shape, dtype=_torch_type(choice.product_dtype), device=out.device)
    product(choice.product, a, b, scratch, beside)
    rows, columns = out.shape
    enqueue(
        fused_variant(choice), -(-rows // AFTER_M) * -(-columns // AFTER_N), scratch.data_ptr(),
        OPERAND_KINDS[choice.product_dtype], out.data_ptr(), rows, columns, scratch.stride(0), *out.stride(),
        *program_arguments(choice, beside),
    )  # fmt: skip


def require_operands(program: Instructions, out: torch.Tensor, beside: Beside) -> None:
    """Raise InvalidInputError unless ``beside`` has what ``program`` reads, each as it lies over ``out``."""
    for name in program.operands:
        given = _given(name, beside)
        if isinstance(given, float):
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
        return float(beside.alpha)
    if name == BIAS:
        return beside.bias
    return beside.named.get(name)


def program_arguments(choice: FusedChoice, beside: Beside) -> tuple[int | float, ...]:
    """The program and its operands as every fused kernel takes them."""
    program, kinds = choice.program, 0
    addresses, rows, columns = ([0] * MOST_OPERANDS for _ in range(3))
    values = [0.0] * MOST_OPERANDS
    for i, name in enumerate(program.operands):
        given = _given(name, beside)
        if isinstance(given, torch.Tensor):
            tensor = given if max(given.stride()) <= MOST_STRIDE else given.contiguous()
            addresses[i], (rows[i], columns[i]) = tensor.data_ptr(), tensor.stride()
            kinds |= OPERAND_KINDS[TORCH_TYPES[tensor.dtype]] << _KIND_BITS * i
        else:
            assert given is not None
            values[i] = given
            kinds |= NUMBER << _KIND_BITS * i
    return (
        *program.words, program.count, *addresses, kinds, *values, *rows, *columns, int(program.overflows),
        int(program.canonical), _FLOAT8.get(choice.output_dtype, 0),
    )  # fmt: skip


def _launch_tma(
    choice: FusedChoice, chain: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside
) -> None:
    config = chain.config
    a, b, span = packed_operands(chain, a, b)
    enqueue(
        fused_variant(choice), chain.programs, tensor_descriptor(a, chain.a_layout, config.block_m, config.block_k),
        tensor_descriptor(b, chain.b_layout, config.block_k, config.block_n), out.data_ptr(), *out.shape,
        -(-span // config.block_k), *out.stride(), *program_arguments(choice, beside),
    )  # fmt: skip


def _launch_pointer(
    choice: FusedChoice, chain: KernelChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, beside: Beside
) -> None:
    enqueue(
        fused_variant(choice), chain.programs, a, b, out.data_ptr(), *out.shape, chain.slices.summed_k, *a.stride(),
        *b.stride(), *out.stride(), *program_arguments(choice, beside),
    )  # fmt: skip


def _torch_type(dtype: DType) -> torch.dtype:
    return next(kind for kind, named in TORCH_TYPES.items() if named is dtype)
