"""Seeing every product that torch makes, forward and backward, with the very operands that its library would get.

Two ways, for two uses.  :func:`intercepted` puts kernels of ours in the place of torch's for as long as a block lasts:
autograd, autocast and torch's composite operators stand above them and do not know.  :func:`intercepted_here` is a
``TorchDispatchMode``, which costs nothing to enter and sees one thread alone; but where one is on, ``matmul`` takes
operands for subclasses and folds batches that it does not fold else, so that it is for calls that are lowered before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Lock, local
from types import TracebackType
from typing import Any, Self

from gemmdesc.dropin.carried import carried, carry
from gemmdesc.dropin.parsing import SPELLINGS, UNCOVERED, operator_name, parsed
from gemmdesc.dropin.products import Product
from gemmdesc.errors import Declined, GemmdescError, LibraryError

#: Backends whose kernels are replaced.
_BACKENDS = ("CPU", "CUDA")
#: Under which name a thread's handlers are carried along to the threads that run its backward passes.
_PLACE = "gemmdesc.handlers"


class OverrideError(GemmdescError):
    """An override, or a reference, is entered a second time before it is left, or left out of turn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchCall:
    """One call of an operator of torch's that multiplies.

    ``found``: which product it is, or why it has no route.  ``run``: what torch itself gives.
    """

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    found: Product | Declined
    run: Callable[[], Any]

    @property
    def name(self) -> str:
        """The operator's, such as ``addmm``."""
        return operator_name(self.func)

    @property
    def device_type(self) -> str:
        """Where the operands are, ``cuda`` or another."""
        import torch

        given = (*self.args, *self.kwargs.values())
        return next((t.device.type for t in given if isinstance(t, torch.Tensor)), "cpu")

    def require_accepted(self) -> None:
        """Raise what torch raises where it refuses the call; the tensors that it would write to are left alone."""
        written = {a.name for a in self.func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        names = [a.name for a in self.func._schema.arguments]
        args = [_spare(x) if n in written else x for n, x in zip(names, self.args, strict=False)]
        self.func(*args, **{n: _spare(x) if n in written else x for n, x in self.kwargs.items()})


def _spare(tensor: Any) -> Any:
    """Other memory, stored alike: elements that share a place still do, since torch refuses to write to such."""
    import torch

    if tensor.layout is not torch.strided:
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


#: What answers for one call of torch's.
Handler = Callable[[TorchCall], Any]


def _answered(
    handler: Handler, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]
) -> Any:
    """What ``handler`` says of a call, or torch's own answer where there is nothing to multiply."""
    found = parsed(func, args, kwargs)
    if found is None or (isinstance(found, Product) and found.is_empty):
        return run()
    if isinstance(found, Product) and found.out is not None and found.out.numel() == 0:
        # torch gives an empty out its shape, without a word.
        found.out.resize_(found.shape)
    return handler(TorchCall(func=func, args=args, kwargs=kwargs, found=found, run=run))


