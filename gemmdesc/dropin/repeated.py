"""Calls of ``linear``, ``mm`` and of products with an epilogue like ones made before: found, and launched at once.

As :mod:`gemmdesc.ops.frequent` does for plain products of two matrices: a call is looked up by how all of its tensors
are stored, by the epilogue, torch's settings and whether a graph is being captured; what no lookup decides is checked
at each call.  The long way notes what it found, where one program did all of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gemmdesc.dropin.epilogue import Epilogue
from gemmdesc.dropin.intercept import TorchCall
from gemmdesc.dropin.ledger import Ledger, process_ledger
from gemmdesc.dropin.planned import Launched
from gemmdesc.dropin.products import Family, Product
from gemmdesc.dropin.through import Choices, through
from gemmdesc.kernels.program import Input
from gemmdesc.ops.defaults import known_planner
from gemmdesc.ops.frequent import Runtime, torch_runtime
from gemmdesc.plan import RepeatedCall
from gemmdesc.routes import Activation

if TYPE_CHECKING:
    import torch

#: Places among a program's inputs, as plain numbers.
_OUT, _SCRATCH = int(Input.OUT), int(Input.SCRATCH)
#: Choices that leave a repeated call what it is.
_SIMPLE = frozenset(("on_decline", "planner"))
_POLICIES = ("raise", "library")
_MAPPINGS = (dict, type(None))


class Asked(NamedTuple):
    """A call as it is looked up: its tensors, first those that it multiplies and adds, then the epilogue's operands.

    ``key``: all that its program depends on.  ``at``: the tensors' addresses.
    """

    key: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    at: tuple[int, ...]


class RepeatedCalls:
    """Finds and runs repeated calls; any thread may use it."""

    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        import torch

        self._runtime, self._ledger = runtime, ledger
        self._types = frozenset((torch.Tensor, torch.nn.Parameter))
        self._bytes, self._empty = torch.uint8, torch.empty_strided
        self._grad_enabled, self._autocast = torch.is_grad_enabled, _any_autocast()

    def find(
        self, name: str, tensors: tuple[torch.Tensor | None, ...], epilogue: Epilogue | None,
        operands: Mapping[str, torch.Tensor] | None, choices: Choices,
    ) -> tuple[Asked | None, torch.Tensor | None]:  # fmt: skip
        """The call of function ``name`` as it is looked up, None where calls like it are never noted; and its result.

        There is a result where a call like it was noted; else it must take the long way.

        Raises:
            LaunchError: the CUDA driver refuses.
        """
        if choices and not (choices.keys() <= _SIMPLE and choices.get("on_decline", "raise") in _POLICIES):
            return None, None
        if tensors[-1] is None:
            tensors = tensors[:-1]
        if (epilogue is not None and type(epilogue) is not Epilogue) or type(operands) not in _MAPPINGS:
            return None, None
        names, given = tuple(operands or ()), cast("tuple[torch.Tensor, ...]", tensors)
        if operands:
            given = (*given, *operands.values())
        runtime, types = self._runtime, self._types
        device_of = runtime.device_of
        at, graph, plain = [], self._grad_enabled(), True
        try:
            # Torch is not asked of its device before there is a tensor on one.
            if type(given[0]) not in types:
                return None, None
            index = device_of(given[0])
            if index < 0 or index != runtime.current_device():
                return None, None
            spelled = "" if epilogue is None else epilogue.spelled
            key = [name, spelled, len(tensors), names, runtime.is_capturing(), runtime.settings()]
            for tensor in given:
                if type(tensor) not in types or device_of(tensor) != index:
                    return None, None
                address = tensor.data_ptr()
                at.append(address)
                key += (tensor.shape, tensor.stride(), address & -address & 255, tensor.dtype)
                if tensor.is_neg() or (graph and tensor.requires_grad):
                    plain = False
        except RuntimeError:  # a tensor without strides or memory
            return None, None
        found = tuple(key)
        planner = choices.get("planner") if choices else None
        if planner is None:
            planner = known_planner(index)
        call = None if planner is None else planner.repeated.get(found)
        if call is None or not plain or self._autocast():
            return Asked(found, given, names, tuple(at)), None
        return None, self._run(call, at, index)

    def _run(self, call: RepeatedCall, at: Sequence[int], index: int) -> torch.Tensor:
        """The result of a call that was noted, of tensors at those addresses."""
        result = self._empty(call.shape, call.strides, dtype=call.dtype, device=call.device)
        inputs = list(call.inputs)
        inputs[_OUT] = result.data_ptr()
        for place, source in call.places:
            inputs[place] = at[source]
        stream = self._runtime.current_stream(index)
        if call.scratch_bytes:
            self._launch(call, inputs, stream)
        else:
            call.program(stream, tuple(inputs))
        self._ledger.add(call.operator)
        return result

    def _launch(self, call: RepeatedCall, inputs: list[int], stream: int) -> None:
        """Run the program with memory of torch's allocator."""
        functions = self._runtime.scratch
        if functions is None:
            held = self._empty((call.scratch_bytes,), (1,), dtype=self._bytes, device=call.device)
            inputs[_SCRATCH] = held.data_ptr()
            call.program(stream, tuple(inputs))
            return
        take, give_back = functions
        inputs[_SCRATCH] = take(call.scratch_bytes, stream)
        try:
            call.program(stream, tuple(inputs))
        finally:
            give_back(inputs[_SCRATCH])

    def note(self, asked: Asked, launched: Sequence[Launched], result: torch.Tensor) -> None:
        """Remember a call that came down to ``launched``, unless that was not one program on its own tensors."""
        # Torch may take another way where a gradient will be wanted, or types are converted.
        if len(launched) != 1 or result.requires_grad or self._autocast():
            return
        found = _call(asked, launched[0], result)
        runtime = self._runtime
        same = (runtime.is_capturing(), runtime.settings()) == asked.key[4:6]
        if found is not None and same:
            launched[0].planner.repeated.put(asked.key, found)


