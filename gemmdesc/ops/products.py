"""Products of tensors: planned, launched, and handed to the library itself only where the caller says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemmdesc.books import Book
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings, read_settings
from gemmdesc.ops.booked import book_planner, book_reader, opened_book, replay_on_cpu, require_no_planner
from gemmdesc.ops.defaults import chosen_planner
from gemmdesc.ops.frequent import Made, frequent_products
from gemmdesc.ops.inputs import check_on_gpu
from gemmdesc.ops.launching import launch_plan
from gemmdesc.ops.sides import as_dtype, autocast_decline, checked, meta_of
from gemmdesc.plan import Plan, Planner, mm_meta
from gemmdesc.plan.problems import is_plain
from gemmdesc.profiles import Level

if TYPE_CHECKING:
    import torch

_POLICIES = ("raise", "library")


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    on_decline: str = "raise",
    profiles: str | Path | None = None,
    planner: Planner | None = None,
    book: Book | str | Path | None = None,
    accept: Level | str = Level.VERIFIED,
) -> torch.Tensor:
    """``a`` (m, k) times ``b`` (k, n): the bytes that ``torch.mm`` gives for this very call, from our own kernel.

    Operands are float16 or bfloat16 on one CUDA device, stored by rows or by columns, with any leading dimension and at
    any address that their type allows.  Each rounding is where the library puts it: in every step of the accumulator,
    in every split-K partial and merge, and once into the result's type.  Runs on the current stream of the operands'
    device and does not wait.

    Args:
        a: (m, k).
        b: (k, n), of ``a``'s type.
        out: (m, n) to write to, of the operands' type or float32, by rows or by columns, padded or not.  A new
            row-major tensor by default.
        out_dtype: the result's type, the operands' by default; ``torch.float32`` is the other one.
        on_decline: ``"raise"``, or ``"library"``: ``torch.mm`` runs what we decline, and the planner counts it.
        profiles: a folder or file of profiles to look at first.
        planner: instead of the process's default one, see :func:`gemmdesc.ops.default_planner`.
        book: a book, or its file: the bytes are then those of the card and library that the book was recorded with,
            under its settings; no library is asked, and tensors on a CPU are multiplied there, by the replay.
        accept: the weakest evidence that a rule may have; ``"published"`` takes what others have published of cards
            that were not measured.

    Where m, n or k is 0 the result is empty or zero, as in torch, and no library is asked.

    Raises:
        InvalidInputError: an argument that no such product can have, before anything is written.
        DeclinedError: no promise can be made for this call; ``declined`` says why.
        LibraryError: torch has no cuBLASLt mapped.
        ProfileError: the profile that should apply is broken.
        BookError: the book's file is none, or not whole.
        CaptureError: a CUDA graph is being captured, and the call was not made, or warmed up, before.
    """
    import torch

    if book is not None:
        return _from_book(a, b, out, out_dtype, on_decline, profiles, planner, book, accept)
    if on_decline not in _POLICIES:
        raise InvalidInputError(f"on_decline must be {' or '.join(map(repr, _POLICIES))} (got {on_decline!r})")
    dtype = checked(a, b, out, out_dtype)
    if not (a.numel() and b.numel()) and _autocast(a, out, dtype) is None:
        return torch.zeros(_shape(a, b), dtype=dtype, device=a.device) if out is None else out.zero_()
    chosen = chosen_planner(a.device.index, profiles, planner, accept)
    with torch.cuda.device(a.device):
        captured = torch.cuda.is_current_stream_capturing()
        return multiply(chosen, a, b, out, dtype, on_decline=on_decline, captured=captured, out_dtype=out_dtype)


def _from_book(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    on_decline: str,
    profiles: str | Path | None,
    planner: Planner | None,
    book: Book | str | Path,
    accept: Level | str,
) -> torch.Tensor:
    """:func:`matmul` with the answers of a book."""
    import torch

    if on_decline != "raise":
        raise InvalidInputError(f"on_decline must be 'raise' beside a book, whose library is away (got {on_decline!r})")
    require_no_planner(planner)
    dtype = checked(a, b, out, out_dtype, on_gpu=False)
    if not (a.numel() and b.numel()):
        return torch.zeros(_shape(a, b), dtype=dtype, device=a.device) if out is None else out.zero_()
    if a.device.type == "cpu":
        target = torch.empty(_shape(a, b), dtype=dtype) if out is None else out
        replay_on_cpu(book_reader(book, profiles, accept), a, b, target)
        if out is not None:
            note_write(out)
        return target
    check_on_gpu("a", a)
    chosen, settings = book_planner(book, a.device.index, profiles, accept), opened_book(book).settings
    with torch.cuda.device(a.device):
        captured = torch.cuda.is_current_stream_capturing()
        return multiply(chosen, a, b, out, dtype, on_decline=on_decline, captured=captured, settings=settings)


def _shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int]:
    return a.shape[0], b.shape[1]


def _autocast(a: torch.Tensor, out: torch.Tensor | None, dtype: torch.dtype) -> Declined | None:
    return autocast_decline(as_dtype("a", a.dtype), as_dtype("out_dtype", dtype), fresh=out is None)


def multiply(
    planner: Planner,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    on_decline: str,
    captured: bool,
    settings: TorchSettings | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`matmul` of checked tensors on the current device, the result of type ``dtype``.

    ``settings``: a book's, instead of torch's at this moment, whose autocast then has no part either.  ``out_dtype``:
    the caller's, None where the result's type follows from the tensors.

    Raises:
        DeclinedError: declined, and ``on_decline`` is ``"raise"``.
        CaptureError: ``captured``, and something has still to be made.
    """
    import torch

    planned: Plan | Declined | None = _autocast(a, out, dtype) if settings is None else None
    noting = frequent_products().begin(planner) if settings is None else None
    target = torch.empty(_shape(a, b), dtype=dtype, device=a.device) if out is None else out
    if planned is None:
        settings = settings or read_settings(planner.device.sm)
        planned = planner.plan_mm(meta_of(a), meta_of(b), meta_of(target), settings, captured=captured)
    if isinstance(planned, Declined):
        if on_decline == "raise":
            raise DeclinedError(planned)
        planner.count_decline(planned)
        return library_product(a, b, out, dtype)
    launch_plan(planner, planned, a, b, target, captured=captured)
    if noting is not None:
        frequent_products().note(noting, planned, Made(a=a, b=b, target=target, out=out, out_dtype=out_dtype))
    if out is not None:
        note_write(out)
    return target


