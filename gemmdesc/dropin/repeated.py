"""Calls of ``linear``, ``mm`` and of products with an epilogue like ones made before: found, and launched at once.

As :mod:`gemmdesc.ops.frequent` does for plain products of two matrices: a call is looked up by how all of its tensors
are stored, by the epilogue, torch's settings and whether a graph is being captured (:mod:`gemmdesc.ops.stored`, which
also says what no lookup decides).  The long way notes what it found, where one program did all of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from struct import pack
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
from gemmdesc.ops.stored import Key, Reader, tensor_reader
from gemmdesc.plan import RepeatedCall
from gemmdesc.routes import Activation

if TYPE_CHECKING:
    import torch

#: Choices that leave a repeated call what it is.
_SIMPLE = frozenset(("on_decline", "planner"))
_POLICIES = ("raise", "library")
_MAPPINGS = (dict, type(None))


class Asked(NamedTuple):
    """A call as it is looked up: its tensors, first those that it multiplies and adds, and the epilogue's operands.

    ``key``: all that its program depends on.  ``at``: the tensors' addresses, then the operands'.
    """

    key: Key
    at: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    operands: Mapping[str, torch.Tensor]


class RepeatedCalls:
    """Finds and runs repeated calls; any thread may use it.  ``read``: instead of the quickest way that there is."""

    def __init__(self, runtime: Runtime, ledger: Ledger, read: Reader | None = None) -> None:
        import torch

        self._runtime, self._ledger = runtime, ledger
        self._read, self._repeat = tensor_reader(runtime) if read is None else (read, None)
        self._current_stream = runtime.current_stream
        self._bytes, self._empty = torch.uint8, torch.empty_strided

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
        if epilogue is None:
            spelled = ""
        elif type(epilogue) is Epilogue:
            spelled = epilogue.spelled
        else:
            return None, None
        if type(operands) not in _MAPPINGS:
            return None, None
        given = cast("tuple[torch.Tensor, ...]", tensors)
        head, planner = (name, spelled, len(given)), choices.get("planner") if choices else None
        found: Any
        if self._repeat is None:
            found = self._read(head, given, operands)
        else:
            found = self._repeat(head, given, operands, planner, known_planner)
        if found is None:
            return None, None
        if type(found) is not tuple:
            return None, found
        key, at, index = found
        if planner is None:
            planner = known_planner(index)
        call = None if planner is None else planner.repeated.get(key)
        if call is None:
            return Asked(key, at, given, operands or {}), None
        result = call.new_result()
        stream = self._current_stream(index)
        if call.scratch_bytes:
            self._launch(call, at, result, stream)
        else:
            call.program(stream, call.inputs((*at, result.data_ptr(), 0, *call.constants)))
        self._ledger.add(call.operator)
        return None, result

    def _launch(self, call: RepeatedCall, at: tuple[int, ...], result: torch.Tensor, stream: int) -> None:
        """Run the program with memory of torch's allocator."""
        functions = self._runtime.scratch
        if functions is None:
            held = self._empty((call.scratch_bytes,), (1,), dtype=self._bytes, device=call.device)
            call.program(stream, call.inputs((*at, result.data_ptr(), held.data_ptr(), *call.constants)))
            return
        take, give_back = functions
        scratch = take(call.scratch_bytes, stream)
        try:
            call.program(stream, call.inputs((*at, result.data_ptr(), scratch, *call.constants)))
        finally:
            give_back(scratch)

    def note(self, asked: Asked, launched: Sequence[Launched], result: torch.Tensor) -> None:
        """Remember a call that came down to ``launched``, unless that was not one program on its own tensors."""
        # Torch may take another way where a gradient will be wanted.
        if len(launched) != 1 or result.requires_grad:
            return
        found = _call(asked, launched[0], result, self._ledger.tally(launched[0].ready.product.name))
        # Settings may have changed under it, and who else holds the tensors may have changed those.
        again = self._read(asked.key[0], asked.tensors, asked.operands)
        if found is not None and again is not None and again[:2] == (asked.key, asked.at):
            launched[0].planner.repeated.put(asked.key, found)


def _call(asked: Asked, launched: Launched, result: torch.Tensor, tally: list[int]) -> RepeatedCall | None:
    """What to do for calls like ``asked``; None where an input is no tensor of the call, or more was done."""
    from gemmdesc.kernels.preparing import float32_bits
    from gemmdesc.kernels.streams import new_tensor

    ready, program = launched.ready, launched.program
    product, tensors = ready.product, ready.tensors
    own, given = len(asked.tensors), len(asked.at)
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
    # Behind the call's addresses stand the result's, the scratch's and constants, the first of which fills gaps.
    constants = [0, float32_bits(float(tensors.alpha)), float32_bits(float(tensors.beta))]
    first = given + 2
    places = [first] * int(Input.NAMED)
    places[Input.OUT], places[Input.SCRATCH] = given, given + 1
    places[Input.ALPHA], places[Input.BETA] = first + 1, first + 2
    for source, place in enumerate((Input.A, Input.B, Input.BIAS)[:own]):
        places[place] = source
    names = list(asked.operands)
    for name, operand in tensors.named.items():
        if isinstance(operand, float):
            places.append(first + len(constants))
            constants.append(float32_bits(operand))
            continue
        assert product.fused is not None
        called = product.fused.sources[name]
        if called not in names:
            return None
        there = asked.operands[called]
        if operand.data_ptr() != there.data_ptr() or operand.dtype != there.dtype:
            return None
        places.append(own + names.index(called))
    made = new_tensor(tuple(result.shape), tuple(result.stride()), result.dtype, result.device)
    quick = None
    if program.quick is not None and not program.scratch_bytes and not program.counted:
        order, values = pack(f"={len(places)}q", *places), pack(f"={len(constants)}Q", *constants)
        quick = (made, order, values, *program.quick, tally)
    return RepeatedCall(
        program=program, operator=product.name, scratch_bytes=program.scratch_bytes, new_result=made,
        device=result.device, inputs=itemgetter(*places), constants=tuple(constants), quick=quick,
    )  # fmt: skip


def _is_whole(result: torch.Tensor, space: torch.Tensor) -> bool:
    """Whether ``result`` is all that the kernels wrote, in the same order."""
    alike = (result.data_ptr(), result.dtype, result.numel()) == (space.data_ptr(), space.dtype, space.numel())
    return alike and bool(result.is_contiguous()) and bool(space.is_contiguous())


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