class Interception:
    """See :func:`intercepted`."""

    def __init__(self, handler: Handler, name: str) -> None:
        self._handler, self._name = handler, name
        self._is_on = False

    def __enter__(self) -> Self:
        if self._is_on:
            raise OverrideError(f"{self._name} must be left before it is entered again (got a second entry)")
        _replaced().acquire()
        self._is_on = True
        carry(_PLACE, (*_entered(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = _entered()
        if entered[-1:] != (self,):
            raise OverrideError(f"{self._name} must be left in its thread and in its turn (got another)")
        self._is_on = False
        carry(_PLACE, entered[:-1])
        _replaced().release()

    def answer(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """The handler's answer; inside it nothing is intercepted."""
        with _hidden():
            return _answered(self._handler, func, args, kwargs, run)


def intercepted(handle: Handler, name: str = "interception") -> Interception:
    """A context in which ``handle`` answers for each of torch's products; products of nothing stay with torch.

    For the thread that enters it, and for the backward passes started there; inside ``handle`` nothing is intercepted.
    The first such context of a process puts kernels in torch's dispatcher that ask for handlers, the last one takes
    them away: no other thread should be multiplying at these two moments.  ``name``: of the context, in messages.

    Raises:
        LibraryError: on entry, torch is older than 2.9 and cannot hand out its own kernels.
        OverrideError: it is entered while it is on, or left in another thread or out of turn.
    """
    return Interception(handle, name)


def is_intercepted() -> bool:
    """Whether :func:`intercepted` is on in this thread."""
    return bool(_handlers())


def _entered() -> tuple[Interception, ...]:
    """What this thread entered and has not left, or what the thread did whose backward pass it runs."""
    entered: tuple[Interception, ...] = carried(_PLACE, ())
    return entered


def _handlers() -> tuple[Interception, ...]:
    """Those of :func:`_entered` that are not hidden."""
    return _entered()[getattr(_own(), "hidden", 0) :]


@cache
def _own() -> local:
    """``hidden``: how many of the handlers, the outermost ones, a thread passes over."""
    return local()


@contextmanager
def _hidden() -> Iterator[None]:
    """All handlers that there are now are passed over in this thread."""
    own = _own()
    before = getattr(own, "hidden", 0)
    own.hidden = len(_entered())
    try:
        yield
    finally:
        own.hidden = before


class _Replaced:
    """The kernels of ours in torch's dispatcher, there while anybody needs them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._library: Any = None

    def acquire(self) -> None:
        with self._lock:
            if self._users == 0:
                self._library = _put_kernels()
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._library._destroy()
                self._library = None


@cache
def _replaced() -> _Replaced:
    return _Replaced()


def _put_kernels() -> Any:
    import torch

    if not hasattr(torch.library, "get_kernel"):
        raise LibraryError(f"torch must be 2.9 or later to hand out its own kernels (got {torch.__version__})")
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that kernels are replaced is the point
        for func, backend in _operators():
            own = torch.library.get_kernel(func, backend)
            name = func._schema.name.partition("::")[2]
            overload = func._schema.overload_name
            library.impl(f"{name}.{overload}" if overload else name, _kernel(func, own), backend, with_keyset=True)
    return library


@cache
def _operators() -> tuple[tuple[Any, str], ...]:
    """Every overload of a product, with each backend that has a kernel of its own for it."""
    import torch

    packets = [getattr(torch.ops.aten, name) for name in (*SPELLINGS, *UNCOVERED) if hasattr(torch.ops.aten, name)]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    held = torch._C._dispatch_has_kernel_for_dispatch_key
    return tuple((func, backend) for func in overloads for backend in _BACKENDS if held(func.name(), backend))


def _kernel(func: Any, own: Any) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        handlers = _handlers()
        if not handlers:
            return own.call_boxed(keyset, *args, **kwargs)
        return handlers[-1].answer(func, args, kwargs, lambda: own.call_boxed(keyset, *args, **kwargs))

    return kernel


def intercepted_here(handle: Handler) -> AbstractContextManager[Any]:
    """:func:`intercepted` by a dispatch mode, for calls that hold no ``matmul``; leaves other threads alone."""
    mode: AbstractContextManager[Any] = _mode_class()(handle)
    return _without_others(mode)


@contextmanager
def _without_others(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """``mode`` alone: the innermost decides."""
    with _hidden(), mode:
        yield


@cache
def _mode_class() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class ProductMode(TorchDispatchMode):
        def __init__(self, handle: Handler) -> None:
            super().__init__()
            self._handle = handle

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            named = kwargs or {}
            if types:
                return func(*args, **named)
            if _is_composite(func):
                # In inference mode composite operators arrive whole.
                with self:
                    return _composite(func, args, named)
            return _answered(self._handle, func, args, named, lambda: func(*args, **named))

    return ProductMode


@cache
def _is_composite(func: Any) -> bool:
    import torch

    return isinstance(func, torch._ops.OpOverload) and func._can_decompose()


def _composite(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What torch's own composite gives, rather than the decomposition in Python that torch keeps for compilers."""
    import torch

    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
        return func._op_dk(key, *args, **kwargs)
    return func.decompose(*args, **kwargs)
