"""``override``: torch's own products inside a block come from our kernels, forward and backward."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import local
from types import TracebackType
from typing import Any, Self

from gemmdesc.books import Book
from gemmdesc.dropin.executors import Executor, ReplayExecutor
from gemmdesc.dropin.intercept import OverrideError, TorchCall, intercepted, is_intercepted
from gemmdesc.dropin.ledger import Ledger, Report, process_ledger
from gemmdesc.dropin.pinning import Reference
from gemmdesc.dropin.planned import PlannedExecutor
from gemmdesc.dropin.sources import Source, source_of
from gemmdesc.errors import Declined, DeclinedError, InvalidInputError
from gemmdesc.ops.booked import book_planner, book_reader
from gemmdesc.ops.defaults import chosen_planner
from gemmdesc.plan import Planner
from gemmdesc.profiles import Level, parse_level

_POLICIES = ("raise", "library")


class Override:
    """A context in which torch's products on the executor's devices come from it.

    Inside, ``torch.matmul``, ``torch.nn.Linear``, ``torch.einsum`` and all others that come down to ``mm``, ``addmm``,
    ``bmm``, ``baddbmm``, ``mv`` and their kin, autograd's backward products among them, give the bytes that they give
    outside.  What is not covered raises :class:`~gemmdesc.errors.DeclinedError`, or runs on torch's own library and is
    counted (``on_decline="library"``).  It holds for the thread that enters it and the backward passes started there;
    it may be entered again once left, may hold others, the innermost of which decides, and leaves nothing behind.  The
    first one of a process to be entered puts kernels into torch's dispatcher, which the last one to be left takes away:
    no other thread should be multiplying at these moments.

    Raises:
        InvalidInputError: ``on_decline`` is neither ``"raise"`` nor ``"library"``.
    """

    def __init__(self, executor: Executor, on_decline: str) -> None:
        require_policy(on_decline)
        self._executor, self._on_decline = executor, on_decline
        self._ledger = Ledger()
        self._inside = intercepted(self._answer, "override")

    def __enter__(self) -> Self:
        """Begin.

        Raises:
            OverrideError: it has begun already.
        """
        self._inside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, value, trace)

    def report(self) -> Report:
        """What it did with each product so far."""
        return self._ledger.report()

    def _answer(self, call: TorchCall) -> Any:
        if call.device_type != self._executor.device_type:
            return call.run()
        return answer(call, self._executor, self._on_decline, (self._ledger, process_ledger()))


def answer(call: TorchCall, executor: Executor, on_decline: str, ledgers: tuple[Ledger, ...]) -> Any:
    """The result of ``call`` by ``executor``, or what ``on_decline`` says.

    Raises:
        DeclinedError: declined, ``on_decline`` is ``"raise"``, and torch itself would take the call.
    """
    found = call.found
    result = found if isinstance(found, Declined) else executor.run(found)
    if not isinstance(result, Declined):
        for ledger in ledgers:
            ledger.add(call.name)
        return result
    if result.code == "unsupported_input" and on_decline == "raise":
        call.require_accepted()
    for ledger in ledgers:
        ledger.add(call.name, result, by_library=on_decline == "library")
    if on_decline == "raise":
        raise DeclinedError(Declined(code=result.code, reason=f"{call.name}: {result.reason}"))
    return call.run()


def require_policy(on_decline: str) -> None:
    """Raise InvalidInputError unless it is ``"raise"`` or ``"library"``."""
    if on_decline not in _POLICIES:
        raise InvalidInputError(f"on_decline must be {' or '.join(map(repr, _POLICIES))} (got {on_decline!r})")


def executor_of(
    profiles: str | Path | None = None,
    planner: Planner | None = None,
    book: Book | str | Path | None = None,
    replay: Source | Book | str | Path | None = None,
    accept: Level | str = Level.VERIFIED,
    pin: Reference | None = None,
) -> ReplayExecutor | PlannedExecutor:
    """What computes products under these choices; nothing is opened before the first product.

    Raises:
        InvalidInputError: choices that exclude one another, or a ``pin`` that is no reference.
        BookError: the book's file is none, or not whole.
    """
    level = parse_level(accept)
    if pin is not None and not isinstance(pin, Reference):
        raise InvalidInputError(f"pin must be what gemmdesc.reference noted (got {type(pin).__name__})")
    if replay is not None:
        if planner is not None or book is not None:
            raise InvalidInputError("replay must be the only source of answers (got a planner or a book beside it)")
        return ReplayExecutor(source=source_of(replay, profiles, level), pin=pin)
    if book is None:
        return PlannedExecutor(planner=lambda index: chosen_planner(index, profiles, planner, level), pin=pin)
    if planner is not None:
        raise InvalidInputError("planner must be None beside a book, which has its own (got one)")
    source = source_of(book, profiles, level)
    return PlannedExecutor(
        planner=lambda index: book_planner(book_reader(book, profiles, level).book, index, profiles, level),
        settings=source.settings,
        release=source.release,
        pin=pin,
    )


def reference(
    *,
    profiles: str | Path | None = None,
    planner: Planner | None = None,
    book: Book | str | Path | None = None,
    replay: Source | Book | str | Path | None = None,
    accept: Level | str = Level.VERIFIED,
) -> Reference:
    """A context in which torch's products are noted, for ``override(pin=...)``; torch's own library computes them.

    Run a model inside at the batch whose orders are to be followed at any other.  The arguments are those of the
    :func:`override` that follows it; a ``replay`` notes products of tensors on a CPU.

    Raises:
        InvalidInputError, BookError: as :func:`override`.
    """
    executor = executor_of(profiles, planner, book, replay, accept)
    return Reference(executor.device_type, executor.circumstances)


def override(
    *,
    on_decline: str = "raise",
    profiles: str | Path | None = None,
    planner: Planner | None = None,
    book: Book | str | Path | None = None,
    replay: Source | Book | str | Path | None = None,
    accept: Level | str = Level.VERIFIED,
    pin: Reference | None = None,
) -> Override:
    """A context in which torch's own products come from our kernels; see :class:`Override`.

    Args:
        on_decline: ``"raise"``, or ``"library"``: torch's own library runs what we decline, and it is counted.
        profiles: a folder or file of profiles to look at first.
        planner: instead of the process's default one of each device.
        book: a book, or its file: the answers come from it instead of the loaded library.
        replay: a book, its file or a :class:`~gemmdesc.dropin.Source`: tensors on a CPU are multiplied, with the bytes
            of the card that it is of, and those on GPUs are left alone.
        accept: the weakest evidence that a rule may have.
        pin: what :func:`reference` noted: each row is summed in the order that it has in the reference, however many
            rows and matrices there are; products that have no reference decline (``no_reference``).

    Raises:
        InvalidInputError: choices that exclude one another, or an unknown policy.
        BookError: the book's file is none, or not whole.
    """
    return Override(executor_of(profiles, planner, book, replay, accept, pin), on_decline)


@cache
def _enabled() -> Any:
    """Overrides of each thread that ``enable`` entered, in order."""
    return local()


def _stack() -> list[Override]:
    held = _enabled()
    if not hasattr(held, "stack"):
        held.stack = []
    stack: list[Override] = held.stack
    return stack


def enable_override(**choices: Any) -> Override:
    """Enter :func:`override` with the same choices in this thread, until :func:`disable_override`."""
    entered = override(**choices).__enter__()
    _stack().append(entered)
    return entered


def disable_override() -> Report:
    """Leave what :func:`enable_override` entered last in this thread, and say what it did.

    Raises:
        OverrideError: nothing was entered so, or a later override is still on.
    """
    stack = _stack()
    if not stack:
        raise OverrideError("enable_override must come before disable_override in this thread (got none)")
    stack[-1].__exit__(None, None, None)
    return stack.pop().report()


def is_overridden() -> bool:
    """Whether torch's products in this thread are intercepted now."""
    return is_intercepted()
