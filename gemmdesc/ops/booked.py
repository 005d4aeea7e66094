"""Products whose answers come from a book: on any card that has the instructions, or on a CPU by the replay."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemmdesc.arithmetic.pointwise import cpu_decline
from gemmdesc.arithmetic.replay import replay
from gemmdesc.bits import bits_dtype
from gemmdesc.books import Book, BookLibrary, BookReader, open_reader, read_book
from gemmdesc.dtypes import parse_dtype
from gemmdesc.errors import BookError, Declined, DeclinedError, InvalidInputError, LibraryError
from gemmdesc.ops.inputs import type_name
from gemmdesc.ops.sides import checked, fresh, meta_of
from gemmdesc.plan import Planner
from gemmdesc.plan.planner import DEFAULT_SHARED_BYTES
from gemmdesc.profiles import Level, parse_level
from gemmdesc.routes import TensorMeta, address_alignment, route_mm, swaps_operands

if TYPE_CHECKING:
    import torch

#: Books, readers and planners of books that a process keeps.
_KEPT = 8


def opened_book(book: Book | str | Path) -> Book:
    """``book``, read where it is a file; a file is read again when it has changed.

    Raises:
        BookError: no such file, or no whole book.
        InvalidInputError: neither a book nor a path.
    """
    if isinstance(book, Book):
        return book
    if not isinstance(book, str | Path):
        raise InvalidInputError(f"book must be a Book or the path of one (got {type(book).__name__})")
    path = Path(book)
    try:
        stat = path.stat()
    except OSError as error:
        raise BookError(f"book must be a readable file ({error}) (got {path})") from None
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=_KEPT)
def _read(path: Path, changed: int, size: int) -> Book:
    return read_book(path)


def book_reader(
    book: Book | str | Path, profiles: str | Path | None = None, accept: Level | str = Level.VERIFIED
) -> BookReader:
    """The reader of ``book`` with the profile of its card and release, found as :func:`matmul` finds one.

    Raises:
        BookError: as :func:`opened_book`.
        ProfileError: the profile that should apply is broken.
    """
    return _reader(opened_book(book), None if profiles is None else Path(profiles), parse_level(accept))


@lru_cache(maxsize=_KEPT)
def _reader(book: Book, profiles: Path | None, accept: Level) -> BookReader:
    return open_reader(book, profiles, accept=accept)


def book_planner(
    book: Book | str | Path,
    device_index: int | None = None,
    profiles: str | Path | None = None,
    accept: Level | str = Level.VERIFIED,
) -> Planner:
    """The planner that follows ``book``; give it to :func:`gemmdesc.ops.run` with a plan of the book.

    Kernels are chosen for the CUDA device ``device_index`` (the current one by default), or, without a GPU, for the
    card that the book was recorded on.

    Raises:
        BookError: as :func:`opened_book`.
        ProfileError: the profile that should apply is broken.
        InvalidInputError: there are devices, but not this one.
    """
    reader = book_reader(book, profiles, accept)
    if device_index is None:
        import torch

        device_index = int(torch.cuda.current_device()) if torch.cuda.is_available() else 0
    return _planner(reader, device_index)


@lru_cache(maxsize=_KEPT)
def _planner(reader: BookReader, device_index: int) -> Planner:
    from gemmdesc.library.device import device_id

    shared_bytes = DEFAULT_SHARED_BYTES
    try:
        here = device_id(device_index)
    except LibraryError:
        here = None
    else:
        import torch

        shared_bytes = torch.cuda.get_device_properties(device_index).shared_memory_per_block_optin
    return Planner(
        lambda: BookLibrary(book=reader.book),
        lambda device, library: reader.profile,
        device_index=device_index,
        shared_bytes=shared_bytes,
        accept=reader.accept,
        runs_on=here,
        objection=reader.objection,
    )


def require_no_planner(planner: Planner | None) -> None:
    """Raise InvalidInputError where a planner is given beside a book."""
    if planner is not None:
        raise InvalidInputError(f"planner must be None beside a book, which has its own (got {planner!r})")


def booked_sides(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """The metas of a product of tensors on a CUDA device or a CPU.

    A tensor on a CPU stands for one at the same offset into an allocation of a GPU's, which starts at an address that
    every alignment divides.

    Raises:
        InvalidInputError: as :func:`gemmdesc.ops.sides.checked`, the place apart.
    """
    dtype = parse_dtype(type_name(checked(a, b, out, out_dtype, on_gpu=False)))
    result = fresh((a.shape[0], b.shape[1]), dtype) if out is None else _meta(out)
    return _meta(a), _meta(b), result


def _meta(tensor: torch.Tensor) -> TensorMeta:
    meta = meta_of(tensor)
    if tensor.device.type == "cuda":
        return meta
    alignment = address_alignment(tensor.storage_offset() * tensor.element_size())
    return TensorMeta(shape=meta.shape, strides=meta.strides, dtype=meta.dtype, alignment_bytes=alignment)


def replay_on_cpu(reader: BookReader, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Write the product of checked CPU tensors, (m, k) x (k, n), to ``out``: the book's order, executed exactly.

    Raises:
        DeclinedError: the product is not in the book, or the book's profile does not know its arithmetic, or no CPU
            replays it.
    """
    import torch

    problem = route_mm(_meta(a), _meta(b), _meta(out), reader.book.settings)
    found = problem if isinstance(problem, Declined) else reader.describe(problem)
    if isinstance(found, Declined):
        raise DeclinedError(found)
    assert not isinstance(problem, Declined)
    unfit = cpu_decline(step for r in found.regions for step in r.descriptor.epilogue)
    if unfit is not None:
        raise DeclinedError(unfit)
    transposed, left, right = swaps_operands(_meta(out)), _bits(a), _bits(b)
    bits = np.empty((a.shape[0], b.shape[1]), dtype=bits_dtype(problem.d_dtype))
    # Both operands are of one type, so that the transposed product, which the problem states, has the same bits.
    for region in found.regions:
        r = region.transposed if transposed else region
        rows, columns = np.arange(r.row_begin, r.row_end), np.arange(r.column_begin, r.column_end)
        bits[np.ix_(rows, columns)] = replay(r.descriptor, left, right, rows=rows, cols=columns)
    signed = torch.from_numpy(bits.view(np.dtype(f"i{bits.itemsize}")))
    with torch.no_grad():
        out.detach().view(signed.dtype).copy_(signed)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """Bit patterns as unsigned integers, row-major."""
    import torch

    size = tensor.element_size()
    signed = tensor.detach().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).contiguous().numpy()
    return np.asarray(signed.view(np.dtype(f"u{size}")))