def library_product(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """``torch.mm`` itself, its result of type ``dtype``."""
    import torch

    with torch.no_grad():
        if dtype == a.dtype:
            return torch.mm(a, b, out=out)
        return torch.mm(a, b, dtype, out=out)


def run(
    plan: Plan, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, planner: Planner | None = None
) -> torch.Tensor:
    """The product of ``plan`` on tensors stored as those it was made for; nothing is asked or looked up again.

    torch's settings are those of the time of planning.  ``planner``: the one that made the plan; without it, the
    process's default one.

    Raises:
        InvalidInputError: the tensors differ from the plan's in size, type, strides or alignment, the device is
            another, or as :func:`matmul`.
        CaptureError: as :func:`matmul`.
    """
    done = frequent_products().run(plan, a, b, out, planner)
    if done is not None:
        return done
    import torch

    wanted = getattr(torch, plan.meta.out.dtype.value)
    dtype = checked(a, b, out, wanted)
    target = torch.empty(_shape(a, b), dtype=dtype, device=a.device) if out is None else out
    chosen = chosen_planner(a.device.index, None, planner)
    require_as_planned(plan, chosen, a, b, target)
    with torch.cuda.device(a.device):
        launch_plan(chosen, plan, a, b, target, captured=torch.cuda.is_current_stream_capturing())
    frequent_products().note_run(plan, Made(a=a, b=b, target=target, out=out), planner)
    if out is not None:
        note_write(out)
    return target


def require_as_planned(plan: Plan, planner: Planner, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Raise InvalidInputError unless ``plan`` was made for such tensors, on the planner's card and library."""
    if not is_plain(plan.problem):
        raise InvalidInputError(
            "plan must be of one product that takes nothing beside a and b; gemmdesc.ops.run_problem runs others "
            f"(got {plan.problem})"
        )
    if (plan.device, plan.library) != (planner.device, planner.library):
        raise InvalidInputError(
            f"plan must be of {planner.device.folder}, cuBLASLt {planner.library.version} "
            f"(got {plan.device.folder}, {plan.library.version})"
        )
    wanted = plan.meta
    if not (a.numel() and b.numel()):
        raise InvalidInputError(f"a and b must not be empty (got {tuple(a.shape)}, {tuple(b.shape)})")
    given = mm_meta(
        meta_of(a), meta_of(b), meta_of(out), sm_count=wanted.sm_count, shared_bytes=wanted.shared_bytes
    )
    if (given.m, given.n, given.k) != (wanted.m, wanted.n, wanted.k):
        sizes = (wanted.m, wanted.n, wanted.k)
        raise InvalidInputError(f"a and b must have the plan's m, n, k {sizes} (got {(given.m, given.n, given.k)})")
    for name in ("a", "b", "out"):
        if getattr(given, name) != getattr(wanted, name):
            raise InvalidInputError(
                f"{name} must be stored as planned, {getattr(wanted, name)} (got {getattr(given, name)})"
            )


def note_write(out: torch.Tensor) -> None:
    """Let autograd see that ``out`` changed, as it would after an in-place operation of torch's."""
    import torch

    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
