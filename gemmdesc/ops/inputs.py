"""What a product may be asked of: every other operand, ``out`` or type raises before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdesc.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

#: torch's names of the types that ``torch.mm`` multiplies on a GPU without converting; some decline later.
OPERAND_TYPES = ("float16", "bfloat16", "float32", "float64")


def type_name(dtype: torch.dtype) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def check_operands(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise unless ``a`` (m, k) and ``b`` (k, n) form a forward product of two plain tensors on one device.

    Raises:
        InvalidInputError: an operand is no tensor; sparse, quantised, nested, lazily conjugated or negated; not 2-D; of
            a type that is not in :data:`OPERAND_TYPES`; or requires grad while grad mode is on.  Types, sizes or
            devices do not match.
    """
    for name, operand in (("a", a), ("b", b)):
        check_plain(name, operand)
        if type_name(operand.dtype) not in OPERAND_TYPES:
            raise InvalidInputError(f"{name} must be of {' or '.join(OPERAND_TYPES)} (got {type_name(operand.dtype)})")
        check_no_grad(name, operand)
    if b.dtype != a.dtype:
        raise InvalidInputError(f"b must be of a's type {type_name(a.dtype)} (got {type_name(b.dtype)})")
    check_sizes(tuple(a.shape), tuple(b.shape))
    if b.device != a.device:
        raise InvalidInputError(f"b must be on a's device {a.device} (got {b.device})")


def check_sizes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raise InvalidInputError unless ``a`` is (m, k) and ``b`` (k, n), none of them negative."""
    for name, shape in (("a", a), ("b", b)):
        if len(shape) != 2 or min(shape) < 0:
            raise InvalidInputError(f"{name} must have shape (rows, columns) (got {shape})")
    if b[0] != a[1]:
        raise InvalidInputError(f"b must have {a[1]} rows, as many as a has columns (got shape {b})")


def check_plain(name: str, tensor: torch.Tensor, *, axes: int = 2) -> None:
    """Raise InvalidInputError unless ``tensor`` is dense, of so many ``axes``, and its memory holds its very values."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise InvalidInputError(f"{name} must be a torch.Tensor (got {type(tensor).__name__})")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "a nested tensor" if tensor.is_nested else tensor.layout
        raise InvalidInputError(f"{name} must be a dense, strided tensor (got {layout})")
    if tensor.is_quantized:
        raise InvalidInputError(f"{name} must not be quantised (got {type_name(tensor.dtype)})")
    if tensor.is_conj() or tensor.is_neg():
        lazy = "conjugated" if tensor.is_conj() else "negated"
        raise InvalidInputError(
            f"{name} must hold its values in memory, see resolve_conj() and resolve_neg() (got a lazily {lazy} view)"
        )
    if tensor.dim() != axes:
        raise InvalidInputError(f"{name} must be {axes}-D (got {tensor.dim()}-D of shape {tuple(tensor.shape)})")


def check_no_grad(name: str, tensor: torch.Tensor) -> None:
    """Raise InvalidInputError where the result would silently miss from the autograd graph, or lack its tangent."""
    import torch

    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidInputError(
            f"{name} must not require grad, as only the forward product is computed and the graph would be cut; use "
            f"torch.no_grad() or {name}.detach() (got requires_grad=True)"
        )
    if has_tangent(tensor):
        raise InvalidInputError(
            f"{name} must have no tangent, as only the forward product is computed and the derivative would be lost; "
            f"use forward_ad.unpack_dual({name}).primal (got a dual number)"
        )


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether torch's operators would carry a forward derivative of ``tensor`` on."""
    from torch.autograd import forward_ad

    if forward_ad._current_level < 0:
        return False
    try:
        return forward_ad.unpack_dual(tensor).tangent is not None
    except RuntimeError:
        # Below autograd and in inference mode nothing can be asked, and no operator gives a tangent.
        return False


