"""The two operands of a planning call, given as tensors, as bare shapes, or as metas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdesc.dtypes import DType, parse_dtype
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.ops.inputs import check_on_gpu, check_operands, check_out, check_sizes, result_type, type_name
from gemmdesc.routes import TensorMeta, tensor_meta

if TYPE_CHECKING:
    import torch

def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """The TensorMeta of a checked tensor.

    Raises:
        InvalidInputError: the tensor is one that the checks of ``inputs`` refuse.
    """
    meta = tensor_meta(tensor)
    if isinstance(meta, Declined):
        raise InvalidInputError(f"tensor must be one that torch.mm takes: {meta.reason} (got {tensor.dtype})")
    return meta


def fresh(shape: tuple[int, int], dtype: DType) -> TensorMeta:
    """A row-major matrix as torch allocates it."""
    return TensorMeta(shape=shape, strides=(shape[1], 1), dtype=dtype)


def as_dtype(name: str, dtype: torch.dtype | DType | str) -> DType:
    """``dtype`` of torch, of ours, or its spelling, as ours.

    Raises:
        InvalidInputError: none of these.
    """
    if isinstance(dtype, DType):
        return dtype
    try:
        return parse_dtype(str(dtype).removeprefix("torch."))
    except InvalidInputError:
        raise InvalidInputError(f"{name} must be a type such as torch.float16 (got {dtype!r})") from None


def autocast_decline(dtype: DType, out_dtype: DType, *, fresh: bool) -> Declined | None:
    """A decline where autocast would convert operands of ``dtype`` first.

    It leaves ``torch.mm`` alone where that is given an ``out`` (``fresh`` is False) or another ``out_dtype``.
    """
    import torch

    if not fresh or dtype is not out_dtype or not torch.is_autocast_enabled("cuda"):
        return None
    target = type_name(torch.get_autocast_dtype("cuda"))
    if dtype.value == target:
        return None
    reason = f"autocast is on, under which torch.mm converts {dtype.value} operands to {target} first"
    return Declined(code="flags", reason=reason)


def tensor_sides(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """The metas of a product of tensors; without ``out``, of the result that torch would allocate.

    Raises:
        InvalidInputError: as :func:`check_operands`, :func:`check_out`, :func:`result_type` and :func:`check_on_gpu`.
    """
    dtype = checked(a, b, out, out_dtype)
    shape = (a.shape[0], b.shape[1])
    result = fresh(shape, parse_dtype(type_name(dtype))) if out is None else meta_of(out)
    return meta_of(a), meta_of(b), result


def checked(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None, *, on_gpu: bool = True
) -> torch.dtype:
    """The result's type, after every check of ``inputs``; ``on_gpu``: whether the tensors have to be there."""
    check_operands(a, b)
    if out is not None:
        check_out(out, a, b)
    dtype = result_type(a, out, out_dtype)
    if on_gpu:
        check_on_gpu("a", a)
    return dtype


def stated_sides(
    a: TensorMeta | tuple[int, int],
    b: TensorMeta | tuple[int, int],
    out: TensorMeta | None,
    dtype: torch.dtype | DType | str | None,
    out_dtype: torch.dtype | DType | str | None,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """The metas of a product without tensors; a bare shape is row-major, dense, and of ``dtype``.

    Raises:
        InvalidInputError: a shape without ``dtype``, a type that is none, sizes or types that do not match.
    """
    metas = []
    for name, side in (("a", a), ("b", b)):
        if isinstance(side, TensorMeta):
            metas.append(side)
            continue
        if not isinstance(side, tuple) or not all(type(size) is int for size in side):
            raise InvalidInputError(f"{name} must be a tensor, a TensorMeta or a shape (got {side!r})")
        if dtype is None:
            raise InvalidInputError(f"dtype must be given where {name} is a bare shape (got None)")
        if len(side) != 2:
            raise InvalidInputError(f"{name} must have shape (rows, columns) (got {side})")
        metas.append(fresh(side, as_dtype("dtype", dtype)))
    left, right = metas
    check_sizes(left.shape, right.shape)
    if right.dtype is not left.dtype:
        raise InvalidInputError(f"b must be of a's type {left.dtype.value} (got {right.dtype.value})")
    if out is not None and not isinstance(out, TensorMeta):
        raise InvalidInputError(f"out must be a TensorMeta where a and b are no tensors (got {type(out).__name__})")
    shape = (left.shape[0], right.shape[1])
    kind = left.dtype if out_dtype is None else as_dtype("out_dtype", out_dtype)
    result = fresh(shape, kind) if out is None else out
    if out_dtype is not None and result.dtype is not kind:
        raise InvalidInputError(f"out must be of out_dtype {kind.value} (got {result.dtype.value})")
    if result.shape != shape:
        raise InvalidInputError(f"out must have shape {shape} (got {result.shape})")
    if result.dtype not in (left.dtype, DType.FLOAT32):
        raise InvalidInputError(f"out_dtype must be {left.dtype.value} or float32 (got {result.dtype.value})")
    return left, right, result
