"""Making one call of torch's with the products inside by an executor, and torch's refusals as ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from gemmdesc.books import Book
from gemmdesc.dropin.executors import Executor
from gemmdesc.dropin.intercept import TorchCall, intercepted_here
from gemmdesc.dropin.ledger import process_ledger
from gemmdesc.dropin.named import named_choices
from gemmdesc.dropin.overriding import answer, executor_of, require_policy
from gemmdesc.dropin.pinning import Reference
from gemmdesc.dropin.products import Product
from gemmdesc.dropin.refusals import REFUSALS, is_refusal, refused
from gemmdesc.dropin.sources import Source
from gemmdesc.errors import Declined, DeclinedError, GemmdescError, InvalidInputError
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plan import Planner
from gemmdesc.profiles import Level
from gemmdesc.routes import Release

if TYPE_CHECKING:
    import torch


class Choices(TypedDict, total=False):
    """What every function takes beside its operands, by keyword; :func:`gemmdesc.override` says what they mean."""

    on_decline: str
    named: str | None
    profiles: str | Path | None
    planner: Planner | None
    book: Book | str | Path | None
    replay: Source | Book | str | Path | None
    accept: Level | str
    pin: Reference | None


def through(
    name: str, call: Callable[[], torch.Tensor], operands: Sequence[Any], choices: Choices,
    prepare: Callable[[TorchCall, Executor], TorchCall] = lambda call, executor: call,
) -> torch.Tensor:  # fmt: skip
    """``call`` with its products by us, and torch's refusals as ours; ``prepare`` sees each product first."""
    given: dict[str, Any] = dict(choices)
    on_decline, named = given.pop("on_decline", "raise"), given.pop("named", None)
    require_policy(on_decline)
    if named is not None:
        if choices.keys() - {"named"}:
            raise InvalidInputError(f"named must stand for all choices (got {', '.join(sorted(choices))})")
        executor, on_decline = named_choices(named)
    else:
        if given.get("book") is not None and not _on_gpu(operands):
            given["replay"] = given.pop("book")
        executor = executor_of(**given)
    guarded = _Guarded(executor)

    def handle(inner: TorchCall) -> Any:
        require_place(inner, guarded)
        return answer(prepare(inner, executor), guarded, on_decline, (process_ledger(),))

    try:
        with intercepted_here(handle):
            return call()
    except GemmdescError:
        raise
    except REFUSALS as error:
        if guarded.failed is error or not is_refusal(error):
            raise
        raise refused(name, operands, error) from error


def _on_gpu(operands: Sequence[Any]) -> bool:
    """Whether an operand is on a CUDA device."""
    import torch

    return any(isinstance(t, torch.Tensor) and t.device.type == "cuda" for t in operands)


class _Guarded:
    """An executor that remembers what it failed with, which is no refusal of torch's."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.failed: Exception | None = None

    @property
    def device_type(self) -> str:
        return self._executor.device_type

    def circumstances(self, product: Product) -> tuple[TorchSettings, Release]:
        return self._executor.circumstances(product)

    def run(self, product: Product) -> torch.Tensor | Declined:
        try:
            return self._executor.run(product)
        except Exception as error:
            self.failed = error
            raise


def require_place(call: TorchCall, executor: Executor) -> None:
    """Raise unless the call is on the executor's kind of device: what torch refuses, else what we do."""
    if call.device_type == executor.device_type:
        return
    if isinstance(call.found, Declined) and call.found.code == "unsupported_input":
        call.require_accepted()
    wanted = "a CUDA device" if executor.device_type == "cuda" else "a CPU"
    if call.device_type == "cpu":
        raise InvalidInputError(f"operands must be on {wanted}, or on a CPU beside replay= (got cpu)")
    declined = Declined(code="unsupported_input", reason=f"operands on {call.device_type}, not on {wanted}")
    raise DeclinedError(declined)