def check_on_gpu(name: str, tensor: torch.Tensor) -> None:
    """Raise InvalidInputError for a tensor that is not on a CUDA device."""
    if tensor.device.type == "cuda":
        return
    replayed = "; on a CPU gemmdesc.replay gives the same bytes from a descriptor, and book= from a book"
    hint = replayed if tensor.device.type == "cpu" else ""
    raise InvalidInputError(f"{name} must be on a CUDA device{hint} (got {tensor.device})")


def result_type(a: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    """The result's type: ``out_dtype``, else that of ``out``, else the operands'.

    Raises:
        InvalidInputError: it is neither the operands' type nor float32, or ``out`` is of another.
    """
    import torch

    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise InvalidInputError(f"out_dtype must be a torch.dtype (got {out_dtype!r})")
    allowed = tuple(dict.fromkeys((a.dtype, torch.float32)))
    names = " or ".join(type_name(d) for d in allowed)
    if out_dtype is not None and out_dtype not in allowed:
        raise InvalidInputError(f"out_dtype must be {names} for operands of {type_name(a.dtype)} (got {out_dtype})")
    if out is None:
        return out_dtype or a.dtype
    if out_dtype is not None and out.dtype != out_dtype:
        raise InvalidInputError(f"out must be of out_dtype {type_name(out_dtype)} (got {type_name(out.dtype)})")
    if out.dtype not in allowed:
        raise InvalidInputError(f"out must be of {names} for these operands (got {type_name(out.dtype)})")
    return out.dtype


def check_out(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise unless the product of ``a`` and ``b`` can be written to ``out`` without resizing or touching an operand.

    Padded rows are welcome; what lies between them is not written.

    Raises:
        InvalidInputError: no plain 2-D tensor, requires grad, another shape or device, or shares an element with
            itself or an operand.
    """
    check_plain("out", out)
    check_no_grad("out", out)
    wanted = (a.shape[0], b.shape[1])
    if tuple(out.shape) != wanted:
        raise InvalidInputError(f"out must have shape {wanted} (got {tuple(out.shape)})")
    if out.device != a.device:
        raise InvalidInputError(f"out must be on a's device {a.device} (got {out.device})")
    if overlaps_itself(out):
        raise InvalidInputError(
            f"out must have a place of its own for every element (got shape {wanted}, strides {out.stride()})"
        )
    for name, operand in (("a", a), ("b", b)):
        if overlap(out, operand):
            raise InvalidInputError(f"out must not share memory with {name} (got overlapping address ranges)")


def overlaps_itself(t: torch.Tensor) -> bool:
    """Whether two elements of a tensor may share an address: whether no stride reaches past the others' reach."""
    axes = sorted((stride, size) for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1)
    reach = 1
    for stride, size in axes:
        if stride < reach:
            return bool(t.numel())
        reach = stride * (size - 1) + reach
    return False


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors may share memory.

    Exact for matrices whose lines are dense and have the same pitch, such as two column blocks of one buffer; else
    whether the address ranges from first to last element meet.
    """
    if not one.numel() or not other.numel():
        return False
    (begin, end), (other_begin, other_end) = extent(one), extent(other)
    if end <= other_begin or other_end <= begin:
        return False
    if one.dim() != 2 or other.dim() != 2:
        return True
    lines, other_lines = _lines(one), _lines(other)
    if lines is None or other_lines is None or lines[0] != other_lines[0]:
        return True
    pitch, length, other_length = lines[0], lines[1], other_lines[1]
    ahead = (other_begin - begin) % pitch
    return ahead < length or pitch - ahead < other_length


def extent(t: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte, and of the one behind its last."""
    size = int(t.element_size())
    last = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
    return int(t.data_ptr()), int(t.data_ptr()) + (last + 1) * size


def _lines(t: torch.Tensor) -> tuple[int, int] | None:
    """(pitch, length) in bytes of a matrix stored as dense lines that do not overlap."""
    size = int(t.element_size())
    for line, across in ((1, 0), (0, 1)):
        if t.stride(line) == 1 and t.stride(across) >= t.shape[line]:
            return int(t.stride(across)) * size, int(t.shape[line]) * size
    return None