def _call(asked: Asked, launched: Launched, result: torch.Tensor) -> RepeatedCall | None:
    """What to do for calls like ``asked``; None where an input is no tensor of the call, or more was done."""
    from gemmdesc.kernels.preparing import float32_bits

    ready, program = launched.ready, launched.program
    product, tensors = ready.product, ready.tensors
    own = len(asked.tensors) - len(asked.names)
    if product.family is not Family.MATRIX or product.out is not None or product.scales is not None:
        return None
    if ready.route.copies or ready.route.activation is not Activation.NONE or tensors.c is not None:
        return None
    if ready.plan.problem.batch_count != 1 or not _is_whole(result, ready.space):
        return None
    multiplied = [tensors.a, tensors.b, *([] if tensors.bias is None else [tensors.bias])]
    # Tensors at one address could not be told apart.
    if len(set(asked.at[:own])) != own or [t.data_ptr() for t in multiplied] != list(asked.at[:own]):
        return None
    inputs = [0] * int(Input.NAMED)
    inputs[Input.ALPHA], inputs[Input.BETA] = float32_bits(float(tensors.alpha)), float32_bits(float(tensors.beta))
    places = [(int(p), i) for i, p in enumerate((Input.A, Input.B, Input.BIAS)[:own])]
    for i, (name, operand) in enumerate(tensors.named.items()):
        if isinstance(operand, float):
            inputs.append(float32_bits(operand))
            continue
        assert product.fused is not None
        called = product.fused.sources[name]
        if called not in asked.names:
            return None
        source = own + asked.names.index(called)
        given = asked.tensors[source]
        if operand.data_ptr() != given.data_ptr() or operand.dtype != given.dtype:
            return None
        inputs.append(0)
        places.append((Input.NAMED + i, source))
    return RepeatedCall(
        program=program, operator=product.name, scratch_bytes=program.scratch_bytes, shape=tuple(result.shape),
        strides=tuple(result.stride()), dtype=result.dtype, device=result.device, inputs=tuple(inputs),
        places=tuple(places),
    )  # fmt: skip


def _is_whole(result: torch.Tensor, space: torch.Tensor) -> bool:
    """Whether ``result`` is all that the kernels wrote, in the same order."""
    alike = (result.data_ptr(), result.dtype, result.numel()) == (space.data_ptr(), space.dtype, space.numel())
    return alike and bool(result.is_contiguous()) and bool(space.is_contiguous())


def _any_autocast() -> Callable[[], bool]:
    """Whether autocast is on, for CUDA or the host."""
    import torch

    behind: Callable[[], bool] | None = getattr(torch._C, "_is_any_autocast_enabled", None)
    return behind or (lambda: torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"))


@cache
def repeated_calls() -> RepeatedCalls:
    """The process's, on torch's devices."""
    return RepeatedCalls(torch_runtime(), process_ledger())


def witnessed(call: TorchCall, witness: Callable[[Launched], None]) -> TorchCall:
    """``call``, whose product tells how it was launched."""
    found = call.found
    return replace(call, found=replace(found, witness=witness)) if isinstance(found, Product) else call


def repeated(
    name: str, call: Callable[[], torch.Tensor], tensors: tuple[torch.Tensor | None, ...], choices: Choices
) -> torch.Tensor:
    """:func:`gemmdesc.dropin.through.through` of a function without an epilogue, at once where it was made before."""
    calls = repeated_calls()
    asked, done = calls.find(name, tensors, None, None, choices)
    if done is not None:
        return done
    launched: list[Launched] = []
    result = through(
        name, call, tensors, choices, prepare=lambda inner, executor: witnessed(inner, launched.append)
    )  # fmt: skip
    if asked is not None:
        calls.note(asked, launched, result)
    return result
