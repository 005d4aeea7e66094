"""Calls that say what :func:`gemmdesc.matmul` would do, and prepare it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdesc.books import Book
from gemmdesc.dtypes import DType
from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.library.torch_settings import read_settings
from gemmdesc.ops.booked import book_planner, booked_sides, opened_book, require_no_planner
from gemmdesc.ops.defaults import chosen_planner
from gemmdesc.ops.launching import launch_plan
from gemmdesc.ops.sides import as_dtype, autocast_decline, meta_of, stated_sides, tensor_sides
from gemmdesc.plan import Explanation, Plan, Planner, explain_outcome
from gemmdesc.profiles import Level
from gemmdesc.routes import TensorMeta

if TYPE_CHECKING:
    import torch


def plan(
    a: torch.Tensor | TensorMeta | tuple[int, int],
    b: torch.Tensor | TensorMeta | tuple[int, int],
    *,
    out: torch.Tensor | TensorMeta | None = None,
    out_dtype: torch.dtype | DType | str | None = None,
    dtype: torch.dtype | DType | str | None = None,
    device_index: int | None = None,
    profiles: str | Path | None = None,
    planner: Planner | None = None,
    book: Book | str | Path | None = None,
    accept: Level | str = Level.VERIFIED,
    pin: int | None = None,
) -> Plan | Declined:
    """What ``matmul(a, b)`` would do, under torch's settings at this moment; nothing is computed or allocated.

    Args:
        a: (m, k): a CUDA tensor, a :class:`gemmdesc.routes.TensorMeta`, or a bare shape, which stands for a row-major
            matrix as torch allocates it.
        b: (k, n); a tensor exactly if ``a`` is one.
        out: as :func:`matmul`; a new row-major tensor by default.
        out_dtype: as :func:`matmul`.
        dtype: the operands' type, needed for bare shapes only.
        device_index: the CUDA device where ``a`` is no tensor, the current one by default.
        profiles: as :func:`matmul`.
        planner: as :func:`matmul`.
        book: as :func:`matmul`; tensors may then be on a CPU, and without a GPU the kernel is one for the book's card.
        accept: as :func:`matmul`.
        pin: a number of rows of ``a``: every row is summed in the order that the library has at that number, where
            ``a`` and ``out`` are new tensors, so that its bits do not depend on the rows beside it.

    Declines where :func:`matmul` does, for an empty product, which needs no plan, and where rows of the pinned shape
    have several orders (``no_reference``).

    Raises:
        InvalidInputError: as :func:`matmul`, a bare shape without ``dtype``, or ``pin`` below 1.
        LibraryError: no GPU that torch can use, or torch has no cuBLASLt mapped.
        ProfileError: the profile that should apply is broken.
        BookError: the book's file is none, or not whole.
        CaptureError: a CUDA graph is being captured, and the plan was not made before.
    """
    _, sides, chosen = _asked(a, b, out, out_dtype, dtype, device_index, profiles, planner, book, accept)
    return _plan(chosen, sides, fresh=out is None, book=book, pin=pin)


def explain(
    a: torch.Tensor | TensorMeta | tuple[int, int],
    b: torch.Tensor | TensorMeta | tuple[int, int],
    *,
    out: torch.Tensor | TensorMeta | None = None,
    out_dtype: torch.dtype | DType | str | None = None,
    dtype: torch.dtype | DType | str | None = None,
    device_index: int | None = None,
    profiles: str | Path | None = None,
    planner: Planner | None = None,
    book: Book | str | Path | None = None,
    accept: Level | str = Level.VERIFIED,
    pin: int | None = None,
) -> Explanation:
    """:func:`plan` in words: the library's kernels and answer, the order, how it is known, a lost tail, our kernel.

    Takes and raises what :func:`plan` does; a decline is explained, too.
    """
    sizes, sides, chosen = _asked(a, b, out, out_dtype, dtype, device_index, profiles, planner, book, accept)
    outcome = _plan(chosen, sides, fresh=out is None, book=book, pin=pin)
    return explain_outcome(sizes, outcome, chosen.library, chosen.device)


Sides = tuple[TensorMeta, TensorMeta, TensorMeta]
Sizes = tuple[tuple[int, int], tuple[int, int]]


def _asked(
    a: torch.Tensor | TensorMeta | tuple[int, int],
    b: torch.Tensor | TensorMeta | tuple[int, int],
    out: torch.Tensor | TensorMeta | None,
    out_dtype: torch.dtype | DType | str | None,
    dtype: torch.dtype | DType | str | None,
    device_index: int | None,
    profiles: str | Path | None,
    planner: Planner | None,
    book: Book | str | Path | None,
    accept: Level | str,
) -> tuple[Sizes, Sides, Planner]:
    import torch

    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        sides = tensor_sides(a, b, out, out_dtype) if book is None else booked_sides(a, b, out, out_dtype)
        own = getattr(a, "device").index  # noqa: B009 (the checks found a tensor)
        if device_index not in (None, own):
            raise InvalidInputError(f"device_index must be that of the tensors, {own} (got {device_index})")
        device_index = own
    else:
        sides = stated_sides(a, b, out, dtype, out_dtype)
    if book is not None:
        require_no_planner(planner)
        return (sides[0].shape, sides[1].shape), sides, book_planner(book, device_index, profiles, accept)
    return (sides[0].shape, sides[1].shape), sides, chosen_planner(device_index, profiles, planner, accept)


def _plan(
    planner: Planner, sides: Sides, *, fresh: bool, book: Book | str | Path | None, pin: int | None
) -> Plan | Declined:
    captured = _capturing(planner.device_index)
    if book is not None:
        return planner.plan_mm(*sides, opened_book(book).settings, captured=captured, pin=pin)
    declined = autocast_decline(sides[0].dtype, sides[2].dtype, fresh=fresh)
    if declined is not None:
        return declined
    return planner.plan_mm(*sides, read_settings(planner.device.sm), captured=captured, pin=pin)


def _capturing(device_index: int) -> bool:
    import torch

    if not torch.cuda.is_available():
        return False
    with torch.cuda.device(device_index):
        return bool(torch.cuda.is_current_stream_capturing())


def warmup(
    shapes: Iterable[tuple[int, int, int]],
    *,
    dtype: torch.dtype | DType | str,
    out_dtype: torch.dtype | DType | str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    device_index: int | None = None,
    profiles: str | Path | None = None,
    planner: Planner | None = None,
) -> tuple[Plan | Declined, ...]:
    """Plan, compile and run once each (m, n, k), so that later calls, and graph captures, start at once.

    Operands are new row-major tensors of ``dtype``; ``transpose_a``: ``a`` is the transpose of a row-major (k, m), and
    ``transpose_b`` likewise, as in ``x @ weight.T``.  Their memory is allocated and freed again, one shape at a time.

    Returns:
        The plan or the decline of each shape, in order.

    Raises:
        InvalidInputError: a shape that is no (m, n, k) of at least 1 each, or a type that no product has.
        LibraryError: no GPU that torch can use, or torch has no cuBLASLt mapped.
        ProfileError: the profile that should apply is broken.
    """
    asked = tuple(shapes)
    for shape in asked:
        if len(shape) != 3 or min(shape) < 1:
            raise InvalidInputError(f"shapes must hold (m, n, k), each at least 1 (got {shape})")
    kind = as_dtype("dtype", dtype)
    result = kind if out_dtype is None else as_dtype("out_dtype", out_dtype)
    chosen = chosen_planner(device_index, profiles, planner)
    return tuple(_warm(chosen, shape, kind, result, (transpose_a, transpose_b)) for shape in asked)


def _warm(
    planner: Planner, shape: tuple[int, int, int], dtype: DType, out_dtype: DType, transposed: tuple[bool, bool]
) -> Plan | Declined:
    import torch

    (m, n, k), place = shape, torch.device("cuda", planner.device_index)

    def new(rows: int, columns: int, kind: DType, by_columns: bool) -> torch.Tensor:
        stored = (columns, rows) if by_columns else (rows, columns)
        tensor = torch.empty(stored, dtype=getattr(torch, kind.value), device=place)
        return tensor.T if by_columns else tensor

    a, b, out = new(m, k, dtype, transposed[0]), new(k, n, dtype, transposed[1]), new(m, n, out_dtype, False)
    sides, settings = (meta_of(a), meta_of(b), meta_of(out)), read_settings(planner.device.sm)
    planned = planner.plan_mm(*sides, settings)
    if isinstance(planned, Plan):
        with torch.cuda.device(place):
            launch_plan(planner, planned, a, b, out, captured=False)
        # A capture is another key; its plan is made now, too.
        planner.plan_mm(*sides, settings, captured=True)
    return planned


def decline_counts(device_index: int | None = None, profiles: str | Path | None = None) -> dict[str, int]:
    """How many calls of the default planner the library ran instead of us, by code of the decline."""
    return chosen_planner(device_index, profiles, None).decline_counts()
